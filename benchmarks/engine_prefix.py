"""The prefix cache: what a hit saves, what it costs when nothing hits, and how much KV is wasted.

Three figures. Time to first token of a prompt whose first 2,048 tokens another request had, beside
one that shares nothing, in turn on the same engine. With no hits at all, the share of step time
that is spent in the cache (hashing, looking up, publishing), timed call by call. And the KV slots
that no token fills, over a replay of the Azure trace's lengths in the real scheduler
(``engines.replay``), beside slots reserved for the longest request of the trace.

    python benchmarks/engine_prefix.py [--trace FILE] [--rounds N] [--threads N]
"""

import argparse
import json
import statistics
import tempfile
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from engines.replay import StepCost, replay
from engines.sides import EngineSide, bundled_or_random, random_prompts
from traffic import TRACE, read_trace

from backend.engine.loading import load_model
from backend.engine.messages import Submit
from backend.scheduler import running
from backend.scheduler.block_pool import BLOCK_SIZE, BlockPool
from backend.scheduler.prefix_cache import PrefixCache
from backend.scheduler.request import GenerationRequest, SamplingParams
from backend.scheduler.scheduler import Scheduler
from backend.scheduler.sequence import Sequence as Continuation
from backend.settings import EngineOptions

SHARED = 2048
OWN = 32
CACHE_METHODS = ("new_chain", "match", "count", "allocate", "publish")


def first_token(directory: Path, threads: int, rounds: int) -> dict[str, float]:
    """Return medians of the time to first token on a hit and on a miss, and the saving."""
    hits: list[float] = []
    misses: list[float] = []
    with EngineSide(directory, threads=threads) as engine:
        (shared,) = random_prompts(1, SHARED, seed=10)
        engine.run([shared], 1)
        own = random_prompts(rounds + 1, OWN, seed=11)
        others = random_prompts(rounds + 1, SHARED + OWN, seed=12)
        for ending, other in zip(own, others, strict=True):
            hits.append(_seconds(engine, [*shared, *ending]))
            misses.append(_seconds(engine, other))
    savings = [1 - hit / miss for hit, miss in zip(hits[1:], misses[1:], strict=True)]
    return {
        "hit_ms": round(statistics.median(hits[1:]) * 1e3, 1),
        "miss_ms": round(statistics.median(misses[1:]) * 1e3, 1),
        "saving": round(statistics.median(savings), 3),
        "least_saving": round(min(savings), 3),
    }


def _seconds(engine: EngineSide, prompt: Sequence[int]) -> float:
    start = time.perf_counter()
    engine.run([prompt], 1)
    return time.perf_counter() - start


def cost_without_hits(directory: Path) -> dict[str, float]:
    """Return the cache's share of the time of submitting and stepping, on one thread."""
    core = load_model(EngineOptions(str(directory), device="cpu", threads=1)).core
    core.runner.warm_up()
    inside = _timed_methods(core.scheduler.cache)
    prompts = random_prompts(32, 128, seed=13)
    start = time.thread_time()
    for number, prompt in enumerate(prompts):
        sampling = SamplingParams(temperature=0.0, max_tokens=64, ignore_eos=True)
        request = GenerationRequest("benchmark", tuple(prompt), sampling, stream=False)
        core.submit(Submit(number, request, time.monotonic()))
    while core.scheduler.has_work:
        core.step()
    seconds = time.thread_time() - start
    if core.scheduler.cache.hits:
        raise RuntimeError("something was found in the cache")
    return {
        "cache_ms": round(sum(inside.values()) * 1e3, 2),
        "all_ms": round(seconds * 1e3, 1),
        "share": round(sum(inside.values()) / seconds, 5),
    }


def _timed_methods(cache: PrefixCache) -> dict[str, float]:
    """Replace the methods of ``cache`` by ones that add their processor time to the result."""
    inside = dict.fromkeys(CACHE_METHODS, 0.0)

    def timed(name: str, method: Callable[..., Any]) -> Callable[..., Any]:
        def call(*arguments: Any, **named: Any) -> Any:
            start = time.thread_time()
            try:
                return method(*arguments, **named)
            finally:
                inside[name] += time.thread_time() - start

        return call

    for name in CACHE_METHODS:
        setattr(cache, name, timed(name, getattr(cache, name)))
    # What an answer's blocks are hashed by is a function beside the class.
    inside["extend_block_hashes"] = 0.0
    running.extend_block_hashes = timed("extend_block_hashes", running.extend_block_hashes)  # type: ignore[attr-defined]
    return inside


def waste(trace: Path, count: int) -> dict[str, float]:
    """Return the share of held KV slots that no token fills, over all steps of a replay."""
    requests = read_trace(trace, count)
    longest = max(each.prompt_tokens + each.new_tokens for each in requests)
    held = filled = reserved = 0

    def look(running: list[Continuation]) -> None:
        nonlocal held, filled, reserved
        for each in running:
            held += len(each.block_table) * BLOCK_SIZE
            # Those of a prompt that is computed step by step are spoken for.
            filled += max(each.num_computed_tokens, len(each.tokens))
            reserved += longest

    def new_scheduler(pool: BlockPool) -> Scheduler:
        return Scheduler(pool, max_num_seqs=64, max_tokens_per_step=2048, max_waiting=count)

    cost = StepCost(base=0.002, prefill_token=0.0001, decode=0.0004)
    blocks = 64 * -(-longest // BLOCK_SIZE)
    replay(requests, cost, new_scheduler, num_blocks=blocks, stretch=0.0, look=look)
    return {
        "wasted": round(1 - filled / held, 4),
        "wasted_with_longest_reserved": round(1 - filled / reserved, 4),
    }


def main() -> None:
    parser = argparse.ArgumentParser(description="the prefix cache, on CPU")
    parser.add_argument("--trace", type=Path, default=TRACE)
    parser.add_argument("--requests", type=int, default=200)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--threads", type=int, default=2)
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as scratch:
        directory = bundled_or_random(Path(scratch))
        ttft = first_token(directory, options.threads, options.rounds)
        cost = cost_without_hits(directory)
    print(f"{SHARED} shared tokens and {OWN} of its own, time to first token, medians")
    print(
        f"  hit {ttft['hit_ms']} ms, miss {ttft['miss_ms']} ms: {ttft['saving']:.1%} less "
        f"(least {ttft['least_saving']:.1%})"
    )
    print("no hits, 32 requests of 128 tokens in and 64 out, processor time")
    print(f"  {cost['cache_ms']} ms of {cost['all_ms']} ms in the cache: {cost['share']:.2%}")
    result: dict[str, Any] = {"benchmark": "engine_prefix", "ttft": ttft, "without_hits": cost}
    if options.trace.is_file():
        kv = result["kv"] = waste(options.trace, options.requests)
        print(f"KV slots that no token fills, {options.requests} requests of the Azure trace")
        print(
            f"  {kv['wasted']:.2%}; {kv['wasted_with_longest_reserved']:.1%} where each holds the "
            "longest request's"
        )
    else:
        print(f"KV waste skipped: no trace at {options.trace}; give one with --trace")
    print(json.dumps(result))


if __name__ == "__main__":
    main()
