"""Attention of several query tokens a sequence over its paged prefix and, causally, over itself.

Keys and values of the new tokens are in the cache already, so a chunk of a prompt, a prompt behind
a prefix hit and a prompt from its first token are one case. A tile of queries is some tokens of one
sequence times the query heads that share a KV head.

A short turn behind a long prefix has few tiles with many keys each. So the host cuts the keys of
tiles that see many more than the others into splits, until there is work for every multiprocessor;
a second kernel joins them. A span of few tokens (drafts to verify) is one small tile of its own, so
that few rows are computed for nothing.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
import triton
from numpy.typing import NDArray
from torch import Tensor
from triton import language as tl

from backend.kernels.attention import (
    LARGE_HEAD,
    LOG2_E,
    MAX_SPLITS,
    MIN_ROWS,
    DeviceLimits,
    SplitWorkspace,
    Tiling,
    attend_keys,
    join_parts,
    padded_head,
    start_rows,
)
from backend.kernels.launch import launch

SPLIT_KEYS = 512
"""A split of fewer keys costs more to join than it saves."""
DRAFTED_TOKENS = 9
"""Tokens of a span that a small tile should hold: eight drafts behind the last token."""
# Splits for every multiprocessor: with more than one their unequal ends even out.
_WAVES = 2
_SMALL_ROWS = 64
# Bytes that sm_90 and sm_100 have, and no GPU before.
_HOPPER_MEMORY = 200 * 2**10
# One number is spare, so that every part of a work list is aligned.
_FIELDS = 8


@dataclass(frozen=True, slots=True)
class Span:
    """``num_tokens`` query tokens from row ``start`` on, behind ``prefix`` cached ones.

    ``table`` is where its block table begins among those of the step.
    """

    table: int
    start: int
    num_tokens: int
    prefix: int


@dataclass(frozen=True, slots=True)
class PrefillShape:
    """What the host must know of a model and its device to lay out a step's prefill.

    ``small`` tiles take the spans that fit one of them, ``large`` tiles all others.
    """

    group: int
    kv_heads: int
    processors: int
    small: Tiling
    large: Tiling
    window: int | None = None

    @classmethod
    def of(
        cls,
        dtype: torch.dtype,
        *,
        heads: int,
        kv_heads: int,
        head_dim: int,
        limits: DeviceLimits,
        window: int | None = None,
        quantized: bool = False,
    ) -> "PrefillShape":
        """``window`` is that of all layers; None where some layer sees everything."""
        group = heads // kv_heads
        small, large = prefill_tilings(
            dtype, padded_head(head_dim), group, limits.shared_memory, quantized=quantized
        )
        return cls(group, kv_heads, limits.processors, small, large, window)

    @property
    def workspace_rows(self) -> int:
        """Rows of a ``SplitWorkspace`` that no step exceeds."""
        return _WAVES * self.processors * self.large.rows

    def max_items(self, spans: int, tokens: int) -> int:
        """Return how many items steps of at most so many ``spans`` and ``tokens`` have."""
        tiles = spans + tokens // max(self.large.rows // self.group, 1)
        # Splits, and the tiles that join at least two each.
        return tiles + 3 * _WAVES * self.processors // (2 * self.kv_heads) + 1


@dataclass(frozen=True, slots=True)
class PrefillWork:
    """One step's work list: int32 [items, 8], a tile and a part of its keys each.

    An item says where the block table begins, the first query row, tokens, position of the first,
    row of the workspace where the tile's results begin, number of the split, splits of the tile.
    ``small`` items of small tiles come first, then ``large``, then once more each tile to join.
    """

    items: Tensor
    small: int
    large: int
    partial_rows: int
    shape: PrefillShape

    @classmethod
    def idle(cls, shape: PrefillShape, device: torch.device) -> "PrefillWork":
        """Return work that runs every kernel and does nothing: so they are compiled."""
        items = torch.zeros((3, _FIELDS), dtype=torch.int32, device=device)
        items[:, 6] = 1
        return cls(items, 1, 1, 1, shape)


def prefill_tilings(
    dtype: torch.dtype, block_d: int, group: int, shared_memory: int, *, quantized: bool
) -> tuple[Tiling, Tiling]:
    """Return the small and the large tiling: inside ``shared_memory`` bytes, no spills in loops.

    ``quantized`` is a cache of 8 bits, whose conversion takes registers.
    """
    one = max(triton.next_power_of_2(group), MIN_ROWS)
    if dtype is torch.float32:
        # No matrix unit computes it exactly: rows are held in registers, and many would spill.
        if block_d > LARGE_HEAD:
            exact = Tiling(16, 4, 3, one)
        else:
            exact = Tiling(32 if block_d == LARGE_HEAD else 64, 8, 3, one)
        return exact, exact
    # From so much memory on, matrix units read it: elsewhere both sides take registers.
    hopper = shared_memory >= _HOPPER_MEMORY
    rows = max(min(triton.next_power_of_2(DRAFTED_TOKENS * group), _SMALL_ROWS), one)
    if block_d > LARGE_HEAD and (quantized or not hopper):
        # More keys would leave room for two stages only, and the products would wait for loads.
        num_warps = 4 if quantized and rows <= 32 else 8
        return Tiling(16, num_warps, 3, rows), Tiling(16, 8, 3, max(64, one))
    keys = 32 if block_d > LARGE_HEAD else 128 if hopper and block_d < LARGE_HEAD else 64
    if rows <= 32 or not (hopper or quantized):
        small = Tiling(32 if quantized or not hopper else min(keys, 64), 4, 3, rows)
    else:
        small = Tiling(keys, 8, 3, rows)
    if block_d == LARGE_HEAD and not hopper:
        keys = 32
    return small, Tiling(keys, 8, 3, max(128, one))


def plan_prefill(spans: Sequence[Span], shape: PrefillShape) -> PrefillWork:
    """Cut ``spans`` into tiles and tiles into splits; the items with the most keys come first.

    A tile is cut where it sees more keys than each of ``_WAVES`` programs on every multiprocessor
    would have if all had the same.
    """
    each = np.array(
        [(span.table, span.start, span.num_tokens, span.prefix) for span in spans], np.int64
    ).reshape(-1, 4)
    small_tokens, large_tokens = (
        max(tiling.rows // shape.group, 1) for tiling in (shape.small, shape.large)
    )
    fits = each[:, 2] <= small_tokens
    width = np.where(fits, small_tokens, large_tokens)
    tiles, at = _repeat(-(-each[:, 2] // width))
    done = at * width[tiles]
    tokens = np.minimum(width[tiles], each[tiles, 2] - done)
    position = each[tiles, 3] + done
    keys = position + tokens
    if shape.window is not None:
        keys = np.minimum(keys, shape.window + tokens)
    fair = keys.sum() * shape.kv_heads / (_WAVES * shape.processors)
    # Rounded down: one program more than fit at a time would wait for all others.
    splits = np.clip(keys // max(fair, SPLIT_KEYS), 1, MAX_SPLITS).astype(np.int64)
    kept = np.where(splits > 1, splits * tokens * shape.group, 0)
    items, split = _repeat(splits)
    fields = np.zeros((len(tiles), _FIELDS), np.int64)
    for field, column in enumerate((each[tiles, 0], each[tiles, 1] + done, tokens, position)):
        fields[:, field] = column
    fields[:, 4] = np.cumsum(kept) - kept
    fields[:, 6] = splits
    work = fields[items]
    work[:, 5] = split
    order = np.lexsort((-(keys // splits)[items], ~fits[tiles[items]]))
    work = np.concatenate([work[order], fields[splits > 1]]).astype(np.int32)
    small = int(splits[fits[tiles]].sum())
    return PrefillWork(
        items=torch.from_numpy(work),
        small=small,
        large=len(items) - small,
        partial_rows=int(kept.sum()) * shape.kv_heads,
        shape=shape,
    )


def _repeat(counts: NDArray[np.int64]) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Return each index as often as ``counts`` says, and a number within each."""
    index = np.repeat(np.arange(len(counts)), counts)
    begins = np.cumsum(counts) - counts
    return index, np.arange(len(index)) - begins[index]


