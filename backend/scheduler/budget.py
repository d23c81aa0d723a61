"""The token budget of each step: how many tokens it may compute, and how many sequences may run.

With latency targets, a step is as long as they allow and no longer: a sequence that decodes waits
one step between two tokens (ITL), and a new one waits for the step that runs before its own (TTFT).
How long a step takes is learnt from those that were observed; observations come in as numbers.

Laws: prefill always advances, by ``_LEAST_PREFILL`` tokens at least, however hopeless a target is.
Nothing is tried that is more than twice what was seen, so that a model that knows little does
little harm.
"""

from collections import deque
from dataclasses import dataclass
from statistics import median_low
from typing import Protocol

import numpy as np

_LEAST_PREFILL = 32
_LEAST_RUNNING = 4
_FIRST_PREFILL = 256

_KEPT_OF_A_KIND = 7
_FORGOTTEN_AFTER = 4096  # steps
_STEPS_BETWEEN_FITS = 16
_LEAST_SQUARES_RANK = 1e-5
_SAME_ERROR = 1e-9
_COEFFICIENTS = ([0, 1, 2], [0, 1], [0, 2], [1, 2], [0], [1], [2])
"""The first of equal fits is taken."""

_STEPS_TO_DOUBLE = 256


@dataclass(frozen=True, slots=True)
class TokenBudget:
    """What a step may compute at most: ``max_tokens`` in all, by ``max_num_seqs`` sequences."""

    max_tokens: int
    max_num_seqs: int


class BudgetPolicy(Protocol):
    """Decides the budget of each step."""

    def allow(self, num_decodes: int) -> TokenBudget:
        """Return the budget of a step in which ``num_decodes`` sequences decode."""

    def observe(self, num_decode_tokens: int, num_prefill_tokens: int, seconds: float) -> None:
        """Learn how long a step took."""


class FixedBudget:
    """The same budget for every step."""

    def __init__(self, budget: TokenBudget) -> None:
        """Allow ``budget`` in every step."""
        self._budget = budget

    def allow(self, num_decodes: int) -> TokenBudget:
        del num_decodes
        return self._budget

    def observe(self, num_decode_tokens: int, num_prefill_tokens: int, seconds: float) -> None:
        """Learn nothing."""


