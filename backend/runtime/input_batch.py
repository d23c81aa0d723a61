"""From a scheduled step to tensors: tokens, positions, where KV goes, who attends to what."""

from collections.abc import Sequence as SequenceOf
from dataclasses import dataclass
from itertools import pairwise

import torch
from torch import Tensor

from backend.core.block_pool import BLOCK_SIZE, PADDING_BLOCK, blocks_for
from backend.core.scheduler import ScheduledSequence, Step
from backend.models.attention import AttentionPlan, DecodeGroup, PrefillSpan

# A decode group may read this many times the blocks that its sequences hold.
_MAX_PADDING = 1.25


@dataclass(frozen=True, slots=True)
class InputBatch:
    """One step as the model takes it.

    ``order`` is the step, reordered. ``logit_rows`` are the tokens to sample after, None when it
    is every token; ``sampling`` are the sequences they belong to, in the same order.
    """

    tokens: Tensor
    positions: Tensor
    plan: AttentionPlan
    logit_rows: Tensor | None
    sampling: tuple[ScheduledSequence, ...]


class InputBatchBuilder:
    """Lays out steps for one model and its cache (see ``kv_cache`` for the rows)."""

    def __init__(
        self, *, num_kv_heads: int, max_model_len: int, device: torch.device, dtype: torch.dtype
    ) -> None:
        """``dtype`` is that of the model's activations; ``max_model_len`` bounds sequences."""
        self._device = device
        self._rows_per_block = 2 * num_kv_heads
        self._num_kv_heads = num_kv_heads
        self._heads = torch.arange(2 * num_kv_heads, device=device)
        self._longest = blocks_for(max_model_len) * BLOCK_SIZE
        # The mask of n keys is the window that begins n before the middle: see _decode_group.
        self._mask_line = torch.zeros(2 * self._longest, device=device, dtype=dtype)
        self._mask_line[self._longest :] = -torch.inf
        self._last_tables: list[list[list[int]]] = []
        self._last_rows: list[Tensor] = []

    def build(self, step: Step) -> InputBatch:
        """Put sequences with one token first, by length, then the longer spans."""
        singles = sorted(
            (scheduled for scheduled in step if scheduled.num_tokens == 1),
            key=lambda scheduled: scheduled.start,
        )
        spans = [scheduled for scheduled in step if scheduled.num_tokens > 1]
        tokens: list[int] = []
        positions: list[int] = []
        slots: list[int] = []
        logit_rows: list[int] = []
        sampling: list[ScheduledSequence] = []
        for scheduled in (*singles, *spans):
            sequence, start = scheduled.sequence, scheduled.start
            stop = start + scheduled.num_tokens
            table = sequence.block_table
            tokens += sequence.tokens[start:stop]
            positions += range(start, stop)
            slots += [
                table[at // BLOCK_SIZE] * BLOCK_SIZE * self._rows_per_block + at % BLOCK_SIZE
                for at in range(start, stop)
            ]
            if scheduled.samples:
                logit_rows.append(len(tokens) - 1)
                sampling.append(scheduled)
        plan = AttentionPlan(
            write_rows=self._write_rows(slots),
            decode=self._decode_groups(singles),
            prefill=self._prefill_spans(spans, len(singles)),
        )
        return InputBatch(
            tokens=self._tensor(tokens),
            positions=self._tensor(positions),
            plan=plan,
            logit_rows=None if len(logit_rows) == len(tokens) else self._tensor(logit_rows),
            sampling=tuple(sampling),
        )

    def _tensor(self, values: SequenceOf[int]) -> Tensor:
        return torch.tensor(values, device=self._device, dtype=torch.long)

    def _write_rows(self, slots: list[int]) -> Tensor:
        """``slots`` are the rows of each token's first head."""
        return (self._tensor(slots).unsqueeze(1) + self._heads * BLOCK_SIZE).flatten()

    def _decode_groups(self, sequences: list[ScheduledSequence]) -> tuple[DecodeGroup, ...]:
        """Cut ``sequences``, sorted by length, where padding would cost too much."""
        cuts: list[int] = []
        start = held = 0
        for index, sequence in enumerate(sequences):
            blocks = blocks_for(sequence.start + 1)
            if index > start and blocks * (index + 1 - start) > _MAX_PADDING * (held + blocks):
                cuts.append(index)
                start, held = index, 0
            held += blocks
        bounds = [0, *cuts, len(sequences)] if sequences else []
        groups = [sequences[start:stop] for start, stop in pairwise(bounds)]
        tables = [_padded_tables(group) for group in groups]
        if tables != self._last_tables:
            # Tables change at most every BLOCK_SIZE tokens of a sequence; rows are kept till then.
            self._last_rows = [self._cache_rows(each) for each in tables]
            self._last_tables = tables
        return tuple(
            self._decode_group(group, start, rows)
            for group, start, rows in zip(groups, bounds, self._last_rows, strict=False)
        )

    def _decode_group(
        self, sequences: list[ScheduledSequence], start: int, rows: Tensor
    ) -> DecodeGroup:
        width = blocks_for(sequences[-1].start + 1) * BLOCK_SIZE
        windows = self._tensor(
            [
                self._longest - sequence.start - 1
                for sequence in sequences
                for _ in range(self._num_kv_heads)
            ]
        )
        mask = self._mask_line.unfold(0, width, 1).index_select(0, windows).unsqueeze(1)
        return DecodeGroup(start, start + len(sequences), rows, mask)

    def _prefill_spans(self, spans: list[ScheduledSequence], start: int) -> tuple[PrefillSpan, ...]:
        result: list[PrefillSpan] = []
        for span in spans:
            stop = start + span.num_tokens
            done = span.start
            if done == 0:
                result.append(PrefillSpan(start, stop))
            else:
                num_keys = done + span.num_tokens
                positions = torch.arange(done, num_keys, device=self._device).unsqueeze(1)
                result.append(
                    PrefillSpan(
                        start,
                        stop,
                        self._cache_rows([span.sequence.block_table[: blocks_for(num_keys)]]),
                        torch.arange(num_keys, device=self._device) <= positions,
                    )
                )
            start = stop
        return tuple(result)

    def _cache_rows(self, tables: list[list[int]]) -> Tensor:
        """Return the rows of keys, then values: [2, tables, kv_heads, blocks], flat."""
        blocks = torch.tensor(tables, device=self._device) * self._rows_per_block
        heads = self._heads.view(2, 1, -1, 1)
        return (blocks.unsqueeze(1) + heads).flatten()


def _padded_tables(sequences: list[ScheduledSequence]) -> list[list[int]]:
    """Return the tables of ``sequences``, sorted by length, as wide as the last needs."""
    width = blocks_for(sequences[-1].start + 1)
    return [
        table[:width] + [PADDING_BLOCK] * (width - len(table))
        for table in (scheduled.sequence.block_table for scheduled in sequences)
    ]
