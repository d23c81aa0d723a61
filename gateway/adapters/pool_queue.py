"""Who waits for room at an upstream: the driver of ``core.pool.waiting``.

Law: every wait is bounded, and ends with a call, a refusal or its client's leaving. A call that was
begun for somebody who has left is ended at once.
"""

import asyncio
from collections.abc import Callable
from dataclasses import dataclass

from gateway.core.errors import UpstreamError
from gateway.core.outgoing import Lane, Outgoing
from gateway.core.pool.standing import NoRoom
from gateway.core.pool.table import Call, PoolTable
from gateway.core.pool.waiting import Waiting
from gateway.core.types import Reason

BEHIND_OTHERS = NoRoom(429, Reason.UPSTREAM_BUSY, None, waits=True)


@dataclass(frozen=True, slots=True)
class Bounds:
    """How many may wait for room at an upstream, and for how long."""

    waiting: int = 256
    seconds: float = 10.0


class PoolQueue:
    """``unused`` ends a call that nobody wants any more."""

    def __init__(
        self,
        table: PoolTable,
        bounds: Bounds,
        clock: Callable[[], float],
        unused: Callable[[Call], None],
    ) -> None:
        self._table = table
        self._bounds = bounds
        self._clock = clock
        self._unused = unused
        self._waiting: Waiting[asyncio.Future[Call]] = Waiting(bounds.waiting)
        self._timer: asyncio.TimerHandle | None = None

    def __len__(self) -> int:
        """Return how many wait."""
        return len(self._waiting)

    def has(self, lane: Lane) -> bool:
        """Tell whether somebody waits for the same."""
        return self._waiting.has(lane)

    async def call(self, outgoing: Outgoing) -> Call:
        """Begin a call, as soon as there is room. Raises UpstreamError where there is none."""
        now = self._clock()
        got: Call | NoRoom = BEHIND_OTHERS
        if not self._waiting.has(outgoing.lane):
            got = self._table.begin(outgoing, now)
        if isinstance(got, Call):
            return got
        late = got.at is not None and got.at > now + self._bounds.seconds
        if not got.waits or late or not self._makes_place(outgoing):
            raise self._refusal(got)
        waiter: asyncio.Future[Call] = asyncio.get_running_loop().create_future()
        ticket = self._waiting.add(outgoing, waiter)
        self.admit()
        try:
            async with asyncio.timeout(self._bounds.seconds):
                return await waiter
        except BaseException as error:
            self._waiting.remove(ticket)
            if waiter.done() and not waiter.cancelled() and waiter.exception() is None:
                self._unused(waiter.result())  # let in and gone in the same turn
            if isinstance(error, TimeoutError):
                raise self._refusal(got) from None
            raise

    def admit(self) -> None:
        """Begin the calls of those who wait and for whom there is room."""
        if not self._waiting:
            return
        begun, again = self._waiting.admit(self._table, self._clock())
        for waiter, call in begun:
            if waiter.done():  # gave up in this very turn
                self._unused(call)
            else:
                waiter.set_result(call)
        self.close()
        if again is not None:
            wait = max(0.0, again - self._clock())
            self._timer = asyncio.get_running_loop().call_later(wait, self.admit)

    def close(self) -> None:
        """Stop the timer; whoever waits is cancelled by who made the call."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def _makes_place(self, newcomer: Outgoing) -> bool:
        """Tell whether the newcomer may wait, where need be in the place of another."""
        if not self._waiting.full:
            return True
        last = self._waiting.yielding(newcomer)
        if last is None:
            return False
        self._waiting.remove(last)
        if not last.holder.done():
            last.holder.set_exception(self._refusal(BEHIND_OTHERS))
        return True

    def _refusal(self, none: NoRoom) -> UpstreamError:
        now = self._clock()
        at = now + self._bounds.seconds if none.at is None else none.at
        message = (
            "All upstreams of this model are busy. Please try again later."
            if none.waits
            else "No upstream of this model can be reached at the moment."
        )
        wait = max(1.0, at - now)
        return UpstreamError(none.status, message, none.why, sent=False, retry_after=wait)
