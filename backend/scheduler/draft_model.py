"""A draft model: which tokens it has computed, how often it was right, and what it computes next.

The draft model has a second KV pool for the same block ids. It lags behind: what it has not
computed of a sequence it computes when it is to guess (Leviathan et al., "Fast Inference from
Transformers via Speculative Decoding", 2023; ``drafts`` verifies).

Laws:
- It reads only KV that it computed for the very tokens that stand there. ``num_computed`` of a
  sequence counts known tokens alone, never a guess that was not accepted.
- A block is marked once the draft model has computed all its tokens, and loses the mark where it is
  handed out anew. Who shares a marked block need not compute it: hits and choices of one request.
- A sequence that loses its blocks begins anew: its table is another list.
"""

from collections import deque
from collections.abc import Iterable
from collections.abc import Sequence as SequenceOf
from dataclasses import dataclass, replace
from typing import NamedTuple

from backend.scheduler.batch import AppendedBlocks, NewSequence
from backend.scheduler.block_pool import BLOCK_SIZE, blocks_for
from backend.scheduler.sequence import ScheduledSequence, Sequence

PENDING = -1
"""Stands for a guess until the draft model has made it."""

_FIRST_RATE = 0.7
_WEIGHT_OF_NEWEST, _WEIGHT_FOR_ALL = 0.1, 0.02
_ENOUGH_RIGHT = 0.5
_FIRST_WAIT, _LONGEST_WAIT = 64, 1024
"""So many tokens without guesses follow too many wrong ones; each time twice as many."""
_WORTH = 32
"""A token that may come is worth so many that the draft model must compute first."""
_KEPT_PASSES = 8


class DraftRow(NamedTuple):
    """The draft model computes ``tokens`` of ``slot``, the first at ``start``, then guesses.

    ``place`` is the sequence's place in the step. ``num_drafts`` 0: the next known tokens come with
    a later step.
    """

    place: int
    slot: int
    start: int
    tokens: tuple[int, ...]
    num_drafts: int


@dataclass(frozen=True, slots=True)
class DraftBatch:
    """What the draft model computes before a step; a value as ``batch.StepBatch`` is."""

    new: tuple[NewSequence, ...]
    appended: tuple[AppendedBlocks, ...]
    rows: tuple[DraftRow, ...]


class _Stay:
    """What the draft model has of a sequence while that holds ``table``."""

    __slots__ = ("is_told", "num_computed", "num_sent", "table")

    def __init__(self, table: list[int]) -> None:
        self.table = table
        self.num_computed = 0
        self.num_sent = 0
        """Blocks that the executor was told of and that no refused draft can change."""
        self.is_told = False


class _Record:
    """How often guesses for one sequence were right lately."""

    __slots__ = ("off_until", "rate", "wait")

    def __init__(self, rate: float, length: int) -> None:
        self.rate = rate
        self.wait = _FIRST_WAIT
        self.off_until = length + _FIRST_WAIT if rate < _ENOUGH_RIGHT else 0


