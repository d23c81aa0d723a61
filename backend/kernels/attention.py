"""What the kernels of decode and prefill attention share: tilings, the loop over keys, the join.

A cache of 8 bits has one scale for each KV head's keys and one for its values, float32 of
[2 * kv_heads]. The keys' scale multiplies the queries and the values' the result. The loop over
keys converts what it loads to float16: a GPU converts two such values in one instruction, and
bfloat16 one by one.

Scores may be bent by a softcap before they are masked (Gemma 2). A sink is a score of each head
that takes its share of the softmax and has no value (GPT-OSS): the first part of a row counts it.
"""

from dataclasses import dataclass
from functools import cache as remember
from typing import Any

import torch
import triton
from torch import Tensor
from triton import language as tl

LOG2_E = 1.4426950408889634
_LOG2_E = tl.constexpr(LOG2_E)
# tl.dot needs as many rows and columns.
MIN_ROWS = 16
# Tiles of as many dimensions are as large as registers and shared memory hold.
LARGE_HEAD = 128
# Registers of a multiprocessor on every GPU that is served, and bytes that each program costs more.
_REGISTERS = 65_536
_RESERVED = 1024
MAX_SPLITS = 64
"""Parts at most into which the keys of one row are cut: the join loads all of them at once."""


@dataclass(frozen=True, slots=True)
class DeviceLimits:
    """Multiprocessors to keep busy, and bytes of shared memory that one program may have.

    A multiprocessor has ``shared_per_processor`` bytes and room for ``threads``.
    """

    processors: int
    shared_memory: int
    shared_per_processor: int = 100 * 2**10
    threads: int = 1536

    def programs(self, registers: int, shared: int, num_warps: int) -> int:
        """Return how many programs of a compiled kernel fit on one multiprocessor.

        ``registers`` are those of a thread, ``shared`` bytes those of a program. Source: the
        occupancy calculation of NVIDIA's CUDA C++ Programming Guide.
        """
        by_registers = _REGISTERS // (-(-registers // 8) * 8 * 32 * num_warps)
        by_shared = self.shared_per_processor // (shared + _RESERVED)
        return max(min(by_registers, by_shared, self.threads // (32 * num_warps)), 1)


@remember
def device_limits(device: torch.device) -> DeviceLimits:
    """Return what ``device`` has; for one that is not CUDA, what every GPU has."""
    if device.type != "cuda":
        return DeviceLimits(2, 99 * 2**10)
    properties: Any = torch.cuda.get_device_properties(device)
    return DeviceLimits(
        properties.multi_processor_count,
        properties.shared_memory_per_block_optin,
        properties.shared_memory_per_multiprocessor,
        properties.max_threads_per_multi_processor,
    )


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
def start_rows(
    query,
    scale,
    scales,
    sinks,
    head,
    real,
    is_first,
    kv_head,
    SCALED: tl.constexpr,
    SINKS: tl.constexpr,
    BLOCK_M: tl.constexpr,
):
    """Return the ``query`` [BLOCK_M, dims] and ``scale`` for ``attend_keys``, its top and total."""
    top = tl.full((BLOCK_M,), -float("inf"), tl.float32)
    total = tl.zeros((BLOCK_M,), tl.float32)
    if SINKS:
        sink = tl.load(sinks + head, mask=real, other=0.0).to(tl.float32) * _LOG2_E
        top = tl.where(is_first, sink, top)
        total = tl.where(is_first, 1.0, total)
    if SCALED:
        grown = query.to(tl.float32) * (scale * tl.load(scales + kv_head))
        if query.dtype == tl.float32:
            query = grown
        else:
            # What is not finite stays so: else nobody would notice a damaged query.
            bounded = tl.clamp(grown, -65504.0, 65504.0)
            query = tl.where(tl.abs(grown) < float("inf"), bounded, float("nan")).to(tl.float16)
        scale = 1.0
    return query, scale, top, total


@triton.jit
def _add_product(sums, weights, values):
    return tl.dot(weights, values.to(weights.dtype), acc=sums, input_precision="ieee")


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
    SOFTCAP: tl.constexpr,
    HEAD_DIM: tl.constexpr,
    BLOCK_SIZE: tl.constexpr,
    BLOCK_N: tl.constexpr,
    BLOCK_D: tl.constexpr,
    PAIRED: tl.constexpr,
):
    """Add keys [start, stop) of a block table to the running sums of the rows of ``query``.

    Scores times ``scale`` are logarithms to base 2; ``SOFTCAP`` 0 caps nothing. ``PAIRED`` reads
    values of 8 bits as pairs; ``sums`` are then two, of even and of odd dimensions.
    """
    factor = 1.0 if SOFTCAP > 0 else scale
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
        if PAIRED:
            pair = tl.arange(0, BLOCK_D // 2)[None, :]
            first = cache + (rows + kv_heads * BLOCK_SIZE * HEAD_DIM)[:, None]
            mask = (key < stop)[:, None] & (pair < HEAD_DIM // 2)
            values = tl.load(first.to(tl.pointer_type(tl.int16)) + pair, mask=mask, other=0)
        else:
            values = tl.load(source + kv_heads * BLOCK_SIZE * HEAD_DIM, mask=mask, other=0.0)
        scores = tl.dot(query, tl.trans(keys), input_precision="ieee")
        if SOFTCAP > 0:
            # The hyperbolic tangent of x is 1 - 2 / (exp(2x) + 1).
            bent = 1.0 - 2.0 / (tl.exp2(scores * (scale * (2.0 / SOFTCAP))) + 1.0)
            scores = bent * (SOFTCAP * _LOG2_E)
        if MASKED:
            seen = (key[None, :] <= position[:, None]) & inside[None, :]
            if WINDOW > 0:
                seen = seen & (key[None, :] > position[:, None] - WINDOW)
            scores = tl.where(seen, scores, -float("inf"))
        new_top = tl.maximum(top, tl.max(scores, axis=1) * factor)
        # A row may see nothing of a tile, and nothing yet at all.
        shift = tl.where(new_top > -float("inf"), new_top, 0.0)
        # One instruction multiplies and subtracts.
        weights = tl.exp2(scores * factor - shift[:, None])
        decay = tl.exp2(top - shift)
        total = total * decay + tl.sum(weights, axis=1)
        weights = weights.to(query.dtype)
        if PAIRED:
            even, odd = sums
            kind: tl.constexpr = cache.dtype.element_ty
            low, high = (values & 0xFF).to(tl.int8), (values >> 8).to(tl.int8)
            even = _add_product(even * decay[:, None], weights, low.to(kind, bitcast=True))
            odd = _add_product(odd * decay[:, None], weights, high.to(kind, bitcast=True))
            sums = (even, odd)
        else:
            sums = _add_product(sums * decay[:, None], weights, values)
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
    # A part without keys has minus infinity. NaN stays, and so does what it damages.
    some = logs != -float("inf")
    weights = tl.where(some, tl.exp2(logs - top), 0.0)
    total = tl.sum(weights, axis=0)
    source = partial + row[:, None] * HEAD_DIM + dim[None, :]
    parts = tl.load(source, mask=some[:, None] & (dim[None, :] < HEAD_DIM), other=0.0)
    return tl.sum(parts * weights[:, None], axis=0) / tl.where(total > 0.0, total, 1.0)
