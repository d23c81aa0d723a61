"""Bounded waits that do not blame the other side for our own loop's being busy.

A loop that runs 300 handlers in one turn looks at its sockets, and at its timers, only after the
last: a bound by the clock then ends waits whose answer lay there all the time, and would have a
breaker open whenever many requests come at once. Law: a wait ends with TimeoutError after so many
ticks of the loop, each of which lasts TICK, or as long as one turn of a busy loop. On a loop that
is not busy that is at most the bound.
"""

import asyncio
from collections.abc import Awaitable
from typing import TypeVar

TICK = 0.005

T = TypeVar("T")


class Patience:
    """Waits that share a timer, which runs while anybody waits. Used from one event loop."""

    def __init__(self) -> None:
        self._left: dict[asyncio.Timeout, int] = {}
        self._timer: asyncio.TimerHandle | None = None

    async def wait(self, call: Awaitable[T], seconds: float) -> T:
        """Return the call's result. Raises TimeoutError after ``seconds``, or what it raises."""
        async with asyncio.timeout(None) as bound:
            self._left[bound] = max(1, round(seconds / TICK))
            if self._timer is None:
                self._timer = asyncio.get_running_loop().call_later(TICK, self._tick)
            try:
                return await call
            finally:
                del self._left[bound]

    def _tick(self) -> None:
        loop = asyncio.get_running_loop()
        for bound, left in self._left.items():
            self._left[bound] = left - 1
            if left == 1:
                bound.reschedule(loop.time())
        self._timer = loop.call_later(TICK, self._tick) if self._left else None
