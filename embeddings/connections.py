"""Server side of the wire: one client's connection, many requests at once.

Laws: every request gets exactly one reply unless its client cancelled it or went away; the requests
in flight on a connection are bounded; a client that breaks the protocol is told once and cut off.
"""

import asyncio
import logging
from collections.abc import Awaitable, Callable
from typing import Final

from embeddings.messages import Cancel, Reason, Refused, Reply, Request
from embeddings.protocol import Envelope, FrameDecoder, ProtocolError, encode

MAX_IN_FLIGHT: Final = 1024
_READ_BYTES: Final = 1 << 16

_log = logging.getLogger(__name__)

Answer = Callable[[Request], Awaitable[Reply]]


class Connection:
    """Serves one client with `answer`, which must not raise."""

    def __init__(
        self, answer: Answer, reader: asyncio.StreamReader, writer: asyncio.StreamWriter
    ) -> None:
        self._answer = answer
        self._reader = reader
        self._writer = writer
        self._running: dict[int, asyncio.Task[None]] = {}

    async def serve(self) -> None:
        """Serve until the client leaves; then nothing of it is left running."""
        decoder = FrameDecoder()
        try:
            while data := await self._reader.read(_READ_BYTES):
                for envelope in decoder.feed(data):
                    self._take(envelope)
        except ProtocolError as error:
            _log.warning("client cut off: %s", error)
            self._reply(0, Refused(Reason.ERROR, str(error)))
        except ConnectionError as error:
            _log.debug("client gone: %s", error)
        finally:
            for task in self._running.values():
                task.cancel()
            self._writer.close()

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
        reply = await self._answer(request)
        self._reply(request_id, reply)
        try:
            # The slot is held until the client has read: one that never reads comes to a stop.
            await self._writer.drain()
        except ConnectionError as error:
            _log.debug("client gone before its reply: %s", error)

    def _reply(self, request_id: int, reply: Reply) -> None:
        if not self._writer.is_closing():
            self._writer.write(encode(request_id, reply))
