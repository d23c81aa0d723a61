"""Attention of one query token a sequence over its paged keys and values.

The query heads that share a KV head are the rows of one product, so each key is read once. Long
sequences are cut into splits that run side by side; a second kernel joins them by their log-sums.
The key tile is free of the block size: a tile gathers rows of as many blocks as it spans.
"""

from dataclasses import dataclass

import torch
import triton
from torch import Tensor
from triton import language as tl

from backend.kernels.launch import launch

LOG2_E = 1.4426950408889634
_MAX_SPLITS = 64
# A split of fewer keys costs more to join than it saves.
_SPLIT_KEYS = 256
# tl.dot needs as many rows and columns.
MIN_ROWS = 16
# Tiles of as many dimensions are as large as registers and shared memory hold.
LARGE_HEAD = 128


@dataclass(frozen=True, slots=True)
class Tiling:
    """How a kernel cuts its work: keys a tile, warps, depth of the load pipeline."""

    keys: int = 64
    num_warps: int = 4
    num_stages: int = 3


def decode_tiling(dtype: torch.dtype, block_d: int) -> Tiling:
    """Return what neither spills registers nor asks for more shared memory than there is."""
    return Tiling(keys=16 if dtype is torch.float32 and block_d > LARGE_HEAD else 64)


@dataclass(frozen=True, slots=True)
class BlockTables:
    """The block tables of a step's sequences end to end, and where each begins; both int32."""

    blocks: Tensor
    starts: Tensor


