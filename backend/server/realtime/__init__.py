"""GET /v1/realtime: live sessions over a WebSocket, text alone."""
