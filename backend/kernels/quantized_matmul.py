"""Products with weights of four and eight bits.

A weight is ``(code - zero) * scale``. The way depends on how many rows there are, in steps:

- Up to 16 and up to 128 rows (float32: 16), codes become floats in registers. Memory is read in
  codes alone, which is what a decode step waits for.
- More rows are bound by arithmetic. The weight is dequantised into a buffer for cuBLAS.

Programs that share a tile of outputs split the columns; their sums are added in float32 and in a
fixed order. Splits follow from the shape alone, so a result does not depend on the device.

Layout: codes lie in chunks of up to 128 columns of one group, [chunks, rows, bytes], so that the
tile of a program is contiguous. An int32 word holds pairs of adjacent columns, each pair 16 bits
apart, so that one mask takes a pair out. In a chunk, word w holds columns 2w and 2w + 1 of each
half (eight bits) or quarter (four bits). Only int8 lies in plain order, for embeddings read it.
Scales and zeros are float32 [groups, rows].
"""

import math
from dataclasses import dataclass

import torch
import triton
from torch import Tensor
from torch.nn import functional
from triton import language as tl

from backend.kernels.launch import launch

_FEW_ROWS = 16
_MOST_ROWS = 128
_CHUNK = 128
_BLOCK_SIZE = 64
_MAX_SPLITS = 16
_FEW_PROGRAMS = 768
_PROGRAMS = 256
_JOIN_BLOCK = 256
_FP8 = torch.float8_e4m3fn
# The bits of an integer below 256, read as a float of 16 bits, are proportional to it: a subnormal
# or just above. So bits times a factor, less an offset, are the code times a unit: one FMA, without
# rounding. Sums are divided by the unit. FP8 has its bits moved and needs the factor alone.
# Factor and unit of integers, then those of FP8, by the type of the rows.
_FLOATS = {
    torch.bfloat16: (2.0**127, 2.0**-6, 2.0**120, 1.0),
    torch.float16: (2.0**15, 2.0**-9, 1.0, 2.0**-8),
    torch.float32: (1.0, 1.0, 2.0**120, 1.0),
}


@dataclass(frozen=True, slots=True)
class PackedWeight:
    """A weight [rows, columns] as the kernel reads it; ``kind`` is int4, int8 or fp8."""

    codes: Tensor
    scales: Tensor
    zeros: Tensor | None
    columns: int
    group_size: int
    kind: str

    @property
    def num_bytes(self) -> int:
        """What codes, scales and zeros take."""
        zeros = 0 if self.zeros is None else self.zeros.nbytes
        return self.codes.nbytes + self.scales.nbytes + zeros

    def dequantized(self, dtype: torch.dtype) -> Tensor:
        """Return the weight [rows, columns], computed in ``dtype``."""
        codes = self.codes.transpose(0, 1)
        if self.kind != "int8":
            # Words, their halves, and the pairs of these.
            codes = codes.unflatten(2, (-1, 2, 2)).permute(0, 1, 4, 2, 3)
        if self.kind == "int4":
            codes = torch.stack((codes & 15, codes >> 4), dim=3).to(torch.int8) - 8
        elif self.kind == "fp8":
            codes = codes.view(_FP8)
        values = codes.to(dtype).flatten(1)[:, : self.columns]
        group = torch.arange(self.columns, device=codes.device) // self.group_size
        if self.zeros is not None:
            values = values - self.zeros.t()[:, group].to(dtype)
        return values * self.scales.t()[:, group].to(dtype)


