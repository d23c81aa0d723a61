"""What the kernels of decode and prefill attention share: tilings, the loop over keys, the join.

A cache of 8 bits has one scale for each KV head's keys and one for its values, float32 of
[2 * kv_heads]. The keys' scale multiplies the scores and the values' the result, so the loop over
keys only converts what it loads.
"""

from dataclasses import dataclass
from functools import cache as remember

import torch
import triton
from torch import Tensor
from triton import language as tl

LOG2_E = 1.4426950408889634
# tl.dot needs as many rows and columns.
MIN_ROWS = 16
# Tiles of as many dimensions are as large as registers and shared memory hold.
LARGE_HEAD = 128
MAX_SPLITS = 64
"""Parts at most into which the keys of one row are cut: the join loads all of them at once."""


@dataclass(frozen=True, slots=True)
class DeviceLimits:
    """Multiprocessors to keep busy, and bytes of shared memory that one program may have."""

    processors: int
    shared_memory: int


@remember
def device_limits(device: torch.device) -> DeviceLimits:
    """Return what ``device`` has; for one that is not CUDA, what every GPU has."""
    if device.type != "cuda":
        return DeviceLimits(2, 99 * 2**10)
    properties = torch.cuda.get_device_properties(device)
    shared_memory = properties.shared_memory_per_block_optin  # type: ignore[attr-defined]
    return DeviceLimits(properties.multi_processor_count, shared_memory)


@dataclass(frozen=True, slots=True)
class Tiling:
    """How a kernel cuts its work: keys and query rows a tile, warps, depth of the load pipeline."""

    keys: int = 64
    num_warps: int = 4
    num_stages: int = 3
    rows: int = MIN_ROWS


@dataclass(frozen=True, slots=True)
class BlockTables:
    """The block tables of a step's sequences end to end, and where each begins; both int32."""

    blocks: Tensor
    starts: Tensor


@dataclass(frozen=True, slots=True)
class SplitWorkspace:
    """What the parts of a step leave for the join; one for all layers, they run in turn."""

    partial: Tensor
    log_sums: Tensor

    @classmethod
    def allocate(cls, rows: int, head_dim: int, device: torch.device) -> "SplitWorkspace":
        """Room for ``rows`` results of one head each."""
        return cls(
            torch.empty((rows, head_dim), device=device, dtype=torch.float32),
            torch.empty(rows, device=device, dtype=torch.float32),
        )


def padded_head(head_dim: int) -> int:
    """Return how many dimensions a tile has for heads of ``head_dim``: a power of two."""
    return int(max(triton.next_power_of_2(head_dim), MIN_ROWS))


@triton.jit
def attend_keys(
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
    """Add keys [start, stop) of a block table to the running sums of the rows of ``query``."""
    dim = tl.arange(0, BLOCK_D)
    lane = tl.arange(0, BLOCK_N)
    # The blocks of the next tile are known a turn early. Else Triton waits for each tile: loads
    # that hang on others are in flight for fewer turns.
    ahead = tl.load(table + (start + lane) // BLOCK_SIZE, mask=start + lane < stop, other=0)
    for at in range(start, stop, BLOCK_N):
        key = at + lane
        block = ahead
        after = key + BLOCK_N
        ahead = tl.load(table + after // BLOCK_SIZE, mask=after < stop, other=0)
        if MASKED:
            inside = key < stop
            mask = inside[:, None] & (dim[None, :] < HEAD_DIM)
        else:
            mask = (dim[None, :] < HEAD_DIM) & (key[:, None] >= 0)
        rows = block.to(tl.int64) * block_stride + (kv_head * BLOCK_SIZE + key % BLOCK_SIZE) * (
            HEAD_DIM
        )
        source = cache + rows[:, None] + dim[None, :]
        keys = tl.load(source, mask=mask, other=0.0).to(query.dtype)
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
        weights = weights.to(query.dtype)
        sums = tl.dot(weights, values.to(query.dtype), acc=sums, input_precision="ieee")
        top = new_top
    return top, total, sums


@triton.jit
def join_parts(
    partial,
    log_sums,
    first,
    step,
    count,
    PARTS: tl.constexpr,
    HEAD_DIM: tl.constexpr,
    BLOCK_D: tl.constexpr,
):
    """Return one row of ``count`` parts, which lie ``step`` rows from one another."""
    part = tl.arange(0, PARTS)
    dim = tl.arange(0, BLOCK_D)
    row = first + part.to(tl.int64) * step
    logs = tl.load(log_sums + row, mask=part < count, other=-float("inf"))
    top = tl.max(logs, axis=0)
    # A part without keys has minus infinity.
    some = logs > -float("inf")
    weights = tl.where(some, tl.exp2(logs - top), 0.0)
    total = tl.sum(weights, axis=0)
    source = partial + row[:, None] * HEAD_DIM + dim[None, :]
    parts = tl.load(source, mask=some[:, None] & (dim[None, :] < HEAD_DIM), other=0.0)
    return tl.sum(parts * weights[:, None], axis=0) / tl.where(total > 0.0, total, 1.0)
