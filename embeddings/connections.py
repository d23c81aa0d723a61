"""Server side of the wire: one client's connection, many requests at once.

Laws: every request gets exactly one reply unless its client cancelled it or went away; the requests
in flight on a connection are bounded; a client that breaks the protocol is told once and cut off;
a client that does not read its replies is not read from.
"""

import asyncio
import logging
from collections.abc import Awaitable, Callable
from typing import Final, cast

from embeddings.messages import Cancel, Reason, Refused, Reply, Request
from embeddings.protocol import Envelope, FrameDecoder, ProtocolError, encode

MAX_IN_FLIGHT: Final = 1024

_log = logging.getLogger(__name__)

Answer = Callable[[Request], Awaitable[Reply]]


class Connection(asyncio.Protocol):
    """Serves one client with `answer`, which must not raise; it is in `connections` while open."""

    def __init__(self, answer: Answer, connections: "set[Connection]") -> None:
        self._answer = answer
        self._connections = connections
        self._decoder = FrameDecoder()
        self._running: dict[int, asyncio.Task[None]] = {}

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast("asyncio.Transport", transport)
        self._connections.add(self)

    def data_received(self, data: bytes) -> None:
        if self._transport.is_closing():
            return
        try:
            for envelope in self._decoder.feed(data):
                self._take(envelope)
        except ProtocolError as error:
            _log.warning("client cut off: %s", error)
            self._reply(0, Refused(Reason.ERROR, str(error)))
            self._cancel()
            self._transport.close()

    def pause_writing(self) -> None:
        self._transport.pause_reading()

    def resume_writing(self) -> None:
        if not self._transport.is_closing():
            self._transport.resume_reading()

    def connection_lost(self, exc: Exception | None) -> None:
        if exc is not None:
            _log.debug("client gone: %s", exc)
        self._connections.discard(self)
        self._cancel()

    async def close(self) -> None:
        """Cut the client off; then nothing of the connection is left running."""
        self._transport.abort()
        self._cancel()
        await asyncio.gather(*self._running.values(), return_exceptions=True)

    def _cancel(self) -> None:
        for task in self._running.values():
            task.cancel()

    def _take(self, envelope: Envelope) -> None:
        request_id, message = envelope.request_id, envelope.message
        if isinstance(message, Cancel):
            running = self._running.get(request_id)
            if running is not None:
                running.cancel()
        elif not isinstance(message, Request):
            raise ProtocolError(f"{type(message).__name__} is no request")
        elif request_id in self._running:
            raise ProtocolError(f"request id {request_id} is in use")
        elif len(self._running) >= MAX_IN_FLIGHT:
            self._reply(
                request_id, Refused(Reason.OVERLOADED, f"{MAX_IN_FLIGHT} requests in flight")
            )
        else:
            task = asyncio.create_task(self._serve_one(request_id, message))
            self._running[request_id] = task
            task.add_done_callback(lambda _: self._running.pop(request_id))

    async def _serve_one(self, request_id: int, request: Request) -> None:
        self._reply(request_id, await self._answer(request))

    def _reply(self, request_id: int, reply: Reply) -> None:
        if not self._transport.is_closing():
            self._transport.write(encode(request_id, reply))
