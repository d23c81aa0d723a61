"""Contiguous copies of the KV of sequences that decode, kept from step to step.

The block pool stays the truth; a copy is filled from it when a sequence begins to decode, and then
follows: each step appends its token to both. Gathering by block table, which reads a sequence's KV
and writes it again for every token, is left to sequences that find no room here.

Law: a copy is valid while its sequence decodes in every step, without a gap. Whoever missed a
step, or came back from elsewhere, is copied anew.
"""

from collections.abc import Sequence as SequenceOf
from dataclasses import dataclass
from itertools import pairwise

import torch
from torch import Tensor

from backend.models.attention import DecodeGroup, Mirror, MirroredLayer
from backend.scheduler.block_pool import BLOCK_SIZE, blocks_for
from backend.scheduler.sequence import ScheduledSequence, Sequence

# A group may read this many times the blocks that its sequences hold, or so many bytes more in a
# layer: another group costs as much.
_MAX_PADDING = 1.25
_LEAST_WASTE = 512 * 2**10

MIRROR_BYTES = 256 * 2**20
"""Memory for copies; beyond it attention gathers, which a larger model's products hide."""

# A new group has room for half as much again, and at least for as many tokens more.
_MIN_GROWTH = 64


def cut_by_length(
    singles: SequenceOf[ScheduledSequence], block_bytes: int
) -> list[list[ScheduledSequence]]:
    """Sort sequences by length and cut where padding to the longest would cost too much.

    ``block_bytes`` is what a layer keeps in a block.
    """
    ordered = sorted(singles, key=lambda each: each.start)
    cuts: list[int] = []
    first = held = 0
    for index, each in enumerate(ordered):
        blocks = blocks_for(each.start + 1)
        read, needed = blocks * (index + 1 - first), held + blocks
        if read > _MAX_PADDING * needed and (read - needed) * block_bytes > _LEAST_WASTE:
            cuts.append(index)
            first, held = index, 0
        held += blocks
    bounds = [0, *cuts, len(ordered)] if ordered else []
    return [ordered[start:stop] for start, stop in pairwise(bounds)]


@dataclass(frozen=True, slots=True)
class Arrangement:
    """``order``: the sequences as ``groups`` cover them; ``rest`` found no room."""

    order: list[ScheduledSequence]
    groups: tuple[DecodeGroup, ...]
    rest: list[ScheduledSequence]


class _Group:
    """Copies side by side: ``slots`` many, each with room for ``room`` tokens."""

    def __init__(self, caches: SequenceOf[Tensor], slots: int, room: int) -> None:
        self.slots = slots
        self.room = room
        self.members: list[Sequence] = []
        self._caches = caches
        self._num_kv_heads, self._head_dim = caches[0].shape[1] // 2, caches[0].shape[-1]
        self._batch = slots * self._num_kv_heads
        like = caches[0]
        self._copies = [
            like.new_empty(2, self._batch, room, self._head_dim) for _ in range(len(caches))
        ]
        self._mask = like.new_full((self._batch, 1, room), -torch.inf)
        heads = torch.arange(self._batch, device=like.device)
        self._row_starts = (heads * room).view(slots, 1, -1)
        # The rows of a slot's keys, then of its values.
        self._kv_starts = torch.cat(
            [self._row_starts, self._row_starts + self._batch * room], dim=1
        ).view(slots, -1)
        self._lengths: list[int] = []
        self._width = 0
        self._write_rows = heads
        self._mask_rows = heads
        self._layers: list[MirroredLayer] = []

    @property
    def num_bytes(self) -> int:
        """What the copies take, over all layers."""
        return sum(copy.nbytes for copy in self._copies)

    @property
    def has_room(self) -> bool:
        """Whether ``advance`` may be called."""
        return max(self._lengths) < self.room

    def fits(self, num_sequences: int, length: int) -> bool:
        """Whether so many fit, the longest of so many tokens."""
        return num_sequences <= self.slots and length <= self.room

    def seat(self, scheduled: SequenceOf[ScheduledSequence], stays: set[Sequence]) -> None:
        """Take exactly these sequences, leaving those of ``stays`` where they are."""
        free = list(scheduled)
        seats: list[ScheduledSequence | None] = []
        by_sequence = {each.sequence: each for each in scheduled}
        for member in self.members[: len(scheduled)]:
            kept = by_sequence.get(member) if member in stays else None
            seats.append(kept)
            if kept is not None:
                free.remove(kept)
        seats += [None] * (len(scheduled) - len(seats))
        seated = [seat or free.pop() for seat in seats]
        self.members = [each.sequence for each in seated]
        self._lengths = [each.start + 1 for each in seated]
        width = blocks_for(max(self._lengths)) * BLOCK_SIZE
        # What no member has written must be finite, and the kept may be narrower than this.
        for copy in self._copies:
            copy[:, : len(seated) * self._num_kv_heads, min(self._width, width) : width] = 0
        for slot, (before, each) in enumerate(zip(seats, seated, strict=True)):
            if before is None:
                self._fill(slot, each.sequence.block_table, each.start, width)
        positions = torch.tensor(self._lengths, device=self._mask.device).unsqueeze(1) - 1
        self._write_rows = (self._kv_starts[: len(seated)] + positions).flatten()
        self._mask_rows = (self._row_starts[: len(seated), 0] + positions).flatten()
        self._mask.view(-1).index_fill_(0, self._mask_rows, 0.0)
        self._set_width(width)

    def advance(self) -> None:
        """Move on by one token each."""
        self._lengths = [length + 1 for length in self._lengths]
        self._write_rows.add_(1)
        self._mask.view(-1).index_fill_(0, self._mask_rows.add_(1), 0.0)
        if max(self._lengths) > self._width:
            for copy in self._copies:
                copy[:, :, self._width : self._width + BLOCK_SIZE] = 0
            self._set_width(self._width + BLOCK_SIZE)

    def plan(self, start: int) -> DecodeGroup:
        """Describe the group, whose first token in the step is ``start``."""
        stop = start + len(self.members)
        mask = self._mask[: len(self.members) * self._num_kv_heads, :, : self._width]
        return DecodeGroup(start, stop, mask, Mirror(self._write_rows, self._layers))

    def _fill(self, slot: int, table: list[int], start: int, width: int) -> None:
        """Copy what was computed before ``start``, and clear the rest."""
        rows = slice(slot * self._num_kv_heads, (slot + 1) * self._num_kv_heads)
        self._mask[rows, :, :start] = 0.0
        self._mask[rows, :, start:] = -torch.inf
        blocks = torch.tensor(table[: blocks_for(start)], device=self._mask.device)
        shape = (-1, 2, self._num_kv_heads, BLOCK_SIZE, self._head_dim)
        for copy, cache in zip(self._copies, self._caches, strict=True):
            if start:
                found = cache.index_select(0, blocks).view(shape).permute(1, 2, 0, 3, 4)
                copy[:, rows, :start] = found.flatten(2, 3)[:, :, :start]
            copy[:, rows, start:width] = 0

    def _set_width(self, width: int) -> None:
        self._width = width
        batch = len(self.members) * self._num_kv_heads
        self._layers = [
            MirroredLayer(
                copy.view(-1, self._head_dim),
                copy[0, :batch, :width].transpose(1, 2),
                copy[1, :batch, :width],
            )
            for copy in self._copies
        ]


