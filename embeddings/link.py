"""One connection to the embeddings service: many requests in flight, told apart by id."""

import asyncio
import itertools
from pathlib import Path
from typing import Final

from embeddings.fields import ProtocolError
from embeddings.messages import Cancel, Reply, Request
from embeddings.protocol import MAX_FRAME_BYTES, Envelope, FrameDecoder, encode

_READ_BYTES: Final = 1 << 16
_REQUEST_IDS: Final = 1 << 32
_MOST_UNSENT_BYTES: Final = 4 * MAX_FRAME_BYTES


class LinkLostError(Exception):
    """The connection ended, or the service broke the protocol."""


class LinkCongestedError(Exception):
    """The service does not read what was sent before."""


class Link:
    """Made by `open_link`. Once lost it stays lost: all that wait get LinkLostError."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._reader = reader
        self._writer = writer
        self._ids = itertools.count(1)
        self._pending: dict[int, asyncio.Future[Reply]] = {}
        self._lost: str | None = None
        self._reading = asyncio.create_task(self._read())
        self.replies = 0

    @property
    def alive(self) -> bool:
        """Whether requests can still be sent."""
        return self._lost is None

    async def ask(self, request: Request) -> Reply:
        """Send a request and return its reply.

        Cancelled, it tells the service that nobody waits. Raises LinkLostError,
        LinkCongestedError, and what `protocol.encode` raises.
        """
        if self._lost is not None:
            raise LinkLostError(self._lost)
        if self._writer.transport.get_write_buffer_size() > _MOST_UNSENT_BYTES:
            raise LinkCongestedError(f"over {_MOST_UNSENT_BYTES} bytes wait to be sent")
        request_id = next(self._ids) % _REQUEST_IDS
        frame = encode(request_id, request)
        answered: asyncio.Future[Reply] = asyncio.get_running_loop().create_future()
        self._pending[request_id] = answered
        self._writer.write(frame)
        try:
            return await answered
        finally:
            if self._pending.pop(request_id, None) is not None:
                self._writer.write(encode(request_id, Cancel()))

    def abort(self, why: str) -> None:
        """Give the connection up; those who wait get LinkLostError with `why`."""
        if self._lost is None:
            self._lost = why
            self._writer.transport.abort()
            pending, self._pending = self._pending, {}
            for answered in pending.values():
                if not answered.done():
                    answered.set_exception(LinkLostError(why))

    async def close(self, why: str) -> None:
        """Abort, and return when nothing of the connection is left running."""
        self.abort(why)
        await asyncio.wait([self._reading])

    async def _read(self) -> None:
        decoder = FrameDecoder()
        why = "the embeddings service closed the connection"
        try:
            while data := await self._reader.read(_READ_BYTES):
                for envelope in decoder.feed(data):
                    self._take(envelope)
        except (ProtocolError, ConnectionError) as error:
            why = f"{type(error).__name__}: {error}"
        finally:
            self.abort(why)

    def _take(self, envelope: Envelope) -> None:
        if isinstance(envelope.message, Request):
            raise ProtocolError("a request where replies are expected")
        self.replies += 1
        answered = self._pending.pop(envelope.request_id, None)
        if answered is not None and not answered.done():
            answered.set_result(envelope.message)


async def open_link(path: Path) -> Link:
    """Connect to the service. Raises OSError."""
    reader, writer = await asyncio.open_unix_connection(str(path))
    return Link(reader, writer)
