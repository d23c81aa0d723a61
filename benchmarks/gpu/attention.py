"""Attention kernels: decode beside copy rate, prefill beside torch's flash SDPA, in eight ways.

The ways are ``num_stages`` 2 to 5, and block ids loaded a tile ahead (as served) or in turn.
"""

from collections.abc import Callable
from contextlib import nullcontext
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional
from torch.nn.attention import SDPBackend, sdpa_kernel

from backend.kernels.attention import SplitWorkspace, Tiling, device_limits, padded_head
from backend.kernels.decode_attention import decode_attention, decode_tiling, num_splits
from backend.kernels.prefill_attention import PrefillShape, Span, plan_prefill, prefill_attention
from gpu.checks import random_tables
from gpu.id_loading import ids_in_turn
from gpu.machine import Machine, Note

_STAGES = (2, 3, 4, 5)
_MAX_MODEL_LEN = 131_072
# More data than the L2 cache holds lies between two uses of one cache.
_CACHE_BYTES = 2**30


@dataclass(frozen=True)
class Shape:
    """``heads`` query heads over ``kv_heads`` of ``head_dim``."""

    heads: int = 32
    kv_heads: int = 8
    head_dim: int = 128


Run = Callable[[Tiling, int], Callable[[], Tensor]]
"""Attention as tiled, over a cache by number: a call."""


def attention(machine: Machine, note: Note) -> None:
    """Time one layer of 8B's heads: decoding first, whose kernels compile faster."""
    shape = Shape(4, 2, 16) if machine.smoke else Shape()
    bandwidth = machine.copy_rate()
    note("copy_bytes_per_s", bandwidth)
    decodes = [[40, 40]]
    prefills = [(1, 0, 40)]
    if not machine.smoke:
        decodes = [[4096] * 64, [32_768], [1024] * 256, [100_000, *[500] * 63]]
        prefills = [(1, 0, 8192), (1, 32_000, 50), (4, 0, 2048), (64, 8000, 9)]
    for lengths in decodes:
        most = f"{max(lengths)} keys" + (" at most" if len(set(lengths)) > 1 else "")
        name = f"decode, {len(lengths)} x {most}"
        note(name, _decode(machine, shape, lengths, bandwidth))
    for count, prefix, new in prefills:
        behind = f" behind {prefix}" if prefix else ""
        note(f"prefill, {count} x {new}{behind}", _prefill(machine, shape, count, prefix, new))


