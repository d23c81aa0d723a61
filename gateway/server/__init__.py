"""The gateway's HTTP server and the way of a request through it."""