def pack(
    codes: Tensor, scales: Tensor, zeros: Tensor | None, group_size: int, *, bits: int
) -> PackedWeight:
    """Reorder ``codes`` [rows, columns], int8 or FP8; the others are float32 [rows, groups].

    ``group_size`` is a multiple of 32, or not less than the columns. Zeros are whole numbers, and
    FP8 has none.
    """
    rows, columns = codes.shape
    chunk = _CHUNK if group_size >= columns else math.gcd(group_size, _CHUNK)
    if chunk < 32:
        raise ValueError(f"groups of {group_size} columns are no multiple of 32")
    kind = "fp8" if codes.dtype is _FP8 else f"int{bits}"
    padded = functional.pad(codes.view(torch.int8), (0, -columns % chunk))
    chunks = padded.view(rows, -1, chunk)
    if kind != "int8":
        if kind == "int4":
            quarters = ((chunks + 8) & 15).unflatten(2, (2, 2, -1, 2))
            pairs = quarters[:, :, :, 0] | (quarters[:, :, :, 1] << 4)
        else:
            pairs = chunks.unflatten(2, (2, -1, 2))
        chunks = pairs.permute(0, 1, 3, 4, 2).flatten(2).view(torch.uint8)
    return PackedWeight(
        chunks.transpose(0, 1).contiguous(),
        scales.t().contiguous(),
        None if zeros is None else zeros.t().contiguous(),
        columns,
        min(group_size, columns),
        kind,
    )


@triton.jit
def _floats(bits, factor, offset, KIND, dtype):
    """Return floats [rows, 2 * words] of both halves of each word; of FP8 in their upper bytes."""
    if KIND == "fp8":
        # The sign stays; what follows moves to where the dtype has its exponent and mantissa.
        rest = (bits >> 1) & 0x3F803F80 if dtype == tl.float16 else (bits >> 4) & 0x07F007F0
        bits = (bits & -0x7FFF8000) | rest
    halves = tl.join(bits.to(tl.int16), (bits >> 16).to(tl.int16))
    halves = tl.reshape(halves, (bits.shape[0], 2 * bits.shape[1]))
    if dtype != tl.float32:
        values = halves.to(dtype, bitcast=True) * factor
    elif KIND == "fp8":
        values = (halves.to(tl.int32) << 16).to(dtype, bitcast=True) * factor
    else:
        values = halves.to(dtype) * factor
    return values if KIND == "fp8" else values - offset


@triton.jit
def _beside(left, right):
    """Return the columns of ``left``, then those of ``right``."""
    both = tl.permute(tl.join(left, right), (0, 2, 1))
    return tl.reshape(both, (left.shape[0], 2 * left.shape[1]))


