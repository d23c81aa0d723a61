"""The running sequences, from admission to release.

Laws of blocks:
- Blocks that a launched step writes are freed when it was completed, and can be found then: no
  other sequence reads or writes them before.
- Blocks are released in one place, ``_release``, once for each stay.
- Blocks that a tier is filling are neither read nor freed before the load has ended. A block whose
  load failed is computed, with those behind it.
- A new sequence leaves a free block for each sequence that decodes, so only growth can run the pool
  dry. Then the last running sequence by ``preemption_key`` is preempted: its blocks are freed, its
  tokens kept, its KV recomputed later. The first one never is.
"""

from collections import Counter
from collections.abc import Callable
from typing import NamedTuple

from backend.scheduler.block_pool import BLOCK_SIZE, BlockPool, blocks_for
from backend.scheduler.prefix_cache import PrefixCache, extend_block_hashes
from backend.scheduler.queue import WaitingQueue
from backend.scheduler.sequence import ScheduledSequence, Sequence, SequenceStatus
from backend.scheduler.tiers import Source, TransferReport


class _Loading(NamedTuple):
    """Block ``place`` of the table of ``sequence`` is being loaded."""

    sequence: Sequence
    place: int
    digest: bytes
    source: Source


class RunningSet:
    """Sequences with blocks; RUNNING ones are in one of the first four, in order of admission."""

    def __init__(
        self,
        pool: BlockPool,
        cache: PrefixCache,
        waiting: WaitingQueue,
        *,
        num_slots: int,
        on_allocated: Callable[[list[int]], None] | None = None,
    ) -> None:
        """Put preempted sequences, and those who waited for shared work, into ``waiting``.

        ``on_allocated`` is told of blocks that are handed out.
        """
        self.pool = pool
        self.cache = cache
        self.num_preemptions = 0
        self.on_allocated = on_allocated
        self.decoding: dict[Sequence, None] = {}
        self.short: dict[Sequence, None] = {}
        self.long: dict[Sequence, None] = {}
        self.loading: dict[Sequence, None] = {}
        self.draining: dict[Sequence, None] = {}  # PREEMPTING and ENDING
        self._loads: dict[int, _Loading] = {}  # by block
        self._first_stays: set[Sequence] = set()  # of those that load
        self._came_long: set[Sequence] = set()
        self._free_slots = list(reversed(range(num_slots)))
        self._waiting = waiting

    @property
    def num_running(self) -> int:
        """Sequences that advance."""
        return len(self.decoding) + len(self.short) + len(self.long) + len(self.loading)

    @property
    def num_loads_in_flight(self) -> int:
        """Blocks that tiers are filling."""
        return len(self._loads)

    @property
    def has_long_prompt(self) -> bool:
        """Whether anybody holds blocks who was long when admitted, decoding by now or not."""
        return bool(self._came_long)

    def running(self) -> tuple[Sequence, ...]:
        """Return the sequences that advance."""
        return (*self.decoding, *self.short, *self.long, *self.loading)

    def admit(self, sequence: Sequence, found: list[int], now: float) -> bool:
        """Give ``sequence`` the blocks that were found for it and new ones, if enough are free."""
        missing = blocks_for(sequence.length) - len(found)
        taken = missing + sum(map(self.pool.is_free, found))
        # Without a block for each to grow by, it would soon be preempted, and computed twice.
        if taken + len(self.decoding) > self.pool.num_free or not self._free_slots:
            return False
        sources = self._reserve(sequence, len(found))
        sequence.slot = self._free_slots.pop()
        sequence.num_sent_blocks = 0
        self.pool.share(found)
        sequence.block_table = found + self._allocate(missing)
        sequence.num_computed_tokens = len(found) * BLOCK_SIZE
        sequence.num_cached_blocks = len(found)
        sequence.status = SequenceStatus.RUNNING
        if (snapshots := self.cache.snapshots) is not None:
            hashes = sequence.block_hashes[1 : (sequence.length - 1) // BLOCK_SIZE + 1]
            snapshots.begin(sequence, len(found), len(self.cache.find(hashes)))
        if sources:
            self._load(sequence, sources)
        else:
            self._begin_prefill(sequence)
        self._waiting.admitted(sequence, now)
        if sequence.admitted is None:
            sequence.admitted = now
            sequence.num_cached_tokens = sequence.num_computed_tokens
            self.cache.count(sequence.length, sequence.num_cached_tokens)
        return True

    def take_in(self, report: TransferReport) -> None:
        """Take in which loads have ended and which saves have failed."""
        tiers = self.cache.tiers
        if tiers is None:
            return
        for timed in report.timed:
            tiers.observe_load(timed)
        for source, digest in report.lost:
            tiers.lost(source, digest)
        for block, succeeded in report.loaded:
            sequence, place, digest, source = self._loads.pop(block)
            if not tiers.loaded(digest, source, succeeded=succeeded):
                sequence.num_loaded_blocks = min(sequence.num_loaded_blocks, place)
                if succeeded:
                    self.pool.erase(block)  # it may not be finite
            sequence.num_loads_in_flight -= 1
            if sequence.num_loads_in_flight == 0:
                self._end_load(sequence)

    def mark_decoding(self, sequence: Sequence) -> None:
        """Note that ``sequence`` decodes from now on."""
        self._leave_running(sequence)
        self.decoding[sequence] = None

    def mark_prefilling(self, sequence: Sequence) -> None:
        """Note that ``sequence`` has a prompt to compute again."""
        self._leave_running(sequence)
        is_long = self._waiting.is_long_work(sequence.num_pending_tokens)
        (self.long if is_long else self.short)[sequence] = None

    def grow(self, growing: list[ScheduledSequence], now: float) -> set[Sequence]:
        """Give blocks to ``growing``; return whoever may not compute in this step after all."""
        stalled: set[Sequence] = set()
        needs = {
            sequence: blocks_for(start + count) - len(sequence.block_table)
            for sequence, start, count, _, _ in growing
        }
        while sum(needs.values()) > self.pool.num_free + self._num_leaving():
            victim = max(self.running(), key=lambda each: self.preemption_key(each, now))
            self.preempt(victim)
            needs.pop(victim, None)
            stalled.add(victim)
        if sum(needs.values()) > self.pool.num_free:
            # The rest is still being written by those who leave; the worst wait one step for it.
            by_standing = sorted(needs, key=lambda each: self.preemption_key(each, now))
            while sum(needs.values()) > self.pool.num_free:
                sequence = by_standing.pop()
                del needs[sequence]
                stalled.add(sequence)
        blocks = self._allocate(sum(needs.values()))
        for sequence, count in needs.items():
            for _ in range(count):
                sequence.block_table.append(blocks.pop())
        return stalled

    def preempt(self, sequence: Sequence) -> None:
        """Take the blocks of a running sequence, which is computed again later."""
        self.num_preemptions += 1
        self._stop_running(sequence, SequenceStatus.PREEMPTING)

    def preemption_key(self, sequence: Sequence, now: float) -> tuple[float, ...]:
        """Return a key by which the last is preempted first."""
        if self._waiting.is_overdue(sequence, now):
            return (0, sequence.arrived, sequence.sequence_id)
        return (1, sequence.priority, -sequence.num_computed_tokens, sequence.sequence_id)

    def cache_blocks(self, sequence: Sequence, num_blocks: int) -> None:
        """Let the first ``num_blocks`` of ``sequence``, which are written, be found."""
        first = sequence.num_cached_blocks
        if len(sequence.block_hashes) <= num_blocks:
            extend_block_hashes(sequence.block_hashes, sequence.tokens, num_blocks)
        blocks = sequence.block_table[first:num_blocks]
        hashes = sequence.block_hashes[first + 1 : num_blocks + 1]
        self.cache.cache_full_blocks(
            blocks,
            hashes,
            sequence.block_hashes[first],
            sequence.cache_salt,
            sequence.adapter,
        )
        sequence.num_cached_blocks = num_blocks
        self._waiting.blocks_cached(sequence, first, num_blocks)

    def free_refused(self, sequence: Sequence) -> None:
        """Free the blocks that only refused drafts of ``sequence`` wrote."""
        keep = blocks_for(sequence.num_computed_tokens)
        table = sequence.block_table
        if keep < len(table):
            self.pool.release(table[keep:])
            del table[keep:]
            sequence.num_sent_blocks = min(sequence.num_sent_blocks, keep)

    def taken_back(self, sequence: Sequence, start: int, *, samples: bool) -> None:
        """Take in that a step of ``sequence`` from ``start`` on was not launched."""
        if sequence.status is not SequenceStatus.RUNNING:
            if sequence.num_steps_in_flight == 0:
                self.release_after_flight(sequence)
        elif self.cache.snapshots is not None:
            self.preempt(sequence)  # its state may have gone on, and does not go back
        elif samples and (start < sequence.num_prompt_tokens or sequence.num_pending_tokens > 1):
            self.mark_prefilling(sequence)

    def discard_kv(self, sequence: Sequence) -> None:
        """Nothing that ``sequence`` read or wrote is to be trusted."""
        self.cache.evict(sequence.block_table)
        if self.cache.tiers is not None:
            self.cache.tiers.forget(sequence.block_hashes[1 : len(sequence.block_table) + 1])
        if self.cache.snapshots is not None:
            self.cache.snapshots.forget(sequence.block_hashes[1:])
        self.pool.mark_corrupt(sequence.block_table)

    def end(self, sequence: Sequence) -> None:
        """Take ``sequence``, which holds blocks, out."""
        if sequence.status is SequenceStatus.RUNNING:
            self._stop_running(sequence, SequenceStatus.ENDING)
        else:
            sequence.status = SequenceStatus.ENDING

    def release_after_flight(self, sequence: Sequence) -> None:
        """Release the blocks of ``sequence``, which no launched step touches any more."""
        if sequence.status is SequenceStatus.ENDING:
            self._release(sequence)
            sequence.status = SequenceStatus.FINISHED
        elif sequence.status is SequenceStatus.PREEMPTING:
            self._release(sequence)
            sequence.num_computed_tokens = 0
            sequence.status = SequenceStatus.WAITING
            self._waiting.resume(sequence)

    def check_integrity(self, most_blocks: int | None) -> None:
        """Raise BlockPoolCorruptError or RuntimeError when state contradicts itself."""
        running, pool, blocks = self.running(), self.pool, None
        if most_blocks is not None and most_blocks < pool.num_blocks:
            blocks = pool.next_to_check(most_blocks)
        pool.check_integrity((each.block_table for each in (*running, *self.draining)), blocks)
        self.cache.check_integrity(blocks)
        if len(set(running)) != len(running):
            raise RuntimeError("a sequence runs in two places")
        for sequence in running:
            if sequence.status is not SequenceStatus.RUNNING:
                raise RuntimeError(f"{sequence.sequence_id} runs but is {sequence.status}")
            if len(sequence.block_table) < blocks_for(sequence.num_computed_tokens):
                raise RuntimeError(f"{sequence.sequence_id} has too few blocks for its KV")
        for sequence in self.draining:
            if sequence.status not in {SequenceStatus.PREEMPTING, SequenceStatus.ENDING}:
                raise RuntimeError(f"{sequence.sequence_id} drains but is {sequence.status}")
            if not sequence.num_steps_in_flight and not sequence.num_loads_in_flight:
                raise RuntimeError(f"{sequence.sequence_id} drains, and nothing writes its blocks")
        self._check_loads()

    def _check_loads(self) -> None:
        loads = Counter(each.sequence for each in self._loads.values())
        if not self.loading.keys() <= loads.keys() <= {*self.loading, *self.draining}:
            raise RuntimeError("sequences that load are not those whose blocks are loaded")
        if any(each.num_loads_in_flight != count for each, count in loads.items()):
            raise RuntimeError("a sequence counts its loads in flight wrongly")

    def _begin_prefill(self, sequence: Sequence) -> None:
        is_long = self._waiting.is_long_work(sequence.num_pending_tokens)
        (self.long if is_long else self.short)[sequence] = None
        if is_long:
            self._came_long.add(sequence)

    def _reserve(self, sequence: Sequence, num_found: int) -> list[Source]:
        """Return where the next blocks of ``sequence`` are loaded from."""
        tiers = self.cache.tiers
        if tiers is None or not sequence.reads_cache:
            return []
        last = (sequence.length - 1) // BLOCK_SIZE
        return tiers.reserve(sequence.block_hashes[num_found + 1 : last + 1])

    def _load(self, sequence: Sequence, sources: list[Source]) -> None:
        tiers = self.cache.tiers
        if tiers is None:
            raise RuntimeError("there is nothing to load from")
        first = sequence.num_cached_blocks
        for place, source in enumerate(sources, first):
            block, digest = sequence.block_table[place], sequence.block_hashes[place + 1]
            tiers.load(block, digest, source)
            self._loads[block] = _Loading(sequence, place, digest, source)
        sequence.num_loads_in_flight = len(sources)
        sequence.num_loaded_blocks = first + len(sources)
        self.loading[sequence] = None
        if sequence.admitted is None:
            self._first_stays.add(sequence)

    def _end_load(self, sequence: Sequence) -> None:
        """Go on behind the blocks that were loaded, or release them."""
        num_loaded = sequence.num_loaded_blocks - sequence.num_cached_blocks
        if num_loaded:
            if sequence in self._first_stays:
                sequence.num_cached_tokens += num_loaded * BLOCK_SIZE
                self.cache.hits += num_loaded * BLOCK_SIZE
            self.cache_blocks(sequence, sequence.num_loaded_blocks)
            sequence.num_computed_tokens = sequence.num_loaded_blocks * BLOCK_SIZE
        self._first_stays.discard(sequence)
        if sequence.status is SequenceStatus.RUNNING:
            del self.loading[sequence]
            self._begin_prefill(sequence)
        else:
            self.release_after_flight(sequence)

    def _allocate(self, count: int) -> list[int]:
        blocks = self.cache.allocate(count)
        if self.on_allocated is not None:
            self.on_allocated(blocks)
        return blocks

    def _num_leaving(self) -> int:
        if not self.draining:
            return 0
        return self.pool.num_freed_by(sequence.block_table for sequence in self.draining)

    def _stop_running(self, sequence: Sequence, status: SequenceStatus) -> None:
        self._leave_running(sequence)
        self._waiting.stopped_running(sequence)
        sequence.status = status
        self.draining[sequence] = None
        if sequence.num_steps_in_flight == sequence.num_loads_in_flight == 0:
            self.release_after_flight(sequence)

    def _leave_running(self, sequence: Sequence) -> None:
        for place in (self.decoding, self.short, self.long, self.loading):
            place.pop(sequence, None)

    def _release(self, sequence: Sequence) -> None:
        del self.draining[sequence]
        if self.cache.snapshots is not None:
            self.cache.snapshots.left(sequence)
        self._came_long.discard(sequence)
        self._free_slots.append(sequence.slot)
        blocks, sequence.block_table = sequence.block_table, []
        sequence.num_cached_blocks = 0
        self.pool.release(blocks)
