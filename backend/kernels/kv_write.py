"""New keys and values into the paged cache, by slot.

A slot is ``block * 16 + offset in the block``. The cache is [blocks + 1, 2 * kv_heads, 16,
head_dim]: in a block the heads of the keys, then those of the values. A cache of 8 bits (int8 or
float8) holds each head's values divided by its scale, rounded to the nearest.
"""

import triton
from torch import Tensor
from triton import language as tl

from backend.kernels.launch import launch


@triton.jit
def to_storage(values, dtype: tl.constexpr):
    """Return float32 ``values``, divided by their scale, in ``dtype`` of 8 bits."""
    if dtype == tl.int8:
        return tl.floor(tl.clamp(values, -127.0, 127.0) + 0.5).to(dtype)
    return tl.clamp(values, -448.0, 448.0).to(dtype)


@triton.jit
def _write_kv(
    keys_values,
    cache,
    slots,
    scales,
    token_stride,
    block_stride,
    SCALED: tl.constexpr,
    HEADS: tl.constexpr,
    BLOCK_SIZE: tl.constexpr,
    HEAD_DIM: tl.constexpr,
    BLOCK_H: tl.constexpr,
    BLOCK_D: tl.constexpr,
):
    token = tl.program_id(0).to(tl.int64)
    slot = tl.load(slots + token).to(tl.int64)
    head = tl.arange(0, BLOCK_H)[:, None]
    dim = tl.arange(0, BLOCK_D)[None, :]
    mask = (head < HEADS) & (dim < HEAD_DIM)
    rows = tl.load(keys_values + token * token_stride + head * HEAD_DIM + dim, mask=mask)
    if SCALED:
        scale = tl.load(scales + head, mask=head < HEADS, other=1.0)
        rows = to_storage(rows.to(tl.float32) / scale, cache.dtype.element_ty)
    row = head * BLOCK_SIZE + slot % BLOCK_SIZE
    target = cache + slot // BLOCK_SIZE * block_stride + row * HEAD_DIM + dim
    tl.store(target, rows, mask=mask)


def write_kv(
    keys_values: Tensor, cache: Tensor, slots: Tensor, scales: Tensor | None = None
) -> None:
    """Write ``keys_values`` [tokens, 2 * kv_heads, head_dim] where ``slots`` [tokens] say.

    The heads of a token must lie side by side; tokens may be strided. ``scales`` float32
    [2 * kv_heads] are those of a cache of 8 bits.
    """
    tokens, heads, head_dim = keys_values.shape
    launch(
        _write_kv,
        (tokens,),
        keys_values,
        cache,
        slots,
        slots if scales is None else scales,
        keys_values.stride(0),
        cache.stride(0),
        SCALED=scales is not None,
        HEADS=heads,
        BLOCK_SIZE=cache.shape[2],
        HEAD_DIM=head_dim,
        BLOCK_H=triton.next_power_of_2(heads),
        BLOCK_D=triton.next_power_of_2(head_dim),
    )
