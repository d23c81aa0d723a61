"""Requests that wait for room at an upstream: bounded in number, in the order of coming.

Law: whoever waits comes before who asks later for the same model, and nobody waits for a model
whose upstreams have no room because another model's have none.
"""

from collections import deque
from dataclasses import dataclass, field
from typing import Generic, TypeVar

from gateway.core.outgoing import Outgoing
from gateway.core.pool.standing import NoRoom
from gateway.core.pool.table import Call, PoolTable

T = TypeVar("T")


@dataclass(eq=False, slots=True)
class Ticket(Generic[T]):
    """One who waits; ``holder`` is whoever is to be woken."""

    outgoing: Outgoing
    holder: T = field(repr=False)


class Waiting(Generic[T]):
    """The queue. ``most`` bounds it."""

    def __init__(self, most: int) -> None:
        self._most = most
        self._tickets: deque[Ticket[T]] = deque()

    def __len__(self) -> int:
        """Return how many wait."""
        return len(self._tickets)

    @property
    def full(self) -> bool:
        """Tell whether nobody more may wait."""
        return len(self._tickets) >= self._most

    def has(self, model: str) -> bool:
        """Tell whether somebody waits for the model."""
        return any(ticket.outgoing.model == model for ticket in self._tickets)

    def add(self, ticket: Ticket[T]) -> None:
        """Add one at the end."""
        self._tickets.append(ticket)

    def remove(self, ticket: Ticket[T]) -> None:
        """Take one out that gave up; no error where it is not there any more."""
        if ticket in self._tickets:
            self._tickets.remove(ticket)

    def admit(self, table: PoolTable, now: float) -> tuple[list[tuple[T, Call]], float | None]:
        """Begin the calls of those for whom there is room.

        Return them, and when there may be room for another, where that is known by the clock.
        """
        begun: list[tuple[T, Call]] = []
        left: deque[Ticket[T]] = deque()
        none: dict[str, NoRoom] = {}
        for ticket in self._tickets:
            model = ticket.outgoing.model
            got = none[model] if model in none else table.begin(ticket.outgoing, now)
            if isinstance(got, NoRoom):
                none[model] = got
                left.append(ticket)
            else:
                begun.append((ticket.holder, got))
        self._tickets = left
        times = [got.at for got in none.values() if got.at is not None]
        return begun, min(times, default=None)
