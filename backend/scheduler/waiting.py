"""The waiting side of the scheduler: which lane a sequence belongs to, and what it waits for.

A sequence is sized by the tokens that the prefix cache does not have *now*, so whatever changes
that, moves it.
"""

from collections import deque
from collections.abc import Iterable

from backend.scheduler.block_pool import BLOCK_SIZE
from backend.scheduler.lanes import Lane, WaitingLine
from backend.scheduler.prefix_cache import PrefixCache
from backend.scheduler.sequence import Sequence
from backend.scheduler.shared_work import SharedWork

_ADMISSIONS_REMEMBERED = 64
_RETRY_AFTER = (1.0, 300.0)


class Waiting:
    """The waiting line, and the blocks that some in it wait for."""

    def __init__(self, cache: PrefixCache, *, max_wait: float, long_prompt_tokens: int) -> None:
        """``max_wait`` is the ageing bound; longer than ``long_prompt_tokens`` is a long prompt."""
        self.line = WaitingLine(max_wait=max_wait)
        self.shared = SharedWork()
        self._cache = cache
        self._long_prompt_tokens = long_prompt_tokens
        self._admissions: deque[float] = deque(maxlen=_ADMISSIONS_REMEMBERED)

    def add(self, sequence: Sequence, twin: Sequence | None = None) -> None:
        """Queue a new sequence; a ``twin`` that was queued may have the same prompt."""
        salt = sequence.cache_salt
        if twin is not None and twin.cache_salt == salt and twin.tokens == sequence.tokens:
            sequence.chain = twin.chain.copy()
        else:
            sequence.chain = self._cache.new_chain(sequence.tokens, salt)
        self.line.add(sequence, self._lane_of_new(sequence))

    def resume(self, sequence: Sequence) -> None:
        """Queue a preempted sequence."""
        self.line.add(sequence, Lane.RESUMED)

    def leave(self, sequence: Sequence) -> None:
        """Take a sequence out."""
        if self.line.remove(sequence) is Lane.PARKED:
            self.shared.leave(sequence)

    def find(self, sequence: Sequence) -> list[int]:
        """Return the blocks of its prefix that are cached."""
        if not sequence.reads_cache:
            return []
        return self._cache.match(sequence.chain, sequence.length)

    def is_long(self, sequence: Sequence, found: list[int]) -> bool:
        """Whether ``sequence`` is long even with the blocks that were found for it."""
        return self.is_long_work(sequence.length - len(found) * BLOCK_SIZE)

    def is_long_work(self, num_tokens: int) -> bool:
        """Whether so many tokens to compute make a long prompt."""
        return num_tokens > self._long_prompt_tokens

    def park(self, sequence: Sequence, found: list[int]) -> bool:
        """Let ``sequence`` wait for a running one that computes its next block, if one does."""
        if not sequence.reads_cache or not self.shared.wait(sequence, len(found)):
            return False
        self.line.move(sequence, Lane.PARKED)
        return True

    def first_resumed_or_short(self, *, with_short: bool) -> Sequence | None:
        """Return the next that is no long one; ``with_short`` False: the next resumed one."""
        resumed = self.line.first(Lane.RESUMED)
        short = self.line.first(Lane.SHORT) if with_short else None
        if resumed is None or (short is not None and short.priority < resumed.priority):
            return short
        return resumed

    def first_long(self) -> Sequence | None:
        """Return the first of the long lane that still belongs there."""
        while (sequence := self.line.first(Lane.LONG)) is not None:
            found = self.find(sequence)
            if self.park(sequence, found):
                continue
            if self.is_long(sequence, found):
                return sequence
            self.line.move(sequence, Lane.SHORT)
        return None

    def wake(self, sequences: Iterable[Sequence]) -> None:
        """Put those whose wait for shared work is over back into their lanes."""
        for sequence in sequences:
            is_new = sequence.admitted is None
            self.line.move(sequence, self._lane_of_new(sequence) if is_new else Lane.RESUMED)

    def count_admission(self, now: float) -> None:
        """Remember when a new sequence was admitted."""
        self._admissions.append(now)

    def drain_seconds(self, now: float) -> float:
        """Guess when those that wait now will have been admitted, at the pace of the last ones."""
        shortest, longest = _RETRY_AFTER
        if not self._admissions:
            return shortest
        pace = (now - self._admissions[0]) / len(self._admissions)
        return min(max(shortest, pace * len(self.line)), longest)

    def _lane_of_new(self, sequence: Sequence) -> Lane:
        return Lane.LONG if self.is_long(sequence, self.find(sequence)) else Lane.SHORT
