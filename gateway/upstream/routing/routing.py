"""What a pool asks of whoever chooses among replicas, and the choice that knows only load.

Law: only what is offered is chosen, and the same is offered, known and asked: the same answer. No
clock, no chance.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from math import inf
from typing import Protocol

from policies.plain_enum import plain_members


@plain_members
class Route(StrEnum):
    """Why a replica was chosen: one vocabulary for metric, log and trace."""

    PREFIX = "prefix"
    """None holds more of the prompt."""
    COLD = "cold"
    """None holds any of it."""
    BALANCE = "balance"
    """Another holds more of it and has too much to do, or only load counts."""
    RETRY = "retry"
    """It was the last that was left, or is asked once more."""


@dataclass(frozen=True, slots=True)
class Load:
    """What a replica has to do; ``weight`` is how much it can take beside others."""

    name: str
    in_flight: int
    queued_tokens: int = 0
    weight: float = 1.0


@dataclass(frozen=True, slots=True)
class Choice:
    """A replica, how many blocks of the prompt it should hold, and why it comes here."""

    name: str
    blocks_hit: int
    why: Route


@dataclass(eq=False, slots=True)
class Sent:
    """A request on its way to a replica, from ``sent`` to ``ended``.

    Of its prompt's blocks the replica has ``held`` computed before or is at it, by what is known.
    """

    name: str
    prefix: Sequence[int] = field(repr=False)
    at: float = 0.0
    held: int = 0
    blocks: int = 0
    """Those still to be computed before its first token."""
    last_use: int = 0
    """Of the last block that was surely computed before; 0 where there is none."""
    rank: int = 0
    """Its priority: who has a lower number comes first."""
    streamed: bool = False
    """Whether its first byte comes when its prompt is computed."""
    went: float = 0.0
    """When it was really sent."""
    computed_by: float = inf
    """When its prompt should be computed, where nothing else will tell."""


@dataclass(frozen=True, slots=True)
class Wait:
    """Not now: ``leader`` computes what this prompt begins with. At ``until`` go all the same."""

    leader: Sent
    until: float


class Routing(Protocol):
    """Orders replicas for a prompt, and learns from what became of it."""

    def order(self, prefix: Sequence[int], loads: Sequence[Load], now: float) -> Sequence[Choice]:
        """Return all that is offered, the best first."""
        ...

    def sent(self, name: str, prefix: Sequence[int], now: float) -> Sent:
        """Note that the request goes to this replica; ``ended`` must follow."""
        ...

    def held_back(self, sent: Sent, now: float) -> Wait | None:
        """Tell whether to wait before it is really sent; to be asked again after the wait."""
        ...

    def first_token(self, sent: Sent, now: float) -> None:
        """Note that its prompt is computed."""
        ...

    def answered(self, sent: Sent, cached_tokens: int, now: float) -> None:
        """Note how much of the prompt the replica says that it had."""
        ...

    def ended(self, sent: Sent, now: float) -> None:
        """Note that it is over, however it ended. Doing it again does nothing."""
        ...

    def forget(self, name: str) -> None:
        """Note that the replica's cache is empty: it has started anew, or is gone."""
        ...


class LeastLoaded:
    """The replica with the fewest requests under way, whatever the prompt; ties by name."""

    def order(self, prefix: Sequence[int], loads: Sequence[Load], now: float) -> list[Choice]:
        del prefix, now
        by_load = sorted(loads, key=lambda load: (load.in_flight / load.weight, load.name))
        return [Choice(load.name, 0, Route.BALANCE) for load in by_load]

    def sent(self, name: str, prefix: Sequence[int], now: float) -> Sent:
        return Sent(name, prefix, now)

    def held_back(self, sent: Sent, now: float) -> None:
        """See ``Routing``."""

    def first_token(self, sent: Sent, now: float) -> None:
        """See ``Routing``."""

    def answered(self, sent: Sent, cached_tokens: int, now: float) -> None:
        """See ``Routing``."""

    def ended(self, sent: Sent, now: float) -> None:
        """See ``Routing``."""

    def forget(self, name: str) -> None:
        """See ``Routing``."""
