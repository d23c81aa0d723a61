"""A streamed reply: server-sent events in OpenAI's form."""

import asyncio
from collections.abc import Iterable, Mapping
from typing import Any

import orjson
from aiohttp import web
from aiohttp.abc import AbstractStreamWriter
from aiohttp.web_request import BaseRequest

from backend.server.protocol.errors import ApiError

WRITE_SECONDS = 30.0
"""A client that takes nothing for so long, with all buffers full, is taken to be gone."""

_HEADERS = {"Content-Type": "text/event-stream; charset=utf-8", "Cache-Control": "no-cache"}


class EventStream(web.StreamResponse):
    """Ends either in ``[DONE]`` or in an error event, after which the connection is closed.

    Every write raises ConnectionResetError once the client has left, or reads no longer.
    """

    def __init__(self) -> None:
        """Nothing is sent before ``prepare``."""
        super().__init__(headers=_HEADERS)
        self.failed = False
        self._transport: asyncio.Transport | None = None

    async def prepare(self, request: BaseRequest) -> AbstractStreamWriter | None:
        """See web.StreamResponse."""
        self._transport = request.transport
        return await super().prepare(request)

    async def write(self, data: bytes | bytearray | memoryview) -> None:
        """See web.StreamResponse."""
        try:
            async with asyncio.timeout(WRITE_SECONDS):
                await super().write(data)
        except TimeoutError as error:
            if self._transport is not None:
                self._transport.abort()  # what it has not read would keep the socket open
            raise ConnectionResetError("the client does not read") from error

    async def send(self, data: dict[str, Any]) -> None:
        """Send one event."""
        await self.write(b"data: " + orjson.dumps(data) + b"\n\n")

    async def finish(self) -> None:
        """Say that the answer is complete."""
        await self.write(b"data: [DONE]\n\n")
        await self.write_eof()

    async def fail(self, error: ApiError) -> None:
        """Say that the answer broke off."""
        self.failed = True
        self.force_close()
        await self.send(error.body())
        await self.write_eof()


class TypedEventStream(EventStream):
    """Events that carry their type, as the Responses API's do; that of the last says the end."""

    async def send_all(self, events: Iterable[Mapping[str, Any]]) -> None:
        """Send events in one write."""
        if written := b"".join(map(_typed, events)):
            await self.write(written)

    async def end(self, events: Iterable[Mapping[str, Any]], *, failed: bool = False) -> None:
        """Send the last events."""
        self.failed = failed
        if failed:
            self.force_close()
        await self.send_all(events)
        await self.write_eof()


def _typed(event: Mapping[str, Any]) -> bytes:
    return f"event: {event['type']}\n".encode() + b"data: " + orjson.dumps(event) + b"\n\n"
