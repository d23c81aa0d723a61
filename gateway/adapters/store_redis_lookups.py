"""Lookups that wait at the same time share one round trip.

Law: whoever asks owns no connection. Giving up a lookup takes nothing from the others and leaves no
unread answer behind; every lookup ends, with a value or a StoreError.
"""

import asyncio
from collections import deque
from collections.abc import Awaitable, Callable, Sequence

from gateway.ports import StoreError

LANES = 4
"""Round trips under way at a time: a large answer in one must not hold up the others."""

MOST_AT_ONCE = 64
MAX_WAITING = 10_000

Fetch = Callable[[Sequence[bytes]], Awaitable[Sequence[bytes | None]]]
"""Returns a value or None for each name, in one round trip. Raises StoreError."""

_Asked = tuple[bytes, asyncio.Future[bytes | None]]


class Lookups:
    """Gathers what is asked during one turn of the loop, or while all lanes are busy."""

    def __init__(self, fetch: Fetch) -> None:
        self._fetch = fetch
        self._waiting: deque[_Asked] = deque()
        self._lanes: set[asyncio.Task[None]] = set()

    async def get(self, name: bytes) -> bytes | None:
        """Return the value. Raises StoreError."""
        if len(self._waiting) >= MAX_WAITING:
            raise StoreError(f"{MAX_WAITING} lookups are waiting already")
        future: asyncio.Future[bytes | None] = asyncio.get_running_loop().create_future()
        self._waiting.append((name, future))
        # Of those who ask in one turn of the loop only the first starts a lane.
        if len(self._waiting) % MOST_AT_ONCE == 1 and len(self._lanes) < LANES:
            lane = asyncio.create_task(self._run())
            self._lanes.add(lane)
            lane.add_done_callback(self._lanes.discard)
        return await future

    async def close(self) -> None:
        """End what is under way; who waits gets a StoreError."""
        for lane in self._lanes:
            lane.cancel()
        if self._lanes:
            await asyncio.wait(self._lanes)
        while asked := self._take():
            _fail(asked, "the store is closed")

    def _take(self) -> list[_Asked]:
        asked: list[_Asked] = []
        while self._waiting and len(asked) < MOST_AT_ONCE:
            name, future = self._waiting.popleft()
            if not future.done():
                asked.append((name, future))
        return asked

    async def _run(self) -> None:
        while asked := self._take():
            try:
                values = await self._fetch([name for name, _ in asked])
                for (_, future), value in zip(asked, values, strict=True):
                    if not future.done():
                        future.set_result(value)
            except StoreError as error:
                # One each: an exception raised in several tasks would gather all their tracebacks.
                for _, future in asked:
                    if not future.done():
                        future.set_exception(type(error)(*error.args))
            finally:
                _fail(asked, "the lookup was broken off")


def _fail(asked: list[_Asked], why: str) -> None:
    for _, future in asked:
        if not future.done():
            future.set_exception(StoreError(why))