class AdaptiveBudget:
    """Budgets that keep to targets, as far as the time of a step can be foreseen."""

    def __init__(
        self,
        most: TokenBudget,
        *,
        target_ttft: float | None = None,
        target_itl: float | None = None,
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

    def allow(self, num_decodes: int) -> TokenBudget:
        longest = min(self._longest_step, self._target_itl if num_decodes else float("inf"))
        prefill = max(self._prefill(longest, num_decodes), _LEAST_PREFILL)
        max_tokens = max(min(num_decodes + prefill, self._most.max_tokens), num_decodes + 1)
        return TokenBudget(max_tokens, self._running())

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
        left = self._target_itl - model.predict(0, _LEAST_PREFILL)
        if model.per_decode == 0:
            return min(tried if left >= 0 else _LEAST_RUNNING, most)
        return int(min(max(left / model.per_decode, _LEAST_RUNNING), tried, most))


def budget_policy(
    most: TokenBudget, *, target_ttft: float | None, target_itl: float | None
) -> BudgetPolicy:
    """Return the policy that keeps to the targets; without any, a fixed budget."""
    if target_ttft is None and target_itl is None:
        return FixedBudget(most)
    return AdaptiveBudget(most, target_ttft=target_ttft, target_itl=target_itl)


class OomBackoff:
    """Smaller steps for a while after one ran out of memory: a ``BudgetPolicy`` before another.

    A step's activations grow with its tokens. So prefill is cut in half until it fits, and grows
    again once that has gone well for some time.
    """

    def __init__(self, policy: BudgetPolicy) -> None:
        """Allow what ``policy`` does until ``shrink`` is called."""
        self._policy = policy
        self._max_tokens: int | None = None
        self._steps = 0

    def allow(self, num_decodes: int) -> TokenBudget:
        budget = self._policy.allow(num_decodes)
        if self._max_tokens is None:
            return budget
        if self._max_tokens >= budget.max_tokens:
            self._max_tokens = None
            return budget
        return TokenBudget(max(self._max_tokens, num_decodes + 1), budget.max_num_seqs)

    def observe(self, num_decode_tokens: int, num_prefill_tokens: int, seconds: float) -> None:
        self._policy.observe(num_decode_tokens, num_prefill_tokens, seconds)
        self._steps += 1
        if self._max_tokens is not None and self._steps >= _STEPS_TO_DOUBLE:
            self._steps = 0
            self._max_tokens *= 2

    def shrink(self, num_tokens: int, num_sequences: int) -> bool:
        """Allow half of what a step had that ran out of memory; False: it is as small as can be."""
        if num_tokens <= max(_LEAST_PREFILL, num_sequences):
            return False
        self._max_tokens = num_tokens // 2
        self._steps = 0
        return True


class StepTimeModel:
    """Seconds of a step: ``base + per_decode * decodes + per_prefill * prefill tokens``.

    A coefficient is 0 until something was seen of it. One slow step (another process, a page fault)
    must not change much, and a thousand steps of one kind must not make the model forget the
    others. So a few observations are kept for each kind, by powers of two of both counts; the
    median of each kind is one point of a least squares fit of relative errors.
    """

    def __init__(self) -> None:
        self.base = 0.0
        self.per_decode = 0.0
        self.per_prefill = 0.0
        self.most_decodes = 0
        """The most that one step was seen to have."""
        self.most_prefill = 0
        self._kinds: dict[tuple[int, int], deque[tuple[float, int, int, int]]] = {}
        self._steps = 0
        self._next_fit = 1

    def observe(self, decodes: int, prefill: int, seconds: float) -> None:
        """Take in one step; what makes no sense is ignored."""
        if seconds <= 0 or decodes < 0 or prefill < 0 or decodes + prefill == 0:
            return
        self._steps += 1
        self.most_decodes = max(self.most_decodes, decodes)
        self.most_prefill = max(self.most_prefill, prefill)
        kind = decodes.bit_length(), prefill.bit_length()
        kept = self._kinds.get(kind)
        if kept is None:
            kept = self._kinds[kind] = deque(maxlen=_KEPT_OF_A_KIND)
            self._next_fit = self._steps  # something new
        kept.append((seconds, decodes, prefill, self._steps))
        if self._steps >= self._next_fit:
            self._next_fit = self._steps + _STEPS_BETWEEN_FITS
            self._fit()

    def predict(self, decodes: int, prefill: int) -> float:
        """Return the seconds of such a step."""
        return self.base + self.per_decode * decodes + self.per_prefill * prefill

    def _fit(self) -> None:
        oldest = self._steps - _FORGOTTEN_AFTER
        self._kinds = {kind: kept for kind, kept in self._kinds.items() if kept[-1][3] > oldest}
        points = map(median_low, self._kinds.values())
        # Each row times the coefficients is to be 1: that makes errors relative.
        rows = np.array([(1, decodes, prefill, t) for t, decodes, prefill, _ in points], np.float64)
        rows = rows[:, :3] / rows[:, 3:]
        scales = np.linalg.norm(rows, axis=0)
        scales[scales == 0] = 1.0
        rows /= scales
        least = float("inf")
        for used in _COEFFICIENTS:
            some = rows[:, used]
            fit, _, rank, _ = np.linalg.lstsq(some, np.ones(len(rows)), rcond=_LEAST_SQUARES_RANK)
            if rank < len(used) or fit.min() < 0:
                continue  # times are not negative, and these cannot be told apart
            error = float(np.square(some @ fit - 1).sum())
            if error < least - _SAME_ERROR:
                least = error
                coefficients = np.zeros(3)
                coefficients[used] = fit / scales[used]
                self.base, self.per_decode, self.per_prefill = coefficients.tolist()
            if len(used) == 3:
                break  # nothing fits better
