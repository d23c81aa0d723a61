"""A streamed reply: server-sent events in OpenAI's forms."""

import asyncio
from collections.abc import Iterable, Mapping
from typing import Any

import orjson
from aiohttp import web
from aiohttp.abc import AbstractStreamWriter
from aiohttp.web_request import BaseRequest

WRITE_SECONDS = 30.0
"""A client that takes nothing for so long, with all buffers full, is taken to be gone."""

_HEADERS = {"Content-Type": "text/event-stream; charset=utf-8", "Cache-Control": "no-cache"}

Event = Mapping[str, Any]


class EventStream(web.StreamResponse):
    """Ends in ``[DONE]``, or in an error event, after which the connection is closed.

    ``typed``: each event carries its type, as the Responses API's do, and that of the last event
    says the end. Every write raises ConnectionResetError once the client has left, or reads no
    longer.
    """

    def __init__(self, *, typed: bool = False) -> None:
        """Nothing is sent before ``prepare``."""
        super().__init__(headers=_HEADERS)
        self.failed = False
        self._typed = typed
        self._transport: asyncio.Transport | None = None

    async def prepare(self, request: BaseRequest) -> AbstractStreamWriter | None:
        """Send the head."""
        self._transport = request.transport
        return await super().prepare(request)

    async def write(self, data: bytes | bytearray | memoryview) -> None:
        """Send bytes; a client that does not read is disconnected."""
        try:
            async with asyncio.timeout(WRITE_SECONDS):
                await super().write(data)
        except TimeoutError as error:
            if self._transport is not None:
                self._transport.abort()  # what it has not read would keep the socket open
            raise ConnectionResetError("the client does not read") from error

    async def send(self, events: Iterable[Event]) -> None:
        """Send events in one write."""
        if written := b"".join(map(self._write_event, events)):
            await self.write(written)

    async def finish(self, events: Iterable[Event]) -> None:
        """Send the last events of a complete answer."""
        await self.send(events)
        if not self._typed:
            await self.write(b"data: [DONE]\n\n")
        await self.write_eof()

    async def fail(self, events: Iterable[Event]) -> None:
        """Send the events of an answer that broke off."""
        self.failed = True
        self.force_close()
        await self.send(events)
        await self.write_eof()

    def _write_event(self, event: Event) -> bytes:
        data = b"data: " + orjson.dumps(event) + b"\n\n"
        return f"event: {event['type']}\n".encode() + data if self._typed else data
