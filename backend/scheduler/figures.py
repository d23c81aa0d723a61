"""What the engine measures of itself: cheap to record in its loop, cheap to send, summed elsewhere.

Laws:
- Recording is plain arithmetic on lists, once a step or once a sequence, never once a token:
  sequences whose last tokens came with the same two steps share one observation.
- Labels are bounded: phases and ranges of batch sizes are fixed.
- A ``Recording`` is a value; two of them add up, so that figures survive a restart of the engine.

Times are seconds on the clock of the caller's ``now``. The meanings are vLLM's: queue time ends
with the first admission, prefill with the first token, decode with the last.
"""

from bisect import bisect_left
from collections.abc import Mapping
from dataclasses import dataclass, field
from itertools import pairwise
from typing import Self

TOKEN_SECONDS = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5)
STEP_SECONDS = (0.0005, *TOKEN_SECONDS)
WAIT_SECONDS = (0.001, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0)
REQUEST_SECONDS = (0.01, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0, 300.0)
BATCH_SIZES = (1, 2, 4, 8, 16, 32, 64, 128, 256, 512)
TOKEN_COUNTS = (1, 8, 16, 32, 64, 128, 256, 512, 1024, 2048, 4096, 8192, 16384)

PHASES = ("prefill", "decode", "mixed")
_RANGES = (
    *("1", "2"),
    *(f"{low + 1}-{high}" for low, high in pairwise(BATCH_SIZES[1:])),
    f"{BATCH_SIZES[-1] + 1}-",
)

Label = tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Distribution:
    """Observations by bucket; ``counts`` has one for each upper bound and one for what is above."""

    bounds: tuple[float, ...]
    counts: tuple[int, ...]
    total: float

    def __add__(self, other: Self) -> "Distribution":
        """Return both together; they have the same bounds."""
        counts = tuple(a + b for a, b in zip(self.counts, other.counts, strict=True))
        return Distribution(self.bounds, counts, self.total + other.total)


class Histogram:
    """Counts by upper bound, as Prometheus has them but not summed up."""

    def __init__(self, bounds: tuple[float, ...]) -> None:
        """``bounds`` ascend."""
        self._bounds = bounds
        self._counts = [0] * (len(bounds) + 1)
        self._total = 0.0

    def observe(self, value: float, times: int = 1) -> None:
        """Record ``value``, which was met so many ``times``."""
        self._counts[bisect_left(self._bounds, value)] += times
        self._total += value * times

    def read(self) -> Distribution:
        """Return what was recorded so far."""
        return Distribution(self._bounds, tuple(self._counts), self._total)


@dataclass(frozen=True, slots=True)
class Recording:
    """Figures so far: distributions by name and labels, and counts likewise."""

    distributions: Mapping[tuple[str, Label], Distribution] = field(default_factory=dict)
    counts: Mapping[tuple[str, Label], int] = field(default_factory=dict)

    def __add__(self, other: Self) -> "Recording":
        """Return the figures of both, as if one engine had made them."""
        distributions = dict(self.distributions)
        for name, distribution in other.distributions.items():
            known = distributions.get(name)
            distributions[name] = distribution if known is None else known + distribution
        counts = dict(self.counts)
        for name, count in other.counts.items():
            counts[name] = counts.get(name, 0) + count
        return Recording(distributions, counts)


@dataclass(slots=True, eq=False)
class SequenceTimes:
    """When what happened to one sequence; the engine's loop keeps one for each."""

    arrived: float
    first_token: float | None = None
    last_token: float = 0.0


class Figures:
    """Recorded by one loop."""

    def __init__(self) -> None:
        self._first_token = Histogram(WAIT_SECONDS)
        self._next_token = Histogram(TOKEN_SECONDS)
        self._per_token = Histogram(TOKEN_SECONDS)
        self._queue = Histogram(WAIT_SECONDS)
        self._prefill = Histogram(WAIT_SECONDS)
        self._decode = Histogram(REQUEST_SECONDS)
        self._prompt_tokens = Histogram(TOKEN_COUNTS)
        self._generation_tokens = Histogram(TOKEN_COUNTS)
        self._batch_size = Histogram(BATCH_SIZES)
        self._step_tokens = Histogram(TOKEN_COUNTS)
        self._steps: dict[Label, Histogram] = {}
        self._finished: dict[Label, int] = {}

    def step(self, num_decoding: int, num_prefilling: int, num_tokens: int, seconds: float) -> None:
        """Record a step that computed ``num_tokens`` of so many sequences in ``seconds``."""
        batch_size = num_decoding + num_prefilling
        phase = PHASES[(num_prefilling == 0) + 2 * (num_prefilling > 0 and num_decoding > 0)]
        label = (phase, _RANGES[bisect_left(BATCH_SIZES, batch_size)])
        histogram = self._steps.get(label)
        if histogram is None:
            histogram = self._steps[label] = Histogram(STEP_SECONDS)
        histogram.observe(seconds)
        self._batch_size.observe(batch_size)
        self._step_tokens.observe(num_tokens)

    def first_token(self, times: SequenceTimes, admitted: float | None, now: float) -> None:
        """Record a sequence's first token; ``admitted`` is when its wait for a step ended."""
        times.first_token = times.last_token = now
        admitted = times.arrived if admitted is None else admitted
        self._first_token.observe(now - times.arrived)
        self._queue.observe(admitted - times.arrived)
        self._prefill.observe(now - admitted)

    def next_tokens(self, count: int, seconds: float) -> None:
        """Record that so many sequences got their next token so long after the one before."""
        self._next_token.observe(seconds, count)

    def finished(
        self, times: SequenceTimes, reason: str, num_prompt_tokens: int, num_tokens: int
    ) -> None:
        """Record the end of a sequence that got ``num_tokens``.

        ``reason`` is one of a fixed vocabulary.
        """
        self._finished[reason,] = self._finished.get((reason,), 0) + 1
        self._prompt_tokens.observe(num_prompt_tokens)
        self._generation_tokens.observe(num_tokens)
        if times.first_token is None:
            return
        seconds = times.last_token - times.first_token
        self._decode.observe(seconds)
        if num_tokens > 1:
            self._per_token.observe(seconds / (num_tokens - 1))

    def read(self) -> Recording:
        """Return all that was recorded so far."""
        plain = {
            "time_to_first_token_seconds": self._first_token,
            "inter_token_latency_seconds": self._next_token,
            "time_per_output_token_seconds": self._per_token,
            "queue_seconds": self._queue,
            "prefill_seconds": self._prefill,
            "decode_seconds": self._decode,
            "sequence_prompt_tokens": self._prompt_tokens,
            "sequence_generation_tokens": self._generation_tokens,
            "batch_size": self._batch_size,
            "step_tokens": self._step_tokens,
        }
        distributions: dict[tuple[str, Label], Distribution] = {
            (name, ()): histogram.read() for name, histogram in plain.items()
        }
        for label, histogram in self._steps.items():
            distributions["step_seconds", label] = histogram.read()
        finished = {("sequences_finished", label): n for label, n in self._finished.items()}
        return Recording(distributions, finished)
