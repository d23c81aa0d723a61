"""Attention of several query tokens a sequence over its paged prefix and, causally, over itself.

Keys and values of the new tokens are in the cache already, so a chunk of a prompt, a prompt behind
a prefix hit and a prompt from its first token are one case. A tile of queries is some tokens of one
sequence times the query heads that share a KV head; the host lays out the tiles.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import torch
import triton
from torch import Tensor
from triton import language as tl

from backend.kernels.decode_attention import LARGE_HEAD, LOG2_E, MIN_ROWS, Tiling, decode_tiling
from backend.kernels.launch import launch

QUERY_ROWS = 128
"""Rows of a query tile at most: tokens times the heads of a group."""


@dataclass(frozen=True, slots=True)
class Span:
    """``num_tokens`` query tokens from row ``start`` on, behind ``prefix`` cached ones.

    ``table`` is where its block table begins among those of the step.
    """

    table: int
    start: int
    num_tokens: int
    prefix: int


Tile = tuple[int, int, int, int]
"""Begin of the block table, first query row, tokens in the tile, position of the first."""


def tile_tokens(group: int) -> int:
    """Return how many tokens of ``group`` query heads each share a tile."""
    return max(QUERY_ROWS // group, 1)


def query_tiles(spans: Sequence[Span], tokens_per_tile: int) -> list[Tile]:
    """Cut ``spans`` into tiles, those with the most keys first: they take longest."""
    tiles = [
        (
            span.table,
            span.start + at,
            min(tokens_per_tile, span.num_tokens - at),
            span.prefix + at,
        )
        for span in spans
        for at in range(0, span.num_tokens, tokens_per_tile)
    ]
    return sorted(tiles, key=lambda tile: -tile[3])


@triton.jit
def _attend_keys(
    top,
    total,
    sums,
    query,
    position,
    cache,
    table,
    start,
    stop,
    scale,
    kv_head,
    kv_heads,
    block_stride,
    MASKED: tl.constexpr,
    WINDOW: tl.constexpr,
    HEAD_DIM: tl.constexpr,
    BLOCK_SIZE: tl.constexpr,
    BLOCK_N: tl.constexpr,
    BLOCK_D: tl.constexpr,
):
    dim = tl.arange(0, BLOCK_D)
    for at in range(start, stop, BLOCK_N):
        key = at + tl.arange(0, BLOCK_N)
        if MASKED:
            inside = key < stop
            block = tl.load(table + key // BLOCK_SIZE, mask=inside, other=0)
            mask = inside[:, None] & (dim[None, :] < HEAD_DIM)
        else:
            block = tl.load(table + key // BLOCK_SIZE)
            mask = (dim[None, :] < HEAD_DIM) & (key[:, None] >= 0)
        rows = block.to(tl.int64) * block_stride + (kv_head * BLOCK_SIZE + key % BLOCK_SIZE) * (
            HEAD_DIM
        )
        source = cache + rows[:, None] + dim[None, :]
        keys = tl.load(source, mask=mask, other=0.0)
        values = tl.load(source + kv_heads * BLOCK_SIZE * HEAD_DIM, mask=mask, other=0.0)
        scores = tl.dot(query, tl.trans(keys), input_precision="ieee") * scale
        if MASKED:
            seen = (key[None, :] <= position[:, None]) & inside[None, :]
            if WINDOW > 0:
                seen = seen & (key[None, :] > position[:, None] - WINDOW)
            scores = tl.where(seen, scores, -float("inf"))
        new_top = tl.maximum(top, tl.max(scores, axis=1))
        # A row may see nothing of a tile, and nothing yet at all.
        shift = tl.where(new_top > -float("inf"), new_top, 0.0)
        weights = tl.exp2(scores - shift[:, None])
        decay = tl.exp2(top - shift)
        total = total * decay + tl.sum(weights, axis=1)
        sums = sums * decay[:, None]
        sums = tl.dot(weights.to(values.dtype), values, acc=sums, input_precision="ieee")
        top = new_top
    return top, total, sums


@triton.jit
def _attend_tile(
    queries,
    cache,
    block_tables,
    tiles,
    output,
    scale,
    query_stride,
    block_stride,
    WINDOW: tl.constexpr,
    GROUP: tl.constexpr,
    HEAD_DIM: tl.constexpr,
    BLOCK_SIZE: tl.constexpr,
    BLOCK_M: tl.constexpr,
    BLOCK_N: tl.constexpr,
    BLOCK_D: tl.constexpr,
):
    kv_head = tl.program_id(0)
    kv_heads = tl.num_programs(0)
    tile = tiles + tl.program_id(1) * 4
    table = block_tables + tl.load(tile)
    first_row = tl.load(tile + 1).to(tl.int64)
    tokens = tl.load(tile + 2)
    first = tl.load(tile + 3)

    begin_row = tl.program_id(2) * BLOCK_M
    if begin_row // GROUP >= tokens:
        return
    row = begin_row + tl.arange(0, BLOCK_M)
    dim = tl.arange(0, BLOCK_D)
    token = row // GROUP
    head = kv_head * GROUP + row % GROUP
    position = first + token
    real = (token < tokens)[:, None] & (dim[None, :] < HEAD_DIM)
    offsets = (first_row + token) * query_stride + head * HEAD_DIM
    query = tl.load(queries + offsets[:, None] + dim[None, :], mask=real, other=0.0)
    top = tl.full((BLOCK_M,), -float("inf"), tl.float32)
    total = tl.zeros((BLOCK_M,), tl.float32)
    sums = tl.zeros((BLOCK_M, BLOCK_D), tl.float32)

    stop = first + tl.minimum(tokens, (begin_row + BLOCK_M - 1) // GROUP + 1)
    first += begin_row // GROUP
    if WINDOW > 0:
        begin = tl.maximum(first - WINDOW + 1, 0) // BLOCK_N * BLOCK_N
        middle = begin
    else:
        # Tiles of keys that every row sees whole need no mask.
        begin = 0
        middle = (first + 1) // BLOCK_N * BLOCK_N
        top, total, sums = _attend_keys(
            top,
            total,
            sums,
            query,
            position,
            cache,
            table,
            begin,
            middle,
            scale,
            kv_head,
            kv_heads,
            block_stride,
            MASKED=False,
            WINDOW=0,
            HEAD_DIM=HEAD_DIM,
            BLOCK_SIZE=BLOCK_SIZE,
            BLOCK_N=BLOCK_N,
            BLOCK_D=BLOCK_D,
        )
    top, total, sums = _attend_keys(
        top,
        total,
        sums,
        query,
        position,
        cache,
        table,
        middle,
        stop,
        scale,
        kv_head,
        kv_heads,
        block_stride,
        MASKED=True,
        WINDOW=WINDOW,
        HEAD_DIM=HEAD_DIM,
        BLOCK_SIZE=BLOCK_SIZE,
        BLOCK_N=BLOCK_N,
        BLOCK_D=BLOCK_D,
    )
    sums = sums / tl.where(total > 0.0, total, 1.0)[:, None]
    targets = ((first_row + token) * kv_heads * GROUP + head) * HEAD_DIM
    result = output + targets[:, None] + dim[None, :]
    tl.store(result, sums.to(output.dtype.element_ty), mask=real)


def prefill_attention(
    queries: Tensor,
    cache: Tensor,
    blocks: Tensor,
    tiles: Tensor,
    *,
    window: int | None = None,
    tiling: Tiling | None = None,
    output: Tensor | None = None,
) -> Tensor:
    """Attend with the rows of ``queries`` [tokens, heads, head_dim] that ``tiles`` name.

    ``tiles`` is int32 [tiles, 4], see ``query_tiles``; ``blocks`` those of ``BlockTables``.
    Returns [tokens, heads, head_dim], ``output`` where it is given; other rows are not written.
    """
    _, heads, head_dim = queries.shape
    kv_heads = cache.shape[1] // 2
    group = heads // kv_heads
    block_d = max(triton.next_power_of_2(head_dim), MIN_ROWS)
    rows = max(triton.next_power_of_2(tile_tokens(group) * group), MIN_ROWS)
    block_m = rows
    if queries.dtype is torch.float32:
        # No matrix unit computes it exactly: rows are held in registers, and many would spill.
        block_m = MIN_ROWS
        tiling = tiling or decode_tiling(queries.dtype, block_d)
    tiling = tiling or Tiling(keys=64 if block_d <= LARGE_HEAD else 32, num_warps=8)
    if output is None:
        output = torch.empty(queries.shape, device=queries.device, dtype=queries.dtype)
    launch(
        _attend_tile,
        (kv_heads, len(tiles), rows // block_m),
        queries,
        cache,
        blocks,
        tiles,
        output,
        LOG2_E * head_dim**-0.5,
        queries.stride(0),
        cache.stride(0),
        WINDOW=window or 0,
        GROUP=group,
        HEAD_DIM=head_dim,
        BLOCK_SIZE=cache.shape[2],
        BLOCK_M=block_m,
        BLOCK_N=tiling.keys,
        BLOCK_D=block_d,
        num_warps=tiling.num_warps,
        num_stages=tiling.num_stages,
    )
    return output
