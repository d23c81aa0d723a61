"""What the engine measures of itself.

Laws:
- Recording is plain arithmetic on lists, once a step or once a sequence, never once a token.
  Sequences whose last tokens came with the same two steps share one observation.
- Labels are bounded: phases and ranges of batch sizes are fixed.
- A ``Recording`` is a value; two of them add up, so that figures survive a restart of the engine.
- Every sequence that ran gets one end, whatever happens to it.

Times are seconds on the clock of the caller's ``now``. The meanings are vLLM's: queue time ends
with the first admission, prefill with the first token, decode with the last.
"""

from bisect import bisect_left
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from itertools import pairwise
from typing import Self

from backend.scheduler.sequence import Sequence, Step

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

_STEPS_REMEMBERED = 4
"""A message that a client left is found after the step in flight and the one before."""

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


class Recorder:
    """Owned by the loop; times are on the clock of ``now``."""

    def __init__(self) -> None:
        self.num_tokens_after_disconnect = 0
        self._figures = Figures()
        self._times: dict[Sequence, SequenceTimes] = {}
        self._sampled: set[Sequence] = set()
        """Those that got a token with the last step, and when that was."""
        self._sampled_at = 0.0
        self._recent: list[tuple[float, Step]] = []
        self._left: set[Sequence] = set()

    def read(self) -> Recording:
        """Return the figures so far."""
        return self._figures.read()

    def arrived(self, sequences: Iterable[Sequence], at: float) -> None:
        """Take in sequences whose client has waited since ``at``."""
        for sequence in sequences:
            self._times[sequence] = SequenceTimes(at)

    def completed(self, step: Step, began: float, now: float) -> None:
        """Record a step whose tokens came ``now``; ``began`` is when the device began with it."""
        num_tokens = sum([scheduled.num_tokens for scheduled in step])
        num_prefilling = 0
        if num_tokens > len(step):
            num_prefilling = sum([each.start < each.sequence.num_prompt_tokens for each in step])
        self._figures.step(len(step) - num_prefilling, num_prefilling, num_tokens, now - began)
        self._take_tokens({scheduled.sequence for scheduled in step if scheduled.samples}, now)
        self._recent.append((now, step))
        del self._recent[:-_STEPS_REMEMBERED]
        if self._left:
            self._count_left(step)

    def left(self, sequence: Sequence, at: float) -> None:
        """Record that nobody has wanted ``sequence`` since ``at``; its end is told as well."""
        for completed, step in self._recent:
            if completed > at:
                self.num_tokens_after_disconnect += sum(
                    scheduled.num_tokens for scheduled in step if scheduled.sequence is sequence
                )
        if sequence.num_steps_in_flight:
            self._left.add(sequence)

    def ended(self, sequence: Sequence, reason: str) -> None:
        """Record an end; ``reason`` is one of a fixed vocabulary. A second call does nothing.

        Nor does the abort of what never ran: of a request whose other prompts were refused, or
        whose client left the line, nothing was generated.
        """
        times = self._times.pop(sequence, None)
        if times is None:
            return
        if sequence in self._sampled:
            times.last_token = self._sampled_at
            self._sampled.discard(sequence)
        elif reason == "abort" and sequence.admitted is None:
            return
        num_tokens = len(sequence.tokens) - sequence.num_prompt_tokens
        self._figures.finished(times, reason, sequence.num_prompt_tokens, num_tokens)

    def all_ended(self, reason: str) -> None:
        """Record the end of every sequence there is."""
        for sequence in list(self._times):
            self.ended(sequence, reason)
        self._recent.clear()
        self._sampled.clear()
        self._left.clear()

    def _take_tokens(self, sampled: set[Sequence], now: float) -> None:
        before = self._sampled
        if stayed := len(sampled & before):
            self._figures.next_tokens(stayed, now - self._sampled_at)
        for sequence in before - sampled:
            self._times[sequence].last_token = self._sampled_at
        for sequence in sampled - before:
            times = self._times.get(sequence)
            if times is None:
                sampled.discard(sequence)  # it ended while the step was in flight
            elif times.first_token is None:
                self._figures.first_token(times, sequence.admitted, now)
            else:
                self._figures.next_tokens(1, now - times.last_token)
        self._sampled, self._sampled_at = sampled, now

    def _count_left(self, step: Step) -> None:
        for scheduled in step:
            if scheduled.sequence in self._left:
                self.num_tokens_after_disconnect += scheduled.num_tokens
        # Of those whose step failed no other is completed.
        self._left = {each for each in self._left if each.num_steps_in_flight}


@dataclass(frozen=True, slots=True)
class EngineStats:
    """A snapshot for /metrics.

    Up to ``kv_blocks_total`` and from ``tenants`` on it tells what is, the rest what has been so
    far. ``prefix_queries`` and ``prefix_hits`` are tokens; ``tokens_after_disconnect`` were
    computed for nobody. ``tenants`` have names that give nothing away, and blocks in the prefix
    cache.
    """

    running: int
    waiting: int
    kv_blocks_used: int
    kv_blocks_total: int
    preemptions: int
    prompt_tokens: int
    generated_tokens: int
    prefix_queries: int = 0
    prefix_hits: int = 0
    tokens_after_disconnect: int = 0
    draft_tokens: int = 0
    accepted_draft_tokens: int = 0
    restarts: int = 0
    recording: Recording = field(default_factory=Recording)
    tenants: tuple[tuple[str, int], ...] = ()
    memory: "MemoryUse | None" = None

    def following(self, before: "EngineStats") -> "EngineStats":
        """Return these figures of an engine that took the place of one that ended ``before``."""
        return replace(
            self,
            preemptions=before.preemptions + self.preemptions,
            prompt_tokens=before.prompt_tokens + self.prompt_tokens,
            generated_tokens=before.generated_tokens + self.generated_tokens,
            prefix_queries=before.prefix_queries + self.prefix_queries,
            prefix_hits=before.prefix_hits + self.prefix_hits,
            tokens_after_disconnect=before.tokens_after_disconnect + self.tokens_after_disconnect,
            draft_tokens=before.draft_tokens + self.draft_tokens,
            accepted_draft_tokens=before.accepted_draft_tokens + self.accepted_draft_tokens,
            restarts=before.restarts + self.restarts,
            recording=before.recording + self.recording,
        )


@dataclass(frozen=True, slots=True)
class MemoryUse:
    """Bytes: resident in the engine's process; used and in all on its device, if it has one."""

    resident: int
    device_used: int | None = None
    device_total: int | None = None
