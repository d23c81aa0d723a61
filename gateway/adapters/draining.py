"""What is under way when a worker stops.

Law: answers get so many seconds to come to their end; what waits for an upstream still is told that
it ends, in the form that is right at that moment, and the rest is broken off.
"""

import asyncio
import contextlib
from collections.abc import Awaitable, Callable

from aiohttp import web
from aiohttp.typedefs import Handler, Middleware

END_CALLS: web.AppKey[Callable[[], Awaitable[None]]] = web.AppKey("end_calls")
"""Ends the calls to the upstream, whoever waits for them."""

LAST_WORDS_SECONDS = 0.5
"""For clients to take what they are told, and then for what has not ended by itself."""


class Draining:
    """Counts what is under way, and waits for its end."""

    def __init__(self) -> None:
        self._under_way = 0
        self._none = asyncio.Event()

    def middleware(self) -> Middleware:
        """Return what counts."""

        @web.middleware
        async def counted(request: web.Request, handler: Handler) -> web.StreamResponse:
            self._under_way += 1
            try:
                return await handler(request)
            finally:
                self._under_way -= 1
                if not self._under_way:
                    self._none.set()

        return counted

    async def wait(self, seconds: float) -> None:
        """Return when nothing is under way, or after ``seconds``."""
        if self._under_way:
            self._none.clear()
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(self._none.wait(), seconds)
