"""Work on the rows of a decoder's layer: RMS normalisation, gated activation, quantisation to FP8.

Computed in float32 whatever the dtype, rounded once at the end.
"""

import torch
import triton
from torch import Tensor
from triton import language as tl

from backend.kernels.launch import launch

_BLOCK = 1024


@triton.jit
def _rms_norm(
    rows,
    residual,
    weight,
    output,
    row_stride,
    eps,
    SIZE: tl.constexpr,
    BLOCK: tl.constexpr,
    ADD: tl.constexpr,
):
    row = tl.program_id(0).to(tl.int64)
    column = tl.arange(0, BLOCK)
    mask = column < SIZE
    values = tl.load(rows + row * row_stride + column, mask=mask, other=0.0).to(tl.float32)
    if ADD:
        stream = residual + row * SIZE + column
        total = values + tl.load(stream, mask=mask, other=0.0).to(tl.float32)
        # What the next layers add to is the rounded sum, so that is what is normalised.
        rounded = total.to(residual.dtype.element_ty)
        tl.store(stream, rounded, mask=mask)
        values = rounded.to(tl.float32)
    scale = tl.rsqrt(tl.sum(values * values, axis=0) / SIZE + eps)
    normed = values * scale * tl.load(weight + column, mask=mask, other=0.0).to(tl.float32)
    tl.store(output + row * SIZE + column, normed.to(output.dtype.element_ty), mask=mask)


def rms_norm(rows: Tensor, weight: Tensor, eps: float) -> Tensor:
    """Normalise ``rows`` [rows, size], whose columns are contiguous."""
    return _launch(rows, rows, weight, eps, add=False)


def add_rms_norm(rows: Tensor, residual: Tensor, weight: Tensor, eps: float) -> Tensor:
    """Add ``rows`` to ``residual`` [rows, size] in place and return the sum normalised."""
    return _launch(rows, residual, weight, eps, add=True)


def _launch(rows: Tensor, residual: Tensor, weight: Tensor, eps: float, *, add: bool) -> Tensor:
    count, size = rows.shape
    output = torch.empty_like(rows, memory_format=torch.contiguous_format)
    block = triton.next_power_of_2(size)
    launch(
        _rms_norm,
        (count,),
        rows,
        residual,
        weight,
        output,
        rows.stride(0),
        eps,
        SIZE=size,
        BLOCK=block,
        ADD=add,
        num_warps=min(max(block // 512, 1), 16),
    )
    return output


@triton.jit
def _silu_mul(gate_up, output, row_stride, SIZE: tl.constexpr, BLOCK: tl.constexpr):
    row = tl.program_id(0).to(tl.int64)
    column = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    mask = column < SIZE
    source = gate_up + row * row_stride + column
    gate = tl.load(source, mask=mask, other=0.0).to(tl.float32)
    up = tl.load(source + SIZE, mask=mask, other=0.0).to(tl.float32)
    product = gate / (1.0 + tl.exp(-gate)) * up
    tl.store(output + row * SIZE + column, product.to(output.dtype.element_ty), mask=mask)


def silu_mul(gate_up: Tensor) -> Tensor:
    """Return [rows, size] for ``gate_up`` [rows, 2 * size], gates first."""
    rows, width = gate_up.shape
    size = width // 2
    output = torch.empty((rows, size), device=gate_up.device, dtype=gate_up.dtype)
    block = min(_BLOCK, triton.next_power_of_2(size))
    launch(
        _silu_mul,
        (rows, triton.cdiv(size, block)),
        gate_up,
        output,
        gate_up.stride(0),
        SIZE=size,
        BLOCK=block,
    )
    return output


@triton.jit
def _quantize_rows(rows, codes, scales, SIZE: tl.constexpr, BLOCK: tl.constexpr):
    row = tl.program_id(0).to(tl.int64)
    column = tl.arange(0, BLOCK)
    mask = column < SIZE
    values = tl.load(rows + row * SIZE + column, mask=mask, other=0.0).to(tl.float32)
    scale = tl.maximum(tl.max(tl.abs(values), axis=0) / 448, 1e-12)
    tl.store(scales + row, scale)
    # No clamp, which would hide NaN: the largest passes 448 by a rounding error alone.
    scaled = values * (1 / scale)
    tl.store(codes + row * SIZE + column, scaled.to(codes.dtype.element_ty), mask=mask)


def quantize_rows(rows: Tensor) -> tuple[Tensor, Tensor]:
    """Return ``rows`` [rows, size] in FP8, and their float32 scales [rows, 1].

    NaN has the code NaN, and so has infinity; other rows do not change.
    """
    rows = rows.contiguous()
    count, size = rows.shape
    codes = torch.empty_like(rows, dtype=torch.float8_e4m3fn)
    scales = torch.empty((count, 1), device=rows.device, dtype=torch.float32)
    block = triton.next_power_of_2(size)
    warps = min(max(block // 512, 1), 16)
    launch(_quantize_rows, (count,), rows, codes, scales, SIZE=size, BLOCK=block, num_warps=warps)
    return codes, scales
