"""From a scheduled step to tensors: tokens, positions, where KV goes, who attends to what."""

from collections.abc import Sequence as SequenceOf
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import ArrayLike
from torch import Tensor

from backend.executor.kv_mirror import MIRROR_BYTES, KVMirror, cut_by_length
from backend.executor.prompt_logprobs import ScoredSpan, scored_span
from backend.models.attention import AttentionPlan, DecodeGroup, Gather, PrefillSpan
from backend.scheduler.block_pool import BLOCK_SIZE, PADDING_BLOCK, blocks_for
from backend.scheduler.sequence import ScheduledSequence, Sequence, Step


@dataclass(frozen=True, slots=True)
class InputBatch:
    """One step as the model takes it.

    ``logit_rows`` are the tokens to sample after, None when it is every token; ``sampling`` are
    the sequences they belong to, in the same order. Behind them come the rows of ``scored``.
    ``unseen`` says which of ``tokens`` the host does not know: the last of these sequences, chosen
    by the step before.
    """

    tokens: Tensor
    positions: Tensor
    plan: AttentionPlan
    logit_rows: Tensor | None
    sampling: tuple[ScheduledSequence, ...]
    unseen: dict[Sequence, int]
    scored: tuple[ScoredSpan, ...] = ()


class InputBatchBuilder:
    """Lays out steps for ``PagedAttention`` (see ``kv_cache`` for the rows)."""

    def __init__(
        self,
        caches: SequenceOf[Tensor],
        max_model_len: int,
        *,
        mirror_bytes: int = MIRROR_BYTES,
    ) -> None:
        """Prepare for ``caches``, one a layer; ``max_model_len`` bounds sequences.

        ``mirror_bytes`` is memory for contiguous copies (see ``kv_mirror``).
        """
        like = caches[0]
        self._device, self._dtype = like.device, like.dtype
        _, self._rows_per_block, _, self._head_dim = like.shape
        self._num_kv_heads = self._rows_per_block // 2
        self._heads = torch.arange(self._rows_per_block, device=self._device)
        self._head_offsets = np.arange(self._rows_per_block) * BLOCK_SIZE
        self._longest = blocks_for(max_model_len) * BLOCK_SIZE
        self._block_bytes = like[0].nbytes
        self._mirror = KVMirror(caches, max_model_len, mirror_bytes)
        # The mask of n keys is the window that begins n before the middle: see _gathered.
        self._mask_line = torch.zeros(2 * self._longest, device=self._device, dtype=self._dtype)
        self._mask_line[self._longest :] = -torch.inf

    def build(self, step: Step) -> InputBatch:
        """Put sequences with one token first, by length, then the longer spans."""
        arranged = self._mirror.arrange([each for each in step if each.num_tokens == 1])
        decode = list(arranged.groups)
        ordered = list(arranged.order)
        for members in cut_by_length(arranged.rest, self._block_bytes):
            decode.append(self._gathered(members, len(ordered)))
            ordered += members
        spans = [each for each in step if each.num_tokens > 1]
        num_singles = len(ordered)
        ordered += spans
        tokens: list[int] = []
        positions: list[int] = []
        slots: list[int] = []
        logit_rows: list[int] = []
        unseen: dict[Sequence, int] = {}
        scored: list[ScoredSpan] = []
        scored_rows: list[int] = []
        for each in ordered:
            sequence, start, stop = each.sequence, each.start, each.start + each.num_tokens
            if (span := scored_span(each)) is not None:
                scored.append(span)
                scored_rows += range(len(tokens), len(tokens) + span.stop - span.start)
            tokens += sequence.tokens[start:stop]
            if stop > len(sequence.tokens):
                unseen[sequence] = len(tokens)
                tokens.append(0)
            positions += range(start, stop)
            slots += self._slots(sequence.block_table, start, stop)
            if each.samples:
                logit_rows.append(len(tokens) - 1)
        placed = self._tensor([tokens, positions])
        write_rows = np.add.outer(np.array(slots), self._head_offsets)
        return InputBatch(
            tokens=placed[0],
            positions=placed[1],
            plan=AttentionPlan(
                write_rows=self._tensor(write_rows.reshape(-1)),
                decode=tuple(decode),
                prefill=self._prefill_spans(spans, num_singles),
            ),
            logit_rows=None
            if len(logit_rows) == len(tokens) and not scored
            else self._tensor(logit_rows + scored_rows),
            sampling=tuple(each for each in ordered if each.samples),
            unseen=unseen,
            scored=tuple(scored),
        )

    def _tensor(self, values: ArrayLike) -> Tensor:
        # By way of numpy, in half the time of torch.tensor.
        return torch.from_numpy(np.asarray(values, np.int64)).to(self._device)

    def _slots(self, table: list[int], start: int, stop: int) -> list[int]:
        """Return the rows of each token's first head."""
        per_block = self._rows_per_block * BLOCK_SIZE
        return [table[at // BLOCK_SIZE] * per_block + at % BLOCK_SIZE for at in range(start, stop)]

    def _gathered(self, members: list[ScheduledSequence], start: int) -> DecodeGroup:
        width = blocks_for(members[-1].start + 1)
        tables = [_padded(each.sequence.block_table, width) for each in members]
        windows = [
            self._longest - each.start - 1 for each in members for _ in range(self._num_kv_heads)
        ]
        mask = self._mask_line.unfold(0, width * BLOCK_SIZE, 1)
        rows = self._cache_rows(tables)
        return DecodeGroup(
            start,
            start + len(members),
            mask.index_select(0, self._tensor(windows)).unsqueeze(1),
            Gather(rows, self._mask_line.new_empty(len(rows), BLOCK_SIZE, self._head_dim)),
        )

    def _prefill_spans(self, spans: list[ScheduledSequence], start: int) -> tuple[PrefillSpan, ...]:
        result: list[PrefillSpan] = []
        for span in spans:
            stop = start + span.num_tokens
            blocks = span.sequence.block_table[: blocks_for(span.start + span.num_tokens)]
            rows = self._cache_rows([blocks]) if span.start else None
            result.append(PrefillSpan(start, stop, span.start, rows))
            start = stop
        return tuple(result)

    def _cache_rows(self, tables: list[list[int]]) -> Tensor:
        """Return the rows of keys, then values: [2, tables, kv_heads, blocks], flat."""
        blocks = torch.tensor(tables, device=self._device) * self._rows_per_block
        heads = self._heads.view(2, 1, -1, 1)
        return (blocks.unsqueeze(1) + heads).flatten()


def _padded(table: list[int], width: int) -> list[int]:
    return table[:width] + [PADDING_BLOCK] * (width - len(table))
