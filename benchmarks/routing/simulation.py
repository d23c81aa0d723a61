"""Replicas in virtual time, each with a prefix cache of bounded size, behind a gateway's routing.

The routing is the gateway's own, the trace's block ids stand for digests. A replica computes
prompts one after the other at a fixed rate and then decodes, at a fixed time a token, any number at
once. Its cache is the least recently used order of blocks, and the last of a prompt go first. What
it found it says at the end. What chance there is hangs on ``Fleet.seed``.
"""

import heapq
import json
import random
from collections import OrderedDict
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import count
from pathlib import Path

from gateway.upstream.pool.routing import Choice, Dispatch, LeastLoaded, Load, Route

BLOCK_TOKENS = 512
TOKEN_SECONDS = 0.02

Step = Callable[[int, Dispatch, float], None]


@dataclass(frozen=True, slots=True)
class Traced:
    """``at`` is in seconds; ``blocks`` identify the prompt's blocks of 512 tokens, in order."""

    at: float
    prompt_tokens: int
    new_tokens: int
    blocks: tuple[int, ...]


def read_trace(path: Path) -> list[Traced]:
    """Read a Mooncake trace. Raises OSError."""
    lines = map(json.loads, path.read_text(encoding="utf-8").splitlines())
    return [
        Traced(
            line["timestamp"] / 1000,
            line["input_length"],
            line["output_length"],
            tuple(line["hash_ids"]),
        )
        for line in lines
    ]


class Cache:
    """A prefix cache of so many blocks."""

    def __init__(self, capacity: int) -> None:
        self._capacity = capacity
        self._blocks: OrderedDict[int, None] = OrderedDict()

    def use(self, prompt: Sequence[int]) -> int:
        """Return how many blocks were found; all of them are there afterwards, if they fit."""
        found = next((at for at, each in enumerate(prompt) if each not in self._blocks), None)
        for block in reversed(prompt):
            self._blocks[block] = None
            self._blocks.move_to_end(block)
        while len(self._blocks) > self._capacity:
            self._blocks.popitem(last=False)
        return len(prompt) if found is None else found


def one_cache(requests: Sequence[Traced], capacity: int) -> float:
    """Return the share of blocks that one replica with this capacity finds."""
    cache = Cache(capacity)
    found = sum(cache.use(each.blocks) for each in requests)
    return found / sum(len(each.blocks) for each in requests)


class RoundRobin(LeastLoaded):
    """Each replica in turn."""

    def __init__(self) -> None:
        self._turn = count()

    def order(self, prefix: Sequence[int], loads: Sequence[Load]) -> list[Choice]:
        del prefix
        first = next(self._turn) % len(loads)
        return [Choice(each.name, 0, Route.BALANCE) for each in (*loads[first:], *loads[:first])]


@dataclass(frozen=True, slots=True)
class Fleet:
    """Replicas, each with a cache of so many blocks; names and chance are those of the seed.

    One of twice the ``weights`` computes twice as fast. The first is ``gone`` from one time to the
    other, and comes back with nothing.
    """

    replicas: int
    capacity: int
    tokens_a_second: float
    weights: tuple[float, ...] = ()
    gone: tuple[float, float] | None = None
    seed: int = 0

    def servers(self) -> "dict[str, Replica]":
        weights = self.weights or (1.0,) * self.replicas
        return {
            f"replica-{self.seed}-{number}": Replica(Cache(self.capacity), weight)
            for number, weight in enumerate(weights)
        }


@dataclass(slots=True)
class Replica:
    cache: Cache
    weight: float = 1.0
    busy_until: float = 0.0
    requests: int = 0
    computed_tokens: int = 0
    is_gone: bool = False


@dataclass(frozen=True, slots=True)
class Result:
    """``imbalance_…`` is the most that a replica had over the mean, each by its weight."""

    hit_share: float
    imbalance_tokens: float
    imbalance_requests: float
    ttft_mean: float
    ttft_p50: float
    ttft_p99: float


def simulate(requests: Sequence[Traced], gateways: Sequence[LeastLoaded], fleet: Fleet) -> Result:
    """Send each request through one of ``gateways``, which know nothing of one another."""
    servers = fleet.servers()
    in_flight = [dict.fromkeys(servers, 0) for _ in gateways]
    draw = random.Random(fleet.seed)
    numbers = count()
    events: list[tuple[float, int, Callable[[], None]]] = []
    waits: list[float] = []
    found_tokens: dict[Dispatch, int] = {}
    found = 0

    def first_token(gateway: int, sent: Dispatch, _at: float) -> None:
        gateways[gateway].first_token(sent)

    def ended(gateway: int, sent: Dispatch, _at: float) -> None:
        gateways[gateway].note_cached(sent, found_tokens.pop(sent))
        gateways[gateway].end(sent)
        in_flight[gateway][sent.name] -= 1

    def later(
        at: float, call: Callable[[int, Dispatch, float], None], who: int, sent: Dispatch
    ) -> None:
        heapq.heappush(events, (at, next(numbers), lambda: call(who, sent, at)))

    def leaves() -> None:
        first.is_gone, first.cache = True, Cache(fleet.capacity)
        for gateway in gateways:
            gateway.forget(next(iter(servers)))

    def returns() -> None:
        first.is_gone = False

    first = next(iter(servers.values()))
    for at, call in zip(fleet.gone or (), (leaves, returns), strict=False):
        heapq.heappush(events, (at, next(numbers), call))
    for request in requests:
        while events and events[0][0] <= request.at:
            heapq.heappop(events)[2]()
        who = draw.randrange(len(gateways))
        loads = [
            Load(name, flying, weight=servers[name].weight)
            for name, flying in in_flight[who].items()
            if not servers[name].is_gone
        ]
        name = gateways[who].order(request.blocks, loads)[0].name
        sent = gateways[who].begin(name, request.blocks)
        in_flight[who][name] += 1
        server = servers[name]
        hits = server.cache.use(request.blocks)
        found += hits
        found_tokens[sent] = hits * BLOCK_TOKENS
        computed = max(1, request.prompt_tokens - hits * BLOCK_TOKENS)
        server.requests += 1
        server.computed_tokens += computed
        took = computed / fleet.tokens_a_second / server.weight
        server.busy_until = max(request.at, server.busy_until) + took
        waits.append(server.busy_until - request.at)
        later(server.busy_until, first_token, who, sent)
        later(server.busy_until + TOKEN_SECONDS * request.new_tokens, ended, who, sent)
    waits.sort()
    return Result(
        found / sum(len(each.blocks) for each in requests),
        imbalance([each.computed_tokens / each.weight for each in servers.values()]),
        imbalance([each.requests / each.weight for each in servers.values()]),
        sum(waits) / len(waits),
        waits[len(waits) // 2],
        waits[int(len(waits) * 0.99)],
    )


def imbalance(values: Sequence[float]) -> float:
    """Return the largest over the mean."""
    return max(values) * len(values) / sum(values)
