"""Requests that wait for room at an upstream: bounded in number, in the order of coming.

Law: whoever waits comes before who asks later for the same model, and nobody waits for a model
whose upstreams have no room because another model's have none.
"""

from dataclasses import dataclass, field
from typing import Generic, TypeVar

from gateway.core.outgoing import Outgoing
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
        self._queues: dict[str, dict[int, Ticket[T]]] = {}
        """By model, each in the order of coming; none is empty."""

    def __len__(self) -> int:
        """Return how many wait."""
        return sum(map(len, self._queues.values()))

    def __bool__(self) -> bool:
        """Tell whether anybody waits."""
        return bool(self._queues)

    @property
    def full(self) -> bool:
        """Tell whether nobody more may wait."""
        return len(self) >= self._most

    def has(self, model: str) -> bool:
        """Tell whether somebody waits for the model."""
        return model in self._queues

    def add(self, outgoing: Outgoing, holder: T) -> Ticket[T]:
        """Add one at the end."""
        self._given += 1
        ticket = Ticket(self._given, outgoing, holder)
        self._queues.setdefault(outgoing.model, {})[ticket.number] = ticket
        return ticket

    def remove(self, ticket: Ticket[T]) -> None:
        """Take one out that is let in or gave up; no error where it is not there any more."""
        model = ticket.outgoing.model
        if (queue := self._queues.get(model)) is not None:
            queue.pop(ticket.number, None)
            if not queue:
                del self._queues[model]

    def admit(self, table: PoolTable, now: float) -> tuple[list[tuple[T, Call]], float | None]:
        """Begin the calls of those for whom there is room.

        Return them, and when there may be room for another, where that is known by the clock.
        """
        begun: list[tuple[T, Call]] = []
        none: dict[str, NoRoom] = {}
        while heads := [
            next(iter(queue.values())) for model, queue in self._queues.items() if model not in none
        ]:
            first = min(heads, key=lambda ticket: ticket.number)
            got = table.begin(first.outgoing, now)
            if isinstance(got, NoRoom):
                none[first.outgoing.model] = got
            else:
                self.remove(first)
                begun.append((first.holder, got))
        times = [got.at for got in none.values() if got.at is not None]
        return begun, min(times, default=None)
