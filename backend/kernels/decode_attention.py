"""Attention of one query token a sequence over its paged keys and values.

The query heads that share a KV head are the rows of one product, so each key is read once.

How a sequence is cut into splits follows from its own length alone: ``SPLIT_KEYS`` keys each, and
more only where it would have over ``splits`` of them. So one long sequence among short ones keeps
the device busy, and what a sequence gets does not depend on those beside it. A fixed number of
programs walks the splits of all sequences, and each finds its own from ``lengths`` on the device:
a CUDA graph fits every mix of lengths, and short sequences cost no programs that have nothing to
do. A second kernel joins the splits by their log-sums.
"""

from typing import Any

import torch
import triton
from torch import Tensor
from triton import language as tl

from backend.kernels.attention import (
    LARGE_HEAD,
    LOG2_E,
    MAX_SPLITS,
    MIN_ROWS,
    BlockTables,
    DeviceLimits,
    SplitWorkspace,
    Tiling,
    attend_keys,
    device_limits,
    join_parts,
    padded_head,
    start_rows,
)
from backend.kernels.launch import launch

SPLIT_KEYS = 512
"""A split of fewer keys costs more to begin and to join than it saves."""
# How many programs of each compiled kernel fit on a multiprocessor; noted when it first runs. They
# hide one another's waits, and one more than fit would run when all others have ended.
_fitting: dict[tuple[Any, ...], int] = {}
# Splits of all KV heads of one sequence that fill every device.
_USEFUL_SPLITS = 256
# Bytes that sm_80 and, from sm_90 on, all GPUs for servers have.
_AMPERE_MEMORY = 160 * 2**10
# Numbers of sequences up to this share one compiled kernel.
_SEQUENCES = 256


