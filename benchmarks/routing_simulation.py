"""Replicas in virtual time, each with a prefix cache of bounded size, behind a gateway's routing.

The routing is the gateway's own, the trace's block ids stand for digests. A replica computes
prompts one after the other at a fixed rate and then decodes, at a fixed time a token, any number at
once. Its cache is the least recently used order of blocks, and the last of a prompt go first.
"""

import heapq
import json
import random
from collections import OrderedDict
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import count
from pathlib import Path

from gateway.core.routing import Choice, LeastLoaded, Load, Route, Routing, Sent

BLOCK_TOKENS = 512
TOKEN_SECONDS = 0.02


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

    def order(self, prefix: Sequence[int], loads: Sequence[Load], now: float) -> list[Choice]:
        del prefix, now
        first = next(self._turn) % len(loads)
        return [Choice(each.name, 0, Route.BALANCE) for each in (*loads[first:], *loads[:first])]


@dataclass(slots=True)
class Replica:
    cache: Cache
    busy_until: float = 0.0
    requests: int = 0
    computed_tokens: int = 0


@dataclass(frozen=True, slots=True)
class Result:
    """``imbalance_…`` is the most that a replica had over the mean."""

    hit_share: float
    imbalance_tokens: float
    imbalance_requests: float
    ttft_p50: float
    ttft_p99: float


def simulate(
    requests: Sequence[Traced],
    gateways: Sequence[Routing],
    *,
    replicas: int,
    capacity: int,
    tokens_a_second: float,
) -> Result:
    """Send each request through one of ``gateways``, which know nothing of one another."""
    servers = {f"replica-{number}": Replica(Cache(capacity)) for number in range(replicas)}
    in_flight = [dict.fromkeys(servers, 0) for _ in gateways]
    draw = random.Random(1)
    numbers = count()
    events: list[tuple[float, int, Callable[[], None]]] = []
    waits: list[float] = []
    found = 0

    def first_token(gateway: int, sent: Sent, at: float) -> None:
        gateways[gateway].first_token(sent, at)

    def ended(gateway: int, sent: Sent, at: float) -> None:
        gateways[gateway].ended(sent, at)
        in_flight[gateway][sent.name] -= 1

    def later(at: float, call: Callable[[int, Sent, float], None], who: int, sent: Sent) -> None:
        heapq.heappush(events, (at, next(numbers), lambda: call(who, sent, at)))

    for request in requests:
        while events and events[0][0] <= request.at:
            heapq.heappop(events)[2]()
        who = draw.randrange(len(gateways))
        loads = [Load(name, flying) for name, flying in in_flight[who].items()]
        name = gateways[who].order(request.blocks, loads, request.at)[0].name
        sent = gateways[who].sent(name, request.blocks, request.at)
        gateways[who].held_back(sent, request.at)
        in_flight[who][name] += 1
        server = servers[name]
        hits = server.cache.use(request.blocks)
        found += hits
        computed = max(1, request.prompt_tokens - hits * BLOCK_TOKENS)
        server.requests += 1
        server.computed_tokens += computed
        server.busy_until = max(request.at, server.busy_until) + computed / tokens_a_second
        waits.append(server.busy_until - request.at)
        later(server.busy_until, first_token, who, sent)
        later(server.busy_until + TOKEN_SECONDS * request.new_tokens, ended, who, sent)
    waits.sort()
    return Result(
        found / sum(len(each.blocks) for each in requests),
        imbalance([each.computed_tokens for each in servers.values()]),
        imbalance([each.requests for each in servers.values()]),
        waits[len(waits) // 2],
        waits[int(len(waits) * 0.99)],
    )


def imbalance(values: Sequence[float]) -> float:
    """Return the largest over the mean."""
    return max(values) * len(values) / sum(values)
