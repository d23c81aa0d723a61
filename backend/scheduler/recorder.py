"""Records a loop's steps and sequences as figures; see ``figures`` for what they mean.

Law: every sequence that ran is given an end exactly once, whatever happens to it.
"""

from collections.abc import Iterable

from backend.scheduler.figures import Figures, Recording, SequenceTimes
from backend.scheduler.sequence import Sequence
from backend.scheduler.step import Step

_STEPS_REMEMBERED = 4
"""A message that a client left is found after the step in flight and the one before."""


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
        num_tokens = sum([count for _, _, count, _ in step])
        num_prefilling = 0
        if num_tokens > len(step):
            num_prefilling = sum([start < each.num_prompt_tokens for each, start, _, _ in step])
        self._figures.step(len(step) - num_prefilling, num_prefilling, num_tokens, now - began)
        self._take_tokens({sequence for sequence, _, _, samples in step if samples}, now)
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
