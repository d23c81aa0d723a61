"""Calls that wait at the same time share one round trip.

Law: whoever calls owns no connection. Giving up a call takes nothing from the others and leaves no
unread answer behind; every call ends, with its result or a StoreError.
"""

import asyncio
from collections import deque
from collections.abc import Awaitable, Callable, Sequence
from typing import Generic, TypeVar

from gateway.cache.ports import StoreError

LANES = 4
"""Round trips under way at a time: a large answer in one must not hold up the others."""

MOST_AT_ONCE = 64
MOST_BYTES = 4 << 20
MAX_WAITING = 10_000

Asked = TypeVar("Asked")
Told = TypeVar("Told")


class Batches(Generic[Asked, Told]):
    """Gathers what is asked during one turn of the loop, or while all lanes are busy."""

    def __init__(
        self,
        send: Callable[[Sequence[Asked]], Awaitable[Sequence[Told | StoreError]]],
        size: Callable[[Asked], int] = lambda _: 0,
    ) -> None:
        """``send`` returns what is told of each, in order, or raises StoreError for all.

        ``size`` is that of what is sent; a batch has some MOST_BYTES.
        """
        self._send = send
        self._size = size
        self._waiting: deque[tuple[Asked, asyncio.Future[Told]]] = deque()
        self._lanes: set[asyncio.Task[None]] = set()
        # Lanes that will look for more: one that has found nothing is not counted, while its task
        # may still have to end.
        self._running = 0

    async def call(self, asked: Asked) -> Told:
        """Return what is told. Raises StoreError."""
        if len(self._waiting) >= MAX_WAITING:
            raise StoreError(f"{MAX_WAITING} calls are waiting already")
        future: asyncio.Future[Told] = asyncio.get_running_loop().create_future()
        self._waiting.append((asked, future))
        # Of those who ask in one turn of the loop only the first starts a lane.
        first = self._running == 0 or len(self._waiting) % MOST_AT_ONCE == 1
        if first and self._running < LANES:
            self._running += 1
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
        while batch := self._take():
            _end(batch, StoreError("the store is closed"))

    def _take(self) -> list[tuple[Asked, asyncio.Future[Told]]]:
        batch: list[tuple[Asked, asyncio.Future[Told]]] = []
        size = 0
        while self._waiting and len(batch) < MOST_AT_ONCE and size < MOST_BYTES:
            asked, future = self._waiting.popleft()
            if not future.done():
                batch.append((asked, future))
                size += self._size(asked)
        return batch

    async def _run(self) -> None:
        try:
            await self._serve()
        finally:
            self._running -= 1

    async def _serve(self) -> None:
        while batch := self._take():
            try:
                told = await self._send([asked for asked, _ in batch])
                for (_, future), each in zip(batch, told, strict=True):
                    if future.done():
                        continue
                    if isinstance(each, StoreError):
                        future.set_exception(each)
                    else:
                        future.set_result(each)
            except StoreError as error:
                _end(batch, error)
            finally:
                _end(batch, StoreError("the call was broken off"))


def _end(batch: Sequence[tuple[Asked, asyncio.Future[Told]]], error: StoreError) -> None:
    for _, future in batch:
        if not future.done():
            # One each: an exception raised in several tasks would gather all their tracebacks.
            future.set_exception(type(error)(*error.args))
