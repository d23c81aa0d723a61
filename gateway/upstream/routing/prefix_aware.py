"""How fast each replica computes prompts, by its streams: when a plain reply's should be computed.

Law: a stream's first byte tells that its prompt is computed. A plain reply's comes when all of the
answer is, so who waits behind one goes by the clock.

Prompts that are being computed: who comes with the same beginning waits for the first of them.

Law: a block is computed by one request of a replica at a time, as far as waiting can see to it.
Nobody waits behind who waits, nor behind a lower priority, nor for a few blocks, nor for long.

The replica that holds the longest prefix, unless that costs more than it saves.

Laws:
- Load is bounded: while another has room, no replica is chosen that has twice its share of the
  requests under way, however much of the prompt it holds.
- Within the bound the cheapest is chosen: blocks to compute count most, for they cost all
  replicas together, whichever computes them; what waits there already costs this request alone, and
  less at a stronger replica.
- Gateways that know nothing of one another agree where load does not speak against it: what no
  replica holds has a home, by rendezvous of the first block of it. So the next turn of a
  conversation is expected where another gateway sent the turn before. A gateway that finds nothing
  of another's for long is alone, and goes by load where it has nothing to go by.
- Only what was computed is remembered: what is refused, fails or is given up pushes nothing out.
- What a replica is believed to hold is corrected by what it says. Believing too much costs
  nothing that was measured (benchmarks/prefix_routing.py), believing too little does.

Sources: Mirrokni, Thorup, Zadimoghaddam: "Consistent hashing with bounded loads", SODA 2018;
Thaler, Ravishankar: "Using name-based mappings to increase hit rates", 1998.
"""

from collections.abc import Container, Sequence
from dataclasses import dataclass
from hashlib import blake2b
from math import ceil, log

from gateway.upstream.routing.prefix_index import PrefixIndex
from gateway.upstream.routing.routing import Choice, Load, Route, Sent, Wait

LEAST_BLOCKS = 8
"""Of fewer the time says little."""
SLOWER = 2.0
"""So many times the time that was seen before is waited for."""
_NEWEST = 0.3
"""What the newest counts for."""


class Pace:
    """Seconds a block at each replica, its queue included."""

    def __init__(self) -> None:
        self._seconds: dict[str, float] = {}

    def go(self, sent: Sent, now: float) -> None:
        """Note that it is really sent, and when its prompt should be computed."""
        sent.went = now
        pace = self._seconds.get(sent.name)
        if pace is not None and not sent.streamed:
            sent.computed_by = now + SLOWER * pace * sent.blocks

    def first_token(self, sent: Sent, now: float) -> None:
        """Note its first byte."""
        if not sent.streamed or sent.blocks < LEAST_BLOCKS:
            return
        seen = (now - sent.went) / sent.blocks
        before = self._seconds.get(sent.name, seen)
        self._seconds[sent.name] = before + _NEWEST * (seen - before)


COLD_PREFIX_LEAST_BLOCKS = 8
"""Computing so many blocks twice costs less than waiting does."""

MOST_SECONDS = 2.0


class ColdPrefixes:
    """The blocks that are being computed, each with who does it; not thread-safe."""

    def __init__(
        self, *, least_blocks: int = COLD_PREFIX_LEAST_BLOCKS, most_seconds: float = MOST_SECONDS
    ) -> None:
        self._least_blocks = least_blocks
        self._most_seconds = most_seconds
        self._computing: dict[str, dict[int, Sent]] = {}

    def held(self, name: str, prefix: Sequence[int], computed: int) -> int:
        """Return how many blocks are computed or being computed, where ``computed`` are."""
        computing = self._computing.get(name)
        if computing:
            while computed < len(prefix) and prefix[computed] in computing:
                computed += 1
        return computed

    def wait(self, sent: Sent, now: float) -> Wait | None:
        """Return whom to wait for before ``sent`` goes, if there is somebody worth it."""
        until = sent.at + self._most_seconds
        computing = self._computing.get(sent.name, {})
        leaders = [
            leader
            for digest in sent.prefix
            if (leader := computing.get(digest)) is not None and leader.rank <= sent.rank
        ]
        if len(leaders) < self._least_blocks or leaders[-1] is sent:
            return None
        until = min(until, leaders[-1].computed_by)
        return Wait(leaders[-1], until) if now < until else None

    def begin(self, sent: Sent, computed: int) -> None:
        """Note that it computes what nobody is computing, beyond the blocks that are computed."""
        computing = self._computing.setdefault(sent.name, {})
        for digest in sent.prefix[computed:]:
            if computing.setdefault(digest, sent).rank > sent.rank:
                computing[digest] = sent

    def end(self, sent: Sent) -> None:
        """Note that it computes no more."""
        computing = self._computing.get(sent.name, {})
        for digest in sent.prefix:
            if computing.get(digest) is sent:
                del computing[digest]


