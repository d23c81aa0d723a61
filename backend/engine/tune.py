"""Measures an engine at one batch cap: as many callers as the cap, each asking again when answered.

With no more callers than may run together nobody queues, so that TTFT and ITL are those of the
batch. Lengths vary by half around their mean and prompts are random tokens, so that no two share a
prefix. Latencies are taken where a caller takes them.
"""

import asyncio
import random
import time
from collections.abc import AsyncGenerator, Callable
from contextlib import aclosing
from dataclasses import dataclass, field
from itertools import count

from backend.ports import Generator
from backend.scheduler.request import GenerationRequest, SamplingParams, TextDelta
from backend.scheduler.tuning import Trial

_WARM_SHARE = 0.2


@dataclass(frozen=True, slots=True)
class Load:
    """Mean lengths in tokens, and the ids that prompts are made of."""

    prompt_tokens: int
    output_tokens: int
    vocab_size: int


@dataclass(slots=True)
class _Measured:
    clock: Callable[[], float]
    counting_from: float
    num_tokens: int = 0
    first_token: list[float] = field(default_factory=list)
    between_tokens: list[float] = field(default_factory=list)

    def delta(self, asked: float, last: float | None, tokens: int) -> float:
        """Take in ``tokens`` new ones; return the time."""
        now = self.clock()
        if now >= self.counting_from:
            self.num_tokens += tokens
            if last is None:
                self.first_token.append(now - asked)
            else:
                # Those that came as one message share its time.
                self.between_tokens += [(now - last) / tokens] * tokens
        return now


async def measure(
    engine: Generator,
    load: Load,
    *,
    max_num_seqs: int,
    max_tokens_per_step: int | None,
    seconds: float,
    clock: Callable[[], float] = time.perf_counter,
) -> Trial:
    """Keep ``max_num_seqs`` requests running for ``seconds``; the first fifth is not counted.

    Raises what the engine raises.
    """
    began = clock()
    measured = _Measured(clock, began + seconds * _WARM_SHARE)
    numbers = count()

    async def call() -> None:
        while True:
            await _one(engine, _request(load, next(numbers)), measured)

    callers = [asyncio.create_task(call()) for _ in range(max_num_seqs)]
    try:
        done, _ = await asyncio.wait(callers, timeout=seconds, return_when=asyncio.FIRST_EXCEPTION)
        ended = clock()
        for caller in done:
            caller.result()
    finally:
        for caller in callers:
            caller.cancel()
        await asyncio.gather(*callers, return_exceptions=True)
    return Trial(
        max_num_seqs,
        max_tokens_per_step,
        max(ended - measured.counting_from, 0.0),
        measured.num_tokens,
        tuple(measured.first_token),
        tuple(measured.between_tokens),
    )


async def _one(engine: Generator, request: GenerationRequest, measured: _Measured) -> None:
    asked = measured.clock()
    last: float | None = None
    told = 0
    deltas: AsyncGenerator[TextDelta, None] = engine.generate(request)
    async with aclosing(deltas):
        async for delta in deltas:
            new = delta.completion_tokens - told
            if new:
                last = measured.delta(asked, last, new)
                told = delta.completion_tokens


def _request(load: Load, number: int) -> GenerationRequest:
    # Seeded by its number: every cap is given the same work in the same order.
    chance = random.Random(number)
    prompt = chance.choices(range(load.vocab_size), k=_around(chance, load.prompt_tokens))
    return GenerationRequest(
        request_id=f"tune-{number}",
        prompt_tokens=tuple(prompt),
        sampling=SamplingParams(
            temperature=0.0, max_tokens=_around(chance, load.output_tokens), ignore_eos=True
        ),
    )


def _around(chance: random.Random, mean: int) -> int:
    return max(1, round(mean * chance.uniform(0.5, 1.5)))
