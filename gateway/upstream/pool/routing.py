"""Sends a prompt to the replica with its longest prefix, unless that costs more than it saves.

Laws:
- Only what is offered is chosen, and the same inputs give the same answer. No clock, no chance.
- Load is bounded: while another has room, no replica is chosen that has twice its share of the
  requests under way, or no KV blocks left, however much of the prompt it holds.
- Within the bound the cheapest is chosen. Blocks to compute count most, for they cost all replicas
  together. What waits there already costs this request alone, and less at a stronger replica.
- Gateways that know nothing of one another agree, unless load speaks against it: what no replica
  holds has a home, by rendezvous of the first block of it. So the next turn of a conversation is
  expected where another gateway sent the turn before. A gateway that finds nothing of another's for
  long is alone, and is routed by load if nothing else is known.
- Only what was computed is remembered: what is refused, fails or is given up pushes nothing out.
  What is being computed counts as held until then.
- What a replica is believed to hold is corrected by what it says. Believing too much costs
  nothing that was measured (benchmarks/prefix_routing.py), believing too little does. A block that
  is gone at the replica costs a prefill, never a wrong answer.

Sources: Mirrokni, Thorup, Zadimoghaddam: "Consistent hashing with bounded loads", SODA 2018;
Thaler, Ravishankar: "Using name-based mappings to increase hit rates", 1998.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from hashlib import blake2b
from itertools import islice, takewhile
from math import ceil, log
from typing import NamedTuple


class Route(StrEnum):
    """Why a replica was chosen: one vocabulary for metric, log and trace."""

    PREFIX = "prefix"
    """None holds more of the prompt."""
    COLD = "cold"
    """None holds any of it."""
    BALANCE = "balance"
    """Another holds more of it and has too much to do, or only load counts."""
    RETRY = "retry"
    """It was the only upstream left, or gets the request again."""
    ONLY = "only"
    """There is no other upstream."""


class Load(NamedTuple):
    """What a replica has to do; ``weight`` is how much it can take beside others.

    ``in_flight`` counts requests of other gateways too, as far as the replica reports them. One
    that is ``crowded`` has no KV blocks left.
    """

    name: str
    in_flight: int
    weight: float = 1.0
    crowded: bool = False


class Choice(NamedTuple):
    """A replica, how many blocks of the prompt it should hold, and why it comes here."""

    name: str
    blocks_hit: int
    why: Route


@dataclass(eq=False, slots=True)
class Dispatch:
    """A request on its way to a replica, from ``begin`` to ``end``.

    As far as is known, the replica has computed ``held`` blocks of its prompt or is at them.
    """

    name: str
    prefix: Sequence[int] = field(repr=False)
    held: int = 0
    blocks: int = 0
    """Blocks still to be computed before its first token."""
    last_use: int = 0
    """Of the last block that was surely computed before; 0 if there is none."""


class LeastLoaded:
    """The replica with the fewest requests under way, whatever the prompt; ties by name."""

    follows = False
    """Whether it must know of each request from its begin to its end."""

    def order(self, prefix: Sequence[int], loads: Sequence[Load]) -> Sequence[Choice]:  # noqa: ARG002
        """Return all that is offered, the best first."""
        by_load = sorted(
            loads, key=lambda load: (load.crowded, load.in_flight / load.weight, load.name)
        )
        return [Choice(load.name, 0, Route.BALANCE) for load in by_load]

    def begin(self, name: str, prefix: Sequence[int]) -> Dispatch:
        """Note that the request goes to this replica; ``end`` must follow."""
        return Dispatch(name, prefix)

    def first_token(self, dispatch: Dispatch) -> None:
        """Note that its prompt is computed."""

    def note_cached(self, dispatch: Dispatch, cached_tokens: int) -> None:
        """Note how much of the prompt the replica says that it had."""

    def end(self, dispatch: Dispatch) -> None:
        """Note that it is over, however it ended. Doing it again does nothing."""

    def forget(self, name: str) -> None:
        """Note that the replica's cache is empty: it has restarted, or is gone."""

    def remove(self, name: str) -> None:
        """Note that the replica has left, and that none of its requests is under way."""


DEFAULT_CAPACITY = 65_536
"""Blocks of a replica of which nothing is known: of 128 tokens each, more than most GPUs hold."""

MOST_BLOCKS = 1 << 20

_AT_ONCE = 64
"""1/64 is dropped at once: to find the oldest key of a dict takes a scan."""


