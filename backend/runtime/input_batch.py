"""From a scheduled step to tensors: tokens, positions, where KV goes, who attends to what."""

from collections.abc import Sequence as SequenceOf
from dataclasses import dataclass

import torch
from torch import Tensor

from backend.core.block_pool import BLOCK_SIZE, PADDING_BLOCK, blocks_for
from backend.core.scheduler import ScheduledSequence
from backend.core.sequence import Sequence
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
    sampling: tuple[Sequence, ...]


def build_input_batch(
    step: SequenceOf[ScheduledSequence],
    *,
    num_kv_heads: int,
    device: torch.device,
    dtype: torch.dtype,
) -> InputBatch:
    """Lay out ``step``: sequences with one token first, by length, then the longer spans."""
    singles = sorted(
        (scheduled for scheduled in step if scheduled.num_tokens == 1),
        key=lambda scheduled: scheduled.sequence.num_computed_tokens,
    )
    spans = [scheduled for scheduled in step if scheduled.num_tokens > 1]
    layout = _Layout(num_kv_heads, device, dtype)
    tokens: list[int] = []
    positions: list[int] = []
    slots: list[int] = []
    logit_rows: list[int] = []
    sampling: list[Sequence] = []
    for scheduled in (*singles, *spans):
        sequence, start = scheduled.sequence, scheduled.sequence.num_computed_tokens
        stop = start + scheduled.num_tokens
        tokens += sequence.tokens[start:stop]
        positions += range(start, stop)
        table = sequence.block_table
        slots += [
            table[at // BLOCK_SIZE] * BLOCK_SIZE + at % BLOCK_SIZE for at in range(start, stop)
        ]
        if stop == len(sequence.tokens):
            logit_rows.append(len(tokens) - 1)
            sampling.append(sequence)
    plan = AttentionPlan(
        write_rows=layout.write_rows(slots),
        decode=layout.decode_groups([scheduled.sequence for scheduled in singles]),
        prefill=layout.prefill_spans(spans, len(singles)),
    )
    return InputBatch(
        tokens=torch.tensor(tokens, device=device),
        positions=torch.tensor(positions, device=device),
        plan=plan,
        logit_rows=(
            None
            if len(logit_rows) == len(tokens)
            else torch.tensor(logit_rows, device=device, dtype=torch.long)
        ),
        sampling=tuple(sampling),
    )


class _Layout:
    """Turns block tables into rows of a layer's cache (see ``kv_cache``)."""

    def __init__(self, num_kv_heads: int, device: torch.device, dtype: torch.dtype) -> None:
        self._num_kv_heads = num_kv_heads
        self._device = device
        self._dtype = dtype
        self._heads = torch.arange(num_kv_heads, device=device)

    def write_rows(self, slots: list[int]) -> Tensor:
        slot = torch.tensor(slots, device=self._device)
        block, offset = slot // BLOCK_SIZE, slot % BLOCK_SIZE
        rows = (block * self._num_kv_heads).unsqueeze(1) + self._heads
        return (rows * BLOCK_SIZE + offset.unsqueeze(1)).flatten()

    def decode_groups(self, sequences: list[Sequence]) -> tuple[DecodeGroup, ...]:
        """Cut ``sequences``, sorted by length, where padding would cost too much."""
        groups: list[DecodeGroup] = []
        start = held = 0
        for index, sequence in enumerate(sequences):
            blocks = blocks_for(sequence.num_computed_tokens + 1)
            if index > start and blocks * (index + 1 - start) > _MAX_PADDING * (held + blocks):
                groups.append(self._decode_group(sequences[start:index], start))
                start, held = index, 0
            held += blocks
        if sequences:
            groups.append(self._decode_group(sequences[start:], start))
        return tuple(groups)

    def prefill_spans(self, spans: list[ScheduledSequence], start: int) -> tuple[PrefillSpan, ...]:
        result: list[PrefillSpan] = []
        for span in spans:
            stop = start + span.num_tokens
            done = span.sequence.num_computed_tokens
            if done == 0:
                result.append(PrefillSpan(start, stop, None, None))
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

    def _decode_group(self, sequences: list[Sequence], start: int) -> DecodeGroup:
        lengths = [sequence.num_computed_tokens + 1 for sequence in sequences]
        width = blocks_for(lengths[-1])
        tables = [
            sequence.block_table[:width] + [PADDING_BLOCK] * (width - len(sequence.block_table))
            for sequence in sequences
        ]
        keys = torch.arange(width * BLOCK_SIZE, device=self._device)
        absent = keys >= torch.tensor(lengths, device=self._device).unsqueeze(1)
        mask = torch.zeros(absent.shape, device=self._device, dtype=self._dtype)
        mask.masked_fill_(absent, -torch.inf)
        return DecodeGroup(
            start,
            start + len(sequences),
            self._cache_rows(tables),
            mask.repeat_interleave(self._num_kv_heads, dim=0).unsqueeze(1),
        )

    def _cache_rows(self, tables: list[list[int]]) -> Tensor:
        blocks = torch.tensor(tables, device=self._device).unsqueeze(1)
        return (blocks * self._num_kv_heads + self._heads.view(1, -1, 1)).flatten()
