"""SiLU of the gate times the up projection, from their one fused product."""

import torch
import triton
from torch import Tensor
from triton import language as tl

from backend.kernels.launch import launch

_BLOCK = 1024


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