class DraftModel:
    """The source of guesses that must be computed; pure, the executor's ``DraftRunner`` computes.

    The draft model's context is ``max_model_len`` tokens; it guesses ``most`` at a time.
    """

    def __init__(self, num_blocks: int, *, max_model_len: int, most: int) -> None:
        self.most = most
        self._max_model_len = max_model_len
        self._is_computed = bytearray(num_blocks + 1)
        self._stays: dict[Sequence, _Stay] = {}
        self._records: dict[Sequence, _Record] = {}
        self._rate = _FIRST_RATE
        """How often it was right for all sequences: where new ones begin."""
        self._passes: dict[int, deque[float]] = {}

    def blocks_allocated(self, blocks: Iterable[int]) -> None:
        """Note that ``blocks`` were handed out anew."""
        for block in blocks:
            self._is_computed[block] = 0

    def forget(self, sequence: Sequence) -> None:
        """Let go of ``sequence``, which is finished."""
        self._stays.pop(sequence, None)
        self._records.pop(sequence, None)

    def rate(self, sequence: Sequence) -> float:
        """Return how many guesses are right lately; 0 while it does not guess for ``sequence``."""
        length = len(sequence.tokens)
        record = self._records.get(sequence)
        if record is None:
            record = self._records[sequence] = _Record(self._rate, length)
        if record.rate < _ENOUGH_RIGHT:
            return _ENOUGH_RIGHT if length >= record.off_until else 0.0
        return record.rate

    def room(self, sequence: Sequence) -> int:
        """Return how many guesses its context and the tokens that may come are good for."""
        length = len(sequence.tokens)
        left = sequence.max_length - length - 1
        if self.lag(sequence) > _WORTH * left:
            return 0
        return max(min(self.most, left, self._max_model_len - length + 1), 0)

    def lag(self, sequence: Sequence) -> int:
        """Return how many known tokens it computes before the first guess; at least the last."""
        return len(sequence.tokens) - self._first(sequence)

    def pass_seconds(self, num_rows: int) -> float:
        """Return what one guess for each of ``num_rows`` takes; 0: none was measured."""
        kept = self._passes.get(num_rows)
        return min(kept) if kept else 0.0

    def observe(self, batch: DraftBatch, seconds: float) -> None:
        """Learn how long ``batch`` took, if it was guesses for the most part."""
        num_rows = len(batch.rows)
        num_passes = max(row.num_drafts for row in batch.rows)
        if num_passes and sum(len(row.tokens) for row in batch.rows) <= 2 * num_rows:
            kept = self._passes.setdefault(num_rows, deque(maxlen=_KEPT_PASSES))
            kept.append(seconds / num_passes)

    def batch(
        self, step: SequenceOf[ScheduledSequence], catch_up: dict[Sequence, int]
    ) -> DraftBatch | None:
        """Return what is computed before ``step``, whose sequences have their blocks.

        Those of ``catch_up`` compute so many known tokens and guess nothing.
        """
        new: list[NewSequence] = []
        appended: list[AppendedBlocks] = []
        rows: list[DraftRow] = []
        for place, scheduled in enumerate(step):
            sequence, drafts = scheduled.sequence, scheduled.drafts
            guesses = len(drafts) if drafts and drafts[0] == PENDING else 0
            if not guesses and sequence not in catch_up:
                continue
            first, tokens = self._first(sequence), sequence.tokens
            stop = len(tokens) if guesses else min(first + catch_up[sequence], len(tokens))
            rows.append(DraftRow(place, sequence.slot, first, tuple(tokens[first:stop]), guesses))
            stay = self._stays[sequence]
            if not stay.is_told:
                new.append(_new(sequence))
            needed = blocks_for(stop + max(guesses - 1, 0))
            if needed > stay.num_sent:
                blocks = tuple(stay.table[stay.num_sent : needed])
                appended.append(AppendedBlocks(sequence.slot, stay.num_sent, blocks))
        return DraftBatch(tuple(new), tuple(appended), tuple(rows)) if rows else None

    def computed(self, batch: DraftBatch, step: SequenceOf[ScheduledSequence]) -> None:
        """Note that ``batch`` was computed, before ``step``."""
        for row in batch.rows:
            sequence = step[row.place].sequence
            stay = self._stays[sequence]
            stay.is_told = True
            # Behind the last known token blocks may be freed and others take their place.
            stay.num_sent = max(stay.num_sent, (row.start + len(row.tokens) - 1) // BLOCK_SIZE)
            self._advance(stay, row.start + len(row.tokens))

    def verified(self, sequence: Sequence, start: int, num_drafts: int, num_accepted: int) -> None:
        """Learn what became of the guesses behind token ``start``.

        ``sequence.num_computed_tokens`` counts those that were accepted.
        """
        stay = self._stays[sequence]
        if stay.num_computed == start + 1:  # else it was erased meanwhile
            # It computed all its guesses but the last.
            self._advance(stay, min(start + num_drafts, sequence.num_computed_tokens))
        record = self._records[sequence]
        record.rate = max(record.rate, _ENOUGH_RIGHT)
        for right in [1] * num_accepted + [0] * (num_accepted < num_drafts):
            record.rate += _WEIGHT_OF_NEWEST * (right - record.rate)
            self._rate += _WEIGHT_FOR_ALL * (right - self._rate)
        if record.rate < _ENOUGH_RIGHT:
            record.off_until = len(sequence.tokens) + record.wait
            record.wait = min(2 * record.wait, _LONGEST_WAIT)
        elif num_accepted == num_drafts:
            record.wait = _FIRST_WAIT

    def rewind(self, sequence: Sequence, start: int) -> None:
        """Note that the blocks behind token ``start`` are freed: their step was taken back."""
        if (stay := self._stays.get(sequence)) is not None:
            stay.num_computed = min(stay.num_computed, start)

    def erased(self) -> None:
        """Note that KV was erased that others may share: nothing counts as computed any more."""
        self._is_computed = bytearray(len(self._is_computed))
        for stay in self._stays.values():
            stay.num_computed = 0

    def _first(self, sequence: Sequence) -> int:
        """Return the first token that it computes next; its KV of those before is there."""
        table = sequence.block_table
        stay = self._stays.get(sequence)
        if stay is None or stay.table is not table:
            stay = self._stays[sequence] = _Stay(table)
        num_known = len(sequence.tokens)
        computed, marks = stay.num_computed, self._is_computed
        if computed % BLOCK_SIZE == 0:
            # Others may have computed what they share with it.
            while computed + BLOCK_SIZE <= num_known and marks[table[computed // BLOCK_SIZE]]:
                computed += BLOCK_SIZE
            stay.num_computed = computed
        return min(computed, num_known - 1)

    def _advance(self, stay: _Stay, computed: int) -> None:
        """Count ``computed`` tokens, and mark the blocks that are full of them."""
        if computed <= stay.num_computed:
            return
        for index in range(stay.num_computed // BLOCK_SIZE, computed // BLOCK_SIZE):
            self._is_computed[stay.table[index]] = 1
        stay.num_computed = computed


def _new(sequence: Sequence) -> NewSequence:
    """Return what the draft model is to know of ``sequence``: it draws with the same noise."""
    sampling = replace(sequence.sampling, logprobs=None, prompt_logprobs=None)
    tokens = ()  # each row brings its own
    return NewSequence(
        sequence.slot,
        tokens,
        sequence.num_prompt_tokens,
        sampling,
        sequence.seed,
        sequence.end_token_ids,
    )
