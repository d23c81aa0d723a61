"""Which of several replicas a miss goes to.

Laws:
- Only a replica that is offered is chosen, and the same is offered, known and asked: the same
  answer. No clock, no chance.
- Load is bounded: while others have room, no replica gets more requests at a time than its share
  and a part more, however much of the prompt it holds.
- Gateways that know nothing of one another agree where load does not speak against it: what no
  replica holds goes by rendezvous of the first block that is not held.

Sources: Mirrokni, Thorup, Zadimoghaddam: "Consistent hashing with bounded loads", SODA 2018;
Thaler, Ravishankar: "Using name-based mappings to increase hit rates", 1998.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from hashlib import blake2b
from math import ceil, log
from typing import Protocol

from gateway.core.prefix_index import PrefixIndex
from policies.plain_enum import plain_members

SHARE_OVER = 0.25
"""A replica may have so much more than its share of the requests under way."""

ALWAYS_ROOM = 4
"""So few requests at a time are no load that anybody has to be kept from."""

REQUEST_BLOCKS = 1.0
"""What a request under way costs the next one beside it, in blocks to compute."""

TOKENS_A_BLOCK = 128


@plain_members
class Route(StrEnum):
    """Why a replica was chosen: one vocabulary for metric, log and trace."""

    PREFIX = "prefix"
    """It holds most of the prompt, or is the cheapest of those that hold some."""
    COLD = "cold"
    """No replica holds any of it."""
    BALANCE = "balance"
    """Another holds more of it, and has too much to do."""


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
    """A request on its way to a replica; ``blocks`` are those to be computed before its answer."""

    name: str
    prefix: Sequence[int] = field(repr=False)
    blocks: int


class Routing(Protocol):
    """Orders replicas for a prompt, and learns from what became of it."""

    def order(self, prefix: Sequence[int], loads: Sequence[Load], now: float) -> Sequence[Choice]:
        """Return all that is offered, the best first."""
        ...

    def sent(self, name: str, prefix: Sequence[int], now: float) -> Sent:
        """Note that the request is sent; ``ended`` must follow."""
        ...

    def first_token(self, sent: Sent, now: float) -> None:
        """Note that its prompt is computed."""
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
        """See ``Routing``."""
        del prefix, now
        by_load = sorted(loads, key=lambda load: (load.in_flight / load.weight, load.name))
        return [Choice(load.name, 0, Route.BALANCE) for load in by_load]

    def sent(self, name: str, prefix: Sequence[int], now: float) -> Sent:
        """See ``Routing``."""
        del now
        return Sent(name, prefix, len(prefix))

    def first_token(self, sent: Sent, now: float) -> None:
        """See ``Routing``."""

    def ended(self, sent: Sent, now: float) -> None:
        """See ``Routing``."""

    def forget(self, name: str) -> None:
        """See ``Routing``."""


class PrefixAware:
    """The cheapest replica within the bound on load: blocks to compute, and those ahead of them."""

    def __init__(
        self,
        index: PrefixIndex,
        *,
        share_over: float = SHARE_OVER,
        always_room: int = ALWAYS_ROOM,
        request_blocks: float = REQUEST_BLOCKS,
    ) -> None:
        self.index = index
        self._share_over = share_over
        self._always_room = always_room
        self._request_blocks = request_blocks
        self._pending: dict[str, int] = {}

    def order(self, prefix: Sequence[int], loads: Sequence[Load], now: float) -> list[Choice]:
        """See ``Routing``."""
        del now
        if not loads:
            return []
        held = {load.name: self.index.held(load.name, prefix) for load in loads}
        most = max(held.values(), default=0)
        # Where prompts part: alike for all who know what they have in common.
        parting = prefix[min(most, len(prefix) - 1)] if prefix else 0
        even = (sum(load.in_flight for load in loads) + 1) / sum(load.weight for load in loads)
        ranked = sorted(
            loads,
            key=lambda load: (
                not self._has_room(load, even),
                self._cost(load, len(prefix) - held[load.name]),
                _rendezvous(load, parting),
            ),
        )
        return [Choice(load.name, held[load.name], _why(held[load.name], most)) for load in ranked]

    def sent(self, name: str, prefix: Sequence[int], now: float) -> Sent:
        """See ``Routing``."""
        del now
        blocks = len(prefix) - self.index.held(name, prefix)
        self._pending[name] = self._pending.get(name, 0) + blocks
        self.index.add(name, prefix)
        return Sent(name, prefix, blocks)

    def first_token(self, sent: Sent, now: float) -> None:
        """See ``Routing``."""
        del now
        self._pending[sent.name] -= sent.blocks
        sent.blocks = 0

    def ended(self, sent: Sent, now: float) -> None:
        """See ``Routing``."""
        self.first_token(sent, now)

    def forget(self, name: str) -> None:
        """See ``Routing``."""
        self.index.forget(name)

    def _has_room(self, load: Load, even: float) -> bool:
        share = max(self._always_room, ceil((1 + self._share_over) * even * load.weight))
        return load.in_flight < share

    def _cost(self, load: Load, blocks: int) -> float:
        ahead = self._pending.get(load.name, 0) + load.queued_tokens / TOKENS_A_BLOCK
        return (blocks + ahead + load.in_flight * self._request_blocks) / load.weight


def _why(held: int, most: int) -> Route:
    if not most:
        return Route.COLD
    return Route.PREFIX if held == most else Route.BALANCE


def _rendezvous(load: Load, key: int) -> float:
    """Return the replica's rank for ``key``, the least first; a share of keys as its weight."""
    data = f"{key}:{load.name}".encode()
    drawn = int.from_bytes(blake2b(data, digest_size=7).digest(), "big")
    return -log((drawn + 1) / (1 << 56)) / load.weight
