"""A streamed reply: server-sent events in OpenAI's form."""

from collections.abc import Iterable, Mapping
from typing import Any

import orjson
from aiohttp import web

from backend.server.errors import ApiError

_HEADERS = {"Content-Type": "text/event-stream; charset=utf-8", "Cache-Control": "no-cache"}


class EventStream(web.StreamResponse):
    """Ends either in ``[DONE]`` or in an error event, after which the connection is closed."""

    def __init__(self) -> None:
        """Nothing is sent before ``prepare``."""
        super().__init__(headers=_HEADERS)
        self.failed = False

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
