"""From a scheduled step to the tensors that the kernels take, in one copy to the device.

Everything about a step is int32. It is laid end to end in pinned memory and copied as one piece,
so that a graph finds its inputs where they were when it was captured: the parts before the block
tables depend on the padded size of the batch alone.
"""

from array import array
from collections.abc import Sequence as SequenceOf
from dataclasses import dataclass
from itertools import chain
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from backend.executor.cuda_attention import KernelPlan
from backend.executor.cuda_prefill import PrefillSpans
from backend.executor.prompt_logprobs import ScoredSpan, scored_span
from backend.kernels.decode_attention import BlockTables, num_splits
from backend.kernels.prefill_attention import Span, query_tiles, tile_tokens
from backend.scheduler.block_pool import BLOCK_SIZE, blocks_for
from backend.scheduler.sequence import ScheduledSequence, Sequence, Step

Ints = NDArray[np.int32]

# Parts begin at multiples of so many numbers: kernels are compiled for aligned addresses.
_ALIGNMENT = 16
# A buffer is written again only when the step after the next is built; one more for safety.
_HOST_BUFFERS = 3


@dataclass(frozen=True, slots=True)
class BatchLimits:
    """What bounds a step, and the device it runs on."""

    max_num_seqs: int
    max_tokens_per_step: int
    max_model_len: int
    processors: int
    """Multiprocessors to keep busy."""


@dataclass(frozen=True, slots=True)
class KernelBatch:
    """One step as model and kernels take it; padded rows come last and belong to nobody.

    ``logit_rows`` are the tokens to sample after, then those of ``scored``; None when it is each of
    ``sampling`` in order. ``unseen`` are token rows whose values the host does not know, and the
    rows at which the step before chose them.
    """

    tokens: Tensor
    positions: Tensor
    plan: KernelPlan
    logit_rows: Tensor | None
    sampling: tuple[ScheduledSequence, ...]
    unseen: tuple[Tensor, Tensor] | None
    scored: tuple[ScoredSpan, ...] = ()


class Staging:
    """Int32 parts laid end to end, copied to the device at once without waiting."""

    def __init__(self, capacity: int, device: torch.device) -> None:
        """Room for ``capacity`` numbers."""
        self._on_cuda = device.type == "cuda"
        self._host = [
            torch.empty(capacity, dtype=torch.int32, pin_memory=self._on_cuda)
            for _ in range(_HOST_BUFFERS)
        ]
        self._copied: list[Any] = [None] * _HOST_BUFFERS
        self._device = torch.zeros(capacity, dtype=torch.int32, device=device)
        self._turn = 0

    def send(self, parts: SequenceOf[Ints]) -> list[Tensor]:
        """Return ``parts`` on the device, each as a view of one buffer."""
        turn, self._turn = self._turn, (self._turn + 1) % _HOST_BUFFERS
        if self._copied[turn] is not None:
            self._copied[turn].synchronize()
        host = self._host[turn].numpy()
        bounds: list[tuple[int, int]] = []
        at = 0
        for part in parts:
            bounds.append((at, at + len(part)))
            host[at : at + len(part)] = part
            at = aligned(at + len(part))
        end = bounds[-1][1]
        self._device[:end].copy_(self._host[turn][:end], non_blocking=True)
        if self._on_cuda:
            self._copied[turn] = torch.cuda.Event()  # type: ignore[no-untyped-call]
            self._copied[turn].record()
        return [self._device[start:stop] for start, stop in bounds]


