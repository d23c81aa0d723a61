"""Attention in plain torch, on any device: the CPU's backend, and the one that others fall back to.

What one head keeps in one block is contiguous, so gathering by block table yields keys and values
that batched products read without another copy. Of sequences that decode a contiguous copy is kept
where there is room, so that nothing is gathered twice (``torch_copies``). On CPU the cache may be
in int8: rows are quantised when they are written, each by its largest number, and read back as
floats.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional

from backend.executor.attention.backend import HostRows, Ints, StepTensors
from backend.executor.attention.torch_copies import (
    COPY_BYTES,
    Arrangement,
    CopiedGroup,
    CopyShape,
    KVCopies,
    Single,
    cut_by_length,
)
from backend.executor.kv_cache import KVCache, LayerKV
from backend.models.attention import AttentionLayer, ruled_decode, ruled_prefill
from backend.models.config import ModelShape
from backend.models.cpu_decoder import SingleThreadIfSmall
from backend.models.rope import rotate_
from backend.scheduler.batch import Row
from backend.scheduler.block_pool import BLOCK_SIZE, PADDING_BLOCK, blocks_for

_INT8_LARGEST = 127.0
_LEAST_SCALE = 1e-6


@dataclass(frozen=True, slots=True)
class _GatheredGroup:
    """Sequences of similar length whose KV is gathered: the single tokens ``start`` to ``stop``.

    ``cache_rows`` [2 * sequences * kv_heads * blocks] picks the keys, then the values, of their
    blocks, padded to the longest table; rows count heads of blocks. ``mask`` is that of
    ``CopiedGroup``.
    """

    start: int
    stop: int
    mask: Tensor
    cache_rows: Tensor


@dataclass(frozen=True, slots=True)
class _Span:
    """Consecutive tokens of one sequence: tokens ``start`` to ``stop``.

    ``cache_rows`` [2 * kv_heads * blocks] reaches the ``done`` tokens that earlier steps computed;
    it is None when there are none.
    """

    start: int
    stop: int
    done: int
    cache_rows: Tensor | None


class TorchAttention:
    """``AttentionBackend`` in plain torch."""

    def __init__(
        self,
        cache: KVCache,
        shape: ModelShape,
        max_model_len: int,
        *,
        dtype: torch.dtype,
        copy_bytes: int = COPY_BYTES,
    ) -> None:
        """``max_model_len`` bounds sequences, in tokens; ``dtype`` is that of activations."""
        blocks = cache.layers[0].blocks
        self._layers = cache.layers
        self._flat = tuple(layer.blocks.view(-1, shape.head_dim) for layer in cache.layers)
        self._device = blocks.device
        self._num_heads, self._num_kv_heads = shape.num_heads, shape.num_kv_heads
        self._head_dim = shape.head_dim
        self._rows_per_block = 2 * shape.num_kv_heads
        self._heads = torch.arange(self._rows_per_block, device=self._device)
        self._head_offsets = np.arange(self._rows_per_block) * BLOCK_SIZE
        self._longest = blocks_for(max_model_len) * BLOCK_SIZE
        like = torch.empty(0, device=self._device, dtype=dtype)
        copies = CopyShape(shape.num_layers, shape.num_kv_heads, shape.head_dim, like)
        self._block_bytes = BLOCK_SIZE * copies.token_bytes
        self._copies = KVCopies(copies, self._read_blocks, max_model_len, copy_bytes)
        # The mask of n keys is the window that begins n before the middle: see _gathered.
        self._mask_line = like.new_zeros(2 * self._longest)
        self._mask_line[self._longest :] = -torch.inf
        self._arranged = Arrangement([], (), [])
        self._write_rows = self._heads
        self._decode: tuple[CopiedGroup | _GatheredGroup, ...] = ()
        self._spans: tuple[_Span, ...] = ()
        self._masks: dict[tuple[int, int | None], Tensor | None] = {}
        """Masks of one step, by first token of a group or span, and window."""

    def start(self, slots: Sequence[int]) -> None:
        """Forget the copies of sequences that had ``slots``."""
        self._copies.forget(slots)

    def release(self) -> None:
        self._copies.release()
        self._arranged, self._decode, self._masks = Arrangement([], (), []), (), {}

    def arrange(self, rows: Sequence[Row], singles: list[int], tables: Ints) -> list[int]:
        """Put sequences of similar length side by side, those with copies first."""
        if len(singles) < len(rows):
            for row in rows:
                if row.num_tokens > 1:
                    self._copies.rewind(row.slot, row.start)
        self._arranged = arranged = self._copies.arrange(
            [Single(rows[place].slot, rows[place].start) for place in singles], tables
        )
        if not arranged.rest and len(arranged.groups) == 1 and len(singles) == 1:
            return singles
        place_of = {rows[place].slot: place for place in singles}
        groups = cut_by_length(arranged.rest, self._block_bytes)
        ordered = [*arranged.order, *(each for group in groups for each in group)]
        return [place_of[each.slot] for each in ordered]

    def layout(self, rows: HostRows) -> list[Ints]:
        """Nothing else travels with the step."""
        del rows
        return []

    def plan(self, rows: HostRows, tensors: StepTensors) -> None:
        """Find where KV is written and read in every layer of the step."""
        self._masks = {}
        decode: list[CopiedGroup | _GatheredGroup] = list(self._arranged.groups)
        at = decode[-1].stop if decode else 0
        for members in cut_by_length(self._arranged.rest, self._block_bytes):
            decode.append(self._gathered(members, at, rows.tables))
            at += len(members)
        self._decode = tuple(decode)
        self._spans = self._spans_of(rows)
        places = tensors.places.astype(np.int64)
        firsts = places // BLOCK_SIZE * (self._rows_per_block * BLOCK_SIZE) + places % BLOCK_SIZE
        write_rows = np.add.outer(firsts, self._head_offsets).ravel()
        self._write_rows = torch.from_numpy(write_rows).to(self._device)

    def forward(self, layer: AttentionLayer, qkv: Tensor, rotations: Tensor | None) -> Tensor:
        """Norm, rotate, write and attend, one operation after the other."""
        if rotations is not None:
            rotated = qkv[:, : self._num_heads + self._num_kv_heads]
            if layer.head_norm is not None:
                rotated.copy_(layer.head_norm(rotated))
            rotate_(rotated, rotations)
        queries, keys_values = qkv[:, : self._num_heads], qkv[:, self._num_heads :]
        rows = self._write(layer.index, keys_values.reshape(-1, self._head_dim))
        if len(self._decode) == 1 and not self._spans:
            return self._attend_group(self._decode[0], layer, queries, rows)
        attended = queries.new_empty(len(qkv), self._num_heads * self._head_dim)
        per_token = self._rows_per_block
        for group in self._decode:
            new = slice(group.start, group.stop)
            own = rows[group.start * per_token : group.stop * per_token]
            attended[new] = self._attend_group(group, layer, queries[new], own)
        new_keys_values = rows.view(keys_values.shape)
        for span in self._spans:
            new = slice(span.start, span.stop)
            attended[new] = self._attend_span(span, layer, queries[new], new_keys_values[new])
        return attended

    def _write(self, index: int, rows: Tensor) -> Tensor:
        """Put ``rows`` [tokens * 2 * kv_heads, head_dim] into the cache; return what is read."""
        layer = self._layers[index]
        if layer.scales is None:
            self._flat[index].index_copy_(0, self._write_rows, rows)
            return rows
        scales = rows.abs().amax(-1).float().div_(_INT8_LARGEST).clamp_(min=_LEAST_SCALE)
        kept = scales.to(layer.scales.dtype)
        factors = kept.float().unsqueeze(-1)
        whole = rows.float().div_(factors).round_().clamp_(-_INT8_LARGEST, _INT8_LARGEST)
        self._flat[index].index_copy_(0, self._write_rows, whole.to(torch.int8))
        layer.scales.view(-1).index_copy_(0, self._write_rows, kept)
        return whole.mul_(factors).to(rows.dtype)

    def _read(self, layer: LayerKV, cache_rows: Tensor) -> Tensor:
        """Return heads of blocks [cache_rows, block, head_dim] as floats."""
        found = layer.blocks.flatten(0, 1).index_select(0, cache_rows)
        if layer.scales is None:
            return found
        scales = layer.scales.flatten(0, 1).index_select(0, cache_rows).unsqueeze(-1)
        return found.to(self._mask_line.dtype).mul_(scales)

    def _read_blocks(self, layer: int, blocks: Tensor) -> Tensor:
        rows = blocks.long().unsqueeze(1) * self._rows_per_block + self._heads
        return self._read(self._layers[layer], rows.flatten())

    def _gathered(self, members: list[Single], start: int, tables: Ints) -> _GatheredGroup:
        width = blocks_for(members[-1].start + 1)
        own = tables[[each.slot for each in members], :width].copy()
        for row, each in enumerate(members):
            own[row, blocks_for(each.start + 1) :] = PADDING_BLOCK
        windows = [self._longest - each.start - 1 for each in members]
        index = torch.tensor(windows, device=self._device).repeat_interleave(self._num_kv_heads)
        mask = self._mask_line.unfold(0, width * BLOCK_SIZE, 1).index_select(0, index)
        return _GatheredGroup(start, start + len(members), mask.unsqueeze(1), self._cache_rows(own))

    def _spans_of(self, rows: HostRows) -> tuple[_Span, ...]:
        result: list[_Span] = []
        start = rows.num_padded
        columns = (
            each[rows.num_singles :].tolist() for each in (rows.slots, rows.starts, rows.counts)
        )
        for slot, done, count in zip(*columns, strict=True):
            table = rows.tables[slot : slot + 1, : blocks_for(done + count)]
            cache_rows = self._cache_rows(table) if done else None
            result.append(_Span(start, start + count, done, cache_rows))
            start += count
        return tuple(result)

    def _cache_rows(self, tables: Ints) -> Tensor:
        """Return the rows of keys, then values: [2, tables, kv_heads, blocks], flat."""
        blocks = torch.from_numpy(tables.astype(np.int64)).to(self._device) * self._rows_per_block
        heads = self._heads.view(2, 1, -1, 1)
        return (blocks.unsqueeze(1) + heads).flatten()

    def _attend_group(
        self,
        group: CopiedGroup | _GatheredGroup,
        layer: AttentionLayer,
        queries: Tensor,
        new_rows: Tensor,
    ) -> Tensor:
        # Query heads that share a KV head are the rows of one product, so KV is never repeated.
        num_tokens, _, head_dim = queries.shape
        batch, _, num_keys = group.mask.shape
        if isinstance(group, CopiedGroup):
            copied = group.layers[layer.index]
            copied.rows.index_copy_(0, group.write_rows, new_rows)
            keys, values = copied.keys, copied.values
        else:
            found = self._read(self._layers[layer.index], group.cache_rows)
            gathered, values = found.view(2, batch, num_keys, head_dim).unbind(0)
            keys = gathered.transpose(1, 2)
        mask = group.mask if layer.window is None else self._windowed_mask(group, layer.window)
        grouped = queries.reshape(batch, -1, head_dim)
        if layer.rules is not None:
            return ruled_decode(grouped, keys, values, mask, layer.rules).view(num_tokens, -1)
        with SingleThreadIfSmall(2 * batch * num_keys * head_dim * queries.itemsize):
            if num_tokens == 1:
                scores = torch.baddbmm(mask, grouped, keys, alpha=head_dim**-0.5)
                weights = torch.softmax(scores, -1, dtype=torch.float32)
                if queries.dtype is not torch.float32:
                    weights = weights.to(queries.dtype)
                return torch.bmm(weights, values).view(1, -1)
            four = (num_tokens, self._num_kv_heads)
            attended = functional.scaled_dot_product_attention(
                grouped.view(*four, -1, head_dim),
                keys.transpose(1, 2).view(*four, num_keys, head_dim),
                values.view(*four, num_keys, head_dim),
                mask.view(*four, 1, num_keys),
            )
            return attended.view(num_tokens, -1)

    def _attend_span(
        self, span: _Span, layer: AttentionLayer, queries: Tensor, keys_values: Tensor
    ) -> Tensor:
        if span.cache_rows is None:
            keys, values = keys_values.transpose(0, 1).chunk(2)
        else:
            found = self._read(self._layers[layer.index], span.cache_rows)
            shape = (2, self._num_kv_heads, -1, self._head_dim)
            keys, values = found.view(shape)[:, :, : span.done + len(queries)].unbind(0)
        mask = self._span_mask(span, layer.window)
        if layer.rules is not None:
            if mask is None:
                mask = torch.ones(len(queries), len(queries), device=queries.device).tril() > 0
            return ruled_prefill(queries, keys, values, mask, layer.rules)
        num_scores = queries.shape[0] * queries.shape[1] * keys.shape[1]
        with SingleThreadIfSmall(num_scores * queries.itemsize):
            attended = functional.scaled_dot_product_attention(
                queries.transpose(0, 1).unsqueeze(0),
                keys.unsqueeze(0),
                values.unsqueeze(0),
                attn_mask=mask,
                is_causal=mask is None,
                enable_gqa=len(keys) != queries.shape[1],
            )
        return attended[0].transpose(0, 1).flatten(1)

    def _windowed_mask(self, group: CopiedGroup | _GatheredGroup, window: int) -> Tensor:
        """Hide from each sequence what lies before the window of its last token."""
        if group.mask.shape[-1] <= window:
            return group.mask
        place = (group.start, window)
        mask = self._masks.get(place)
        if mask is None:
            lengths = (group.mask == 0).sum(-1, keepdim=True)
            ages = lengths - torch.arange(group.mask.shape[-1], device=lengths.device)
            mask = self._masks[place] = group.mask.masked_fill(ages > window, -torch.inf)
        return mask

    def _span_mask(self, span: _Span, window: int | None) -> Tensor | None:
        """Return which keys each token sees, None when that is plainly causal."""
        place = (span.start, window)
        if place not in self._masks:
            num_keys = span.done + span.stop - span.start
            if span.done == 0 and (window is None or num_keys <= window):
                self._masks[place] = None
            else:
                keys = torch.arange(num_keys, device=self._device)
                ages = keys[span.done :].unsqueeze(1) - keys
                seen = ages >= 0
                self._masks[place] = seen if window is None else seen & (ages < window)
        return self._masks[place]
