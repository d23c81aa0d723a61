"""Products with weights of four and eight bits, which become floats in registers.

A weight is ``(code - zero) * scale``; memory is read in codes alone, which is what a decode step
waits for. Few rows split the columns among programs, whose partial sums are added in float32 and
in a fixed order, so a result does not depend on how programs happen to end.

Layout: codes lie in chunks of 64 columns, [chunks, rows, bytes], so that the tile of a program is
contiguous. A byte of four-bit codes holds column c of a chunk below and column c + 32 above, both
plus 8. Scales and zeros are float32 [groups, rows].
"""

from dataclasses import dataclass

import torch
import triton
from torch import Tensor
from torch.nn import functional
from triton import language as tl

from backend.kernels.launch import launch

CHUNK = 64
_HALF = CHUNK // 2
_FP8 = torch.float8_e4m3fn
_MAX_SPLITS = 8
# Programs that keep a GPU busy; fixed, so that sums do not depend on the device.
_PROGRAMS = 128


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
        codes = self.codes
        if self.kind == "int4":
            codes = torch.cat((codes & 15, codes >> 4), dim=2).to(torch.int8) - 8
        elif self.kind == "fp8":
            codes = codes.view(_FP8)
        values = codes.to(dtype).transpose(0, 1).flatten(1)[:, : self.columns]
        group = torch.arange(self.columns, device=codes.device) // self.group_size
        if self.zeros is not None:
            values = values - self.zeros.t()[:, group].to(dtype)
        return values * self.scales.t()[:, group].to(dtype)


def pack(
    codes: Tensor, scales: Tensor, zeros: Tensor | None, group_size: int, *, bits: int
) -> PackedWeight:
    """Reorder ``codes`` [rows, columns], int8 or FP8; the others are float32 [rows, groups].

    ``group_size`` is a multiple of 32, or not less than the columns.
    """
    rows, columns = codes.shape
    if group_size < columns and group_size % _HALF:
        raise ValueError(f"groups of {group_size} columns are no multiple of {_HALF}")
    kind = "fp8" if codes.dtype is _FP8 else f"int{bits}"
    padded = functional.pad(codes.view(torch.int8), (0, -columns % CHUNK))
    chunks = padded.view(rows, -1, CHUNK).transpose(0, 1)
    if bits == 4:
        low, high = ((chunks + 8) & 15).to(torch.uint8).chunk(2, dim=2)
        chunks = low | (high << 4)
    elif kind == "fp8":
        chunks = chunks.view(torch.uint8)
    return PackedWeight(
        chunks.contiguous(),
        scales.t().contiguous(),
        None if zeros is None else zeros.t().contiguous(),
        columns,
        min(group_size, columns),
        kind,
    )


@triton.jit
def _dequantized(
    codes, group, group_rows, scales, zeros, mask, KIND: tl.constexpr, ZEROS: tl.constexpr
):
    """Return float32 weights [columns, rows] of one group."""
    if KIND == "fp8":
        bits = codes.to(tl.int32)
        # The exponent's bias is 120 less than that of float32.
        raised = ((bits & 0x80) << 24) | ((bits & 0x7F) << 20)
        values = raised.to(tl.float32, bitcast=True) * 1.329227995784916e36
    else:
        values = codes.to(tl.float32)
    if ZEROS:
        values -= tl.load(zeros + group + group_rows, mask=mask, other=0.0)[None, :]
    return values * tl.load(scales + group + group_rows, mask=mask, other=0.0)[None, :]


