"""Continuous beside static batching, where answers are of uneven length: throughput and p95.

The same requests, all there from the start, on the same engine, in turn. Static: 16 at a time,
every row computed until the longest of its batch ends, as a padded batch is, and answered then.
Continuous: all are handed over, and a sequence leaves or joins at any step. Throughput counts the
tokens that were asked for; latency is from the start until a request is answered.

    python benchmarks/engine_batching.py [--requests N] [--rounds N] [--threads N]
"""

import argparse
import asyncio
import json
import random
import statistics
import tempfile
import time
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

from engines.sides import EngineSide, bundled_or_random, random_prompts
from load import percentile

BATCH = 16
PROMPT_TOKENS = 32


@dataclass(frozen=True, slots=True)
class Wanted:
    """A prompt, and how many tokens its answer has."""

    prompt: Sequence[int]
    new_tokens: int


@dataclass(frozen=True, slots=True)
class Figures:
    """``p95`` of the seconds until a request is answered."""

    tokens_per_s: float
    p95: float


def uneven(count: int) -> list[Wanted]:
    """Return requests whose answers are log-normal, as those of people are: median 32 tokens."""
    rng = random.Random(0)
    prompts = random_prompts(count, PROMPT_TOKENS, seed=20)
    return [
        Wanted(prompt, min(max(round(rng.lognormvariate(3.5, 1.0)), 4), 320)) for prompt in prompts
    ]


async def continuous(engine: EngineSide, wanted: Sequence[Wanted]) -> list[float]:
    """Return when each was answered."""
    start = time.perf_counter()

    async def one(each: Wanted) -> float:
        await engine.answer(each.prompt, each.new_tokens)
        return time.perf_counter() - start

    return await asyncio.gather(*(one(each) for each in wanted))


async def static(engine: EngineSide, wanted: Sequence[Wanted]) -> list[float]:
    """Return when each was answered."""
    start = time.perf_counter()
    answered: list[float] = []
    for first in range(0, len(wanted), BATCH):
        batch = wanted[first : first + BATCH]
        longest = max(each.new_tokens for each in batch)
        await asyncio.gather(*(engine.answer(each.prompt, longest) for each in batch))
        answered += [time.perf_counter() - start] * len(batch)
    return answered


Batching = Callable[[EngineSide, Sequence[Wanted]], Awaitable[list[float]]]


async def figures(batching: Batching, engine: EngineSide, wanted: Sequence[Wanted]) -> Figures:
    answered = await batching(engine, wanted)
    tokens = sum(each.new_tokens for each in wanted)
    return Figures(tokens / max(answered), percentile(answered, 0.95))


def main() -> None:
    parser = argparse.ArgumentParser(description="continuous beside static batching, on CPU")
    parser.add_argument("--requests", type=int, default=64)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--threads", type=int, default=2)
    options = parser.parse_args()
    wanted = uneven(options.requests)

    async def rounds(engine: EngineSide) -> list[tuple[Figures, Figures]]:
        await continuous(engine, wanted[:BATCH])
        return [
            (await figures(continuous, engine, wanted), await figures(static, engine, wanted))
            for _ in range(options.rounds)
        ]

    with tempfile.TemporaryDirectory() as scratch:
        directory = bundled_or_random(Path(scratch))
        with EngineSide(directory, threads=options.threads, max_num_seqs=BATCH) as engine:
            pairs = asyncio.run(rounds(engine))
    lengths = [each.new_tokens for each in wanted]
    print(
        f"{len(wanted)} requests, {min(lengths)} to {max(lengths)} tokens out (mean "
        f"{statistics.mean(lengths):.0f}), {BATCH} at a time, {options.threads} threads; medians"
    )
    rates = [ours.tokens_per_s / theirs.tokens_per_s for ours, theirs in pairs]
    ratio = round(statistics.median(rates), 2)
    p95_ratio = round(statistics.median(ours.p95 / theirs.p95 for ours, theirs in pairs), 2)
    result: dict[str, object] = {"benchmark": "engine_batching", "requests": len(wanted)}
    print(f"{'':12}{'tokens/s':>10}{'p95, s':>10}")
    for name, runs in zip(("continuous", "static"), zip(*pairs, strict=True), strict=True):
        rate = round(statistics.median(each.tokens_per_s for each in runs))
        p95 = round(statistics.median(each.p95 for each in runs), 2)
        print(f"{name:12}{rate:>10}{p95:>10}")
        result[name] = {"tokens_per_s": rate, "p95_s": p95}
    print(f"{ratio} times the throughput, at {p95_ratio} of the p95")
    print(json.dumps(result | {"ratio": ratio, "p95_ratio": p95_ratio}))


if __name__ == "__main__":
    main()
