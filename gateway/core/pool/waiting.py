"""Requests that wait for room at an upstream: bounded in number, client by client.

Laws:
- Clients take turns; those of one are let in, model by model, in the order of coming.
- Nobody who asks later passes by who waits for the same, and nobody waits for one model because
  the upstreams of another have no room.
- Where the queue is full, a newcomer of a client that holds fewer places takes the last one of that
  which holds most, so that nobody fills the queue for all.

A turn each as in round robin; whose place goes as in P. McKenney, "Stochastic Fairness Queueing".
"""

from collections import Counter, deque
from dataclasses import dataclass, field
from typing import Generic, TypeVar

from gateway.core.outgoing import Lane, Outgoing
from gateway.core.pool.standing import NoRoom
from gateway.core.pool.table import Call, PoolTable

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class Ticket(Generic[T]):
    """One who waits; ``holder`` is whoever is to be woken."""

    number: int
    outgoing: Outgoing
    holder: T = field(repr=False)


class Waiting(Generic[T]):
    """The queue. ``most`` bounds it."""

    def __init__(self, most: int) -> None:
        self._most = most
        self._given = 0
        self._clients: dict[str | None, dict[int, Ticket[T]]] = {}
        """Whose turn is next comes first; the tickets of each in the order of coming."""
        self._lanes: Counter[Lane] = Counter()

    def __len__(self) -> int:
        """Return how many wait."""
        return self._lanes.total()

    def __bool__(self) -> bool:
        """Tell whether anybody waits."""
        return bool(self._clients)

    @property
    def full(self) -> bool:
        """Tell whether nobody more may wait."""
        return len(self) >= self._most

    def has(self, lane: Lane) -> bool:
        """Tell whether somebody waits for the same."""
        return lane in self._lanes

    def add(self, outgoing: Outgoing, holder: T) -> Ticket[T]:
        """Add one: the last of the client's."""
        self._given += 1
        ticket = Ticket(self._given, outgoing, holder)
        self._clients.setdefault(outgoing.client, {})[ticket.number] = ticket
        self._lanes[outgoing.lane] += 1
        return ticket

    def remove(self, ticket: Ticket[T]) -> None:
        """Take one out that is let in or gave up; no error where it is not there any more."""
        client, lane = ticket.outgoing.client, ticket.outgoing.lane
        tickets = self._clients.get(client, {})
        if tickets.pop(ticket.number, None) is None:
            return
        if not tickets:
            del self._clients[client]
        self._lanes[lane] -= 1
        if not self._lanes[lane]:
            del self._lanes[lane]

    def yielding(self, newcomer: Outgoing) -> Ticket[T] | None:
        """Return who is to give a place to the newcomer; None where nobody holds more."""
        own = len(self._clients.get(newcomer.client, {}))
        most = max(self._clients.values(), key=len, default={})
        return most[next(reversed(most))] if len(most) > own + 1 else None

    def admit(self, table: PoolTable, now: float) -> tuple[list[tuple[T, Call]], float | None]:
        """Begin the calls of those for whom there is room.

        Return them, and when there may be room for another, where that is known by the clock. Each
        is looked at once: while calls begin and none ends, no lane comes to have room.
        """
        begun: list[tuple[T, Call]] = []
        none: dict[Lane, NoRoom] = {}
        turns = deque((who, iter([*own.values()])) for who, own in self._clients.items())
        while turns and len(none) < len(self._lanes):
            client, rest = turns.popleft()
            for ticket in rest:
                if ticket.outgoing.lane in none:
                    continue
                got = table.begin(ticket.outgoing, now)
                if isinstance(got, NoRoom):
                    none[ticket.outgoing.lane] = got
                    continue
                self.remove(ticket)
                begun.append((ticket.holder, got))
                if (others := self._clients.pop(client, None)) is not None:
                    self._clients[client] = others
                turns.append((client, rest))
                break
        times = [got.at for got in none.values() if got.at is not None]
        return begun, min(times, default=None)
