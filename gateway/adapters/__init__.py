"""I/O at the edges of the gateway."""