@triton.jit(do_not_specialize=["num_rows"])
def _quantized_matmul(
    rows,
    codes,
    scales,
    zeros,
    output,
    num_rows,
    row_stride,
    chunks_per_split,
    SIZE: tl.constexpr,
    COLUMNS: tl.constexpr,
    GROUP: tl.constexpr,
    KIND: tl.constexpr,
    ZEROS: tl.constexpr,
    BLOCK_ROWS: tl.constexpr,
    BLOCK_SIZE: tl.constexpr,
):
    tile = tl.program_id(0).to(tl.int64)
    split = tl.program_id(1).to(tl.int64)
    row = tl.program_id(2).to(tl.int64) * BLOCK_ROWS + tl.arange(0, BLOCK_ROWS)
    out = tile * BLOCK_SIZE + tl.arange(0, BLOCK_SIZE)
    half = tl.arange(0, 32)
    has_row = row < num_rows
    has_out = out < SIZE
    BYTES: tl.constexpr = 32 if KIND == "int4" else 64
    NUM_CHUNKS: tl.constexpr = (COLUMNS + 63) // 64
    sums = tl.zeros((BLOCK_ROWS, BLOCK_SIZE), tl.float32)
    first = split * chunks_per_split
    last = tl.minimum(first + chunks_per_split, NUM_CHUNKS)
    for chunk in range(first, last):
        column = chunk * 64 + half
        inputs = rows + row[:, None] * row_stride + column[None, :]
        low_rows = tl.load(inputs, mask=has_row[:, None] & (column < COLUMNS)[None, :], other=0.0)
        high_rows = tl.load(
            inputs + 32, mask=has_row[:, None] & (column + 32 < COLUMNS)[None, :], other=0.0
        )
        place = codes + (chunk * SIZE + out)[None, :] * BYTES + half[:, None]
        low = tl.load(place, mask=has_out[None, :], other=0)
        if KIND == "int4":
            high = (low >> 4).to(tl.int32) - 8
            low = (low & 15).to(tl.int32) - 8
        else:
            high = tl.load(place + 32, mask=has_out[None, :], other=0)
        # The last half of a chunk may lie beyond the last column, and so beyond the last group.
        low_group = (chunk * 64 // GROUP) * SIZE
        high_group = (tl.minimum(chunk * 64 + 32, COLUMNS - 1) // GROUP) * SIZE
        low_weights = _dequantized(low, low_group, out, scales, zeros, has_out, KIND, ZEROS)
        high_weights = _dequantized(high, high_group, out, scales, zeros, has_out, KIND, ZEROS)
        kind = rows.dtype.element_ty
        sums = tl.dot(low_rows, low_weights.to(kind), sums, input_precision="ieee")
        sums = tl.dot(high_rows, high_weights.to(kind), sums, input_precision="ieee")
    target = output + (split * num_rows + row)[:, None] * SIZE + out[None, :]
    tl.store(target, sums.to(output.dtype.element_ty), mask=has_row[:, None] & has_out[None, :])


def quantized_matmul(rows: Tensor, weight: PackedWeight) -> Tensor:
    """Return ``rows`` [tokens, columns] times the transposed weight, in the type of ``rows``."""
    rows = rows.contiguous()
    num_rows = len(rows)
    chunks, size, _ = weight.codes.shape
    few = num_rows <= 16
    block_rows, block_size = (16, 64) if few else (64, 128)
    tiles = triton.cdiv(size, block_size)
    splits = min(max(_PROGRAMS // tiles, 1), _MAX_SPLITS, chunks) if few else 1
    per_split = triton.cdiv(chunks, splits)
    splits = triton.cdiv(chunks, per_split)
    dtype = rows.dtype if splits == 1 else torch.float32
    output = rows.new_empty((splits, num_rows, size), dtype=dtype)
    launch(
        _quantized_matmul,
        (tiles, splits, triton.cdiv(num_rows, block_rows)),
        rows,
        weight.codes,
        weight.scales,
        weight.scales if weight.zeros is None else weight.zeros,
        output,
        num_rows,
        rows.stride(0),
        per_split,
        SIZE=size,
        COLUMNS=weight.columns,
        GROUP=weight.group_size,
        KIND=weight.kind,
        ZEROS=weight.zeros is not None,
        BLOCK_ROWS=block_rows,
        BLOCK_SIZE=block_size,
        num_warps=4,
        num_stages=4 if few else 3,
    )
    return output[0] if splits == 1 else output.sum(0).to(rows.dtype)