TOKENS_A_BLOCK = 128

_SURELY_FOUND = 1024
"""Tokens that an upstream would find if it had them: some report no fewer."""

LOST_AFTER = 3
"""So many prompts in a row that are not found where they were computed show that a cache is lost.
One may be rendered in another way than before, or be one for which its server does not look."""

ALONE_AFTER = 256
"""So many prompts in a row that another's work might have left somewhere, and had not."""


@dataclass(frozen=True, slots=True)
class Weights:
    """How costs are weighed; the defaults are the best found on the Mooncake traces."""

    share_over: float = 1.0
    """A replica may have so much more than its share of the requests under way."""
    always_room: int = 4
    """So few requests at a time are no load that anybody is kept from."""
    block_ahead: float = 0.05
    """What a block that others wait for costs, in blocks to compute."""
    request: float = 128.0
    """What a request under way costs the next one beside it, in tokens to compute."""
    home: float = 0.35
    """The part of what no replica holds that is not counted at its home."""


class PrefixAware:
    """See ``Routing``. Replicas in ``sharing`` compute what several prompts begin with once."""

    def __init__(
        self,
        index: PrefixIndex | None = None,
        *,
        weights: Weights | None = None,
        sharing: Container[str] = (),
        block_tokens: int = TOKENS_A_BLOCK,
        has_siblings: bool = False,
    ) -> None:
        """``has_siblings`` tells that other gateways send prompts to these replicas, too."""
        self.index = PrefixIndex() if index is None else index
        self._weights = weights or Weights()
        self._block_tokens = block_tokens
        self._lost: dict[str, list[int]] = {}
        """The last uses of what was not found at each replica, since something was."""
        self._has_siblings = has_siblings
        self._nothing_found = 0
        """For how many prompts in a row nobody else has shown."""
        self._sharing = sharing
        self._cold = ColdPrefixes()
        self._pace = Pace()
        self._pending: dict[str, int] = {}

    def order(self, prefix: Sequence[int], loads: Sequence[Load], now: float) -> list[Choice]:
        del now
        if not loads:
            return []
        held = {load.name: self._held(load.name, prefix) for load in loads}
        most = max(held.values())
        # What two of them hold is what prompts have in common, and known alike to all gateways.
        common = sorted(held.values())[-2:][0]
        home = home_of(loads, prefix[min(common, len(prefix) - 1)]) if prefix else ""
        spared = 0.0 if self.is_alone else self._weights.home * (len(prefix) - most)
        even = (sum(load.in_flight for load in loads) + 1) / sum(load.weight for load in loads)

        def rank(load: Load) -> tuple[bool, float, bool, str]:
            blocks = len(prefix) - held[load.name] - (spared if load.name == home else 0)
            crowded = load.in_flight >= self._room(load, even)
            return crowded, self._cost(load, blocks), load.name != home, load.name

        names = [load.name for load in sorted(loads, key=rank)]
        return [Choice(name, held[name], _why(held[name], most)) for name in names]

    def sent(self, name: str, prefix: Sequence[int], now: float) -> Sent:
        computed = self.index.held(name, prefix)
        held = self._cold.held(name, prefix, computed)
        sent = Sent(name, prefix, now, held, len(prefix) - held)
        if computed * self._block_tokens >= _SURELY_FOUND:
            sent.last_use = self.index.last_use(name, prefix[computed - 1])
        self._pending[name] = self._pending.get(name, 0) + sent.blocks
        return sent

    def held_back(self, sent: Sent, now: float) -> Wait | None:
        wait = None if sent.name in self._sharing else self._cold.wait(sent, now)
        if wait is None:
            self._take_over(sent)
            self._pace.go(sent, now)
            self._cold.begin(sent, self.index.held(sent.name, sent.prefix))
        return wait

    def first_token(self, sent: Sent, now: float) -> None:
        self._pace.first_token(sent, now)
        self._settle(sent)
        self.index.add(sent.name, sent.prefix)

    def answered(self, sent: Sent, cached_tokens: int, now: float) -> None:
        del now
        self._look_for_others(sent, cached_tokens)
        if cached_tokens > 0:
            self._lost.pop(sent.name, None)
        elif sent.last_use:
            since = self._lost.setdefault(sent.name, [])
            since.append(sent.last_use)
            if len(since) >= LOST_AFTER:
                # What was used later than all that is gone may still be there.
                self.index.drop_idle(sent.name, min(since))
                since.clear()

    def ended(self, sent: Sent, now: float) -> None:
        del now
        self._settle(sent)

    def forget(self, name: str) -> None:
        self.index.forget(name)

    @property
    def is_alone(self) -> bool:
        """Tell whether no other gateway seems to send prompts to these replicas."""
        return self._nothing_found >= ALONE_AFTER and not self._has_siblings

    def queued_blocks(self, name: str) -> int:
        """Return how many blocks the replica has yet to compute, of what was sent from here."""
        return self._pending.get(name, 0)

    def _look_for_others(self, sent: Sent, cached_tokens: int) -> None:
        """Note whether more was found than was sent from here."""
        known = sent.held * self._block_tokens + _SURELY_FOUND
        if cached_tokens >= known:
            self._nothing_found = 0
        elif len(sent.prefix) * self._block_tokens >= known:
            self._nothing_found += 1

    def _held(self, name: str, prefix: Sequence[int]) -> int:
        """Return how many blocks the replica has computed or is at."""
        return self._cold.held(name, prefix, self.index.held(name, prefix))

    def _take_over(self, sent: Sent) -> None:
        """Let it compute what others were at when it was sent, and did not come to the end of."""
        lost = sent.held - self._held(sent.name, sent.prefix[: sent.held])
        if lost:
            sent.held -= lost
            sent.blocks += lost
            self._pending[sent.name] += lost

    def _settle(self, sent: Sent) -> None:
        if sent.blocks:
            self._pending[sent.name] -= sent.blocks
            sent.blocks = 0
        self._cold.end(sent)

    def _room(self, load: Load, even: float) -> int:
        share = ceil((1 + self._weights.share_over) * even * load.weight)
        return max(self._weights.always_room, share)

    def _cost(self, load: Load, blocks: float) -> float:
        ahead = self.queued_blocks(load.name) + load.queued_tokens / self._block_tokens
        beside = load.in_flight * self._weights.request / self._block_tokens
        return blocks + (ahead * self._weights.block_ahead + beside) / load.weight


def _why(held: int, most: int) -> Route:
    if not most:
        return Route.COLD
    return Route.PREFIX if held == most else Route.BALANCE


def home_of(loads: Sequence[Load], key: int) -> str:
    """Return who is first for ``key``, by rendezvous and weight."""
    return min(loads, key=lambda load: (_rendezvous(load, key), load.name)).name


def _rendezvous(load: Load, key: int) -> float:
    """Return the replica's rank for ``key``, the least first; it is first for its weight's part."""
    data = f"{key}:{load.name}".encode()
    drawn = int.from_bytes(blake2b(data, digest_size=7).digest(), "big")
    return -log((drawn + 1) / (1 << 56)) / load.weight
