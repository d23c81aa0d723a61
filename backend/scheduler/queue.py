"""The waiting queue: who waits, in which order, and for what.

Two lanes: short prompts, which one step can compute beside others, and long ones, which are taken
one at a time. A prompt's size is the number of tokens that the prefix cache does not have *now*, so
a sequence changes lanes when that changes. Preempted sequences have a third lane and come before
the others of their priority. Parked sequences are in no lane: they wait for a running sequence that
computes their blocks. So the requests of a burst, or the choices of one request, compute a shared
prompt once.

Laws:
- A sequence that arrived ``max_wait`` seconds ago is overdue, whatever its lane, and the oldest
  overdue sequence is first of all.
- A block is claimed by at most one running sequence, from its admission until the block is cached
  or the claimant stops running. What ends a wait puts the waiting sequence back into its lane.
"""

from collections import deque
from collections.abc import Iterable
from enum import IntEnum
from heapq import heapify, heappop, heappush

from backend.scheduler.block_pool import BLOCK_SIZE
from backend.scheduler.prefix_cache import PrefixCache
from backend.scheduler.sequence import Sequence, SequenceStatus

_ADMISSIONS_REMEMBERED = 64
_RETRY_AFTER = (1.0, 300.0)


class Lane(IntEnum):
    """Where a sequence waits."""

    RESUMED = 0
    SHORT = 1
    LONG = 2
    PARKED = 3


class _LaneQueue:
    """By priority, then by arrival; entries of sequences that left are skipped later."""

    def __init__(self) -> None:
        self.members: set[Sequence] = set()
        self._heap: list[tuple[int, int, Sequence]] = []

    def add(self, sequence: Sequence) -> None:
        self.members.add(sequence)
        heappush(self._heap, (sequence.priority, sequence.sequence_id, sequence))

    def remove(self, sequence: Sequence) -> None:
        self.members.remove(sequence)
        if len(self._heap) > 2 * len(self.members) + 64:
            self._heap = [(each.priority, each.sequence_id, each) for each in self.members]
            heapify(self._heap)

    def first(self) -> Sequence | None:
        while self._heap:
            sequence = self._heap[0][2]
            if sequence in self.members:
                return sequence
            heappop(self._heap)
        return None


