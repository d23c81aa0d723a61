"""All live sessions of a server: who may begin one, how many there are, and their end."""

from collections.abc import Sequence

from aiohttp import web

from backend.server.http_server import is_foreign, is_websocket
from backend.server.protocol.errors import ApiError, invalid
from backend.server.realtime.session import Bounds, LiveSession
from backend.server.served_model import ServedModel

SUBPROTOCOL = "realtime"
BROWSER_KEY = "openai-insecure-api-key."
"""Before the key in a subprotocol: browsers cannot send ``Authorization``."""

_FOREIGN = ("call_id", "intent")


class Realtime:
    """The sessions of one application."""

    def __init__(self, model: ServedModel, bounds: Bounds | None = None) -> None:
        """``bounds`` are the usual ones if None."""
        self._model = model
        self._bounds = bounds or Bounds()
        self._sessions: set[LiveSession] = set()
        self._num_open = 0

    async def serve(self, request: web.Request) -> web.StreamResponse:
        """Answer GET /v1/realtime. Raises ApiError before the socket is switched."""
        if not is_websocket(request):
            message = "This is a WebSocket endpoint: send 'Upgrade: websocket'."
            upgrade = {"Upgrade": "websocket"}
            raise ApiError(426, message, code="websocket_required", headers=upgrade)
        for name in _FOREIGN:
            if name in request.query:
                message = f"Unsupported parameter: '{name}' is not supported by this server."
                raise invalid(message, name, "unsupported_parameter")
        if is_foreign(request):
            message = "A page of another origin may not open a WebSocket here: it has no keys."
            raise ApiError(403, message, param="Origin", code="origin_not_allowed")
        name = request.query.get("model", self._model.name)
        loaded = self._model.require(name)
        protocols, key = _offered(request)
        if self._num_open >= self._bounds.sessions:
            message = f"The server has {self._num_open} realtime sessions, the most there may be."
            busy = {"Retry-After": "5"}
            raise ApiError(503, message, code="too_many_sessions", headers=busy)
        bounds = self._bounds
        socket = web.WebSocketResponse(
            timeout=bounds.close_seconds,
            heartbeat=bounds.heartbeat_seconds,
            protocols=protocols,
            compress=False,  # a small message could inflate to a large one
            max_msg_size=bounds.message_bytes,
        )
        self._num_open += 1
        try:
            await socket.prepare(request)
            session = LiveSession(request, socket, loaded, name, bounds, key=key)
            self._sessions.add(session)
            try:
                await session.run()
            finally:
                self._sessions.discard(session)
        finally:
            self._num_open -= 1
        return socket

    def close(self) -> None:
        """End all sessions, each after the response that it is generating."""
        for session in self._sessions:
            session.stop()


def _offered(request: web.Request) -> tuple[Sequence[str], str | None]:
    """Return the subprotocol to be chosen, and the key that a browser has put beside it.

    aiohttp would log what was offered, a browser's key too, if none of it were.
    """
    offered = [
        each.strip()
        for line in request.headers.getall("Sec-WebSocket-Protocol", ())
        for each in line.split(",")
    ]
    if offered and SUBPROTOCOL not in offered:
        message = f"The subprotocol of this endpoint is '{SUBPROTOCOL}': offer it, or none."
        raise invalid(message, "Sec-WebSocket-Protocol", "unsupported_subprotocol")
    keys = (each.removeprefix(BROWSER_KEY) for each in offered if each.startswith(BROWSER_KEY))
    return (SUBPROTOCOL,) if offered else (), next(keys, None)
