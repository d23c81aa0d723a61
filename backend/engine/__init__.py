"""The engine: its process, its loop, and the messages between it and the server."""
