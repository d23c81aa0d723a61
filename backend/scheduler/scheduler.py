"""The scheduler: what each step computes, and who holds which blocks.

There are no phases. A sequence has computed tokens and pending ones; every step spends a token
budget on pending tokens until sequences catch up. Chunked prefill, prefix hits and steps that mix
prefill with decode follow from that.

Laws:
- Sequences that decode are served first, so a long prompt never stalls them; then prompts, by the
  laws of ``prefill``.
- Overdue sequences (``queue``) go before all others. The oldest of them is never preempted and
  always served, so no sequence starves.
- A sequence is admitted only when blocks for all its known tokens are free, and some for others to
  grow, and takes them at once; afterwards it grows block by block, by the laws of ``running``.
- ``schedule`` may be called while one step is in flight. It then counts on that step's tokens
  without knowing them.
- Drafts are never worth a block or a token that anything else needs. While drafts are in flight
  their sequence is not scheduled again. Once they are verified, ``num_computed_tokens`` counts the
  accepted ones alone, and blocks that only refused ones wrote are free.
"""

from collections import deque
from collections.abc import Iterable, Mapping
from collections.abc import Sequence as SequenceOf
from dataclasses import dataclass, replace

from backend.scheduler.block_pool import BLOCK_SIZE, BlockPool, blocks_for
from backend.scheduler.budget import BudgetPolicy, FixedBudget, TokenBudget
from backend.scheduler.draft_model import PENDING, DraftBatch
from backend.scheduler.drafts import Drafter
from backend.scheduler.prefill import PrefillPlanner
from backend.scheduler.prefix_cache import PrefixCache
from backend.scheduler.queue import WaitingQueue
from backend.scheduler.running import RunningSet
from backend.scheduler.sequence import ScheduledSequence, Sequence, SequenceStatus, Step
from backend.scheduler.tiers import NO_TRANSFERS, TransferReport, Transfers

MAX_STEPS_IN_FLIGHT = 2


def slots_for(max_num_seqs: int) -> int:
    """Return how many sequences may hold blocks: those that run, and as many that leave."""
    return 2 * max_num_seqs


class NeverFitsError(Exception):
    """The sequence could not run even if it were alone."""


class QueueFullError(Exception):
    """Too many wait; after about ``retry_after`` seconds those that do will be served."""

    def __init__(self, num_waiting: int, retry_after: float) -> None:
        """Word it."""
        super().__init__(f"{num_waiting} sequences wait already")
        self.retry_after = retry_after


@dataclass(frozen=True, slots=True)
class _Launched:
    step: Step
    at: float
    num_samples: int
    num_decodes: int
    num_drafts: int
    num_prefill_tokens: int
    draft_seconds: float = 0.0


