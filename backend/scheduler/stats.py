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
from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from itertools import pairwise

from backend.scheduler.sequence import Sequence, Step
from backend.scheduler.tiers import SourceFigures

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

_BOUNDS: dict[str, tuple[float, ...]] = {
    "time_to_first_token_seconds": WAIT_SECONDS,
    "inter_token_latency_seconds": TOKEN_SECONDS,
    "time_per_output_token_seconds": TOKEN_SECONDS,
    "queue_seconds": WAIT_SECONDS,
    "prefill_seconds": WAIT_SECONDS,
    "decode_seconds": REQUEST_SECONDS,
    "sequence_prompt_tokens": TOKEN_COUNTS,
    "sequence_generation_tokens": TOKEN_COUNTS,
    "batch_size": BATCH_SIZES,
    "step_tokens": TOKEN_COUNTS,
}

_STEPS_REMEMBERED = 4
"""A message that a client left is found after the step in flight and the one before."""

Label = tuple[str, ...]


@dataclass(slots=True)
class Distribution:
    """Observations by bucket; ``counts`` has one for each upper bound and one for what is above."""

    bounds: tuple[float, ...]
    counts: list[int] = field(default_factory=list)
    total: float = 0.0

    def __post_init__(self) -> None:
        self.counts = self.counts or [0] * (len(self.bounds) + 1)

    def observe(self, value: float, times: int = 1) -> None:
        """Record ``value``, which was met so many ``times``."""
        self.counts[bisect_left(self.bounds, value)] += times
        self.total += value * times

    def __add__(self, other: "Distribution") -> "Distribution":
        """Return both together; they have the same bounds."""
        counts = [a + b for a, b in zip(self.counts, other.counts, strict=True)]
        return Distribution(self.bounds, counts, self.total + other.total)


@dataclass(frozen=True, slots=True)
class Recording:
    """Figures so far: distributions by name and labels, and counts likewise."""

    distributions: Mapping[tuple[str, Label], Distribution] = field(default_factory=dict)
    counts: Mapping[tuple[str, Label], int] = field(default_factory=dict)

    def __add__(self, other: "Recording") -> "Recording":
        """Return the figures of both, as if one engine had made them."""
        distributions = dict(self.distributions)
        for key, distribution in other.distributions.items():
            known = distributions.get(key)
            distributions[key] = distribution if known is None else known + distribution
        return Recording(distributions, Counter(self.counts) + Counter(other.counts))


@dataclass(slots=True, eq=False)
class SequenceTimes:
    """When what happened to one sequence; the engine's loop keeps one for each."""

    arrived: float
    first_token: float | None = None
    last_token: float = 0.0


