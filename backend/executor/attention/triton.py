"""Attention through our Triton kernels, which read the paged cache in place.

The same code runs on CPU tensors in Triton's interpreter, so all of it but the speed is tested
without a GPU.
"""

from collections.abc import Sequence
from typing import Protocol

import numpy as np
import torch
from torch import Tensor

from backend.executor.attention.backend import HostRows, Ints, StepTensors
from backend.executor.input_batch import BatchLimits
from backend.executor.kv_cache import KVCache
from backend.kernels.decode_attention import (
    BlockTables,
    SplitWorkspace,
    decode_attention,
    num_splits,
)
from backend.kernels.kv_write import write_kv
from backend.kernels.prefill_attention import Span, prefill_attention, query_tiles, tile_tokens
from backend.kernels.rotary import rotate_and_write
from backend.models.attention import AttentionLayer
from backend.models.config import ModelShape
from backend.scheduler.batch import Row


class PrefillAttention(Protocol):
    """Attention of the spans of a step by a library, in place of our kernel."""

    def plan(self, rows: HostRows, tensors: StepTensors) -> None:
        """Prepare for a step that has spans."""
        ...

    def attend(self, queries: Tensor, cache: Tensor, window: int | None, output: Tensor) -> None:
        """Attend with the rows of the spans, [tokens, heads, head_dim], and write ``output``."""
        ...


class TritonAttention:
    """``AttentionBackend`` of CUDA; ``prefill`` takes over spans where it is given."""

    def __init__(
        self,
        cache: KVCache,
        shape: ModelShape,
        limits: BatchLimits,
        *,
        processors: int,
        prefill: PrefillAttention | None = None,
    ) -> None:
        """``processors`` are multiprocessors to keep busy."""
        self._layers = cache.layers
        self._num_heads, self._num_kv_heads = shape.num_heads, shape.num_kv_heads
        self._limits = limits
        self._width = 0
        self._processors = processors
        self._tile_tokens = tile_tokens(shape.num_heads // shape.num_kv_heads)
        self._prefill = prefill
        device = cache.layers[0].blocks.device
        rows = max(
            size * shape.num_heads * self._splits(size, limits.max_model_len)
            for size in range(1, limits.max_num_seqs + 1)
        )
        self._workspace = SplitWorkspace.allocate(rows, shape.head_dim, device)
        self._num_singles = 0
        self._num_splits = 1
        self._tensors: StepTensors | None = None
        self._tiles: Tensor | None = None

    def start(self, slots: Sequence[int]) -> None:
        """Nothing is known of slots beside their tables."""

    def arrange(self, rows: Sequence[Row], singles: list[int], tables: Ints) -> list[int]:
        """Keep the order: kernels take sequences of any length side by side."""
        del rows, tables
        return singles

    def layout(self, rows: HostRows) -> list[Ints]:
        """Return the tiles of the spans' queries, four numbers each."""
        if len(rows.slots) == rows.num_singles:
            return []
        spans: list[Span] = []
        at, width = rows.num_padded, rows.tables.shape[1]
        numbers = zip(rows.slots.tolist(), rows.starts.tolist(), rows.counts.tolist(), strict=True)
        for slot, start, count in list(numbers)[rows.num_singles :]:
            spans.append(Span(slot * width, at, count, start))
            at += count
        return [np.array(query_tiles(spans, self._tile_tokens), np.int32).ravel()]

    def plan(self, rows: HostRows, tensors: StepTensors) -> None:
        """Choose how many splits single tokens are cut into."""
        self._tensors = tensors
        self._num_singles = rows.num_padded
        longest = int(rows.starts[: rows.num_singles].max(initial=0)) + 1
        keys = self._limits.max_model_len if rows.is_fixed else longest
        self._num_splits = self._splits(rows.num_padded, keys)
        self._tiles = tensors.parts[0].view(-1, 4) if tensors.parts else None
        if self._prefill is not None and self._tiles is not None:
            self._prefill.plan(rows, tensors)

    def forward(self, layer: AttentionLayer, qkv: Tensor, rotations: Tensor | None) -> Tensor:
        """Norm, rotate and write in one kernel, then attend single tokens and spans."""
        tensors, cache = self._tensors, self._layers[layer.index].blocks
        if tensors is None:
            raise RuntimeError("forward before plan")
        queries = qkv[:, : self._num_heads]
        if rotations is None:
            write_kv(qkv[:, self._num_heads :].contiguous(), cache, tensors.slot_mapping)
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
            )
        tokens, heads, head_dim = queries.shape
        output = torch.empty((tokens, heads, head_dim), device=qkv.device, dtype=qkv.dtype)
        if self._num_singles:
            decode_attention(
                queries[: self._num_singles],
                cache,
                BlockTables(tensors.tables, tensors.table_starts),
                tensors.lengths,
                splits=self._num_splits,
                window=layer.window,
                workspace=self._workspace,
                output=output[: self._num_singles],
            )
        if self._tiles is not None:
            if self._prefill is None:
                prefill_attention(
                    queries, cache, tensors.tables, self._tiles, window=layer.window, output=output
                )
            else:
                spans = slice(self._num_singles, None)
                self._prefill.attend(queries[spans], cache, layer.window, output[spans])
        return output.view(tokens, heads * head_dim)

    def capture(self, size: int) -> None:
        """Nothing to do: every input lies where it will be."""

    def replay(self, size: int) -> None:
        """Nothing to do: the step's tensors were copied to where the graph reads them."""

    def _splits(self, sequences: int, keys: int) -> int:
        return num_splits(sequences, self._num_kv_heads, keys, self._processors)
