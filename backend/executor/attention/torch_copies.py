"""Contiguous copies of the KV of sequences that decode, kept from step to step by ``torch``.

They are for the CPU, as is ``models.cpu_decoder``; plain torch on a GPU has them too.

The block pool stays the truth; a copy is filled from it when a sequence begins to decode, and then
follows: each step appends its token to both. Gathering by block table, which reads a sequence's KV
and writes it again for every token, is left to sequences that find no room here.

Law: a copy holds what the pool holds of its sequence up to some token, and is of nobody else. What
was computed since, in a step of drafts, is copied when the sequence decodes again. A sequence that
came back from elsewhere is copied anew.
"""

from collections.abc import Callable
from collections.abc import Sequence as SequenceOf
from dataclasses import dataclass
from itertools import pairwise
from typing import NamedTuple

import torch
from torch import Tensor

from backend.executor.attention.backend import Ints
from backend.scheduler.block_pool import BLOCK_SIZE, blocks_for

# A group may read this many times the blocks that its sequences hold, or so many bytes more in a
# layer: another group costs as much.
_MAX_PADDING = 1.25
_LEAST_WASTE = 512 * 2**10

COPY_BYTES = 256 * 2**20
"""Memory for copies; beyond it attention gathers, which a larger model's products hide."""

# A new group has room for half as much again, and at least for as many tokens more.
_MIN_GROWTH = 64


class Single(NamedTuple):
    """A sequence that computes one token, at position ``start``."""

    slot: int
    start: int


ReadBlocks = Callable[[int, Tensor], Tensor]
"""From a layer and block numbers to their KV [blocks, 2 * kv_heads, block, head_dim]."""


@dataclass(frozen=True, slots=True)
class CopiedLayer:
    """One layer's contiguous copy of a group's KV.

    ``rows`` is all of it as rows of head_dim; ``keys`` [sequences * kv_heads, head_dim, keys] and
    ``values`` [sequences * kv_heads, keys, head_dim] are views of it.
    """

    rows: Tensor
    keys: Tensor
    values: Tensor


@dataclass(frozen=True, slots=True)
class CopiedGroup:
    """Sequences whose copies lie side by side: the single tokens ``start`` to ``stop``.

    ``mask`` [sequences * kv_heads, 1, keys] is 0 where there is a key, else -inf. ``write_rows``
    [sequences * 2 * kv_heads] takes the new tokens' KV.
    """

    start: int
    stop: int
    mask: Tensor
    write_rows: Tensor
    layers: SequenceOf[CopiedLayer]


@dataclass(frozen=True, slots=True)
class CopyShape:
    """What copies are made of: ``num_layers`` tensors like those of a decoding step."""

    num_layers: int
    num_kv_heads: int
    head_dim: int
    like: Tensor

    @property
    def token_bytes(self) -> int:
        """Bytes of a token's KV in one layer."""
        return 2 * self.num_kv_heads * self.head_dim * self.like.itemsize


def cut_by_length(singles: SequenceOf[Single], block_bytes: int) -> list[list[Single]]:
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

    order: list[Single]
    groups: tuple[CopiedGroup, ...]
    rest: list[Single]