class Figures:
    """Recorded by one loop."""

    def __init__(self) -> None:
        self._distributions: dict[tuple[str, Label], Distribution] = {
            (name, ()): Distribution(bounds) for name, bounds in _BOUNDS.items()
        }
        self._finished: Counter[tuple[str, Label]] = Counter()

    def _observe(self, name: str, value: float, times: int = 1) -> None:
        self._distributions[name, ()].observe(value, times)

    def step(self, num_decoding: int, num_prefilling: int, num_tokens: int, seconds: float) -> None:
        """Record a step that computed ``num_tokens`` of so many sequences in ``seconds``."""
        batch_size = num_decoding + num_prefilling
        phase = PHASES[(num_prefilling == 0) + 2 * (num_prefilling > 0 and num_decoding > 0)]
        key = "step_seconds", (phase, _RANGES[bisect_left(BATCH_SIZES, batch_size)])
        if key not in self._distributions:
            self._distributions[key] = Distribution(STEP_SECONDS)
        self._distributions[key].observe(seconds)
        self._observe("batch_size", batch_size)
        self._observe("step_tokens", num_tokens)

    def first_token(self, times: SequenceTimes, admitted: float | None, now: float) -> None:
        """Record a sequence's first token; ``admitted`` is when its wait for a step ended."""
        times.first_token = times.last_token = now
        admitted = times.arrived if admitted is None else admitted
        self._observe("time_to_first_token_seconds", now - times.arrived)
        self._observe("queue_seconds", admitted - times.arrived)
        self._observe("prefill_seconds", now - admitted)

    def next_tokens(self, count: int, seconds: float) -> None:
        """Record that so many sequences got their next token so long after the one before."""
        self._observe("inter_token_latency_seconds", seconds, count)

    def finished(
        self, times: SequenceTimes, reason: str, num_prompt_tokens: int, num_tokens: int
    ) -> None:
        """Record the end of a sequence that got ``num_tokens``.

        ``reason`` is one of a fixed vocabulary.
        """
        self._finished["sequences_finished", (reason,)] += 1
        self._observe("sequence_prompt_tokens", num_prompt_tokens)
        self._observe("sequence_generation_tokens", num_tokens)
        if times.first_token is None:
            return
        seconds = times.last_token - times.first_token
        self._observe("decode_seconds", seconds)
        if num_tokens > 1:
            self._observe("time_per_output_token_seconds", seconds / (num_tokens - 1))

    def read(self) -> Recording:
        """Return all that was recorded so far."""
        distributions = {
            key: replace(each, counts=list(each.counts))
            for key, each in self._distributions.items()
        }
        return Recording(distributions, dict(self._finished))


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

    def times(self, sequence: Sequence) -> tuple[float, float] | None:
        """Return when a sequence's wait for its first step ended, and when its first token came."""
        times = self._times.get(sequence)
        if times is None or times.first_token is None:
            return None
        admitted = times.arrived if sequence.admitted is None else sequence.admitted
        return admitted, times.first_token

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

    def client_left(self, sequence: Sequence, at: float) -> None:
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
class TierStats:
    """The figures of one tier, whose blocks have ``block_bytes`` each."""

    name: str
    block_bytes: int
    figures: SourceFigures

    def following(self, before: "TierStats") -> "TierStats":
        """Return these figures of a tier that took the place of one that ended ``before``."""
        ours, theirs = self.figures, before.figures
        sums = {name: getattr(ours, name) + getattr(theirs, name) for name in _SUMMED_OF_TIERS}
        return replace(self, figures=replace(ours, **sums))


_SUMMED_OF_TIERS = ("saves", "failed_saves", "loads", "failed_loads")


@dataclass(frozen=True, slots=True)
class EngineStats:
    """A snapshot for /metrics.

    Up to ``kv_blocks_total`` and from ``tenants`` on it tells what is, the rest what has been so
    far. ``prefix_queries`` and ``prefix_hits`` are tokens; ``tokens_after_disconnect`` were
    computed for nobody. ``tenants`` have names that give nothing away, and blocks in the prefix
    cache.
    """

    running: int = 0
    waiting: int = 0
    kv_blocks_used: int = 0
    kv_blocks_total: int = 0
    preemptions: int = 0
    prompt_tokens: int = 0
    generated_tokens: int = 0
    prefix_queries: int = 0
    prefix_hits: int = 0
    tokens_after_disconnect: int = 0
    draft_tokens: int = 0
    accepted_draft_tokens: int = 0
    restarts: int = 0
    recording: Recording = field(default_factory=Recording)
    tenants: tuple[tuple[str, int], ...] = ()
    memory: "MemoryUse | None" = None
    tiers: tuple[TierStats, ...] = ()

    def following(self, before: "EngineStats") -> "EngineStats":
        """Return these figures of an engine that took the place of one that ended ``before``."""
        sums = {name: getattr(before, name) + getattr(self, name) for name in _SUMMED}
        tiers = {each.name: each for each in before.tiers}
        followed = (
            each.following(tiers[each.name]) if each.name in tiers else each for each in self.tiers
        )
        return replace(self, **sums, tiers=tuple(followed))


_SUMMED = (
    *("preemptions", "prompt_tokens", "generated_tokens", "prefix_queries", "prefix_hits"),
    *("tokens_after_disconnect", "draft_tokens", "accepted_draft_tokens", "restarts", "recording"),
)


@dataclass(frozen=True, slots=True)
class MemoryUse:
    """Bytes: resident in the engine's process; used and in all on its device, if it has one."""

    resident: int
    device_used: int | None = None
    device_total: int | None = None
