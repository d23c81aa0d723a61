"""Requests that wait for room at an upstream: bounded in number and time, client by client.

Laws:
- Clients take turns; requests of one client are admitted, model by model, in order of arrival.
- A later request never passes an earlier one for the same model. No request for one model waits
  because the upstreams of another have no room.
- If the queue is full, a client with fewer places takes the last place of the client with the
  most. So no client fills the queue for all.
- Every wait ends with a call, a refusal or its client's leaving. A call that was acquired for a
  client that has left is released at once.

Turns as in round robin; places as in P. McKenney, "Stochastic Fairness Queueing".
"""

import asyncio
from collections import Counter, deque
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Generic, TypeVar

from gateway.protocol.errors import UpstreamError
from gateway.protocol.http.cache_status import Reason
from gateway.upstream.pool.table import Call, PoolTable
from gateway.upstream.pool.upstream_state import NoRoom
from gateway.upstream.request import Lane, Outgoing
from gateway.upstream.wire.verdict import REFUSED

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class Ticket(Generic[T]):
    """One place in the queue; ``holder`` is what is to be woken."""

    number: int
    outgoing: Outgoing
    holder: T = field(repr=False)


class Waiting(Generic[T]):
    """The order of the queue, without any waiting. ``most`` bounds it."""

    def __init__(self, most: int) -> None:
        self._most = most
        self._last_number = 0
        self._clients: dict[str | None, dict[int, Ticket[T]]] = {}
        """The next client in turn is first; each client's tickets are in order of arrival."""
        self.lanes: Counter[Lane] = Counter()
        """Number of tickets by lane."""

    def __len__(self) -> int:
        """Return how many wait."""
        return self.lanes.total()

    @property
    def full(self) -> bool:
        """Tell whether no more may wait."""
        return len(self) >= self._most

    def add(self, outgoing: Outgoing, holder: T) -> Ticket[T]:
        """Add one: the last of the client's."""
        self._last_number += 1
        ticket = Ticket(self._last_number, outgoing, holder)
        self._clients.setdefault(outgoing.client, {})[ticket.number] = ticket
        self.lanes[outgoing.lane] += 1
        return ticket

    def remove(self, ticket: Ticket[T]) -> None:
        """Take one out that is let in or gave up; no error if it is not there any more."""
        client, lane = ticket.outgoing.client, ticket.outgoing.lane
        tickets = self._clients.get(client, {})
        if tickets.pop(ticket.number, None) is None:
            return
        if not tickets:
            del self._clients[client]
        self.lanes[lane] -= 1
        if not self.lanes[lane]:
            del self.lanes[lane]

    def ticket_to_displace(self, newcomer: Outgoing) -> Ticket[T] | None:
        """Return the ticket that gives its place to the newcomer; None if no client has more."""
        own = len(self._clients.get(newcomer.client, {}))
        most = max(self._clients.values(), key=len, default={})
        return most[next(reversed(most))] if len(most) > own + 1 else None

    def admit(self, table: PoolTable, now: float) -> tuple[list[tuple[T, Call]], float | None]:
        """Acquire calls for the tickets that have room now.

        Return the calls, and the time when there may be room for another, if known. Each ticket is
        checked once: while no call ends, no lane gets room.
        """
        started: list[tuple[T, Call]] = []
        none: dict[tuple[Lane, str | None], NoRoom] = {}
        full = set[Lane]()
        turns = deque((client, iter([*own.values()])) for client, own in self._clients.items())
        while turns and len(full) < len(self.lanes):
            client, rest = turns.popleft()
            for ticket in rest:
                lane = ticket.outgoing.lane
                if lane in full or (lane, client) in none:
                    continue
                result = table.acquire(ticket.outgoing, now)
                if isinstance(result, NoRoom):
                    none[lane, client] = result
                    if not result.own:
                        full.add(lane)
                    continue
                self.remove(ticket)
                started.append((ticket.holder, result))
                if (others := self._clients.pop(client, None)) is not None:
                    self._clients[client] = others
                turns.append((client, rest))
                break
        times = [got.at for got in none.values() if got.at is not None]
        return started, min(times, default=None)


BEHIND_OTHERS = NoRoom(429, Reason.UPSTREAM_BUSY, None, waits=True)


@dataclass(frozen=True, slots=True)
class Bounds:
    """How many may wait for room at an upstream, and for how long."""

    waiting: int = 256
    seconds: float = 10.0


@dataclass(eq=False)
class PoolQueue:
    """Waits for room; ``release`` ends a call whose client has left."""

    table: PoolTable
    bounds: Bounds
    clock: Callable[[], float]
    release: Callable[[Call], None]
    _timer: asyncio.TimerHandle | None = None

    def __post_init__(self) -> None:
        self.waiting: Waiting[asyncio.Future[Call]] = Waiting(self.bounds.waiting)

    async def acquire(self, outgoing: Outgoing) -> Call:
        """Begin a call once there is room. Raises UpstreamError if there is none in time."""
        now = self.clock()
        result: Call | NoRoom = BEHIND_OTHERS
        if not self.waiting.lanes or outgoing.lane not in self.waiting.lanes:
            result = self.table.acquire(outgoing, now)
        if isinstance(result, Call):
            return result
        late = result.at is not None and result.at > now + self.bounds.seconds
        if not result.waits or late or not self._makes_place(outgoing):
            raise self._refusal(result)
        waiter: asyncio.Future[Call] = asyncio.get_running_loop().create_future()
        ticket = self.waiting.add(outgoing, waiter)
        self.admit()
        try:
            async with asyncio.timeout(self.bounds.seconds):
                return await waiter
        except BaseException as error:
            self.waiting.remove(ticket)
            if waiter.done() and not waiter.cancelled() and waiter.exception() is None:
                self.release(waiter.result())  # let in and gone in the same turn
            if isinstance(error, TimeoutError):
                raise self._refusal(result) from None
            raise

    def admit(self) -> None:
        """Begin the calls of the waiting requests that have room now."""
        if not self.waiting.lanes:
            return
        started, again = self.waiting.admit(self.table, self.clock())
        for waiter, call in started:
            if waiter.done():  # gave up in this very turn
                self.release(call)
            else:
                waiter.set_result(call)
        self.close()
        if again is not None:
            wait = max(0.0, again - self.clock())
            self._timer = asyncio.get_running_loop().call_later(wait, self.admit)

    def close(self) -> None:
        """Stop the timer; a request that waits is cancelled with its own task."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def _makes_place(self, newcomer: Outgoing) -> bool:
        """Tell whether the newcomer may wait, if need be in the place of another."""
        if not self.waiting.full:
            return True
        last = self.waiting.ticket_to_displace(newcomer)
        if last is None:
            return False
        self.waiting.remove(last)
        if not last.holder.done():
            last.holder.set_exception(self._refusal(BEHIND_OTHERS))
        return True

    def _refusal(self, none: NoRoom) -> UpstreamError:
        now = self.clock()
        at = now + self.bounds.seconds if none.at is None else none.at
        message = (
            "All upstreams of this model are busy. Please try again later."
            if none.waits
            else "No upstream of this model can be reached at the moment."
        )
        if none.why is Reason.UPSTREAM_REFUSED:
            message = REFUSED
        wait = max(1.0, at - now)
        return UpstreamError(none.status, message, none.why, sent=False, retry_after=wait)
