"""Who waits, and in which order.

Two lanes: short prompts, which one step can compute beside others, and long ones, which are taken
one at a time so that they do not stand in each other's way. What counts is the tokens that the
prefix cache does not have. A third lane is for those that were preempted; they come before the
others of their priority. Those that are parked wait for shared work and are in no lane.

Law: whoever arrived ``max_wait`` seconds ago is overdue, whatever its lane, and the oldest of the
overdue is first of all.
"""

from enum import IntEnum
from heapq import heapify, heappop, heappush

from backend.scheduler.sequence import Sequence


class Lane(IntEnum):
    """Where a sequence waits."""

    RESUMED = 0
    SHORT = 1
    LONG = 2
    PARKED = 3


class _Queue:
    """By priority, then by arrival; entries of those that left are skipped when they come up."""

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


class WaitingLine:
    """The sequences that wait, each in one lane."""

    def __init__(self, *, max_wait: float) -> None:
        """``max_wait`` is the ageing bound in seconds."""
        self._max_wait = max_wait
        self._queues = [_Queue() for _ in Lane]
        self._lane_of: dict[int, Lane] = {}
        self._sequence_of: dict[int, Sequence] = {}
        self._by_age: list[tuple[float, int]] = []
        self._by_deadline: list[tuple[float, int]] = []

    def __len__(self) -> int:
        return len(self._lane_of)

    def __contains__(self, sequence: Sequence) -> bool:
        return sequence.sequence_id in self._lane_of

    def members(self, lane: Lane) -> set[Sequence]:
        """Return those in ``lane``."""
        return set(self._queues[lane].members)

    def add(self, sequence: Sequence, lane: Lane) -> None:
        """Put a sequence that did not wait into ``lane``."""
        number = sequence.sequence_id
        self._lane_of[number] = lane
        self._sequence_of[number] = sequence
        self._queues[lane].add(sequence)
        heappush(self._by_age, (sequence.arrived, number))
        if sequence.deadline is not None and sequence.admitted is None:
            heappush(self._by_deadline, (sequence.deadline, number))

    def move(self, sequence: Sequence, lane: Lane) -> None:
        """Put a sequence that waits into another lane."""
        number = sequence.sequence_id
        self._queues[self._lane_of[number]].remove(sequence)
        self._lane_of[number] = lane
        self._queues[lane].add(sequence)

    def remove(self, sequence: Sequence) -> Lane:
        """Take a sequence out; return where it was."""
        number = sequence.sequence_id
        lane = self._lane_of.pop(number)
        del self._sequence_of[number]
        self._queues[lane].remove(sequence)
        return lane

    def first(self, lane: Lane) -> Sequence | None:
        """Return the first of ``lane``."""
        return self._queues[lane].first()

    def lane_of(self, sequence: Sequence) -> Lane:
        """Return where ``sequence`` waits."""
        return self._lane_of[sequence.sequence_id]

    def is_overdue(self, sequence: Sequence, now: float) -> bool:
        """Whether ``sequence``, waiting or not, has been here for longer than the bound."""
        return now - sequence.arrived >= self._max_wait

    def overdue(self, now: float) -> Sequence | None:
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
