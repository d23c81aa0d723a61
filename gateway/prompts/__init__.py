"""Changes to a request before it is sent."""