class WaitingQueue:
    """The sequences that hold no blocks, each in one lane or parked."""

    def __init__(self, cache: PrefixCache, *, max_wait: float, long_prompt_tokens: int) -> None:
        """``max_wait`` is the ageing bound; longer than ``long_prompt_tokens`` is a long prompt."""
        self._cache = cache
        self._max_wait = max_wait
        self._long_prompt_tokens = long_prompt_tokens
        self._lanes = [_LaneQueue() for _ in Lane]
        self._lane_of: dict[int, Lane] = {}
        self._sequence_of: dict[int, Sequence] = {}
        self._by_age: list[tuple[float, int]] = []
        self._by_deadline: list[tuple[float, int]] = []
        self._shared = _SharedBlocks()
        self._admissions: deque[float] = deque(maxlen=_ADMISSIONS_REMEMBERED)

    def __len__(self) -> int:
        return len(self._lane_of)

    def add(self, sequence: Sequence, twin: Sequence | None = None) -> None:
        """Queue a new sequence; a ``twin`` that was queued may have the same prompt."""
        if not sequence.block_hashes:
            root = sequence.cache_salt, sequence.adapter
            is_like = twin is not None and (twin.cache_salt, twin.adapter) == root
            if twin is not None and is_like and twin.tokens == sequence.tokens:
                sequence.block_hashes = twin.block_hashes.copy()
            else:
                sequence.block_hashes = self._cache.hash_blocks(sequence.tokens, *root)
        self._enter(sequence, self._lane_of_new(sequence))

    def resume(self, sequence: Sequence) -> None:
        """Queue a preempted sequence."""
        self._enter(sequence, Lane.RESUMED)

    def remove(self, sequence: Sequence) -> None:
        """Take a sequence out."""
        number = sequence.sequence_id
        lane = self._lane_of.pop(number)
        del self._sequence_of[number]
        self._lanes[lane].remove(sequence)
        if lane is Lane.PARKED:
            self._shared.leave(sequence)

    def admitted(self, sequence: Sequence, now: float) -> None:
        """Take out a sequence that has blocks now, and will compute those that it lacks."""
        self.remove(sequence)
        self._shared.claim(sequence)
        if sequence.admitted is None:
            self._admissions.append(now)

    def blocks_cached(self, sequence: Sequence, first: int, stop: int) -> None:
        """Blocks ``first`` to ``stop`` of ``sequence``, which runs, can be found now."""
        self._unpark(self._shared.cached(sequence, first, stop))

    def stopped_running(self, sequence: Sequence) -> None:
        """``sequence`` will compute none of its blocks any more."""
        self._unpark(self._shared.withdraw(sequence))

    def match_prefix(self, sequence: Sequence) -> list[int]:
        """Return the blocks of its prefix that are cached."""
        if not sequence.reads_cache:
            return []
        return self._cache.match_prefix(sequence.block_hashes, sequence.length)

    def park(self, sequence: Sequence, found: list[int]) -> bool:
        """Let ``sequence`` wait for a running one that computes its next block, if one does."""
        if not sequence.reads_cache or not self._shared.wait(sequence, len(found)):
            return False
        if self._cache.snapshots is not None:
            self._cache.snapshots.want(*self._shared.awaited(sequence))
        self._move(sequence, Lane.PARKED)
        return True

    def to_long_lane(self, sequence: Sequence, found: list[int]) -> bool:
        """Move ``sequence`` from the short lane if it is long with the blocks ``found`` for it."""
        is_short = self._lane_of[sequence.sequence_id] is Lane.SHORT
        if not is_short or not self._is_long(sequence, found):
            return False
        self._move(sequence, Lane.LONG)
        return True

    def is_long_work(self, num_tokens: int) -> bool:
        """Whether so many tokens to compute make a long prompt."""
        return num_tokens > self._long_prompt_tokens

    def is_overdue(self, sequence: Sequence, now: float) -> bool:
        """Whether ``sequence``, waiting or not, has been here for longer than the bound."""
        return now - sequence.arrived >= self._max_wait

    @property
    def has_short(self) -> bool:
        """Whether a sequence waits in the short lane."""
        return self._lanes[Lane.SHORT].first() is not None

    def first_resumed_or_short(self, *, with_short: bool) -> Sequence | None:
        """Return the next that is not long; ``with_short`` False: the next resumed one."""
        resumed = self._lanes[Lane.RESUMED].first()
        short = self._lanes[Lane.SHORT].first() if with_short else None
        if resumed is None or (short is not None and short.priority < resumed.priority):
            return short
        return resumed

    def first_long(self) -> Sequence | None:
        """Return the first of the long lane that still belongs there."""
        while (sequence := self._lanes[Lane.LONG].first()) is not None:
            found = self.match_prefix(sequence)
            if self.park(sequence, found):
                continue
            if self._is_long(sequence, found):
                return sequence
            self._move(sequence, Lane.SHORT)
        return None

    def first_overdue(self, now: float) -> Sequence | None:
        """Return the oldest that waits, if it is overdue."""
        while self._by_age:
            arrived, number = self._by_age[0]
            if number in self._lane_of:
                return self._sequence_of[number] if now - arrived >= self._max_wait else None
            heappop(self._by_age)
        return None

    def past_deadline(self, now: float) -> list[Sequence]:
        """Return those that were never admitted and may not be any more."""
        late: list[Sequence] = []
        while self._by_deadline and self._by_deadline[0][0] <= now:
            _, number = heappop(self._by_deadline)
            sequence = self._sequence_of.get(number)
            if sequence is not None and sequence.admitted is None:
                late.append(sequence)
        return late

    def drain_seconds(self, now: float) -> float:
        """Guess when those that wait now will have been admitted, at the pace of the last ones."""
        shortest, longest = _RETRY_AFTER
        if not self._admissions:
            return shortest
        pace = (now - self._admissions[0]) / len(self._admissions)
        return min(max(shortest, pace * len(self)), longest)

    def check_integrity(self, running: Iterable[Sequence]) -> None:
        """Raise RuntimeError when state contradicts itself or what is ``running``."""
        self._shared.check_integrity(set(running), self._lanes[Lane.PARKED].members)
        for sequence in self._sequence_of.values():
            if sequence.status is not SequenceStatus.WAITING or sequence.block_table:
                raise RuntimeError(f"{sequence.sequence_id} waits but holds blocks or runs")

    def _enter(self, sequence: Sequence, lane: Lane) -> None:
        number = sequence.sequence_id
        self._lane_of[number] = lane
        self._sequence_of[number] = sequence
        self._lanes[lane].add(sequence)
        heappush(self._by_age, (sequence.arrived, number))
        if sequence.deadline is not None and sequence.admitted is None:
            heappush(self._by_deadline, (sequence.deadline, number))

    def _move(self, sequence: Sequence, lane: Lane) -> None:
        number = sequence.sequence_id
        self._lanes[self._lane_of[number]].remove(sequence)
        self._lane_of[number] = lane
        self._lanes[lane].add(sequence)

    def _unpark(self, sequences: Iterable[Sequence]) -> None:
        for sequence in sequences:
            is_new = sequence.admitted is None
            self._move(sequence, self._lane_of_new(sequence) if is_new else Lane.RESUMED)

    def _lane_of_new(self, sequence: Sequence) -> Lane:
        is_long = self._is_long(sequence, self.match_prefix(sequence))
        return Lane.LONG if is_long else Lane.SHORT

    def _is_long(self, sequence: Sequence, found: list[int]) -> bool:
        num_tokens = sequence.length - len(found) * BLOCK_SIZE
        if self._cache.tiers is not None and sequence.reads_cache and self.is_long_work(num_tokens):
            hashes, length = sequence.block_hashes, sequence.length
            num_tokens -= len(self._cache.worth_loading(hashes, len(found), length)) * BLOCK_SIZE
        return self.is_long_work(num_tokens)