class _Group:
    """Copies side by side: ``slots`` many, each with room for ``room`` tokens."""

    def __init__(self, shape: CopyShape, read: ReadBlocks, slots: int, room: int) -> None:
        self.slots = slots
        self.room = room
        self.members: list[int] = []
        self._read = read
        self._num_kv_heads, self._head_dim = shape.num_kv_heads, shape.head_dim
        self._batch = slots * self._num_kv_heads
        like = shape.like
        self._copies = [
            like.new_empty(2, self._batch, room, self._head_dim) for _ in range(shape.num_layers)
        ]
        self._mask = like.new_full((self._batch, 1, room), -torch.inf)
        heads = torch.arange(self._batch, device=like.device)
        self._row_starts = (heads * room).view(slots, 1, -1)
        # The rows of a slot's keys, then of its values.
        starts = [self._row_starts, self._row_starts + self._batch * room]
        self._kv_starts = torch.cat(starts, dim=1).view(slots, -1)
        self._lengths: list[int] = []
        self._width = 0
        self._write_rows = heads
        self._mask_rows = heads
        self._layers: list[CopiedLayer] = []

    @property
    def num_bytes(self) -> int:
        """What the copies take, over all layers."""
        return sum(copy.nbytes for copy in self._copies)

    @property
    def has_room(self) -> bool:
        """Whether ``advance`` may be called."""
        return max(self._lengths) < self.room

    def assign(self, scheduled: SequenceOf[Single], stays: dict[int, int], tables: Ints) -> None:
        """Take exactly these sequences, leaving those of ``stays`` where they are.

        ``stays`` tells how many tokens of each are copied already.
        """
        free = list(scheduled)
        seats: list[Single | None] = []
        by_slot = {each.slot: each for each in scheduled}
        for member in self.members[: len(scheduled)]:
            kept = by_slot.get(member) if member in stays else None
            seats.append(kept)
            if kept is not None:
                free.remove(kept)
        seats += [None] * (len(scheduled) - len(seats))
        seated = [seat or free.pop() for seat in seats]
        self.members = [each.slot for each in seated]
        self._lengths = [each.start + 1 for each in seated]
        width = blocks_for(max(self._lengths)) * BLOCK_SIZE
        # What no member has written must be finite, and the kept may be narrower than this.
        for copy in self._copies:
            copy[:, : len(seated) * self._num_kv_heads, min(self._width, width) : width] = 0
        for slot, (before, each) in enumerate(zip(seats, seated, strict=True)):
            if before is None:
                rows = slice(slot * self._num_kv_heads, (slot + 1) * self._num_kv_heads)
                self._mask[rows] = -torch.inf
                for copy in self._copies:
                    copy[:, rows, :width] = 0
            else:
                rows = slice(slot * self._num_kv_heads, (slot + 1) * self._num_kv_heads)
                self._mask[rows, :, stays[each.slot] :] = -torch.inf
            first = 0 if before is None else stays[each.slot]
            if first < each.start:
                self._fill(slot, tables[each.slot], first, each.start)
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

    def plan(self, start: int) -> CopiedGroup:
        """Describe the group, whose first token in the step is ``start``."""
        stop = start + len(self.members)
        mask = self._mask[: len(self.members) * self._num_kv_heads, :, : self._width]
        return CopiedGroup(start, stop, mask, self._write_rows, self._layers)

    def _fill(self, slot: int, table: Ints, first: int, stop: int) -> None:
        """Copy tokens ``first`` to ``stop`` from the pool."""
        rows = slice(slot * self._num_kv_heads, (slot + 1) * self._num_kv_heads)
        self._mask[rows, :, first:stop] = 0.0
        skipped = first // BLOCK_SIZE
        blocks = torch.from_numpy(table[skipped : blocks_for(stop)].copy()).to(self._mask.device)
        shape = (-1, 2, self._num_kv_heads, BLOCK_SIZE, self._head_dim)
        within = slice(first - skipped * BLOCK_SIZE, stop - skipped * BLOCK_SIZE)
        for layer, copy in enumerate(self._copies):
            found = self._read(layer, blocks).view(shape).permute(1, 2, 0, 3, 4)
            copy[:, rows, first:stop] = found.flatten(2, 3)[:, :, within]

    def _set_width(self, width: int) -> None:
        self._width = width
        batch = len(self.members) * self._num_kv_heads
        self._layers = [
            CopiedLayer(
                copy.view(-1, self._head_dim),
                copy[0, :batch, :width].transpose(1, 2),
                copy[1, :batch, :width],
            )
            for copy in self._copies
        ]