class PrefixIndex:
    """Blocks by replica, bounded; not thread-safe.

    They are in the order of their last use, and the least recently used go first. Of one prompt the
    last block counts as used before the first, so tails go before heads.
    """

    def __init__(self, *, capacity: int = DEFAULT_CAPACITY, most: int = MOST_BLOCKS) -> None:
        """``capacity`` bounds each replica's blocks, ``most`` the blocks of all."""
        self._capacity = capacity
        self._most = most
        # Blocks in the order of their last use, with its number; blocks of one use share it. A
        # plain dict takes half of an OrderedDict's bytes.
        self._blocks: dict[str, dict[int, int]] = {}
        self._uses = 0

    def __len__(self) -> int:
        return sum(map(len, self._blocks.values()))

    def size(self, name: str) -> int:
        """Return how many blocks the replica is believed to hold."""
        return len(self._blocks.get(name, ()))

    @property
    def capacity(self) -> int:
        """The most blocks to remember of each replica."""
        share = self._most // max(1, len(self._blocks))
        return max(1, min(self._capacity, share))

    def cached_blocks(self, name: str, prefix: Sequence[int]) -> int:
        """Return how many blocks of ``prefix``, from its start on, the replica should hold."""
        blocks = self._blocks.get(name)
        if blocks is None:
            return 0
        for number, digest in enumerate(prefix):
            if digest not in blocks:
                return number
        return len(prefix)

    def add(self, name: str, prefix: Sequence[int]) -> None:
        """Note that the replica has computed, or found, all of ``prefix``."""
        if name not in self._blocks:
            self._blocks[name] = {}
            for other in self._blocks:  # their shares are smaller now
                self._bound(other)
        self._uses = use = self._uses + 1
        blocks = self._blocks[name]
        pop = blocks.pop
        for digest in reversed(prefix):
            pop(digest, None)
            blocks[digest] = use
        self._bound(name)

    def last_use(self, name: str, digest: int) -> int:
        """Return the number of the block's last use; 0 if it is not known."""
        return self._blocks.get(name, {}).get(digest, 0)

    def drop_idle(self, name: str, use: int) -> None:
        """Forget what the replica has last used with this number or before."""
        blocks = self._blocks.get(name, {})
        for digest in list(takewhile(lambda digest: blocks[digest] <= use, blocks)):
            del blocks[digest]

    def forget(self, name: str) -> None:
        """Forget all that the replica was believed to hold."""
        self._blocks.pop(name, None)

    def _bound(self, name: str) -> None:
        capacity = self.capacity
        blocks = self._blocks.get(name, {})
        if (excess := len(blocks) - capacity) > 0:
            for digest in list(islice(blocks, excess + capacity // _AT_ONCE)):
                del blocks[digest]


TOKENS_A_BLOCK = 128

_SURELY_FOUND = 1024
"""Some upstreams report no fewer tokens than this as found."""

LOST_AFTER = 3
"""A cache is lost after this many prompts in a row that are not found where they were computed.
One alone may be rendered in another way than before, or not be looked up by its server."""

ALONE_AFTER = 256
"""After this many prompts without foreign cache hits, this is taken for the only gateway."""


# How costs are weighed: the best values found on the Mooncake traces.
SHARE_OVER = 1.0
"""By how much a replica may exceed its share of the requests under way."""
ALWAYS_ROOM = 4
"""Up to this many requests at a time are never too many."""
_COST_AHEAD = 0.05
"""Cost of a block that is computed before, in blocks to compute."""
_COST_BESIDE = 128.0
"""Cost of a request under way for the next one beside it, in tokens to compute."""
_HOME_SPARES = 0.35
"""The part of what no replica holds that is not counted at its home."""


class PrefixAware(LeastLoaded):
    """See above. It learns from what became of each request."""

    follows = True

    def __init__(
        self,
        index: PrefixIndex | None = None,
        *,
        block_tokens: int = TOKENS_A_BLOCK,
        has_siblings: bool = False,
    ) -> None:
        """``has_siblings`` tells that other gateways send prompts to these replicas, too."""
        self.index = PrefixIndex() if index is None else index
        self._block_tokens = block_tokens
        self._lost: dict[str, list[int]] = {}
        """By replica: last uses of the prefixes not found there since the last cache hit."""
        self._has_siblings = has_siblings
        self._nothing_found = 0
        """Prompts in a row without a foreign cache hit."""
        self._computing: dict[str, dict[int, Dispatch]] = {}
        """By replica: each block in computation, with the first dispatch that needs it."""
        self._pending: dict[str, int] = {}

    def order(self, prefix: Sequence[int], loads: Sequence[Load]) -> list[Choice]:
        if not loads:
            return []
        held = {
            load.name: self._held_blocks(
                load.name, prefix, self.index.cached_blocks(load.name, prefix)
            )
            for load in loads
        }
        most = max(held.values())
        # What two of them hold is what prompts have in common, and known alike to all gateways.
        common = sorted(held.values())[-2:][0]
        home = home_replica(loads, prefix[min(common, len(prefix) - 1)]) if prefix else ""
        spared = 0.0 if self.is_alone else _HOME_SPARES * (len(prefix) - most)
        even = (sum(load.in_flight for load in loads) + 1) / sum(load.weight for load in loads)

        def rank(load: Load) -> tuple[bool, float, bool, str]:
            blocks = len(prefix) - held[load.name] - (spared if load.name == home else 0)
            crowded = load.crowded or load.in_flight >= self._room(load, even)
            return crowded, self._cost(load, blocks), load.name != home, load.name

        names = [load.name for load in sorted(loads, key=rank)]
        return [Choice(name, held[name], _why(held[name], most)) for name in names]

    def begin(self, name: str, prefix: Sequence[int]) -> Dispatch:
        computed = self.index.cached_blocks(name, prefix)
        held = self._held_blocks(name, prefix, computed)
        dispatch = Dispatch(name, prefix, held, len(prefix) - held)
        if computed * self._block_tokens >= _SURELY_FOUND:
            dispatch.last_use = self.index.last_use(name, prefix[computed - 1])
        self._pending[name] = self._pending.get(name, 0) + dispatch.blocks
        computing = self._computing.setdefault(name, {})
        for digest in prefix[held:]:
            computing.setdefault(digest, dispatch)
        return dispatch

    def first_token(self, dispatch: Dispatch) -> None:
        self.end(dispatch)
        self.index.add(dispatch.name, dispatch.prefix)

    def note_cached(self, dispatch: Dispatch, cached_tokens: int) -> None:
        self._detect_siblings(dispatch, cached_tokens)
        if cached_tokens > 0:
            self._lost.pop(dispatch.name, None)
        elif dispatch.last_use:
            since = self._lost.setdefault(dispatch.name, [])
            since.append(dispatch.last_use)
            if len(since) >= LOST_AFTER:
                # Blocks used later than every lost prefix may still be cached.
                self.index.drop_idle(dispatch.name, min(since))
                since.clear()

    def end(self, dispatch: Dispatch) -> None:
        if not dispatch.blocks:
            return
        self._pending[dispatch.name] -= dispatch.blocks
        dispatch.blocks = 0
        computing = self._computing[dispatch.name]
        for digest in dispatch.prefix[dispatch.held :]:
            if computing.get(digest) is dispatch:
                del computing[digest]

    def forget(self, name: str) -> None:
        self.index.forget(name)

    def remove(self, name: str) -> None:
        self.index.forget(name)
        for known in (self._lost, self._computing, self._pending):
            known.pop(name, None)

    @property
    def is_alone(self) -> bool:
        """Tell whether no other gateway seems to send prompts to these replicas."""
        return self._nothing_found >= ALONE_AFTER and not self._has_siblings

    def queued_blocks(self, name: str) -> int:
        """Return how many blocks the replica has yet to compute, of what was sent from here."""
        return self._pending.get(name, 0)

    def _detect_siblings(self, dispatch: Dispatch, cached_tokens: int) -> None:
        """Note whether the replica's cache held more than this gateway sent."""
        known = dispatch.held * self._block_tokens + _SURELY_FOUND
        if cached_tokens >= known:
            self._nothing_found = 0
        elif len(dispatch.prefix) * self._block_tokens >= known:
            self._nothing_found += 1

    def _held_blocks(self, name: str, prefix: Sequence[int], computed: int) -> int:
        """Return the number of blocks computed or in computation; ``computed`` are finished."""
        computing = self._computing.get(name)
        if computing:
            while computed < len(prefix) and prefix[computed] in computing:
                computed += 1
        return computed

    def _room(self, load: Load, even: float) -> int:
        share = ceil((1 + SHARE_OVER) * even * load.weight)
        return max(ALWAYS_ROOM, share)

    def _cost(self, load: Load, blocks: float) -> float:
        ahead = self.queued_blocks(load.name) * _COST_AHEAD
        beside = load.in_flight * _COST_BESIDE / self._block_tokens
        return blocks + (ahead + beside) / load.weight


def _why(held: int, most: int) -> Route:
    if not most:
        return Route.COLD
    return Route.PREFIX if held == most else Route.BALANCE


def home_replica(loads: Sequence[Load], key: int) -> str:
    """Return the first replica for ``key``, by rendezvous and weight."""
    return min(loads, key=lambda load: (_rendezvous(load, key), load.name)).name


def _rendezvous(load: Load, key: int) -> float:
    """Return the replica's rank for ``key``, the least first; it is first for its weight's part."""
    data = f"{key}:{load.name}".encode()
    number = int.from_bytes(blake2b(data, digest_size=7).digest(), "big")
    return -log((number + 1) / (1 << 56)) / load.weight
