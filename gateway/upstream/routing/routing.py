"""What a pool asks of the routing, which orders replicas; and the routing that knows only load.

Law: only what is offered is chosen, and the same inputs give the same answer. No clock, no chance.
"""

from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from math import inf


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

    As far as is known, the replica has computed ``held`` blocks of its prompt or is at them.
    """

    name: str
    prefix: Sequence[int] = field(repr=False)
    at: float = 0.0
    held: int = 0
    blocks: int = 0
    """Those still to be computed before its first token."""
    last_use: int = 0
    """Of the last block that was surely computed before; 0 if there is none."""
    rank: int = 0
    """Its priority: a lower number comes first."""
    streamed: bool = False
    """Whether its first byte comes when its prompt is computed."""
    went: float = 0.0
    """When it was really sent."""
    computed_by: float = inf
    """When its prompt should be computed, if nothing else will tell."""


@dataclass(frozen=True, slots=True)
class Wait:
    """``leader`` computes what this prompt begins with: wait for it, at most until ``until``."""

    leader: Sent
    until: float


class Routing(ABC):
    """Orders replicas for a prompt, and may learn from what became of it."""

    @abstractmethod
    def order(self, prefix: Sequence[int], loads: Sequence[Load]) -> Sequence[Choice]:
        """Return all that is offered, the best first."""

    def sent(self, name: str, prefix: Sequence[int], now: float) -> Sent:
        """Note that the request goes to this replica; ``ended`` must follow."""
        return Sent(name, prefix, now)

    def prefill_wait(self, sent: Sent, now: float) -> Wait | None:  # noqa: ARG002
        """Tell whether to wait before it is really sent; ask again after the wait."""
        return None

    def first_token(self, sent: Sent, now: float) -> None:  # noqa: B027
        """Note that its prompt is computed."""

    def answered(self, sent: Sent, cached_tokens: int) -> None:  # noqa: B027
        """Note how much of the prompt the replica says that it had."""

    def ended(self, sent: Sent) -> None:  # noqa: B027
        """Note that it is over, however it ended. Doing it again does nothing."""

    def forget(self, name: str) -> None:  # noqa: B027
        """Note that the replica's cache is empty: it has started anew, or is gone."""


class LeastLoaded(Routing):
    """The replica with the fewest requests under way, whatever the prompt; ties by name."""

    def order(self, prefix: Sequence[int], loads: Sequence[Load]) -> list[Choice]:  # noqa: ARG002
        """Return the replicas by load."""
        by_load = sorted(loads, key=lambda load: (load.in_flight / load.weight, load.name))
        return [Choice(load.name, 0, Route.BALANCE) for load in by_load]
