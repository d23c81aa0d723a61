"""Snapshots of recurrent states, named by the hash of the last block that they have taken in.

A model with recurrent states can go on behind a prefix only where its state was saved, so a prefix
hit ends at a block with a snapshot. This decides where states are saved, and what makes room; the
executor has the memory.

Laws:
- Saved are: the last block end from which a prompt can be computed again; where two prompts part,
  once that is known; and, one for each running sequence, its newest block end, which moves on. Once
  that is behind the prompt, the prompt's own is the first to make room.
- A snapshot is found once the step that saved it was completed, like the blocks before it.
- A snapshot from which a sequence is to begin stays until a step of that sequence was completed.
"""

from collections import OrderedDict
from collections.abc import Iterable
from collections.abc import Sequence as SequenceOf
from typing import NamedTuple

from backend.scheduler.batch import StateSave
from backend.scheduler.block_pool import BLOCK_SIZE
from backend.scheduler.sequence import Sequence, SequenceStatus, Step


class Save(NamedTuple):
    """The state behind ``num_blocks`` blocks goes to ``snapshot``.

    ``newest``: it is the last of its sequence, ``stays``: and that of a prompt.
    """

    num_blocks: int
    snapshot: int
    newest: bool
    stays: bool


class Snapshots:
    """Which of ``count`` snapshots hold what; the least recently used makes room."""

    def __init__(self, count: int) -> None:
        """None of them holds anything."""
        self.count = count
        self._free = list(reversed(range(count)))
        self._snapshot_of: OrderedDict[bytes, int] = OrderedDict()
        self._planned: list[tuple[Step, dict[Sequence, list[Save]]]] = []
        """What steps in flight save."""
        self._begins: dict[Sequence, int] = {}
        """As which snapshots sequences are to begin, which stay until then."""
        self._newest: dict[Sequence, tuple[bytes, bool]] = {}
        """And whether that one stays."""
        self._wanted: dict[Sequence, set[int]] = {}
        """Further block ends at which the states of running sequences are of use."""

    def __len__(self) -> int:
        return len(self._snapshot_of)

    def num_usable(self, hashes: SequenceOf[bytes], num_blocks: int) -> int:
        """Return behind how many of ``num_blocks`` blocks there is a snapshot, the most of them.

        ``hashes`` begins with the root hash.
        """
        for number in range(num_blocks, 0, -1):
            if hashes[number] in self._snapshot_of:
                return number
        return 0

    def begin(self, sequence: Sequence, num_usable: int, num_cached: int) -> None:
        """Let an admitted sequence begin behind ``num_usable`` blocks.

        ``num_cached`` are cached: another prompt had them, so that others may have them too.
        """
        sequence.state = -1
        if num_usable:
            digest = sequence.block_hashes[num_usable]
            self._snapshot_of.move_to_end(digest)
            sequence.state = self._begins[sequence] = self._snapshot_of[digest]
        if num_cached > num_usable:
            self.want(sequence, num_cached)

    def want(self, sequence: Sequence, num_blocks: int) -> None:
        """Save the state of a running sequence behind ``num_blocks`` blocks, if that is to come."""
        self._wanted.setdefault(sequence, set()).add(num_blocks)

    def plan(self, step: Step) -> None:
        """Decide what ``step``, the newest in flight, saves of whom, as far as there is room."""
        planned: dict[Sequence, list[Save]] = {}
        for sequence, start, count, samples, _ in step:
            end = start + count
            is_prompt = samples and count > 1
            # One token of a prompt is left to compute, or there would be no logits.
            last = (end - 1 if is_prompt else end) // BLOCK_SIZE
            wanted = {each for each in self._wanted.get(sequence, ()) if each <= last}
            for number in sorted({*wanted, last}):
                if number * BLOCK_SIZE <= start or self._knows(sequence, number):
                    continue
                if (snapshot := self._take()) is not None:
                    save = Save(number, snapshot, number not in wanted, is_prompt)
                    planned.setdefault(sequence, []).append(save)
        self._planned.append((step, planned))

    def saves_of(self, step: Step) -> tuple[StateSave, ...]:
        """Return what ``step`` saves, for the executor."""
        planned = next(planned for each, planned in self._planned if each is step)
        return tuple(
            StateSave(sequence.slot, save.num_blocks * BLOCK_SIZE, save.snapshot)
            for sequence, saves in planned.items()
            for save in saves
        )

    def completed(self, step: Step, sequence: Sequence) -> None:
        """Take in that ``step`` was completed for ``sequence``, whose hashes are up to date."""
        self._begins.pop(sequence, None)
        planned = next(planned for each, planned in self._planned if each is step)
        is_good = sequence.status in {SequenceStatus.RUNNING, SequenceStatus.PREEMPTING}
        for number, snapshot, newest, stays in planned.pop(sequence, ()) if is_good else ():
            digest = sequence.block_hashes[number]
            if newest:
                self._follow(sequence, digest, stays=stays)
            if digest in self._snapshot_of:
                self._free.append(snapshot)
            else:
                self._snapshot_of[digest] = snapshot

    def dropped(self, step: Step) -> None:
        """Free what ``step``, which is in flight no longer, was to save and did not."""
        place = next(place for place, (each, _) in enumerate(self._planned) if each is step)
        _, planned = self._planned.pop(place)
        self._free += [each.snapshot for saves in planned.values() for each in saves]

    def left(self, sequence: Sequence) -> None:
        """``sequence`` runs no longer; what was saved of it stays."""
        self._begins.pop(sequence, None)
        self._newest.pop(sequence, None)
        self._wanted.pop(sequence, None)

    def forget(self, hashes: Iterable[bytes]) -> None:
        """Let none of ``hashes`` be found."""
        for digest in hashes:
            if (snapshot := self._snapshot_of.pop(digest, None)) is not None:
                self._free.append(snapshot)

    def check_integrity(self, running: set[Sequence]) -> None:
        """Raise RuntimeError unless each snapshot is in one place."""
        held = [*self._free, *self._snapshot_of.values()]
        planned = [saves for _, planned in self._planned for saves in planned.values()]
        held += [save.snapshot for saves in planned for save in saves]
        if sorted(held) != list(range(self.count)):
            raise RuntimeError("snapshots of states are lost, or in two places")
        if not self._begins.keys() | self._newest.keys() | self._wanted.keys() <= running:
            raise RuntimeError("states are kept for sequences that do not run")

    def _follow(self, sequence: Sequence, digest: bytes, *, stays: bool) -> None:
        """Let ``digest`` be the newest of ``sequence``, and the one before make room."""
        before, stayed = self._newest.get(sequence, (digest, False))
        self._newest[sequence] = digest, stays
        if before in self._snapshot_of and before != digest:
            if stayed:
                self._snapshot_of.move_to_end(before, last=False)
            else:
                self.forget((before,))

    def _knows(self, sequence: Sequence, number: int) -> bool:
        """Whether there is such a snapshot, as far as hashes are known; then it is used now."""
        hashes = sequence.block_hashes
        if len(hashes) <= number or hashes[number] not in self._snapshot_of:
            return False
        self._snapshot_of.move_to_end(hashes[number])
        return True

    def _take(self) -> int | None:
        used = set(self._begins.values())
        snapshot = next((each for each in reversed(self._free) if each not in used), None)
        if snapshot is not None:
            self._free.remove(snapshot)
            return snapshot
        held = self._snapshot_of.items()
        oldest = next((digest for digest, each in held if each not in used), None)
        return None if oldest is None else self._snapshot_of.pop(oldest)