def decode_tiling(
    dtype: torch.dtype, block_d: int, shared_memory: int, *, quantized: bool
) -> Tiling:
    """Return what fits twice where ``shared_memory`` is small, and does not spill in the loop.

    Float32 over a cache of 8 bits spills: nobody should serve it.

    ``quantized`` is a cache of 8 bits, whose tiles take half of the memory.
    """
    keys = 64 if block_d <= LARGE_HEAD else 32
    small = shared_memory < _AMPERE_MEMORY and block_d >= LARGE_HEAD and not quantized
    return Tiling(keys // 2 if small or dtype is torch.float32 else keys)


def num_splits(kv_heads: int, max_keys: int) -> int:
    """Return into how many splits a sequence of ``max_keys`` keys is cut: a power of two.

    It is part of what a result depends on, so take ``max_keys`` from the model's longest sequence.
    """
    useful = min(triton.cdiv(max_keys, SPLIT_KEYS), _USEFUL_SPLITS // kv_heads)
    return int(min(triton.next_power_of_2(max(useful, 1)), MAX_SPLITS))


@triton.jit
def _cut(
    length,
    WINDOW: tl.constexpr,
    SPLITS: tl.constexpr,
    SPLIT_TILES: tl.constexpr,
    BLOCK_N: tl.constexpr,
):
    """Return the first key, the number of splits (at least one), and the tiles of each."""
    begin = length * 0
    if WINDOW > 0:
        begin = tl.maximum(length - WINDOW, 0) // BLOCK_N * BLOCK_N
    tiles = tl.cdiv(length - begin, BLOCK_N)
    each = tl.maximum(tl.cdiv(tiles, SPLITS), SPLIT_TILES)
    return begin, tl.maximum(tl.cdiv(tiles, each), 1), each


@triton.jit(do_not_specialize=["sequences"])
def _attend_splits(
    queries,
    cache,
    block_tables,
    table_starts,
    lengths,
    scales,
    sinks,
    output,
    partial,
    log_sums,
    sequences,
    scale,
    query_stride,
    block_stride,
    WINDOW: tl.constexpr,
    SOFTCAP: tl.constexpr,
    SPLITS: tl.constexpr,
    SPLIT_TILES: tl.constexpr,
    SCALED: tl.constexpr,
    SINKS: tl.constexpr,
    GROUP: tl.constexpr,
    HEAD_DIM: tl.constexpr,
    BLOCK_SIZE: tl.constexpr,
    BLOCK_S: tl.constexpr,
    BLOCK_M: tl.constexpr,
    BLOCK_N: tl.constexpr,
    BLOCK_D: tl.constexpr,
):
    kv_head = tl.program_id(0)
    kv_heads = tl.num_programs(0)
    value_scale = 1.0
    if SCALED:
        value_scale = tl.load(scales + kv_heads + kv_head)
    row = tl.arange(0, BLOCK_M)
    dim = tl.arange(0, BLOCK_D)
    head = kv_head * GROUP + row
    real = (row[:, None] < GROUP) & (dim[None, :] < HEAD_DIM)

    every = tl.arange(0, BLOCK_S)
    every_length = tl.load(lengths + every, mask=every < sequences, other=0)
    _, counts, _ = _cut(every_length, WINDOW, SPLITS, SPLIT_TILES, BLOCK_N)
    ends = tl.cumsum(tl.where(every < sequences, counts, 0), axis=0)
    for item in range(tl.program_id(1), tl.max(ends, axis=0), tl.num_programs(1)):
        before = ends <= item
        sequence = tl.sum(before.to(tl.int32), axis=0).to(tl.int64)
        split = item - tl.max(tl.where(before, ends, 0), axis=0)
        length = tl.load(lengths + sequence)
        begin, count, tiles = _cut(length, WINDOW, SPLITS, SPLIT_TILES, BLOCK_N)
        start = begin + split * tiles * BLOCK_N
        at = (sequence * kv_heads * GROUP + head).to(tl.int64)
        offsets = sequence * query_stride + head[:, None] * HEAD_DIM + dim[None, :]
        query, factor, top, total = start_rows(
            tl.load(queries + offsets, mask=real, other=0.0),
            scale,
            scales,
            sinks,
            head,
            row < GROUP,
            split == 0,
            kv_head,
            SCALED,
            SINKS,
            BLOCK_M,
        )
        if SCALED:
            half = tl.zeros((BLOCK_M, BLOCK_D // 2), tl.float32)
            sums = (half, half)
        else:
            sums = tl.zeros((BLOCK_M, BLOCK_D), tl.float32)
        top, total, sums = attend_keys(
            top,
            total,
            sums,
            query,
            tl.zeros((BLOCK_M,), tl.int32) + length - 1,
            cache,
            block_tables + tl.load(table_starts + sequence),
            start,
            tl.minimum(start + tiles * BLOCK_N, length),
            factor,
            kv_head,
            kv_heads,
            block_stride,
            MASKED=True,
            WINDOW=WINDOW,
            SOFTCAP=SOFTCAP,
            HEAD_DIM=HEAD_DIM,
            BLOCK_SIZE=BLOCK_SIZE,
            BLOCK_N=BLOCK_N,
            BLOCK_D=BLOCK_D,
            # Without it, a product on warps reads values of 8 bits from shared memory one by one.
            PAIRED=SCALED,
        )
        if SCALED:
            even, odd = sums
            sums = tl.interleave(even, odd)
        sums = sums * (value_scale / tl.where(total > 0.0, total, 1.0))[:, None]
        if count == 1:
            result = output + at[:, None] * HEAD_DIM + dim[None, :]
            tl.store(result, sums.to(output.dtype.element_ty), mask=real)
        else:
            at = at * SPLITS + split
            tl.store(log_sums + at, top + tl.log2(total), mask=row < GROUP)
            tl.store(partial + at[:, None] * HEAD_DIM + dim[None, :], sums, mask=real)


@triton.jit
def _join_splits(
    partial,
    log_sums,
    lengths,
    output,
    HEADS: tl.constexpr,
    WINDOW: tl.constexpr,
    SPLITS: tl.constexpr,
    SPLIT_TILES: tl.constexpr,
    HEAD_DIM: tl.constexpr,
    BLOCK_N: tl.constexpr,
    BLOCK_D: tl.constexpr,
):
    at = tl.program_id(0).to(tl.int64)
    length = tl.load(lengths + at // HEADS)
    _, count, _ = _cut(length, WINDOW, SPLITS, SPLIT_TILES, BLOCK_N)
    if count > 1:
        joined = join_parts(partial, log_sums, at * SPLITS, 1, count, SPLITS, HEAD_DIM, BLOCK_D)
        dim = tl.arange(0, BLOCK_D)
        target = output + at * HEAD_DIM + dim
        tl.store(target, joined.to(output.dtype.element_ty), mask=dim < HEAD_DIM)


def decode_attention(
    queries: Tensor,
    cache: Tensor,
    tables: BlockTables,
    lengths: Tensor,
    *,
    splits: int = 1,
    split_keys: int = SPLIT_KEYS,
    window: int | None = None,
    softcap: float | None = None,
    sinks: Tensor | None = None,
    scales: Tensor | None = None,
    tiling: Tiling | None = None,
    limits: DeviceLimits | None = None,
    workspace: SplitWorkspace | None = None,
    output: Tensor | None = None,
) -> Tensor:
    """Attend with ``queries`` [sequences, heads, head_dim] to ``lengths`` cached keys each.

    ``lengths`` int32 counts keys, the query's own included; 0 gives zeros. ``splits`` is a power of
    two, see ``num_splits``; above 1 the workspace has sequences * heads * splits rows. ``sinks``
    are [heads], ``scales`` those of a cache of 8 bits.

    Returns [sequences, heads, head_dim], ``output`` where it is given.
    """
    sequences, heads, head_dim = queries.shape
    kv_heads, block_size = cache.shape[1] // 2, cache.shape[2]
    limits = limits or device_limits(queries.device)
    if output is None:
        output = torch.empty(queries.shape, device=queries.device, dtype=queries.dtype)
    if workspace is None:
        rows = sequences * heads * splits if splits > 1 else 0
        workspace = SplitWorkspace.allocate(rows, head_dim, queries.device)
    block_d = padded_head(head_dim)
    tiling = tiling or decode_tiling(
        queries.dtype, block_d, limits.shared_memory, quantized=scales is not None
    )
    cut = {
        "WINDOW": window or 0,
        "SPLITS": splits,
        "SPLIT_TILES": max(split_keys // tiling.keys, 1),
        "HEAD_DIM": head_dim,
        "BLOCK_N": tiling.keys,
        "BLOCK_D": block_d,
    }
    how = {
        **cut,
        "SOFTCAP": softcap or 0.0,
        "SCALED": scales is not None,
        "SINKS": sinks is not None,
        "GROUP": heads // kv_heads,
        "BLOCK_SIZE": block_size,
        "BLOCK_S": max(triton.next_power_of_2(sequences), _SEQUENCES),
        "BLOCK_M": max(triton.next_power_of_2(heads // kv_heads), MIN_ROWS),
        "num_warps": tiling.num_warps,
        "num_stages": tiling.num_stages,
    }
    kind = (queries.device, queries.dtype, cache.dtype, *how.values())
    programs = max(_fitting.get(kind, 1) * limits.processors // kv_heads, 1)
    compiled = launch(
        _attend_splits,
        (kv_heads, min(programs, sequences * splits)),
        queries,
        cache,
        tables.blocks,
        tables.starts,
        lengths,
        lengths if scales is None else scales,
        lengths if sinks is None else sinks,
        output,
        workspace.partial,
        workspace.log_sums,
        sequences,
        LOG2_E * head_dim**-0.5,
        queries.stride(0),
        cache.stride(0),
        **how,
    )
    if compiled is not None and kind not in _fitting:
        registers, shared = compiled.n_regs, compiled.metadata.shared
        _fitting[kind] = limits.programs(registers, shared, tiling.num_warps)
    if splits > 1:
        launch(
            _join_splits,
            (sequences * heads,),
            workspace.partial,
            workspace.log_sums,
            lengths,
            output,
            **cut,
            HEADS=heads,
        )
    return output
