"""How much one step may compute: the token budget, and how many sequences may run.

With targets, a step is as long as they allow and no longer: whoever decodes waits for one step
between two tokens (ITL), and whoever arrives waits for the step that runs before its own (TTFT).
Pure: observations come in as numbers.

Laws: prefill always advances, by ``_LEAST_PREFILL`` tokens at least, however hopeless a target is.
Nothing is tried that is more than twice what was seen, so that a model that knows little does
little harm.
"""

from dataclasses import dataclass
from typing import Protocol

from backend.scheduler.step_time import StepTimeModel

_LEAST_PREFILL = 32
_LEAST_RUNNING = 4
_FIRST_PREFILL = 256


@dataclass(frozen=True, slots=True)
class Allowance:
    """What a step may compute at most: ``max_tokens`` in all, by ``max_num_seqs`` sequences."""

    max_tokens: int
    max_num_seqs: int


class Pacing(Protocol):
    """Decides the allowance of each step."""

    def allow(self, num_decodes: int) -> Allowance:
        """Return the allowance of a step in which ``num_decodes`` sequences decode."""
        ...

    def observe(self, num_decode_tokens: int, num_prefill_tokens: int, seconds: float) -> None:
        """Learn how long a step took."""
        ...


class FixedPacing:
    """The same allowance for every step."""

    def __init__(self, allowance: Allowance) -> None:
        """Allow as much in every step."""
        self._allowance = allowance

    def allow(self, num_decodes: int) -> Allowance:
        del num_decodes
        return self._allowance

    def observe(self, num_decode_tokens: int, num_prefill_tokens: int, seconds: float) -> None:
        """See ``Pacing``; nothing is learnt."""


class AdaptivePacing:
    """Allowances that keep to targets, as far as the time of a step can be foreseen."""

    def __init__(
        self, most: Allowance, *, target_ttft: float | None = None, target_itl: float | None = None
    ) -> None:
        """Never allow more than ``most``; targets are in seconds."""
        for target in (target_ttft, target_itl):
            if target is not None and target <= 0:
                raise ValueError(f"a latency target must be positive, got {target}")
        self.model = StepTimeModel()
        self._most = most
        # One step before its own, and its own.
        self._longest_step = float("inf") if target_ttft is None else target_ttft / 2
        self._target_itl = float("inf") if target_itl is None else target_itl

    def allow(self, num_decodes: int) -> Allowance:
        longest = min(self._longest_step, self._target_itl if num_decodes else float("inf"))
        prefill = max(self._prefill(longest, num_decodes), _LEAST_PREFILL)
        max_tokens = max(min(num_decodes + prefill, self._most.max_tokens), num_decodes + 1)
        return Allowance(max_tokens, self._running())

    def observe(self, num_decode_tokens: int, num_prefill_tokens: int, seconds: float) -> None:
        self.model.observe(num_decode_tokens, num_prefill_tokens, seconds)

    def _prefill(self, longest: float, num_decodes: int) -> int:
        model = self.model
        most = max(2 * model.most_prefill, _FIRST_PREFILL)
        if longest == float("inf"):
            return self._most.max_tokens
        if model.per_prefill == 0:
            return most
        room = (longest - model.predict(num_decodes, 0)) / model.per_prefill
        return int(max(min(room, most), 0))

    def _running(self) -> int:
        model, most = self.model, self._most.max_num_seqs
        if self._target_itl == float("inf"):
            return most
        tried = max(2 * model.most_decodes, _LEAST_RUNNING)
        if model.per_decode == 0:
            return min(tried, most)
        room = (self._target_itl - model.predict(0, _LEAST_PREFILL)) / model.per_decode
        return int(min(max(room, _LEAST_RUNNING), tried, most))


def pacing_for(most: Allowance, *, target_ttft: float | None, target_itl: float | None) -> Pacing:
    """Return what keeps to the targets; without any, a fixed allowance."""
    if target_ttft is None and target_itl is None:
        return FixedPacing(most)
    return AdaptivePacing(most, target_ttft=target_ttft, target_itl=target_itl)
