"""Attention kernels: decode as a share of copy bandwidth, prefill beside torch's flash SDPA."""

from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import torch
from torch.nn import functional
from torch.nn.attention import SDPBackend, sdpa_kernel

from backend.kernels.attention import SplitWorkspace, Tiling, device_limits
from backend.kernels.decode_attention import decode_attention, num_splits
from backend.kernels.prefill_attention import PrefillShape, Span, plan_prefill, prefill_attention
from gpu.checks import random_tables
from gpu.machine import Machine

DECODE_TILINGS = (Tiling(), Tiling(32), Tiling(128), Tiling(64, 4, 4), Tiling(64, 8, 3))
PREFILL_TILINGS = (
    Tiling(128, 8, 2, rows=128),
    Tiling(64, 4, 3, rows=64),
    Tiling(32, 8, 4, rows=128),
)
_MAX_MODEL_LEN = 131_072
# More data than the L2 cache holds lies between two uses of one cache.
_CACHE_BYTES = 2**30


@dataclass(frozen=True)
class Shape:
    """``heads`` query heads over ``kv_heads`` of ``head_dim``."""

    heads: int = 32
    kv_heads: int = 8
    head_dim: int = 128


def decode(machine: Machine, bandwidth: float) -> list[dict[str, Any]]:
    """Time one layer's decode attention; bytes are keys and values, each read once."""
    shape = Shape(4, 2, 16) if machine.smoke else Shape()
    cases = [[40, 40]]
    if not machine.smoke:
        even = [[4096] * 64, [1024] * 256, [8192] * 16, [32_768]]
        cases = [*even, [100_000, *[500] * 63]]
    return [_decode(machine, shape, lengths, bandwidth) for lengths in cases]


def _decode(machine: Machine, shape: Shape, lengths: list[int], bandwidth: float) -> dict[str, Any]:
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
    seconds = {
        str(tiling): machine.seconds(
            [
                partial(decode_attention, queries, cache, tables, counts, tiling=tiling, **how)
                for cache in caches
            ]
        )
        for tiling in (DECODE_TILINGS[:1] if machine.smoke else DECODE_TILINGS)
    }
    best = min(seconds, key=seconds.__getitem__)
    own = seconds[str(DECODE_TILINGS[0])]
    return {
        "batch": batch,
        "longest": max(lengths),
        "keys": sum(lengths),
        "us": own * 1e6,
        "share_of_copy": sum(lengths) * row / own / bandwidth,
        "best_tiling": best,
        "best_share_of_copy": sum(lengths) * row / seconds[best] / bandwidth,
    }


def prefill(machine: Machine) -> list[dict[str, Any]]:
    """Time one layer's causal prefill: whole prompts, short turns and drafts behind a prefix.

    Ours reads the paged cache, torch's contiguous keys; torch is timed on whole prompts alone.
    """
    shape = Shape(4, 2, 16) if machine.smoke else Shape()
    cases = [(1, 0, 40)]
    if not machine.smoke:
        cases = [(1, 0, 8192), (4, 0, 2048), (16, 0, 512), (1, 32_000, 50), (64, 8000, 9)]
    return [_prefill(machine, shape, *case) for case in cases]


def _prefill(machine: Machine, shape: Shape, count: int, prefix: int, new: int) -> dict[str, Any]:
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
    ours = {}
    for tiling in (made.large,) if machine.smoke else (made.large, *PREFILL_TILINGS):
        work = plan_prefill(spans, replace(made, large=tiling))
        work = replace(work, items=work.items.to(machine.device))
        ours[str(tiling)] = machine.seconds(
            [partial(prefill_attention, queries, cache, tables.blocks, work)]
        )
    own = ours[str(made.large)]
    best = min(ours, key=ours.__getitem__)
    operations = 2 * count * shape.heads * new * (new + 2 * prefix) * shape.head_dim
    result = {
        "sequences": count,
        "prefix": prefix,
        "tokens": new,
        "us": own * 1e6,
        "tflops": operations / own / 1e12,
        "best_tiling": best,
        "best_us": ours[best] * 1e6,
    }
    if not prefix:
        torchs = _flash(machine, shape, count, new)
        result |= {"flash_sdpa_us": torchs * 1e6, "ratio_to_flash_sdpa": torchs / own}
    return result


def _flash(machine: Machine, shape: Shape, count: int, length: int) -> float:
    heads = (shape.heads, shape.kv_heads, shape.kv_heads)
    query, key, value = (machine.random(count, each, length, shape.head_dim) for each in heads)
    attend = partial(functional.scaled_dot_product_attention, is_causal=True, enable_gqa=True)
    with sdpa_kernel(SDPBackend.MATH if machine.smoke else SDPBackend.FLASH_ATTENTION):
        return machine.seconds([partial(attend, query, key, value)])