class KernelBatchBuilder:
    """Lays out steps for ``KernelAttention``."""

    def __init__(self, limits: BatchLimits, *, num_heads: int, num_kv_heads: int) -> None:
        """Heads are those of one layer."""
        self._limits = limits
        self._num_kv_heads = num_kv_heads
        self._tile_tokens = tile_tokens(num_heads // num_kv_heads)
        self._staging: Staging | None = None

    def place(self, device: torch.device) -> None:
        """Allocate the buffers there."""
        self._staging = Staging(self.capacity, device)

    @property
    def capacity(self) -> int:
        """Numbers that the largest step needs."""
        limits = self._limits
        tables = limits.max_num_seqs * blocks_for(limits.max_model_len)
        tiles = 4 * (limits.max_num_seqs + limits.max_tokens_per_step // self._tile_tokens + 1)
        rows = 4 * limits.max_tokens_per_step + 8 * limits.max_num_seqs
        return tables + tiles + rows + 16 * _ALIGNMENT

    def splits(self, sequences: int, max_keys: int) -> int:
        """Return how many splits single tokens of ``sequences`` are cut into."""
        return num_splits(sequences, self._num_kv_heads, max_keys, self._limits.processors)

    def build(
        self, step: Step, chosen_rows: dict[Sequence, int], padded_size: int | None = None
    ) -> KernelBatch:
        """Put single tokens first, then the spans.

        ``chosen_rows`` says at which row the step before chose a sequence's token. With
        ``padded_size`` the step must be single tokens alone, each of which samples.
        """
        singles = [each for each in step if each.num_tokens == 1]
        spans = [each for each in step if each.num_tokens > 1]
        rows = _Rows(singles, spans, padded_size or len(singles))
        tiles = query_tiles(rows.spans, self._tile_tokens)
        unseen = [
            (row, chosen_rows[each.sequence])
            for row, each in zip(rows.last_rows, rows.ordered, strict=True)
            if each.start + each.num_tokens > len(each.sequence.tokens)
        ]
        picked = [
            row for row, each in zip(rows.last_rows, rows.ordered, strict=True) if each.samples
        ]
        num_picked = len(picked)
        scored: list[ScoredSpan] = []
        for row, each in zip(rows.last_rows, rows.ordered, strict=True):
            if (span := scored_span(each)) is not None:
                scored.append(span)
                first = row + 1 - each.num_tokens
                picked += range(first, first + span.stop - span.start)
        if self._staging is None:
            raise RuntimeError("the builder has no buffers yet")
        parts = self._staging.send(
            [
                rows.tokens,
                rows.positions,
                rows.slots,
                rows.lengths,
                rows.starts,
                rows.tables,
                _ints(chain.from_iterable(tiles)),
                _ints(row for row, _ in unseen),
                _ints(row for _, row in unseen),
                _ints(picked),
            ]
        )
        tokens, positions, slots, lengths, starts, tables, tiled, targets, sources, chosen = parts
        max_keys = self._limits.max_model_len if padded_size else rows.longest
        plan = KernelPlan(
            slots=slots,
            tables=BlockTables(tables, starts),
            lengths=lengths,
            num_decodes=len(lengths),
            splits=self.splits(len(lengths), max_keys),
            spans=_prefill_spans(rows, tables, tiled, len(singles)) if spans else None,
        )
        whole = num_picked == len(picked) == len(tokens) or padded_size is not None
        return KernelBatch(
            tokens=tokens,
            positions=positions,
            plan=plan,
            logit_rows=None if whole else chosen,
            sampling=tuple(each for each in rows.ordered if each.samples),
            unseen=(targets, sources) if unseen else None,
            scored=tuple(scored),
        )


class _Rows:
    """The rows of a step as numbers: single tokens, padding, spans."""

    def __init__(
        self, singles: list[ScheduledSequence], spans: list[ScheduledSequence], size: int
    ) -> None:
        padding = size - len(singles)
        self.ordered = [*singles, *spans]
        tables = [
            each.sequence.block_table[: blocks_for(each.start + each.num_tokens)]
            for each in self.ordered
        ]
        offsets = np.cumsum([0, *(len(table) for table in tables)]).tolist()
        self.table_starts: list[int] = offsets[:-1]
        self.tables = _ints(chain.from_iterable(tables))
        self.starts = _padded(self.table_starts[: len(singles)], padding)
        self.lengths = _padded([each.start + 1 for each in singles], padding)
        self.longest = max((each.start + 1 for each in singles), default=1)
        tokens = array("i", [_known(each) for each in singles] + [0] * padding)
        positions = [_padded([each.start for each in singles], padding)]
        slots = [
            _padded(
                [
                    table[each.start // BLOCK_SIZE] * BLOCK_SIZE + each.start % BLOCK_SIZE
                    for each, table in zip(singles, tables, strict=False)
                ],
                padding,
            )
        ]
        self.last_rows = list(range(len(singles)))
        self.spans: list[Span] = []
        at = size
        begins = self.table_starts[len(singles) :]
        for each, table, begin in zip(spans, tables[len(singles) :], begins, strict=True):
            span_positions = np.arange(each.start, each.start + each.num_tokens, dtype=np.int32)
            blocks = np.array(table, np.int32)[span_positions // BLOCK_SIZE]
            known = each.sequence.tokens[each.start : each.start + each.num_tokens]
            tokens.extend(known)
            tokens.extend([0] * (each.num_tokens - len(known)))
            positions.append(span_positions)
            slots.append(blocks * np.int32(BLOCK_SIZE) + span_positions % np.int32(BLOCK_SIZE))
            self.spans.append(Span(begin, at, each.num_tokens, each.start))
            at += each.num_tokens
            self.last_rows.append(at - 1)
        self.tokens = np.frombuffer(tokens, np.int32)
        self.positions = np.concatenate(positions)
        self.slots = np.concatenate(slots)


def aligned(count: int) -> int:
    """Return ``count`` rounded up to where a part may begin."""
    return -(-count // _ALIGNMENT) * _ALIGNMENT


def _known(scheduled: ScheduledSequence) -> int:
    tokens = scheduled.sequence.tokens
    return tokens[scheduled.start] if scheduled.start < len(tokens) else 0


def _ints(values: Any) -> Ints:
    # Several times as fast as numpy, which looks at each number's type.
    return np.frombuffer(array("i", values), np.int32)


def _padded(values: list[int], padding: int) -> Ints:
    return _ints(values + [0] * padding)


def _prefill_spans(rows: _Rows, tables: Tensor, tiles: Tensor, num_singles: int) -> PrefillSpans:
    spans = rows.spans
    return PrefillSpans(
        first_row=spans[0].start,
        blocks=tables,
        tiles=tiles.view(-1, 4),
        starts=(*(span.start for span in spans), spans[-1].start + spans[-1].num_tokens),
        prefixes=tuple(span.prefix for span in spans),
        tables=tuple(rows.table_starts[num_singles:]),
    )
