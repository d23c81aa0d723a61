"""What the router itself takes: bytes and time, with a million blocks known."""

import time
import tracemalloc
from dataclasses import dataclass

from gateway.upstream.pool.prefix_chain import prefix_blocks
from gateway.upstream.pool.routing import Load, PrefixAware, PrefixIndex
from policies.decision import Endpoint

BLOCKS = 1_000_000
REPLICAS = 4
PROMPT_BLOCKS = 40
_STEP = 0x9E3779B97F4A7C15
_MASK = (1 << 56) - 1


@dataclass(frozen=True, slots=True)
class RouterCost:
    """Times are medians, in microseconds, of prompts of 20 KB."""

    blocks: int
    blocks_seen: int
    bytes_a_block: float
    digest_us: float
    order_us: float
    sent_us: float


def measure() -> RouterCost:
    """Fill an index, then time what each miss costs."""
    index = PrefixIndex(capacity=BLOCKS // REPLICAS)
    names = [f"replica-{number}" for number in range(REPLICAS)]
    prompts = BLOCKS // PROMPT_BLOCKS
    # Four times what fits: what evictions leave behind counts too.
    tracemalloc.start()
    for number in range(4 * prompts):
        index.add(names[number % REPLICAS], _chain(number))
    taken, _ = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    seen = 4 * prompts * PROMPT_BLOCKS
    order, sent = _routed(PrefixAware(index), names, 3 * prompts)
    return RouterCost(len(index), seen, taken / len(index), _digested(), order, sent)


def _chain(number: int) -> tuple[int, ...]:
    first = number * PROMPT_BLOCKS
    return tuple((first + at) * _STEP & _MASK for at in range(1, PROMPT_BLOCKS + 1))


def _routed(router: PrefixAware, names: list[str], first: int) -> tuple[float, float]:
    loads = [Load(name, 1) for name in names]
    orders: list[float] = []
    sendings: list[float] = []
    # Half of them are known.
    for number in range(first, first + 2 * BLOCKS // PROMPT_BLOCKS, 25):
        chain = _chain(number)
        start = time.perf_counter()
        chosen = router.order(chain, loads)[0]
        between = time.perf_counter()
        sent = router.begin(chosen.name, chain)
        router.first_token(sent)
        router.end(sent)
        orders.append(between - start)
        sendings.append(time.perf_counter() - between)
    return _median_us(orders), _median_us(sendings)


def _digested() -> float:
    words = "The quick brown fox jumps over the lazy dog. " * 228
    turns = [{"role": "system", "content": words}, {"role": "user", "content": words}]
    body = {"model": "m", "messages": turns}
    times: list[float] = []
    for _ in range(500):
        start = time.perf_counter()
        prefix_blocks(Endpoint.CHAT, body)
        times.append(time.perf_counter() - start)
    return _median_us(times)


def _median_us(seconds: list[float]) -> float:
    return sorted(seconds)[len(seconds) // 2] * 1e6