def _decode(machine: Machine, shape: Shape, lengths: list[int], bandwidth: float) -> dict[str, Any]:
    """Bytes are keys and values, each read once."""
    batch = len(lengths)
    tables, blocks = random_tables(machine, lengths)
    row = 2 * shape.kv_heads * shape.head_dim * machine.dtype.itemsize
    copies = 1 if machine.smoke else max(1, -(-_CACHE_BYTES // (sum(lengths) * row)))
    caches = [
        machine.random(blocks + 1, 2 * shape.kv_heads, 16, shape.head_dim) for _ in range(copies)
    ]
    queries = machine.random(batch, shape.heads, shape.head_dim)
    counts = torch.tensor(lengths, device=machine.device, dtype=torch.int32)
    splits = num_splits(shape.kv_heads, _MAX_MODEL_LEN)
    rows = batch * shape.heads * splits
    workspace = SplitWorkspace.allocate(rows, shape.head_dim, machine.device)
    how: dict[str, Any] = {"splits": splits, "workspace": workspace}

    def run(tiling: Tiling, at: int) -> Callable[[], Tensor]:
        return partial(decode_attention, queries, caches[at], tables, counts, tiling=tiling, **how)

    memory = device_limits(machine.device).shared_memory
    block_d = padded_head(shape.head_dim)
    served = decode_tiling(machine.dtype, block_d, memory, quantized=False)
    result = _ways(machine, served, run, copies)
    result["floor_us"] = sum(lengths) * row / bandwidth * 1e6
    if len(set(lengths)) == 1:
        del caches
        result["sdpa_us"] = _sdpa(machine, shape, (batch, 1, lengths[0]), copies)
    return result


def _prefill(machine: Machine, shape: Shape, count: int, prefix: int, new: int) -> dict[str, Any]:
    """Ours reads the paged cache, torch's contiguous keys; torch is timed on whole prompts."""
    tables, blocks = random_tables(machine, [prefix + new] * count)
    spans = [
        Span(table, row * new, new, prefix) for row, table in enumerate(tables.starts.tolist())
    ]
    cache = machine.random(blocks + 1, 2 * shape.kv_heads, 16, shape.head_dim)
    queries = machine.random(count * new, shape.heads, shape.head_dim)
    made = PrefillShape.of(
        machine.dtype,
        heads=shape.heads,
        kv_heads=shape.kv_heads,
        head_dim=shape.head_dim,
        limits=device_limits(machine.device),
    )

    def run(tiling: Tiling, _cache: int) -> Callable[[], Tensor]:
        work = plan_prefill(spans, replace(made, large=tiling))
        work = replace(work, items=work.items.to(machine.device))
        return partial(prefill_attention, queries, cache, tables.blocks, work)

    # Small tiles would all be compiled anew: they are timed as served.
    every = new * shape.heads // shape.kv_heads > made.small.rows and count == 1
    result = _ways(machine, made.large, run, 1, every=every)
    operations = 2 * count * shape.heads * new * (new + 2 * prefix) * shape.head_dim
    if "us" in result:
        result["tflops"] = operations / result["us"] / 1e6
    if not prefix:
        result["sdpa_us"] = _sdpa(machine, shape, (count, new, new), 1)
    return result


def _ways(
    machine: Machine, served: Tiling, run: Run, copies: int, *, every: bool = True
) -> dict[str, Any]:
    """Time ``run`` as served, and in all ways if ``every``; what fails says why."""
    result: dict[str, Any] = {"tiling": str(served)}
    ways: dict[str, float | str] = {}
    outputs: dict[str, Tensor] = {}
    for loading, context in (("ahead", nullcontext), ("in turn", ids_in_turn)):
        for stages in _STAGES:
            name, is_served = f"{stages} stages, {loading}", context is nullcontext
            is_served &= stages == served.num_stages
            if not (is_served or every):
                continue
            tiling = replace(served, num_stages=stages)
            try:
                calls = [run(tiling, at) for at in range(copies)]
                with context():
                    outputs[name] = calls[0]()
                    machine.synchronise()
                    ways[name] = machine.seconds(calls) * 1e6
            except Exception as error:  # noqa: BLE001 (a compiler's; the other ways stand)
                ways[name] = _told(error)
            if is_served:
                result["us"] = ways[name]
    figures = {name: us for name, us in ways.items() if isinstance(us, float)}
    if isinstance(result.get("us"), str):
        result["error"] = result.pop("us")
    if every and figures:
        result |= {"ways_us": ways, "best": min(figures, key=figures.__getitem__)}
        first, *others = outputs.values()
        result["ways_differ_by"] = max(
            (float((first - other).abs().max()) for other in others), default=0.0
        )
    return result


def _sdpa(machine: Machine, shape: Shape, size: tuple[int, int, int], copies: int) -> float | str:
    """Return the microseconds of torch's attention over contiguous keys, or why there are none."""
    count, queries, keys = size
    query = machine.random(count, shape.heads, queries, shape.head_dim)
    attend = partial(
        functional.scaled_dot_product_attention, is_causal=queries > 1, enable_gqa=True
    )
    size_of_each = (count, shape.kv_heads, keys, shape.head_dim)
    try:
        calls = [
            partial(attend, query, machine.random(*size_of_each), machine.random(*size_of_each))
            for _ in range(copies)
        ]
        with sdpa_kernel(SDPBackend.MATH if machine.smoke else SDPBackend.FLASH_ATTENTION):
            return machine.seconds(calls) * 1e6
    except Exception as error:  # noqa: BLE001 (the peer's, and our figures stand without it)
        return _told(error)


def _told(error: Exception) -> str:
    return f"{type(error).__name__}: {' '.join(str(error).split())}"[:300]