class KVCopies:
    """Arranges decoding sequences into groups that attend together, as far as memory goes."""

    def __init__(
        self, shape: CopyShape, read: ReadBlocks, max_model_len: int, max_bytes: int = COPY_BYTES
    ) -> None:
        """Copy what ``read`` returns; copies take ``max_bytes`` at most."""
        self._shape = shape
        self._read = read
        self._longest = blocks_for(max_model_len) * BLOCK_SIZE
        self._max_bytes = max_bytes
        self._groups: list[_Group] = []
        self._next_start: dict[int, int] = {}
        self._outside: set[int] = set()
        self._is_current = True
        """Whether the groups hold exactly the sequences of ``_next_start``."""

    def forget(self, slots: SequenceOf[int]) -> None:
        """Let go of the copies of ``slots``: their sequences have left."""
        for slot in slots:
            if self._next_start.pop(slot, None) is not None:
                self._is_current = False

    def release(self) -> None:
        """Let go of all copies and of their memory."""
        self._next_start, self._groups, self._outside = {}, [], set()
        self._is_current = True

    def rewind(self, slot: int, start: int) -> None:
        """Note that the tokens of ``slot`` from ``start`` on are computed anew."""
        if self._next_start.get(slot, 0) > start:
            self._next_start[slot] = start

    def arrange(self, singles: SequenceOf[Single], tables: Ints) -> Arrangement:
        """Bring the copies up to the step that computes one token of each of ``singles``."""
        if not singles:
            return Arrangement([], (), [])
        if self._continues(singles):
            for group in self._groups:
                group.advance()
        else:
            self._rearrange(singles, tables)
        self._next_start = {slot: start + 1 for slot, start in singles}
        by_slot = {each.slot: each for each in singles}
        order = [by_slot[member] for group in self._groups for member in group.members]
        plans: list[CopiedGroup] = []
        for group in self._groups:
            plans.append(group.plan(plans[-1].stop if plans else 0))
        rest = [each for each in singles if each.slot in self._outside]
        return Arrangement(order, tuple(plans), rest)

    def _continues(self, singles: SequenceOf[Single]) -> bool:
        expected = self._next_start
        return (
            self._is_current
            and len(singles) == len(expected)
            and all(expected.get(slot) == start for slot, start in singles)
            and all(group.has_room for group in self._groups)
        )

    def _rearrange(self, singles: SequenceOf[Single], tables: Ints) -> None:
        expected, self._next_start = self._next_start, {}
        stays = {
            slot: min(expected[slot], start)  # a draft model goes back behind refused guesses
            for slot, start in singles
            if slot not in self._outside and expected.get(slot, 0) > 0 and start > 0
        }
        # Where there is no memory for a group, all are copied anew by the next step.
        self._is_current = False
        before, self._groups = self._groups, []
        self._outside = set()
        for members in cut_by_length(singles, BLOCK_SIZE * self._shape.token_bytes):
            group = self._group_for(members, before)
            if group is None:
                self._outside.update(each.slot for each in members)
            else:
                group.assign(members, stays, tables)
                self._groups.append(group)
        self._is_current = True

    def _group_for(self, members: list[Single], before: list[_Group]) -> _Group | None:
        """Take the old group that knows the most of them, or else a new one; None: no memory."""
        length = members[-1].start + 1
        fitting = [each for each in before if len(members) <= each.slots and length <= each.room]
        if fitting:
            wanted = {each.slot for each in members}
            best = max(fitting, key=lambda group: len(wanted.intersection(group.members)))
            before.remove(best)
            return best
        slots = 1 << (len(members) - 1).bit_length()
        room = min(self._longest, blocks_for(length + length // 2 + _MIN_GROWTH) * BLOCK_SIZE)
        used = sum(group.num_bytes for group in self._groups)
        per_token = self._shape.num_layers * self._shape.token_bytes
        if used + slots * room * per_token > self._max_bytes:
            return None
        return _Group(self._shape, self._read, slots, room)