@triton.jit
def _attend_split(
    queries,
    cache,
    block_tables,
    table_starts,
    lengths,
    output,
    partial,
    log_sums,
    scale,
    query_stride,
    block_stride,
    WINDOW: tl.constexpr,
    SPLITS: tl.constexpr,
    GROUP: tl.constexpr,
    HEAD_DIM: tl.constexpr,
    BLOCK_SIZE: tl.constexpr,
    BLOCK_M: tl.constexpr,
    BLOCK_N: tl.constexpr,
    BLOCK_D: tl.constexpr,
):
    sequence = tl.program_id(0).to(tl.int64)
    kv_head = tl.program_id(1)
    split = tl.program_id(2)
    kv_heads = tl.num_programs(1)
    length = tl.load(lengths + sequence)
    table = block_tables + tl.load(table_starts + sequence)
    first = 0
    if WINDOW > 0:
        first = tl.maximum(length - WINDOW, 0)
    begin = first // BLOCK_N * BLOCK_N
    tiles = tl.cdiv(tl.cdiv(length - begin, BLOCK_N), SPLITS)
    start = begin + split * tiles * BLOCK_N
    stop = tl.minimum(start + tiles * BLOCK_N, length)

    row = tl.arange(0, BLOCK_M)
    dim = tl.arange(0, BLOCK_D)
    head = kv_head * GROUP + row
    real = (row[:, None] < GROUP) & (dim[None, :] < HEAD_DIM)
    offsets = sequence * query_stride + head[:, None] * HEAD_DIM + dim[None, :]
    query = tl.load(queries + offsets, mask=real, other=0.0)
    top = tl.full((BLOCK_M,), -float("inf"), tl.float32)
    total = tl.zeros((BLOCK_M,), tl.float32)
    sums = tl.zeros((BLOCK_M, BLOCK_D), tl.float32)
    for at in range(start, stop, BLOCK_N):
        key = at + tl.arange(0, BLOCK_N)
        inside = key < stop
        block = tl.load(table + key // BLOCK_SIZE, mask=inside, other=0)
        rows = block.to(tl.int64) * block_stride + (kv_head * BLOCK_SIZE + key % BLOCK_SIZE) * (
            HEAD_DIM
        )
        mask = inside[:, None] & (dim[None, :] < HEAD_DIM)
        source = cache + rows[:, None] + dim[None, :]
        keys = tl.load(source, mask=mask, other=0.0)
        values = tl.load(source + kv_heads * BLOCK_SIZE * HEAD_DIM, mask=mask, other=0.0)
        scores = tl.dot(query, tl.trans(keys), input_precision="ieee") * scale
        scores = tl.where((inside & (key >= first))[None, :], scores, -float("inf"))
        # Every tile holds a key that counts, so the new top is finite.
        new_top = tl.maximum(top, tl.max(scores, axis=1))
        weights = tl.exp2(scores - new_top[:, None])
        decay = tl.exp2(top - new_top)
        total = total * decay + tl.sum(weights, axis=1)
        sums = sums * decay[:, None]
        sums = tl.dot(weights.to(values.dtype), values, acc=sums, input_precision="ieee")
        top = new_top
    sums = sums / tl.where(total > 0.0, total, 1.0)[:, None]
    if SPLITS == 1:
        result = output + (sequence * kv_heads * GROUP + head[:, None]) * HEAD_DIM + dim[None, :]
        tl.store(result, sums.to(output.dtype.element_ty), mask=real)
    else:
        at = (sequence * kv_heads * GROUP + head) * SPLITS + split
        tl.store(log_sums + at, top + tl.log2(total), mask=row < GROUP)
        tl.store(partial + at[:, None] * HEAD_DIM + dim[None, :], sums, mask=real)


@triton.jit
def _join_splits(
    partial,
    log_sums,
    output,
    SPLITS: tl.constexpr,
    HEAD_DIM: tl.constexpr,
    BLOCK_D: tl.constexpr,
):
    head = tl.program_id(0).to(tl.int64)
    split = tl.arange(0, SPLITS)
    dim = tl.arange(0, BLOCK_D)
    logs = tl.load(log_sums + head * SPLITS + split)
    top = tl.max(logs, axis=0)
    # A split without keys has minus infinity; without any key at all the result is zero.
    weights = tl.where(logs > -float("inf"), tl.exp2(logs - top), 0.0)
    total = tl.sum(weights, axis=0)
    mask = (logs > -float("inf"))[:, None] & (dim[None, :] < HEAD_DIM)
    source = partial + (head * SPLITS + split)[:, None] * HEAD_DIM + dim[None, :]
    parts = tl.load(source, mask=mask, other=0.0)
    joined = tl.sum(parts * weights[:, None], axis=0) / tl.where(total > 0.0, total, 1.0)
    target = output + head * HEAD_DIM + dim
    tl.store(target, joined.to(output.dtype.element_ty), mask=dim < HEAD_DIM)


def num_splits(sequences: int, kv_heads: int, max_keys: int, processors: int) -> int:
    """Return how many splits keep ``processors`` busy: a power of two.

    Four programs a processor hide one another's waits; ``max_keys`` is what the longest sequence
    may come to, for a graph is captured once for all lengths.
    """
    wanted = triton.cdiv(4 * processors, max(sequences * kv_heads, 1))
    useful = triton.cdiv(max_keys, _SPLIT_KEYS)
    return int(min(triton.next_power_of_2(max(min(wanted, useful), 1)), _MAX_SPLITS))


@dataclass(frozen=True, slots=True)
class SplitWorkspace:
    """What the splits of a step leave for one another; one for all layers, they run in turn."""

    partial: Tensor
    log_sums: Tensor

    @classmethod
    def allocate(cls, rows: int, head_dim: int, device: torch.device) -> "SplitWorkspace":
        """Room for ``rows`` = sequences * heads * splits."""
        return cls(
            torch.empty((rows, head_dim), device=device, dtype=torch.float32),
            torch.empty(rows, device=device, dtype=torch.float32),
        )


def decode_attention(
    queries: Tensor,
    cache: Tensor,
    tables: BlockTables,
    lengths: Tensor,
    *,
    splits: int = 1,
    window: int | None = None,
    tiling: Tiling | None = None,
    workspace: SplitWorkspace | None = None,
    output: Tensor | None = None,
) -> Tensor:
    """Attend with ``queries`` [sequences, heads, head_dim] to ``lengths`` cached keys each.

    ``lengths`` int32 counts keys, the query's own included; 0 gives zeros. ``splits`` is a power of
    two. Returns [sequences, heads, head_dim], ``output`` where it is given.
    """
    sequences, heads, head_dim = queries.shape
    kv_heads = cache.shape[1] // 2
    group = heads // kv_heads
    if output is None:
        output = torch.empty(queries.shape, device=queries.device, dtype=queries.dtype)
    if workspace is None:
        rows = sequences * heads * splits if splits > 1 else 0
        workspace = SplitWorkspace.allocate(rows, head_dim, queries.device)
    block_d = max(triton.next_power_of_2(head_dim), MIN_ROWS)
    tiling = tiling or decode_tiling(queries.dtype, block_d)
    launch(
        _attend_split,
        (sequences, kv_heads, splits),
        queries,
        cache,
        tables.blocks,
        tables.starts,
        lengths,
        output,
        workspace.partial,
        workspace.log_sums,
        LOG2_E * head_dim**-0.5,
        queries.stride(0),
        cache.stride(0),
        WINDOW=window or 0,
        SPLITS=splits,
        GROUP=group,
        HEAD_DIM=head_dim,
        BLOCK_SIZE=cache.shape[2],
        BLOCK_M=max(triton.next_power_of_2(group), MIN_ROWS),
        BLOCK_N=tiling.keys,
        BLOCK_D=block_d,
        num_warps=tiling.num_warps,
        num_stages=tiling.num_stages,
    )
    if splits > 1:
        launch(
            _join_splits,
            (sequences * heads,),
            workspace.partial,
            workspace.log_sums,
            output,
            SPLITS=splits,
            HEAD_DIM=head_dim,
            BLOCK_D=block_d,
        )
    return output
