"""The engine's scheduler replayed on a trace in virtual time: no model, no waiting, no noise.

Every decision is the real scheduler's; only the duration of a step is a formula, whose coefficients
are measured on the machine at hand (``StepCost.measure``). Lengths and arrivals are those of the
Azure trace of 2023, conversations.
"""

import statistics
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from traffic import TracedRequest

from backend.engine.loading import load_model
from backend.engine.messages import Submit
from backend.scheduler.block_pool import BlockPool
from backend.scheduler.request import GenerationRequest, SamplingParams
from backend.scheduler.scheduler import Scheduler
from backend.scheduler.sequence import Sequence as Continuation
from backend.settings import EngineOptions
from engines.sides import random_prompts


@dataclass(frozen=True, slots=True)
class StepCost:
    """Seconds of a step: a base, and for each token of prefill and each sequence that decodes."""

    base: float
    prefill_token: float
    decode: float

    @classmethod
    def measure(cls, directory: Path) -> "StepCost":
        """Fit to steps of a model: one sequence and 16 that decode, and a chunk of prefill.

        On one thread, in processor time, so that whatever else the machine does counts for little.
        """
        core = load_model(EngineOptions(str(directory), device="cpu", threads=1)).core
        core.runner.warm_up()
        numbers = iter(range(1_000_000))

        def steps(prompts: Sequence[Sequence[int]], new_tokens: int) -> list[float]:
            for prompt in prompts:
                sampling = SamplingParams(temperature=0.0, max_tokens=new_tokens, ignore_eos=True)
                request = GenerationRequest("cost", tuple(prompt), sampling, stream=False)
                core.submit(Submit(next(numbers), request, time.monotonic()))
            seconds: list[float] = []
            while core.scheduler.has_work:
                start = time.thread_time()
                core.step()
                seconds.append(time.thread_time() - start)
            core.take_items()
            return seconds

        alone = statistics.median(steps(random_prompts(1, 16, seed=2), 64)[1:])
        together = statistics.median(steps(random_prompts(16, 16, seed=3), 64)[2:-2])
        chunk = min(steps(random_prompts(1, 512, seed=seed), 1)[0] for seed in (4, 5, 6))
        decode = max(together - alone, 0.0) / 15
        base = max(alone - decode, 0.0)
        return cls(base, max(chunk - base, 0.0) / 512, decode)

    def of(self, num_prefill_tokens: int, num_decodes: int) -> float:
        """Return the duration of a step."""
        return self.base + self.prefill_token * num_prefill_tokens + self.decode * num_decodes

    def alone(self, request: TracedRequest, batch: int) -> float:
        """Return the seconds that a request costs when steps are shared by ``batch``."""
        shared = self.base / batch + self.decode
        return self.prefill_token * request.prompt_tokens + shared * request.new_tokens


@dataclass(slots=True)
class Outcome:
    """What became of a request; times are virtual seconds."""

    request: TracedRequest
    arrived: float
    first_token: float = 0.0
    finished: float = 0.0

    @property
    def ttft(self) -> float:
        """Wait for the first token."""
        return self.first_token - self.arrived


def replay(
    requests: Sequence[TracedRequest],
    cost: StepCost,
    new_scheduler: Callable[[BlockPool], Scheduler],
    *,
    num_blocks: int,
    stretch: float = 1.0,
    look: Callable[[list[Continuation]], None] = lambda _: None,
) -> list[Outcome]:
    """Run ``requests``, arrivals times ``stretch``; ``look`` sees who runs after each step."""
    scheduler = new_scheduler(BlockPool(num_blocks))
    outcomes: dict[Continuation, Outcome] = {}
    arrivals = _arrivals(requests, stretch)
    coming = next(arrivals, None)
    running: dict[Continuation, None] = {}
    now = 0.0
    while coming is not None or scheduler.has_work:
        if not scheduler.has_work and coming is not None:
            now = max(now, coming[1].arrived)
        while coming is not None and coming[1].arrived <= now:
            sequence, outcome = coming
            outcomes[sequence] = outcome
            scheduler.add(sequence, now)
            coming = next(arrivals, None)
        step = scheduler.schedule(now)
        decodes = sum(1 for each in step if each.num_tokens == 1)
        now += cost.of(sum(each.num_tokens for each in step) - decodes, decodes)
        running |= dict.fromkeys(each.sequence for each in step)
        look(list(running))
        scheduler.complete(step, [(0,) for each in step if each.samples], now)
        for each in step:
            sequence, outcome = each.sequence, outcomes[each.sequence]
            if each.samples and not outcome.first_token:
                outcome.first_token = now
            if len(sequence.tokens) >= sequence.max_length:
                outcome.finished = now
                scheduler.finish(sequence)
                del running[sequence]
    scheduler.check_integrity()
    return list(outcomes.values())


def _arrivals(
    requests: Sequence[TracedRequest], stretch: float
) -> Iterator[tuple[Continuation, Outcome]]:
    for number, request in enumerate(requests):
        # Different tokens for each, so that nothing is found in the prefix cache.
        prompt = [number + 1] * request.prompt_tokens
        at = request.at * stretch
        length = request.prompt_tokens + request.new_tokens
        yield Continuation(number, prompt, length, arrived=at), Outcome(request, at)