class Scheduler:
    """Owns the waiting line, the running set and the blocks; not thread-safe, by design."""

    def __init__(
        self,
        pool: BlockPool,
        *,
        max_num_seqs: int,
        max_tokens_per_step: int,
        cache: PrefixCache | None = None,
        budget_policy: BudgetPolicy | None = None,
        drafter: Drafter | None = None,
        max_waiting: int = 1024,
        max_wait: float = 30.0,
        long_prompt_tokens: int | None = None,
    ) -> None:
        """``max_tokens_per_step`` is the token budget and at least ``max_num_seqs``.

        ``drafter`` proposes tokens to verify; without one there is no speculation.
        ``max_wait`` is the ageing bound in seconds. A prompt is long with more than
        ``long_prompt_tokens`` that are not cached, by default a quarter of the budget.
        """
        if not 1 <= max_num_seqs <= max_tokens_per_step:
            raise ValueError(
                "need 1 <= max_num_seqs <= max_tokens_per_step, "
                f"got {max_num_seqs} and {max_tokens_per_step}"
            )
        if long_prompt_tokens is None:
            long_prompt_tokens = max_tokens_per_step // 4
        self.pool = pool
        self.cache = PrefixCache(pool) if cache is None else cache
        self.num_tokens_after_end = 0
        """Tokens computed for sequences that had ended when their step was completed."""
        self.num_draft_tokens = 0
        """Drafts that were verified, accepted or not."""
        self.num_accepted_draft_tokens = 0
        self.draft_batch: DraftBatch | None = None
        """What a draft model computes before the step that was scheduled last; see ``fill``."""
        self._drafter = drafter
        self._max_waiting = max_waiting
        self._policy = budget_policy or FixedBudget(TokenBudget(max_tokens_per_step, max_num_seqs))
        self._waiting = WaitingQueue(
            self.cache, max_wait=max_wait, long_prompt_tokens=long_prompt_tokens
        )
        model = None if drafter is None else drafter.model
        self._running = RunningSet(
            pool,
            self.cache,
            self._waiting,
            num_slots=slots_for(max_num_seqs),
            on_allocated=None if model is None else model.blocks_allocated,
        )
        self._prefill = PrefillPlanner(self._running, self._waiting)
        self._in_flight: deque[_Launched] = deque()
        self._last_completed = 0.0

    @property
    def num_running(self) -> int:
        """Sequences that advance."""
        return self._running.num_running

    @property
    def num_waiting(self) -> int:
        """Sequences that hold no blocks yet, or none any more."""
        return len(self._waiting)

    @property
    def num_preemptions(self) -> int:
        """How often blocks were taken from a running sequence."""
        return self._running.num_preemptions

    @property
    def draft_counts(self) -> Mapping[tuple[str, tuple[str, ...]], int]:
        """Verifications, proposed and accepted drafts by source, named as metrics are."""
        return {} if self._drafter is None else self._drafter.counts

    @property
    def num_steps_in_flight(self) -> int:
        """Steps that were scheduled and neither completed nor failed."""
        return len(self._in_flight)

    @property
    def has_work(self) -> bool:
        """Whether anything runs, waits or is in flight."""
        running = self.num_running or self.num_loads_in_flight
        return bool(running or self.num_waiting or self._in_flight)

    @property
    def num_loads_in_flight(self) -> int:
        """Blocks that tiers are filling."""
        return self._running.num_loads_in_flight

    def add(self, sequence: Sequence, now: float) -> None:
        """Queue a new sequence. Raises NeverFitsError or QueueFullError, and has not taken it."""
        self.add_all((sequence,), now)

    def add_all(self, sequences: SequenceOf[Sequence], now: float, *, among: int = 0) -> None:
        """Queue all of ``sequences``, or none where it raises.

        They come ``among`` so many, of which others are added apart.
        """
        for sequence in sequences:
            # The last token is chosen but never fed back, so its KV needs no room.
            needed = blocks_for(max(sequence.max_length - 1, len(sequence.tokens)))
            if needed > self.pool.num_blocks:
                raise NeverFitsError(
                    f"{sequence.max_length} tokens need {needed} KV blocks of the "
                    f"{self.pool.num_blocks} that there are"
                )
        together = max(len(sequences), among)
        if together > self._max_waiting:
            raise NeverFitsError(
                f"{together} choices are more than the {self._max_waiting} sequences that may wait"
            )
        if self.num_waiting + len(sequences) > self._max_waiting:
            raise QueueFullError(self.num_waiting, self._waiting.drain_seconds(now))
        twin = None
        for sequence in sequences:
            self._waiting.add(sequence, twin)
            twin = sequence

    def schedule(self, now: float) -> Step:
        """Decide the next step and give its sequences the blocks they need.

        Decoding sequences come first. An empty step needs no completion: nothing can be done before
        a step in flight is completed, or there is nothing to do.
        """
        if len(self._in_flight) == MAX_STEPS_IN_FLIGHT:
            raise RuntimeError(f"{MAX_STEPS_IN_FLIGHT} steps are in flight")
        running = self._running
        allowed = self._policy.allow(len(running.decoding))
        budget = max(allowed.max_tokens, running.num_running)
        step = self._decode(budget, now)
        num_decodes, num_drafts = len(step), sum([len(each.drafts) for each in step])
        planned: dict[Sequence, int] = {}
        if running.short or running.long or self.num_waiting:
            left = budget - num_decodes - num_drafts
            planned = self._prefill.plan(left, allowed.max_num_seqs, now)
        for sequence, count in planned.items():
            samples = count == sequence.num_pending_tokens
            step.append(ScheduledSequence(sequence, sequence.num_computed_tokens, count, samples))
            if samples:
                running.mark_decoding(sequence)
        num_samples = 0
        for sequence, _, count, samples, drafts in step:
            sequence.num_computed_tokens += count
            sequence.num_steps_in_flight += 1
            sequence.num_drafts_in_flight = len(drafts)
            if samples:
                sequence.num_unseen_tokens += 1
                num_samples += 1
        result = tuple(step)
        if result:
            num_prefill_tokens = sum(planned.values())
            self._in_flight.append(
                _Launched(result, now, num_samples, num_decodes, num_drafts, num_prefill_tokens)
            )
            if self.cache.snapshots is not None:
                self.cache.snapshots.plan(result)
        return result

    def fill(self, step: Step, drafts: SequenceOf[tuple[int, ...] | None], seconds: float) -> Step:
        """Return ``step``, the newest in flight, with the ``drafts`` of ``draft_batch``.

        They took ``seconds``. There are some for each row of the batch, None where an output of the
        draft model was not finite: whoever computes erases its KV of that sequence's blocks.
        """
        batch, self.draft_batch = self.draft_batch, None
        if batch is None or self._drafter is None or self._drafter.model is None:
            raise ValueError("nothing was to be computed before this step")
        if not self._in_flight or self._in_flight[-1].step is not step:
            raise ValueError("this is not the newest step in flight")
        filled = list(step)
        for row, guesses in zip(batch.rows, drafts, strict=True):
            if row.num_drafts:
                known = guesses or (0,) * row.num_drafts  # any that are refused
                filled[row.place] = filled[row.place]._replace(drafts=known)
        self._drafter.model.computed(batch, step)
        self._drafter.model.observe(batch, seconds)
        if None in drafts:
            self._drafter.model.erased()
        launched = replace(self._in_flight[-1], step=tuple(filled), draft_seconds=seconds)
        self._in_flight[-1] = launched
        return launched.step

    def drafts_failed(self, step: Step, *, for_good: bool) -> None:
        """Take in that ``draft_batch`` could not be computed: ``step`` comes again without it.

        ``for_good``: the draft model is not used any more.
        """
        self.draft_batch = None
        self.take_back(step)
        if self._drafter is not None:
            self._drafter.pause()
            if for_good:
                self._drafter.model = None
                self._running.on_allocated = None

    def take_transfers(self) -> Transfers:
        """Return the blocks to move before the step is launched, whatever becomes of it."""
        return NO_TRANSFERS if self.cache.tiers is None else self.cache.tiers.take()

    def take_in(self, report: TransferReport) -> None:
        """Take in what came of transfers."""
        self._running.take_in(report)

    def complete(self, step: Step, sampled: Iterable[tuple[int, ...] | None], now: float) -> None:
        """Take in what a step computed; steps are completed in the order they were scheduled in.

        ``sampled`` has the new tokens of each scheduled sequence that samples, in the step's order:
        the accepted drafts and one more. What comes behind an end token is dropped. None where an
        output of the model was not finite: that sequence is finished, and what it computed is
        discarded (see ``BlockPool.take_to_erase``).
        """
        launched = self._in_flight[0] if self._in_flight else None
        if launched is None or launched.step is not step:
            raise ValueError("this is not the oldest step in flight")
        outcomes = list(sampled)
        if len(outcomes) != launched.num_samples:
            raise ValueError(f"{launched.num_samples} sequences sample, {len(outcomes)} did")
        self._in_flight.popleft()
        tokens_of = iter(outcomes)
        snapshots = self.cache.snapshots
        for scheduled in step:
            sequence = scheduled.sequence
            tokens = next(tokens_of) if scheduled.samples else ()
            sequence.num_steps_in_flight -= 1
            if sequence.status is SequenceStatus.ENDING:
                self.num_tokens_after_end += scheduled.num_tokens
            if tokens is None:
                self._running.discard_kv(sequence)
                self.finish(sequence)
            elif sequence.status is not SequenceStatus.ENDING:
                self._take_in(scheduled, tokens)
            if snapshots is not None:
                snapshots.completed(step, sequence)
            if sequence.num_steps_in_flight == 0 and sequence.status is not SequenceStatus.RUNNING:
                self._running.release_after_flight(sequence)
        if snapshots is not None:
            snapshots.dropped(step)
        self._observe(launched, outcomes, now)

    def _observe(
        self, launched: _Launched, outcomes: SequenceOf[tuple[int, ...] | None], now: float
    ) -> None:
        """Learn how long a step took."""
        seconds = now - max(launched.at, self._last_completed)
        # Guesses that were made while another step was computed are no part of these seconds.
        is_mixed = launched.draft_seconds > 0 and self._last_completed > launched.at
        self._last_completed = now
        # A budget counts drafts as prefill: both are tokens beyond the one that each row decodes.
        more = launched.num_prefill_tokens + launched.num_drafts
        self._policy.observe(launched.num_decodes, more, seconds)
        if self.cache.tiers is not None:
            self.cache.tiers.observe_prefill(launched.num_prefill_tokens, seconds)
        if self._drafter is not None and launched.num_prefill_tokens == 0 and not is_mixed:
            num_tokens = sum(len(tokens) for tokens in outcomes if tokens is not None)
            self._drafter.observe(
                launched.num_decodes,
                launched.num_drafts,
                num_tokens,
                seconds,
                launched.draft_seconds,
            )

    def fail(self, step: Step) -> tuple[Sequence, ...]:
        """Take in that ``step``, in flight, computed nothing; return the sequences it ended."""
        if all(launched.step is not step for launched in self._in_flight):
            raise ValueError("this step is not in flight")
        self._in_flight = deque(each for each in self._in_flight if each.step is not step)
        if self.cache.snapshots is not None:
            self.cache.snapshots.dropped(step)
        ended: list[Sequence] = []
        for sequence, start, *_ in step:
            sequence.num_steps_in_flight -= 1
            sequence.num_drafts_in_flight = 0
            self.pool.mark_corrupt(sequence.block_table[start // BLOCK_SIZE :])
            if sequence.status is not SequenceStatus.ENDING:
                ended.append(sequence)
                self.finish(sequence)
            if sequence.num_steps_in_flight == 0:
                self._running.release_after_flight(sequence)
        return tuple(ended)

    def take_back(self, step: Step) -> None:
        """Take in that ``step``, the newest in flight, was not launched; it will come again."""
        if not self._in_flight or self._in_flight[-1].step is not step:
            raise ValueError("this is not the newest step in flight")
        self._in_flight.pop()
        if self.cache.snapshots is not None:
            self.cache.snapshots.dropped(step)
        if self._drafter is not None and any(scheduled.drafts for scheduled in step):
            self._drafter.pause()
        for sequence, start, _, samples, drafts in step:
            sequence.num_steps_in_flight -= 1
            sequence.num_computed_tokens = start
            if samples:
                sequence.num_unseen_tokens -= 1
            if drafts:
                sequence.num_drafts_in_flight = 0
                if self._drafter is not None and self._drafter.model is not None:
                    self._drafter.model.rewind(sequence, start)
                self._running.free_refused(sequence)
            self._running.taken_back(sequence, start, samples=samples)

    def drain_seconds(self, now: float) -> float:
        """Guess when those that wait now will have been admitted."""
        return self._waiting.drain_seconds(now)

    def finish(self, sequence: Sequence) -> None:
        """Take a sequence out, for whatever reason and at any time; a second call does nothing.

        Its blocks are free at once, or when the steps in flight that write them were completed.
        """
        if self._drafter is not None:
            self._drafter.forget(sequence)
        match sequence.status:
            case SequenceStatus.WAITING:
                self._waiting.remove(sequence)
                sequence.status = SequenceStatus.FINISHED
            case SequenceStatus.RUNNING | SequenceStatus.PREEMPTING:
                self._running.end(sequence)
            case SequenceStatus.ENDING | SequenceStatus.FINISHED:
                pass

    def expire(self, now: float) -> tuple[Sequence, ...]:
        """Finish and return those that were to be admitted before ``now`` and were not."""
        late = tuple(self._waiting.past_deadline(now))
        for sequence in late:
            self.finish(sequence)
        return late

    def check_integrity(self, most_blocks: int | None = None) -> None:
        """Raise BlockPoolCorruptError or RuntimeError when state contradicts itself.

        Of a pool of over ``most_blocks`` a call looks at so many, and the next call at others.
        """
        self._running.check_integrity(most_blocks)
        running = self._running.running()
        self._waiting.check_integrity(running)
        launched = [each.sequence for flight in self._in_flight for each in flight.step]
        if self.cache.snapshots is not None:
            self.cache.snapshots.check_integrity({*running, *self._running.draining})
        for sequence in {*launched, *running, *self._running.draining}:
            if sequence.num_steps_in_flight != launched.count(sequence):
                raise RuntimeError(f"{sequence.sequence_id} counts its steps in flight wrongly")

    def _decode(self, budget: int, now: float) -> list[ScheduledSequence]:
        drafter, decoding = self._drafter, self._running.decoding
        if drafter is not None and not drafter.is_open(len(decoding)):
            drafter = None
        waiting = () if drafter is None else drafter.waiting(decoding)
        step: list[ScheduledSequence] = []
        for sequence in decoding:
            start = sequence.num_computed_tokens
            if start >= sequence.max_length - 1 or sequence.num_drafts_in_flight:
                continue
            if sequence.num_unseen_tokens and (sequence.needs_history or sequence in waiting):
                continue
            step.append(ScheduledSequence(sequence, start, 1, True))
        if drafter is not None:
            self._add_drafts(drafter, step, budget)
        growing = [
            scheduled
            for scheduled in step
            if scheduled.start + scheduled.num_tokens
            > len(scheduled.sequence.block_table) * BLOCK_SIZE
        ]
        if growing and (stalled := self._running.grow(growing, now)):
            step = [scheduled for scheduled in step if scheduled.sequence not in stalled]
        if drafter is not None:
            self.draft_batch = drafter.batch(step)
        return step

    def _add_drafts(self, drafter: Drafter, step: list[ScheduledSequence], budget: int) -> None:
        """Add drafts to the rows of ``step``, as far as nothing else needs their tokens or blocks.

        Prefill keeps half of what decoding leaves. Free blocks are for sequences that wait, and one
        for each that decodes to grow by.
        """
        running = self._running
        spare = budget - self.num_running
        if running.short or running.long or self.num_waiting:
            spare //= 2
        spare_blocks = 0 if self.num_waiting else self.pool.num_free - len(running.decoding)
        proposed = drafter.propose(step, overlapped=bool(self._in_flight))
        for place, every_draft in proposed.items():
            sequence, start, *_ = step[place]
            if every_draft[0] == PENDING:
                lag = drafter.catches_up(sequence, spare)
                spare -= min(lag, spare)
                if spare <= 0:
                    continue
            allocated = max(len(sequence.block_table), blocks_for(start + 1))
            # The last token is chosen but never fed back.
            drafts = every_draft[: min(spare, sequence.max_length - start - 2)]
            if blocks_for(start + 1 + len(drafts)) > allocated:
                if spare_blocks <= 0:
                    drafts = drafts[: allocated * BLOCK_SIZE - start - 1]
                spare_blocks -= 1
            if drafts:
                spare -= len(drafts)
                step[place] = ScheduledSequence(sequence, start, 1 + len(drafts), True, drafts)

    def _take_in(self, scheduled: ScheduledSequence, tokens: tuple[int, ...]) -> None:
        """Take the new ``tokens``, and let the blocks be found that are full of known ones."""
        sequence, start, count, samples, drafts = scheduled
        end = start + count
        if drafts:
            self._verify(sequence, start, drafts, tokens)
            end = sequence.num_computed_tokens
        elif samples:
            _append(sequence, tokens, 1)
        if end // BLOCK_SIZE > sequence.num_cached_blocks:
            self._running.cache_blocks(sequence, end // BLOCK_SIZE)

    def _verify(
        self, sequence: Sequence, start: int, drafts: tuple[int, ...], tokens: tuple[int, ...]
    ) -> None:
        """Take the accepted ``drafts`` and the token behind them."""
        num_accepted = len(tokens) - 1
        if tokens[:num_accepted] != drafts[:num_accepted]:
            raise ValueError(f"sequence {sequence.sequence_id} has tokens that are not its drafts")
        sequence.num_drafts_in_flight = 0
        _append(sequence, tokens, 1 + len(drafts))
        sequence.num_computed_tokens = start + sequence.num_new_tokens
        self._running.free_refused(sequence)
        self.num_draft_tokens += len(drafts)
        self.num_accepted_draft_tokens += num_accepted
        if self._drafter is not None:
            self._drafter.verified(sequence, start, drafts, num_accepted)


def _append(sequence: Sequence, tokens: tuple[int, ...], most: int) -> None:
    """Append ``tokens`` up to the first end token."""
    if not 1 <= len(tokens) <= most:
        raise ValueError(f"{len(tokens)} new tokens for sequence {sequence.sequence_id}")
    if most > 1:
        for index, token in enumerate(tokens, 1):
            if token in sequence.end_token_ids:
                tokens = tokens[:index]
                break
    sequence.num_unseen_tokens -= 1
    sequence.num_new_tokens = len(tokens)
    sequence.tokens += tokens
