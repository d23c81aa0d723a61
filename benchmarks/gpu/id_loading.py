"""The loop over keys as it was before ids were carried: each turn loads the blocks of its own tile.

Triton then waits for each tile, because the load of keys hangs on the load of ids. Here to be
compared on a card with the loop that serves; the rest of both kernels is the engine's own.
"""

from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from types import FunctionType
from typing import Any
from unittest import mock

import triton
from triton import language as tl

from backend.kernels import decode_attention, prefill_attention

# Kernels with the loop in them, and where the engine looks them up.
_KERNELS = ((decode_attention, "_attend_splits"), (prefill_attention, "_attend_tile"))


@triton.jit
def _attend_keys(
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
    dim = tl.arange(0, BLOCK_D)
    lane = tl.arange(0, BLOCK_N)
    for at in range(start, stop, BLOCK_N):
        key = at + lane
        block = tl.load(table + key // BLOCK_SIZE, mask=key < stop, other=0)
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
        shift = tl.where(new_top > -float("inf"), new_top, 0.0)
        weights = tl.exp2(scores - shift[:, None])
        decay = tl.exp2(top - shift)
        total = total * decay + tl.sum(weights, axis=1)
        sums = sums * decay[:, None]
        weights = weights.to(query.dtype)
        sums = tl.dot(weights, values.to(query.dtype), acc=sums, input_precision="ieee")
        top = new_top
    return top, total, sums


def _with_this_loop(kernel: Any) -> Any:
    """Return a copy of ``kernel`` whose loop over keys is the one above."""
    names = {**kernel.fn.__globals__, "attend_keys": _attend_keys}
    own = FunctionType(kernel.fn.__code__, names, kernel.fn.__name__)
    return triton.jit(own, do_not_specialize=getattr(kernel, "do_not_specialize", None))


_LOADING_IN_TURN = tuple(
    (module, name, _with_this_loop(getattr(module, name))) for module, name in _KERNELS
)


@contextmanager
def ids_in_turn() -> Iterator[None]:
    """Attend with the loop above for the time of the context."""
    with ExitStack() as stack:
        for module, name, kernel in _LOADING_IN_TURN:
            stack.enter_context(mock.patch.object(module, name, kernel))
        yield
