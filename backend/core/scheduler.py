"""The scheduler: what each step computes, and who holds which blocks.

There are no phases. A sequence has computed tokens and pending ones; every step spends a token
budget on pending tokens until sequences catch up. Chunked prefill and steps that mix prefill with
decode follow from that.

Laws:
- Sequences rank by priority, then by arrival. They are admitted in this order.
- Sequences that decode (one pending token) are served first, so a long prompt never stalls them.
- A sequence is admitted only when blocks for all its known tokens are free, and takes them at
  once; afterwards it grows one block at a time. Only that growth can run the pool dry.
- When it does, the running sequence of the last rank is preempted: its blocks are freed, its tokens
  kept, its KV recomputed later. The first of the running therefore always advances, and within a
  priority everybody becomes first.
- Preempted sequences are older than all of their priority that were never admitted, and are
  readmitted before them.
- Blocks are released in one place, ``_release``, which may be called any number of times.
"""

from bisect import insort
from collections.abc import Iterable
from dataclasses import dataclass
from operator import attrgetter

from backend.core.block_pool import BlockPool, blocks_for
from backend.core.sequence import Sequence, SequenceStatus

_rank = attrgetter("rank")


class NeverFitsError(Exception):
    """The sequence could not run even if it were alone."""


@dataclass(frozen=True, slots=True)
class ScheduledSequence:
    """The ``num_tokens`` tokens of ``sequence`` from ``start`` on are computed in this step.

    ``samples``: they reach the last known token, so that a next one is chosen.
    """

    sequence: Sequence
    start: int
    num_tokens: int
    samples: bool


Step = tuple[ScheduledSequence, ...]


class Scheduler:
    """Owns the queue, the running set and the block pool; not thread-safe, by design."""

    def __init__(self, pool: BlockPool, *, max_num_seqs: int, max_tokens_per_step: int) -> None:
        """``max_tokens_per_step`` is the token budget and at least ``max_num_seqs``."""
        if not 1 <= max_num_seqs <= max_tokens_per_step:
            raise ValueError(
                "need 1 <= max_num_seqs <= max_tokens_per_step, "
                f"got {max_num_seqs} and {max_tokens_per_step}"
            )
        self.pool = pool
        self.num_preemptions = 0
        self._max_num_seqs = max_num_seqs
        self._max_tokens_per_step = max_tokens_per_step
        self._waiting: list[Sequence] = []  # both in order of rank
        self._running: list[Sequence] = []

    @property
    def num_running(self) -> int:
        """Sequences that hold blocks."""
        return len(self._running)

    @property
    def num_waiting(self) -> int:
        """Sequences that hold none yet, or none any more."""
        return len(self._waiting)

    @property
    def has_work(self) -> bool:
        """Whether ``schedule`` would return anything."""
        return bool(self._running or self._waiting)

    def add(self, sequence: Sequence) -> None:
        """Queue a new sequence. Raises NeverFitsError, and then has not taken it."""
        # The last token is chosen but never fed back, so its KV needs no room.
        needed = blocks_for(max(sequence.max_length - 1, len(sequence.tokens)))
        if needed > self.pool.num_blocks:
            raise NeverFitsError(
                f"{sequence.max_length} tokens need {needed} KV blocks of the "
                f"{self.pool.num_blocks} that there are"
            )
        insort(self._waiting, sequence, key=_rank)

    def schedule(self) -> Step:
        """Decide the next step and give its sequences the blocks they need.

        Returns decoding sequences first. Empty only when there is no work. Every step that is
        returned must be followed by ``complete``, unless its sequences are finished instead.
        """
        budget = self._max_tokens_per_step
        planned: dict[Sequence, int] = {}
        by_urgency = sorted(self._running, key=lambda sequence: sequence.num_pending_tokens > 1)
        for sequence in by_urgency:
            if budget == 0:
                break
            if sequence.status is not SequenceStatus.RUNNING:
                continue  # preempted a moment ago
            count = min(sequence.num_pending_tokens, budget)
            budget += self._grow(sequence, sequence.num_computed_tokens + count, planned)
            if sequence.status is SequenceStatus.RUNNING:
                planned[sequence] = count
                budget -= count
        while budget > 0 and self._waiting and len(self._running) < self._max_num_seqs:
            sequence = self._waiting[0]
            if blocks_for(len(sequence.tokens)) > self.pool.num_free:
                break
            self._admit(sequence)
            planned[sequence] = min(sequence.num_pending_tokens, budget)
            budget -= planned[sequence]
        return tuple(
            ScheduledSequence(
                sequence,
                sequence.num_computed_tokens,
                count,
                samples=count == sequence.num_pending_tokens,
            )
            for sequence, count in planned.items()
        )

    def complete(self, step: Iterable[ScheduledSequence]) -> None:
        """Record that the KV of a step's tokens is written."""
        for scheduled in step:
            if scheduled.sequence.status is SequenceStatus.RUNNING:
                scheduled.sequence.num_computed_tokens += scheduled.num_tokens

    def finish(self, sequence: Sequence) -> None:
        """Take a sequence out, for whatever reason; a second call does nothing."""
        if sequence.status is SequenceStatus.FINISHED:
            return
        if sequence.status is SequenceStatus.RUNNING:
            self._running.remove(sequence)
        else:
            self._waiting.remove(sequence)
        sequence.status = SequenceStatus.FINISHED
        self._release(sequence)

    def check_integrity(self) -> None:
        """Raise BlockPoolCorruptError or RuntimeError when state contradicts itself."""
        self.pool.check_integrity(sequence.block_table for sequence in self._running)
        for sequence in self._running:
            if sequence.status is not SequenceStatus.RUNNING:
                raise RuntimeError(f"{sequence.sequence_id} runs but is {sequence.status}")
            if len(sequence.block_table) < blocks_for(sequence.num_computed_tokens):
                raise RuntimeError(f"{sequence.sequence_id} has too few blocks for its KV")
        for sequence in self._waiting:
            if sequence.status is not SequenceStatus.WAITING or sequence.block_table:
                raise RuntimeError(f"{sequence.sequence_id} waits but holds blocks or ran")
        for queue in (self._running, self._waiting):
            order = [sequence.rank for sequence in queue]
            if order != sorted(order):
                raise RuntimeError(f"out of order: {order}")

    def _grow(self, sequence: Sequence, num_tokens: int, planned: dict[Sequence, int]) -> int:
        """Give ``sequence`` blocks for ``num_tokens``, preempting those of the last rank.

        The sequence itself may be the one preempted. Returns the budget that victims which were
        planned already give back.
        """
        refund = 0
        missing = blocks_for(num_tokens) - len(sequence.block_table)
        while missing > self.pool.num_free:
            victim = self._running[-1]
            refund += planned.pop(victim, 0)
            self._preempt(victim)
            if victim is sequence:
                return refund
        if missing > 0:
            sequence.block_table += self.pool.allocate(missing)
        return refund

    def _admit(self, sequence: Sequence) -> None:
        self._waiting.remove(sequence)
        sequence.block_table = self.pool.allocate(blocks_for(len(sequence.tokens)))
        sequence.status = SequenceStatus.RUNNING
        insort(self._running, sequence, key=_rank)

    def _preempt(self, sequence: Sequence) -> None:
        self._running.remove(sequence)
        self._release(sequence)
        sequence.num_computed_tokens = 0
        sequence.status = SequenceStatus.WAITING
        insort(self._waiting, sequence, key=_rank)
        self.num_preemptions += 1

    def _release(self, sequence: Sequence) -> None:
        blocks, sequence.block_table = sequence.block_table, []
        self.pool.release(blocks)