class KVMirror:
    """Arranges decoding sequences into groups that attend together, as far as memory goes."""

    def __init__(self, caches: SequenceOf[Tensor], max_model_len: int, max_bytes: int) -> None:
        """Mirror ``caches``, one a layer (see ``kv_cache``)."""
        self._caches = caches
        self._longest = blocks_for(max_model_len) * BLOCK_SIZE
        self._max_bytes = max_bytes
        self._groups: list[_Group] = []
        self._next_start: dict[Sequence, int] = {}
        self._outside: set[Sequence] = set()

    def arrange(self, singles: SequenceOf[ScheduledSequence]) -> Arrangement:
        """Bring the copies up to the step that computes one token of each of ``singles``."""
        if self._continues(singles):
            for group in self._groups:
                group.advance()
        else:
            self._rearrange(singles)
        self._next_start = {each.sequence: each.start + 1 for each in singles}
        by_sequence = {each.sequence: each for each in singles}
        order = [by_sequence[member] for group in self._groups for member in group.members]
        plans: list[DecodeGroup] = []
        for group in self._groups:
            plans.append(group.plan(plans[-1].stop if plans else 0))
        rest = [each for each in singles if each.sequence in self._outside]
        return Arrangement(order, tuple(plans), rest)

    def _continues(self, singles: SequenceOf[ScheduledSequence]) -> bool:
        expected = self._next_start
        return (
            len(singles) == len(expected)
            and all(expected.get(each.sequence) == each.start for each in singles)
            and all(group.has_room for group in self._groups)
        )

    def _rearrange(self, singles: SequenceOf[ScheduledSequence]) -> None:
        expected = self._next_start
        stays = {
            each.sequence for each in singles if expected.get(each.sequence) == each.start
        } - self._outside
        before, self._groups = self._groups, []
        self._outside = set()
        for members in cut_by_length(singles, self._caches[0][0].nbytes):
            group = self._group_for(members, before)
            if group is None:
                self._outside.update(each.sequence for each in members)
            else:
                group.seat(members, stays)
                self._groups.append(group)

    def _group_for(self, members: list[ScheduledSequence], before: list[_Group]) -> _Group | None:
        """Take the old group that knows the most of them, or else a new one; None: no memory."""
        length = members[-1].start + 1
        fitting = [group for group in before if group.fits(len(members), length)]
        if fitting:
            wanted = {each.sequence for each in members}
            best = max(fitting, key=lambda group: len(wanted.intersection(group.members)))
            before.remove(best)
            return best
        slots = 1 << (len(members) - 1).bit_length()
        room = min(self._longest, blocks_for(length + length // 2 + _MIN_GROWTH) * BLOCK_SIZE)
        used = sum(group.num_bytes for group in self._groups)
        per_token = sum(cache[0, :, 0].nbytes for cache in self._caches)
        if used + slots * room * per_token > self._max_bytes:
            return None
        return _Group(self._caches, slots, room)
