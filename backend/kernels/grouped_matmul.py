"""Products of a mixture of experts: each group of rows with the weight of its own expert.

The groups' sizes stay on the device. The grid holds as many tiles as any sizes could need, each
program finds its expert from the ends of the groups, and programs behind the last tile return. So
the host waits for nothing, and a CUDA graph can hold the launch.
"""

import triton
from torch import Tensor
from triton import language as tl

from backend.kernels.launch import launch

FEW_PAIRS = 8
MANY_PAIRS = 128
"""Pairs for each expert, on average: up to which tiles are small, and from which they are large."""


@triton.jit
def _grouped_matmul(
    pairs,
    weights,
    ends,
    output,
    EXPERTS: tl.constexpr,
    ROWS: tl.constexpr,
    COLUMNS: tl.constexpr,
    BLOCK_EXPERTS: tl.constexpr,
    BLOCK_PAIRS: tl.constexpr,
    BLOCK_ROWS: tl.constexpr,
    BLOCK_COLUMNS: tl.constexpr,
    TOGETHER: tl.constexpr,
):
    # Tiles of an expert come one after another at the same rows, so its weight is read once and
    # then found in the cache; not more than TOGETHER of them, or pairs would leave the cache.
    tile, block = tl.swizzle2d(
        tl.program_id(1), tl.program_id(0), tl.num_programs(1), tl.num_programs(0), TOGETHER
    )
    every = tl.arange(0, BLOCK_EXPERTS)
    starts = tl.load(ends + every - 1, mask=(every > 0) & (every < EXPERTS), other=0)
    stops = tl.load(ends + every, mask=every < EXPERTS, other=0)
    tiles = tl.cumsum(tl.cdiv(stops - starts, BLOCK_PAIRS), axis=0)
    before = tiles <= tile
    expert = tl.sum(before.to(tl.int32), axis=0)
    if expert >= EXPERTS:
        return
    first = tl.max(tl.where(before, tiles, 0), axis=0)
    start = tl.load(ends + expert - 1, mask=expert > 0, other=0)
    pair = start + (tile - first) * BLOCK_PAIRS + tl.arange(0, BLOCK_PAIRS)
    row = block * BLOCK_ROWS + tl.arange(0, BLOCK_ROWS)
    column = tl.arange(0, BLOCK_COLUMNS)
    has_pair = (pair < tl.load(ends + expert))[:, None]
    has_row = (row < ROWS)[None, :]
    pair = pair.to(tl.int64)[:, None]
    inputs = pairs + pair * COLUMNS + column[None, :]
    places = weights + expert.to(tl.int64) * ROWS * COLUMNS + row[None, :] * COLUMNS
    places += column[:, None]
    sums = tl.zeros((BLOCK_PAIRS, BLOCK_ROWS), tl.float32)
    for done in range(0, COLUMNS, BLOCK_COLUMNS):
        is_column = column < COLUMNS - done
        left = tl.load(inputs + done, mask=has_pair & is_column[None, :], other=0.0)
        right = tl.load(places + done, mask=has_row & is_column[:, None], other=0.0)
        sums = tl.dot(left, right, sums, input_precision="ieee")
    target = output + pair * ROWS + row[None, :]
    tl.store(target, sums.to(output.dtype.element_ty), mask=has_pair & has_row)


def grouped_matmul(pairs: Tensor, weights: Tensor, ends: Tensor) -> Tensor:
    """Return [pairs, rows]: each pair times the transposed weight of its expert.

    ``pairs`` [pairs, columns] are sorted by expert, ``weights`` are [experts, rows, columns], and
    ``ends`` says where the pairs of each expert end: int32 [experts], the last of them all pairs.
    """
    pairs = pairs.contiguous()
    num_pairs = len(pairs)
    experts, rows, columns = weights.shape
    few, many = num_pairs <= FEW_PAIRS * experts, num_pairs > MANY_PAIRS * experts
    if pairs.itemsize > 2:
        # No matrix unit computes float32 exactly, and registers hold what is multiplied.
        block_pairs, block_rows, block_columns = (16, 64, 32) if few else (64, 64, 16)
    elif few:
        block_pairs, block_rows, block_columns = 16, 64, 64
    else:
        block_pairs, block_rows, block_columns = 128 if many else 64, 128, 32
    groups = min(experts, num_pairs)
    # A group of any size has a last tile, and the others are full.
    tiles = groups + (num_pairs - groups) // block_pairs
    output = pairs.new_empty((num_pairs, rows))
    launch(
        _grouped_matmul,
        (triton.cdiv(rows, block_rows), tiles),
        pairs,
        weights,
        ends,
        output,
        EXPERTS=experts,
        ROWS=rows,
        COLUMNS=columns,
        BLOCK_EXPERTS=triton.next_power_of_2(experts),
        BLOCK_PAIRS=block_pairs,
        BLOCK_ROWS=block_rows,
        BLOCK_COLUMNS=block_columns,
        TOGETHER=1024 if few else 8,
        num_warps=8 if many else 4,
        num_stages=4,
    )
    return output
