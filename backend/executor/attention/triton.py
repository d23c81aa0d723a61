"""Attention through our Triton kernels, which read the paged cache in place.

The same code runs on CPU tensors in Triton's interpreter, so all of it but the speed is tested
without a GPU.
"""

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor

from backend.executor.attention.backend import HostRows, Ints, StepTensors
from backend.executor.input_batch import BatchLimits
from backend.executor.kv_cache import KVCache
from backend.kernels.attention import BlockTables, SplitWorkspace, device_limits
from backend.kernels.decode_attention import decode_attention, num_splits
from backend.kernels.kv_write import rotate_and_write, write_kv
from backend.kernels.prefill_attention import (
    PrefillShape,
    PrefillWork,
    Span,
    plan_prefill,
    prefill_attention,
)
from backend.models.attention import AttentionLayer, ScoreRules
from backend.models.config import ModelShape
from backend.scheduler.batch import Row


class TritonAttention:
    """``AttentionBackend`` of CUDA."""

    def __init__(
        self, cache: KVCache, shape: ModelShape, limits: BatchLimits, *, dtype: torch.dtype
    ) -> None:
        """``dtype`` is that of activations; the cache may be in FP8, with a scale for each head."""
        self._layers = cache.layers
        self._num_heads = shape.num_heads
        blocks = cache.layers[0].blocks
        self._num_splits = num_splits(shape.num_kv_heads, limits.max_model_len)
        self._prefill_shape = PrefillShape.of(
            dtype,
            heads=shape.num_heads,
            kv_heads=shape.num_kv_heads,
            head_dim=shape.head_dim,
            limits=device_limits(blocks.device),
            quantized=cache.layers[0].scales is not None,
        )
        decode_rows = limits.max_num_seqs * shape.num_heads * self._num_splits
        rows = max(decode_rows, self._prefill_shape.workspace_rows)
        self._workspace = SplitWorkspace.allocate(rows, shape.head_dim, blocks.device)
        self._num_singles = 0
        self._tensors: StepTensors | None = None
        self._work: PrefillWork | None = None
        self._compiled_windows: set[int | None] = set()

    def release(self) -> None:
        """Do nothing: graphs would have to know of it."""

    def start(self, slots: Sequence[int]) -> None:
        """Nothing is known of slots beside their tables."""

    def arrange(self, rows: Sequence[Row], singles: list[int], tables: Ints) -> list[int]:
        """Keep the order: kernels take sequences of any length side by side."""
        del rows, tables
        return singles

    def layout(self, rows: HostRows) -> list[Ints]:
        """Return the work list of the spans, eight numbers an item."""
        self._work = None
        if len(rows.slots) == rows.num_singles:
            return []
        spans: list[Span] = []
        at, width = rows.num_padded, rows.tables.shape[1]
        numbers = zip(rows.slots.tolist(), rows.starts.tolist(), rows.counts.tolist(), strict=True)
        for slot, start, count in list(numbers)[rows.num_singles :]:
            spans.append(Span(slot * width, at, count, start))
            at += count
        self._work = plan_prefill(spans, self._prefill_shape)
        return [self._work.items.numpy().ravel()]

    def plan(self, rows: HostRows, tensors: StepTensors) -> None:
        """Take the step's tensors, and the work list of the spans from among them."""
        self._tensors = tensors
        self._num_singles = rows.num_padded
        if self._work is not None:
            items = tensors.parts[0].view(self._work.items.shape)
            self._work = replace(self._work, items=items)

    def forward(self, layer: AttentionLayer, qkv: Tensor, rotations: Tensor | None) -> Tensor:
        """Norm, rotate and write in one kernel, then attend single tokens and spans."""
        tensors, kept = self._tensors, self._layers[layer.index]
        cache, scales = kept.blocks, kept.scales
        if tensors is None:
            raise RuntimeError("forward before plan")
        queries = qkv[:, : self._num_heads]
        if rotations is None:
            keys_values = qkv[:, self._num_heads :].contiguous()
            write_kv(keys_values, cache, tensors.slot_mapping, scales)
            queries = queries.contiguous()
        else:
            norm = layer.head_norm
            rotate_and_write(
                qkv,
                torch.view_as_real(rotations.squeeze(1)),
                tensors.slot_mapping,
                cache,
                head_weights=None if norm is None else norm.weight,
                eps=0.0 if norm is None else norm.eps,
                scales=scales,
            )
        tokens, heads, head_dim = queries.shape
        output = torch.empty((tokens, heads, head_dim), device=qkv.device, dtype=qkv.dtype)
        if self._num_singles:
            singles = slice(0, self._num_singles)
            decode_attention(
                queries[singles],
                cache,
                BlockTables(tensors.tables, tensors.table_starts),
                tensors.lengths,
                splits=self._num_splits,
                **attention_options(layer),
                scales=scales,
                workspace=self._workspace,
                output=output[singles],
            )
        if self._work is not None:
            self._attend_spans(queries, layer, self._work, output)
        return output.view(tokens, heads * head_dim)

    def _attend_spans(
        self, queries: Tensor, layer: AttentionLayer, work: PrefillWork, output: Tensor
    ) -> None:
        """Attend through our kernels, all of which the first step compiles."""
        if self._tensors is None:
            raise RuntimeError("forward before plan")
        works = [work]
        if layer.window not in self._compiled_windows:
            self._compiled_windows.add(layer.window)
            works.append(PrefillWork.idle(self._prefill_shape, queries.device))
        for each in works:
            prefill_attention(
                queries,
                self._layers[layer.index].blocks,
                self._tensors.tables,
                each,
                **attention_options(layer),
                scales=self._layers[layer.index].scales,
                workspace=self._workspace,
                output=output,
            )


def attention_options(layer: AttentionLayer) -> dict[str, Any]:
    """Return the kernels' options: which keys the layer sees, and what becomes of their scores."""
    rules = layer.rules or ScoreRules()
    return {"window": layer.window, "softcap": rules.softcap, "sinks": rules.sinks}