@triton.jit
def _attend_tile(
    queries,
    cache,
    block_tables,
    items,
    scales,
    sinks,
    output,
    partial,
    log_sums,
    scale,
    query_stride,
    block_stride,
    WINDOW: tl.constexpr,
    SOFTCAP: tl.constexpr,
    SCALED: tl.constexpr,
    SINKS: tl.constexpr,
    FIELDS: tl.constexpr,
    GROUP: tl.constexpr,
    HEAD_DIM: tl.constexpr,
    BLOCK_SIZE: tl.constexpr,
    BLOCK_M: tl.constexpr,
    BLOCK_N: tl.constexpr,
    BLOCK_D: tl.constexpr,
):
    kv_head = tl.program_id(0)
    kv_heads = tl.num_programs(0)
    item = items + tl.program_id(1) * FIELDS
    table = block_tables + tl.load(item)
    first_row = tl.load(item + 1).to(tl.int64)
    tokens = tl.load(item + 2)
    first = tl.load(item + 3)
    part = tl.load(item + 4)
    split = tl.load(item + 5)
    splits = tl.load(item + 6)

    row = tl.arange(0, BLOCK_M)
    dim = tl.arange(0, BLOCK_D)
    token = row // GROUP
    head = kv_head * GROUP + row % GROUP
    position = first + token
    real = (token < tokens)[:, None] & (dim[None, :] < HEAD_DIM)
    offsets = (first_row + token) * query_stride + head * HEAD_DIM
    query, scale, top, total = start_rows(
        tl.load(queries + offsets[:, None] + dim[None, :], mask=real, other=0.0),
        scale,
        scales,
        sinks,
        head,
        token < tokens,
        split == 0,
        kv_head,
        SCALED,
        SINKS,
        BLOCK_M,
    )
    sums = tl.zeros((BLOCK_M, BLOCK_D), tl.float32)

    end = first + tokens
    begin = 0
    if WINDOW > 0:
        begin = tl.maximum(first - WINDOW + 1, 0) // BLOCK_N * BLOCK_N
    keys = tl.cdiv(tl.cdiv(end - begin, BLOCK_N), splits) * BLOCK_N
    start = begin + split * keys
    stop = tl.minimum(start + keys, end)
    middle = start
    if WINDOW == 0:
        # Tiles of keys that every row sees whole need no mask.
        middle = tl.maximum(tl.minimum((first + 1) // BLOCK_N * BLOCK_N, stop), start)
        top, total, sums = attend_keys(
            top,
            total,
            sums,
            query,
            position,
            cache,
            table,
            start,
            middle,
            scale,
            kv_head,
            kv_heads,
            block_stride,
            MASKED=False,
            WINDOW=0,
            SOFTCAP=SOFTCAP,
            HEAD_DIM=HEAD_DIM,
            BLOCK_SIZE=BLOCK_SIZE,
            BLOCK_N=BLOCK_N,
            BLOCK_D=BLOCK_D,
            PAIRED=False,
        )
    top, total, sums = attend_keys(
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
        SOFTCAP=SOFTCAP,
        HEAD_DIM=HEAD_DIM,
        BLOCK_SIZE=BLOCK_SIZE,
        BLOCK_N=BLOCK_N,
        BLOCK_D=BLOCK_D,
        PAIRED=False,
    )
    value_scale = 1.0
    if SCALED:
        value_scale = tl.load(scales + kv_heads + kv_head)
    sums = sums * (value_scale / tl.where(total > 0.0, total, 1.0))[:, None]
    if splits == 1:
        targets = ((first_row + token) * kv_heads * GROUP + head) * HEAD_DIM
        result = output + targets[:, None] + dim[None, :]
        tl.store(result, sums.to(output.dtype.element_ty), mask=real)
    else:
        at = (part + split * tokens * GROUP + row).to(tl.int64) * kv_heads + kv_head
        tl.store(log_sums + at, top + tl.log2(total), mask=token < tokens)
        tl.store(partial + at[:, None] * HEAD_DIM + dim[None, :], sums, mask=real)


@triton.jit
def _join_tile(
    partial,
    log_sums,
    items,
    output,
    PARTS: tl.constexpr,
    FIELDS: tl.constexpr,
    GROUP: tl.constexpr,
    HEAD_DIM: tl.constexpr,
    BLOCK_D: tl.constexpr,
):
    kv_head = tl.program_id(0)
    kv_heads = tl.num_programs(0)
    item = items + tl.program_id(1) * FIELDS
    row = tl.program_id(2)
    rows = tl.load(item + 2) * GROUP
    splits = tl.load(item + 6)
    if row < rows:
        first = (tl.load(item + 4) + row).to(tl.int64) * kv_heads + kv_head
        step = rows * kv_heads
        joined = join_parts(partial, log_sums, first, step, splits, PARTS, HEAD_DIM, BLOCK_D)
        token = tl.load(item + 1).to(tl.int64) + row // GROUP
        dim = tl.arange(0, BLOCK_D)
        head = kv_head * GROUP + row % GROUP
        target = output + (token * kv_heads * GROUP + head) * HEAD_DIM + dim
        tl.store(target, joined.to(output.dtype.element_ty), mask=dim < HEAD_DIM)


def prefill_attention(
    queries: Tensor,
    cache: Tensor,
    blocks: Tensor,
    work: PrefillWork,
    *,
    window: int | None = None,
    softcap: float | None = None,
    sinks: Tensor | None = None,
    scales: Tensor | None = None,
    workspace: SplitWorkspace | None = None,
    output: Tensor | None = None,
) -> Tensor:
    """Attend with the rows of ``queries`` [tokens, heads, head_dim] that ``work`` names.

    ``blocks`` are those of ``BlockTables``, and ``work.items`` is on their device. ``sinks`` are
    [heads], ``scales`` those of a cache of 8 bits.

    Returns [tokens, heads, head_dim], ``output`` where it is given; other rows are not written.
    """
    _, heads, head_dim = queries.shape
    kv_heads, shape = cache.shape[1] // 2, work.shape
    if output is None:
        output = torch.empty(queries.shape, device=queries.device, dtype=queries.dtype)
    if workspace is None:
        workspace = SplitWorkspace.allocate(work.partial_rows, head_dim, queries.device)
    same = {
        "FIELDS": _FIELDS,
        "GROUP": heads // kv_heads,
        "HEAD_DIM": head_dim,
        "BLOCK_D": padded_head(head_dim),
    }
    joined = work.small + work.large
    for items, tiling in (
        (work.items[: work.small], shape.small),
        (work.items[work.small : joined], shape.large),
    ):
        launch(
            _attend_tile,
            (kv_heads, len(items)),
            queries,
            cache,
            blocks,
            items,
            items if scales is None else scales,
            items if sinks is None else sinks,
            output,
            workspace.partial,
            workspace.log_sums,
            LOG2_E * head_dim**-0.5,
            queries.stride(0),
            cache.stride(0),
            **same,
            WINDOW=window or 0,
            SOFTCAP=softcap or 0.0,
            SCALED=scales is not None,
            SINKS=sinks is not None,
            BLOCK_SIZE=cache.shape[2],
            BLOCK_M=tiling.rows,
            BLOCK_N=tiling.keys,
            num_warps=tiling.num_warps,
            num_stages=tiling.num_stages,
        )
    if work.partial_rows:
        launch(
            _join_tile,
            (kv_heads, len(work.items) - joined, shape.large.rows),
            workspace.partial,
            workspace.log_sums,
            work.items[joined:],
            output,
            **same,
            PARTS=MAX_SPLITS,
            num_warps=8,
        )
    return output