class _SharedBlocks:
    """Blocks that running sequences are about to compute, by hash, and who waits for them."""

    def __init__(self) -> None:
        self._claimant_of: dict[bytes, Sequence] = {}
        self._waiting_for: dict[bytes, list[Sequence]] = {}
        self._wait_of: dict[Sequence, bytes] = {}

    def claim(self, sequence: Sequence) -> None:
        """``sequence`` will compute all its full blocks that are not cached."""
        for block_hash in sequence.block_hashes[sequence.num_cached_blocks + 1 :]:
            self._claimant_of.setdefault(block_hash, sequence)

    def wait(self, sequence: Sequence, num_found: int) -> bool:
        """Let ``sequence`` wait if its first missing block is being computed, as urgently.

        It waits for the last of its blocks that are, which is computed after the others.
        """
        hashes, claims = sequence.block_hashes, self._claimant_of
        low, high = num_found + 1, (sequence.length - 1) // BLOCK_SIZE + 1
        high = min(high, len(hashes))
        if low >= high or hashes[low] not in claims:
            return False
        if claims[hashes[low]].priority > sequence.priority:
            return False
        while high - low > 1:
            middle = (low + high) // 2
            if hashes[middle] in claims:
                low = middle
            else:
                high = middle
        self._wait_of[sequence] = hashes[low]
        self._waiting_for.setdefault(hashes[low], []).append(sequence)
        return True

    def awaited(self, sequence: Sequence) -> tuple[Sequence, int]:
        """Return whom ``sequence`` waits for, and the block that it waits for."""
        block_hash = self._wait_of[sequence]
        return self._claimant_of[block_hash], sequence.block_hashes.index(block_hash)

    def leave(self, sequence: Sequence) -> None:
        """``sequence`` waits for nothing any more."""
        block_hash = self._wait_of.pop(sequence)
        others = self._waiting_for[block_hash]
        others.remove(sequence)
        if not others:
            del self._waiting_for[block_hash]

    def cached(self, sequence: Sequence, first: int, stop: int) -> list[Sequence]:
        """Return who waited for blocks ``first`` to ``stop`` of ``sequence``."""
        claims = self._claimant_of
        hashes = sequence.block_hashes[first + 1 : stop + 1]
        if claims:
            for block_hash in hashes:
                claims.pop(block_hash, None)
        return self._wake(hashes)

    def withdraw(self, sequence: Sequence) -> list[Sequence]:
        """Return who waited for blocks that ``sequence`` claimed and will not compute."""
        claims = self._claimant_of
        claimed = [
            block_hash
            for block_hash in sequence.block_hashes[sequence.num_cached_blocks + 1 :]
            if claims.get(block_hash) is sequence
        ]
        for block_hash in claimed:
            del claims[block_hash]
        return self._wake(claimed)

    def check_integrity(self, running: set[Sequence], parked: set[Sequence]) -> None:
        """Raise RuntimeError when a sequence waits for what no running one computes."""
        if not set(self._claimant_of.values()) <= running:
            raise RuntimeError("blocks are claimed by sequences that do not run")
        if set(self._wait_of) != parked:
            raise RuntimeError("those that wait for shared work are not those that are parked")
        if not self._waiting_for.keys() <= self._claimant_of.keys():
            raise RuntimeError("a sequence waits for a block that nobody computes")

    def _wake(self, hashes: Iterable[bytes]) -> list[Sequence]:
        if not self._waiting_for:
            return []
        woken = [each for one in hashes for each in self._waiting_for.pop(one, ())]
        for sequence in woken:
            del self._wait_of[sequence]
        return woken
