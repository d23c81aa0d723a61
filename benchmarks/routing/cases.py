"""What the weights of the routing were not chosen on: other fleets, faults and kinds of traffic.

Each case is a list of requests and the fleet that they go to. The weights were found on the
Mooncake traces, of late on their first halves, with four replicas. Here are the second halves,
other numbers of replicas, and traffic that is made: one hot prefix, chats that share nothing,
bursts, unique prompts that wash the caches.
"""

import random
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

from routing.simulation import BLOCK_TOKENS, Fleet, Traced, one_cache

CAPACITY = 4_000
BUSY = 0.6
"""The part of the time that replicas with one cache together would compute."""


@dataclass(frozen=True, slots=True)
class Case:
    """``ceiling`` is the share that one replica with the memory of all finds."""

    name: str
    requests: Sequence[Traced]
    fleet: Fleet
    ceiling: float


def case(
    name: str,
    requests: Sequence[Traced],
    *,
    replicas: int = 4,
    capacity: int = CAPACITY,
    weights: tuple[float, ...] = (),
    gone: tuple[float, float] | None = None,
) -> Case:
    """Return a case whose fleet is as busy as ``BUSY`` says where nothing is computed twice."""
    ceiling = one_cache(requests, replicas * capacity)
    tokens = sum(each.prompt_tokens for each in requests) * (1 - ceiling)
    rate = tokens / requests[-1].at / (sum(weights) or replicas) / BUSY
    return Case(name, requests, Fleet(replicas, capacity, rate, weights, gone), ceiling)


def cases(traces: Mapping[str, Sequence[Traced]]) -> Iterator[Case]:
    """Yield all of them; ``traces`` are Mooncake's by name."""
    for name, whole in traces.items():
        yield case(f"{name}, second half", second_half(whole))
    conversation = second_half(traces["conversation"])
    for replicas in (2, 8, 16):
        yield case(f"{replicas} replicas", conversation, replicas=replicas)
    for capacity in (CAPACITY // 4, CAPACITY * 4):
        yield case(f"{capacity:,} blocks each", conversation, capacity=capacity)
    length = conversation[-1].at
    yield case("one dies and comes back", conversation, gone=(length / 3, length * 2 / 3))
    yield case("weights 1, 1, 2, 4", conversation, weights=(1.0, 1.0, 2.0, 4.0))
    yield case("bursts, 30 s apart", bursts(conversation))
    yield case("60 % behind one hot prefix", mixed(conversation, hot(len(conversation) * 3 // 2)))
    yield case("chats that share nothing", chats(800))
    yield case("a scan of unique prompts", mixed(conversation, unique(len(conversation) // 2)))


def second_half(requests: Sequence[Traced]) -> list[Traced]:
    later = requests[len(requests) // 2 :]
    return [replace(each, at=each.at - later[0].at) for each in later]


def bursts(requests: Sequence[Traced]) -> list[Traced]:
    return [replace(each, at=each.at // 30 * 30) for each in requests]


def mixed(requests: Sequence[Traced], blocks: Sequence[tuple[int, ...]]) -> list[Traced]:
    """Return both, those of ``blocks`` at even times and with answers of 100 tokens."""
    step = requests[-1].at / len(blocks)
    more = [
        Traced(number * step, len(each) * BLOCK_TOKENS, 100, each)
        for number, each in enumerate(blocks)
    ]
    return sorted((*requests, *more), key=lambda each: each.at)


def hot(count: int) -> list[tuple[int, ...]]:
    """Return prompts that have 20 blocks in common and 4 of their own."""
    return [(*range(-20, 0), *_own(number, 4)) for number in range(count)]


def unique(count: int) -> list[tuple[int, ...]]:
    """Return prompts of 30 blocks that nobody asks again."""
    return [_own(number, 30) for number in range(count)]


def chats(count: int) -> list[Traced]:
    """Return conversations of one to twelve turns, each with a beginning of its own."""
    draw = random.Random(7)
    requests = []
    for number in range(count):
        blocks, at = list[int](), draw.uniform(0, 1800)
        own = _own(number, 200)
        for _ in range(draw.randint(1, 12)):
            blocks += own[len(blocks) : len(blocks) + draw.randint(1, 6)]
            requests.append(
                Traced(at, len(blocks) * BLOCK_TOKENS, draw.randint(20, 500), tuple(blocks))
            )
            at += draw.expovariate(1 / 40)
    return sorted(requests, key=lambda each: each.at)


def _own(number: int, count: int) -> tuple[int, ...]:
    return tuple(range(-1000 * (number + 1), -1000 * (number + 1) + count))
