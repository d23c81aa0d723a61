"""A step's keys and values into the paged cache, alone or with head norm and rotation before.

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


@triton.jit
def _rotate_and_write(
    qkv,
    rotations,
    slots,
    head_weights,
    cache,
    scales,
    token_stride,
    block_stride,
    eps,
    QUERY_HEADS: tl.constexpr,
    KV_HEADS: tl.constexpr,
    HEAD_DIM: tl.constexpr,
    ROTATED: tl.constexpr,
    NORM: tl.constexpr,
    KEEP_KEYS: tl.constexpr,
    SCALED: tl.constexpr,
    BLOCK_SIZE: tl.constexpr,
    BLOCK_H: tl.constexpr,
    BLOCK_D: tl.constexpr,
):
    token = tl.program_id(0).to(tl.int64)
    head = tl.program_id(1) * BLOCK_H + tl.arange(0, BLOCK_H)[:, None]
    dim = tl.arange(0, BLOCK_D)[None, :]
    real = (head < QUERY_HEADS + 2 * KV_HEADS) & (dim < HEAD_DIM)
    turned = real & (head < QUERY_HEADS + KV_HEADS)
    row = qkv + token * token_stride + head * HEAD_DIM + dim
    values = tl.load(row, mask=real, other=0.0).to(tl.float32)
    if NORM:
        scale = tl.rsqrt(tl.sum(values * values, axis=1) / HEAD_DIM + eps)[:, None]
        weight = tl.load(head_weights + head * HEAD_DIM + dim, mask=turned, other=0.0)
        values = tl.where(turned, values * scale * weight.to(tl.float32), values)
    pair = tl.arange(0, BLOCK_D // 2)[None, :]
    turn = rotations + token * ROTATED + 2 * pair
    # Values, and what lies beyond the rotated dimensions, turn by nothing.
    mask = (pair < ROTATED // 2) & (head < QUERY_HEADS + KV_HEADS)
    cosine = tl.load(turn + head * 0, mask=mask, other=1.0)
    sine = tl.load(turn + 1 + head * 0, mask=mask, other=0.0)
    even, odd = tl.split(tl.reshape(values, (BLOCK_H, BLOCK_D // 2, 2)))
    values = tl.interleave(even * cosine - odd * sine, odd * cosine + even * sine)
    rounded = values.to(qkv.dtype.element_ty)
    kept: tl.constexpr = QUERY_HEADS + KV_HEADS if KEEP_KEYS else QUERY_HEADS
    tl.store(row, rounded, mask=real & (head < kept))
    slot = tl.load(slots + token).to(tl.int64)
    cache_row = (head - QUERY_HEADS) * BLOCK_SIZE + slot % BLOCK_SIZE
    target = cache + slot // BLOCK_SIZE * block_stride + cache_row * HEAD_DIM + dim
    cached = real & (head >= QUERY_HEADS)
    if SCALED:
        scale = tl.load(scales + head - QUERY_HEADS, mask=cached, other=1.0)
        rounded = to_storage(rounded.to(tl.float32) / scale, cache.dtype.element_ty)
    tl.store(target, rounded, mask=cached)


def rotate_and_write(
    qkv: Tensor,
    rotations: Tensor,
    slots: Tensor,
    cache: Tensor,
    *,
    head_weights: Tensor | None,
    eps: float,
    keep_keys: bool = False,
    scales: Tensor | None = None,
) -> None:
    """Turn ``qkv`` [tokens, heads + 2 * kv_heads, head_dim] into queries and cached KV.

    What a layer's fused projection gives is read once: queries go back normed and rotated, keys
    and values to their slots. Pairs to rotate lie side by side (as ``models.rope`` puts them).
    ``rotations`` is float32 [tokens, rotated / 2, 2], cosine and sine; what is beyond the
    rotated dimensions passes. ``head_weights`` [heads + kv_heads, head_dim] norms, None does not.
    ``scales`` are those of a cache of 8 bits, see ``write_kv``.
    Only the queries are changed in place, the keys too with ``keep_keys``.
    """
    tokens, heads, head_dim = qkv.shape
    kv_heads = cache.shape[1] // 2
    block_h = min(triton.next_power_of_2(heads), 8)
    launch(
        _rotate_and_write,
        (tokens, triton.cdiv(heads, block_h)),
        qkv,
        rotations,
        slots,
        rotations if head_weights is None else head_weights,
        cache,
        slots if scales is None else scales,
        qkv.stride(0),
        cache.stride(0),
        eps,
        QUERY_HEADS=heads - 2 * kv_heads,
        KV_HEADS=kv_heads,
        HEAD_DIM=head_dim,
        ROTATED=2 * rotations.shape[1],
        NORM=head_weights is not None,
        SCALED=scales is not None,
        KEEP_KEYS=keep_keys,
        BLOCK_SIZE=cache.shape[2],
        BLOCK_H=block_h,
        BLOCK_D=triton.next_power_of_2(head_dim),
    )