@triton.jit
def _weights(codes, zeros, chunk, out, SIZE, GROUP, CHUNK, KIND, FACTOR, UNIT, dtype):
    """Return ``(code - zero) * UNIT`` of a chunk, [rows, columns]; int8: even columns first."""
    WORDS: tl.constexpr = CHUNK // 8 if KIND == "int4" else CHUNK // 4
    start = codes + chunk * tl.full((), SIZE * WORDS, tl.int64)
    words = tl.load(start + out.to(tl.int64)[:, None] * WORDS + tl.arange(0, WORDS)[None, :])
    LEAST: tl.constexpr = 8.0 * UNIT if KIND == "int4" else 128.0 * UNIT
    if zeros is None:
        offset = tl.full((1, 1), LEAST, dtype)
    else:
        zero = tl.load(zeros + (chunk * CHUNK // GROUP) * SIZE + out)
        offset = (zero * UNIT + LEAST).to(dtype)[:, None]
    if KIND == "int4":
        upper = words >> 8
        left = _beside(
            _floats(words & 0x000F000F, FACTOR, offset, KIND, dtype),
            _floats(words & 0x00F000F0, FACTOR / 16, offset, KIND, dtype),
        )
        right = _beside(
            _floats(upper & 0x000F000F, FACTOR, offset, KIND, dtype),
            _floats(upper & 0x00F000F0, FACTOR / 16, offset, KIND, dtype),
        )
    elif KIND == "int8":
        words ^= -0x7F7F7F80
        left = _floats(words & 0x00FF00FF, FACTOR, offset, KIND, dtype)
        right = _floats((words >> 8) & 0x00FF00FF, FACTOR, offset, KIND, dtype)
    else:
        left = _floats(words << 8, FACTOR, offset, KIND, dtype)
        right = _floats(words, FACTOR, offset, KIND, dtype)
    return _beside(left, right)


@triton.jit(do_not_specialize=["num_rows"])
def _product(
    output,
    rows,
    codes,
    scales,
    zeros,
    num_rows,
    row_stride,
    chunks_per_split,
    SIZE: tl.constexpr,
    COLUMNS: tl.constexpr,
    GROUP: tl.constexpr,
    CHUNK: tl.constexpr,
    KIND: tl.constexpr,
    FACTOR: tl.constexpr,
    UNIT: tl.constexpr,
    BLOCK_SIZE: tl.constexpr,
    BLOCK_ROWS: tl.constexpr,
):
    split = tl.program_id(1)
    row = tl.program_id(2).to(tl.int64) * BLOCK_ROWS + tl.arange(0, BLOCK_ROWS)
    has_row = (row < num_rows)[None, :]
    out = tl.program_id(0) * BLOCK_SIZE + tl.arange(0, BLOCK_SIZE)
    # Outputs beyond the last repeat it, so that loads need no mask.
    place = tl.minimum(out, SIZE - 1)
    column = tl.arange(0, CHUNK)
    first = split * chunks_per_split
    last = tl.minimum(first + chunks_per_split, (COLUMNS + CHUNK - 1) // CHUNK)
    scale = tl.load(scales + (first * CHUNK // GROUP) * SIZE + place)
    # Weights are the left operand: matrix units multiply 16 of them by as few as 8 rows.
    sums = tl.zeros((BLOCK_SIZE, BLOCK_ROWS), tl.float32)
    for chunk in range(first, last):
        inputs = rows + row[None, :] * row_stride + (chunk * CHUNK + column)[:, None]
        mask = has_row
        if COLUMNS % CHUNK:
            mask &= (chunk * CHUNK + column < COLUMNS)[:, None]
        values = tl.load(inputs, mask=mask, other=0.0)
        if KIND == "int8":
            pairs = tl.permute(tl.reshape(values, (CHUNK // 2, 2, BLOCK_ROWS)), (1, 0, 2))
            values = tl.reshape(pairs, (CHUNK, BLOCK_ROWS))
        weights = _weights(
            codes, zeros, chunk, place, SIZE, GROUP, CHUNK, KIND, FACTOR, UNIT, values.dtype
        )
        if GROUP >= COLUMNS:
            sums = tl.dot(weights, values, sums, input_precision="ieee")
        else:
            # Triton loads the operands of products ahead; of scales that is done here.
            ahead = scales + ((chunk + 1) * CHUNK // GROUP) * SIZE + place
            next_scale = tl.load(ahead, mask=chunk + 1 < last, other=0.0)
            sums += tl.dot(weights, values, input_precision="ieee") * scale[:, None]
            scale = next_scale
    if GROUP >= COLUMNS:
        sums *= scale[:, None]
    target = output + (split.to(tl.int64) * num_rows + row)[None, :] * SIZE + out[:, None]
    result = (sums * (1 / UNIT)).to(output.dtype.element_ty)
    tl.store(target, result, mask=has_row & (out < SIZE)[:, None])


@triton.jit
def _join(output, partials, num_splits, num_values, SPLITS: tl.constexpr, BLOCK: tl.constexpr):
    split = tl.arange(0, SPLITS)[:, None].to(tl.int64)
    place = tl.program_id(0).to(tl.int64) * BLOCK + tl.arange(0, BLOCK)
    mask = (split < num_splits) & (place < num_values)[None, :]
    values = tl.load(partials + split * num_values + place[None, :], mask=mask, other=0.0)
    sums = tl.sum(values, axis=0).to(output.dtype.element_ty)
    tl.store(output + place, sums, mask=place < num_values)


@triton.jit
def _dequantize(
    output,
    codes,
    scales,
    zeros,
    SIZE: tl.constexpr,
    COLUMNS: tl.constexpr,
    GROUP: tl.constexpr,
    CHUNK: tl.constexpr,
    KIND: tl.constexpr,
    FACTOR: tl.constexpr,
    UNIT: tl.constexpr,
    BLOCK_SIZE: tl.constexpr,
):
    chunk = tl.program_id(1)
    out = tl.program_id(0) * BLOCK_SIZE + tl.arange(0, BLOCK_SIZE)
    place = tl.minimum(out, SIZE - 1)
    dtype = output.dtype.element_ty
    weights = _weights(codes, zeros, chunk, place, SIZE, GROUP, CHUNK, KIND, FACTOR, UNIT, dtype)
    if KIND == "int8":
        pairs = tl.permute(tl.reshape(weights, (BLOCK_SIZE, 2, CHUNK // 2)), (0, 2, 1))
        weights = tl.reshape(pairs, (BLOCK_SIZE, CHUNK))
    scale = tl.load(scales + (chunk * CHUNK // GROUP) * SIZE + place) * (1 / UNIT)
    column = chunk * CHUNK + tl.arange(0, CHUNK)
    tl.store(
        output + out.to(tl.int64)[:, None] * COLUMNS + column[None, :],
        (weights.to(tl.float32) * scale[:, None]).to(dtype),
        mask=(out < SIZE)[:, None] & (column < COLUMNS)[None, :],
    )


def quantized_matmul(rows: Tensor, weight: PackedWeight) -> Tensor:
    """Return ``rows`` [tokens, columns] times the transposed weight, in the type of ``rows``."""
    num_rows = len(rows)
    rows = rows.contiguous()
    chunks, size, num_bytes = weight.codes.shape
    tiles = triton.cdiv(size, _BLOCK_SIZE)
    floats = _FLOATS[rows.dtype]
    factor, unit = floats[2:] if weight.kind == "fp8" else floats[:2]
    tensors = weight.codes.view(torch.int32), weight.scales, weight.zeros
    meta = {
        "SIZE": size,
        "COLUMNS": weight.columns,
        "GROUP": weight.group_size,
        "CHUNK": num_bytes * 2 if weight.kind == "int4" else num_bytes,
        "KIND": weight.kind,
        "FACTOR": factor,
        "UNIT": unit,
        "BLOCK_SIZE": _BLOCK_SIZE,
    }
    # Float32 has no exact matrix units: larger tiles would not fit into registers.
    exact = rows.dtype is torch.float32
    if num_rows > (_FEW_ROWS if exact else _MOST_ROWS):
        # The largest step has this buffer too, so ``read_memory`` counts it.
        dense = rows.new_empty((size, weight.columns))
        launch(_dequantize, (tiles, chunks), dense, *tensors, **meta, num_warps=4)
        return functional.linear(rows, dense)
    few = num_rows <= _FEW_ROWS
    block_rows = (8 if num_rows <= 8 else 16) if few else 64
    splits = min(triton.cdiv(_FEW_PROGRAMS if few else _PROGRAMS, tiles), _MAX_SPLITS, chunks)
    per_split = triton.cdiv(chunks, splits)
    splits = triton.cdiv(chunks, per_split)
    output = rows.new_empty((num_rows, size))
    sums = output
    if splits > 1:
        sums = rows.new_empty((splits, num_rows, size), dtype=torch.float32)
    launch(
        _product,
        (tiles, splits, triton.cdiv(num_rows, block_rows)),
        sums,
        rows,
        *tensors,
        num_rows,
        rows.stride(0),
        per_split,
        **meta,
        BLOCK_ROWS=block_rows,
        # Each of two warps multiplies alone; four share the larger products of sm_90 and later.
        num_warps=2 if few and not exact else 4,
        num_stages=4 if few else 3,
        # Else the compiler aims at fewer, and spills.
        maxnreg=255,
    )
    if splits > 1:
        grid = (triton.cdiv(output.numel(), _JOIN_BLOCK),)
        most = triton.next_power_of_2(splits)
        counts = splits, output.numel()
        launch(_join, grid, output, sums, *counts, SPLITS=most, BLOCK=_JOIN_BLOCK, num_warps=2)
    return output
