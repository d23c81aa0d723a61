"""Which prompts a step computes, and who is admitted for that.

Laws: overdue sequences come first. Where short ones wait too they take turns, so a burst of long
ones that is worked off late does not make everybody late. Then come short prompts, then long ones,
one at a time of a priority, with a share of the budget and a place reserved, so that a stream of
short ones never stops them. A sequence that is first but lacks blocks lets nobody of its lane take
them, and a short one nobody at all; a long one lets short ones pass until it is overdue.
"""

from collections.abc import Iterable

from backend.scheduler.queue import WaitingQueue
from backend.scheduler.running import RunningSet
from backend.scheduler.sequence import Sequence

_LONG_SHARE = 0.25


class PrefillPlanner:
    """Spends what decodes leave of a step's budget."""

    def __init__(self, running: RunningSet, waiting: WaitingQueue) -> None:
        """Admit from ``waiting`` to ``running``."""
        self._running = running
        self._waiting = waiting
        self._long_lacks_blocks = False
        self._turn_of_short = False

    def plan(self, budget: int, max_num_seqs: int, now: float) -> dict[Sequence, int]:
        """Return how many tokens of which sequences are computed, ``budget`` at most in all."""
        planned: dict[Sequence, int] = {}
        running = self._running
        waiting = self._waiting
        prefilling = (*running.short, *running.long)
        overdue = [each for each in prefilling if waiting.is_overdue(each, now)]
        budget = self._compute(planned, overdue, budget, now)
        budget, slots = self._admit_overdue(planned, budget, max_num_seqs, now)
        if budget > 0:
            self._interrupt_long(slots, now)
        long_waits = self._waiting.first_long() is not None
        reserve = 0
        if budget > 1 and (running.long or (long_waits and not self._long_lacks_blocks)):
            reserve = max(1, int(budget * _LONG_SHARE))
        left = self._compute(planned, running.short, budget - reserve, now)
        left, slots = self._admit_short(planned, left, slots, now, long_waits=long_waits)
        left = self._compute(planned, running.long, left + reserve, now)
        left = self._admit_long(planned, left, slots, now)
        if left > 0:
            left = self._compute(planned, running.short, left, now)
            self._admit_short(planned, left, slots, now, long_waits=False)
        return planned

    def _compute(
        self, planned: dict[Sequence, int], sequences: Iterable[Sequence], budget: int, now: float
    ) -> int:
        """Spend ``budget`` on ``sequences``, in their order; return what is left."""
        if budget <= 0:
            return budget
        for sequence in sorted(sequences, key=lambda each: self._schedule_key(each, now)):
            if sequence.num_loads_in_flight:
                continue
            already = planned.get(sequence, 0)
            count = min(sequence.num_pending_tokens - already, budget)
            if count:
                planned[sequence] = already + count
                budget -= count
            if budget == 0:
                break
        return budget

    def _schedule_key(self, sequence: Sequence, now: float) -> tuple[float, ...]:
        """Return a key by which the first computes first."""
        if self._waiting.is_overdue(sequence, now):
            return (0, sequence.arrived, sequence.sequence_id)
        return (1, sequence.priority, sequence.sequence_id)

    def _admit_overdue(
        self, planned: dict[Sequence, int], budget: int, slots: int, now: float
    ) -> tuple[int, int]:
        """Return the budget left, and how many may run.

        That is 0 where an overdue one must wait, and one more than do where it is the turn of a
        short one.
        """
        while budget > 0 and (sequence := self._waiting.first_overdue(now)) is not None:
            if self._turn_of_short and self._waiting.has_short:
                return budget, min(slots, self._running.num_running + 1)
            found = self._waiting.match_prefix(sequence)
            full = self._running.num_running >= slots
            if full or not self._running.admit(sequence, found, now):
                return budget, 0
            self._turn_of_short = True
            budget = self._compute(planned, [sequence], budget, now)
        return budget, slots

    def _admit_short(
        self, planned: dict[Sequence, int], budget: int, slots: int, now: float, *, long_waits: bool
    ) -> tuple[int, int]:
        """Return the budget left, and how many may run: 0 where the next one lacks blocks."""
        running, waiting = self._running, self._waiting
        while budget > 0 and running.num_running < slots:
            # The last place is for a long one, or short ones could take every place that gets free.
            is_last = slots > 1 and running.num_running == slots - 1
            keeps_place = long_waits and not running.has_long_prompt and not self._long_lacks_blocks
            sequence = waiting.first_resumed_or_short(with_short=not (is_last and keeps_place))
            if sequence is None:
                break
            found = waiting.match_prefix(sequence)
            if waiting.park(sequence, found):
                continue
            if waiting.to_long_lane(sequence, found):
                continue
            if self._admit(sequence, found, now):
                budget = self._compute(planned, [sequence], budget, now)
            else:
                return budget, 0
        return budget, slots

    def _interrupt_long(self, slots: int, now: float) -> None:
        """Let a long prompt of a higher priority go before those that are being computed."""
        running, sequence = self._running, self._waiting.first_long()
        if sequence is None or not running.long or running.num_running >= slots:
            return
        if all(sequence.priority < each.priority for each in running.long):
            self._admit(sequence, self._waiting.match_prefix(sequence), now)

    def _admit_long(self, planned: dict[Sequence, int], budget: int, slots: int, now: float) -> int:
        self._long_lacks_blocks = False
        # Budget that is left here means that those admitted before catch up in this step.
        while budget > 0 and self._running.num_running < slots:
            sequence = self._waiting.first_long()
            if sequence is None:
                break
            if not self._admit(sequence, self._waiting.match_prefix(sequence), now):
                self._long_lacks_blocks = True
                break
            budget = self._compute(planned, [sequence], budget, now)
        return budget

    def _admit(self, sequence: Sequence, found: list[int], now: float) -> bool:
        """Admit one from a lane: whoever passes the overdue, short or not, has had the turn."""
        if not self._running.admit(sequence, found, now):
            return False
        self._turn_of_short = False
        return True
