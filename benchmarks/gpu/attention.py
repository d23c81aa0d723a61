"""Attention kernels: decode as a share of copy bandwidth, prefill beside torch's flash SDPA."""

from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
from torch.nn import functional
from torch.nn.attention import SDPBackend, sdpa_kernel

from backend.kernels.decode_attention import SplitWorkspace, Tiling, decode_attention, num_splits
from backend.kernels.prefill_attention import Span, prefill_attention, query_tiles, tile_tokens
from gpu.checks import random_tables
from gpu.machine import Machine

DECODE_TILINGS = (Tiling(), Tiling(32), Tiling(128), Tiling(64, 4, 4), Tiling(64, 8, 3))
PREFILL_TILINGS = (Tiling(64, 8, 3), Tiling(128, 8, 2), Tiling(64, 4, 3))
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
    cases = [(2, 40)] if machine.smoke else [(64, 4096), (256, 1024), (16, 8192), (1, 32768)]
    results: list[dict[str, Any]] = []
    for batch, length in cases:
        tables, blocks = random_tables(machine, [length] * batch)
        bytes_read = batch * length * 2 * shape.kv_heads * shape.head_dim * machine.dtype.itemsize
        copies = 1 if machine.smoke else max(1, -(-_CACHE_BYTES // bytes_read))
        caches = [
            machine.random(blocks + 1, 2 * shape.kv_heads, 16, shape.head_dim)
            for _ in range(copies)
        ]
        queries = machine.random(batch, shape.heads, shape.head_dim)
        lengths = torch.full((batch,), length, device=machine.device, dtype=torch.int32)
        splits = num_splits(batch, shape.kv_heads, length, machine.processors)
        workspace = SplitWorkspace.allocate(
            batch * shape.heads * splits, shape.head_dim, machine.device
        )
        seconds = {
            str(tiling): machine.seconds(
                [
                    partial(
                        decode_attention,
                        queries,
                        cache,
                        tables,
                        lengths,
                        splits=splits,
                        tiling=tiling,
                        workspace=workspace,
                    )
                    for cache in caches
                ]
            )
            for tiling in (DECODE_TILINGS[:1] if machine.smoke else DECODE_TILINGS)
        }
        best = min(seconds, key=seconds.__getitem__)
        results.append(
            {
                "batch": batch,
                "keys": length,
                "splits": splits,
                "us": seconds[str(Tiling())] * 1e6,
                "share_of_copy": bytes_read / seconds[str(Tiling())] / bandwidth,
                "best_tiling": best,
                "best_share_of_copy": bytes_read / seconds[best] / bandwidth,
            }
        )
    return results


def prefill(machine: Machine) -> list[dict[str, Any]]:
    """Time one layer's causal prefill of whole prompts, ours from the cache, torch's contiguous."""
    shape = Shape(4, 2, 16) if machine.smoke else Shape()
    cases = [(1, 40)] if machine.smoke else [(1, 8192), (4, 2048), (16, 512)]
    return [_prefill(machine, shape, count, length) for count, length in cases]


def _prefill(machine: Machine, shape: Shape, count: int, length: int) -> dict[str, Any]:
    tables, blocks = random_tables(machine, [length] * count)
    starts = tables.starts.tolist()
    spans = [Span(table, row * length, length, 0) for row, table in enumerate(starts)]
    tiles = torch.tensor(
        query_tiles(spans, tile_tokens(shape.heads // shape.kv_heads)),
        device=machine.device,
        dtype=torch.int32,
    )
    cache = machine.random(blocks + 1, 2 * shape.kv_heads, 16, shape.head_dim)
    queries = machine.random(count * length, shape.heads, shape.head_dim)
    tilings = PREFILL_TILINGS[:1] if machine.smoke else PREFILL_TILINGS
    ours = {
        str(tiling): machine.seconds(
            [partial(prefill_attention, queries, cache, tables.blocks, tiles, tiling=tiling)]
        )
        for tiling in tilings
    }
    heads = (shape.heads, shape.kv_heads, shape.kv_heads)
    query, key, value = (machine.random(count, each, length, shape.head_dim) for each in heads)
    backend = SDPBackend.MATH if machine.smoke else SDPBackend.FLASH_ATTENTION
    with sdpa_kernel(backend):
        torchs = machine.seconds(
            [
                partial(
                    functional.scaled_dot_product_attention,
                    query,
                    key,
                    value,
                    is_causal=True,
                    enable_gqa=True,
                )
            ]
        )
    operations = 2 * count * shape.heads * length**2 * shape.head_dim
    own = ours[str(PREFILL_TILINGS[0])]
    best = min(ours, key=ours.__getitem__)
    return {
        "sequences": count,
        "tokens": length,
        "us": own * 1e6,
        "tflops": operations / own / 1e12,
        "flash_sdpa_us": torchs * 1e6,
        "ratio_to_flash_sdpa": torchs / own,
        "best_tiling": best,
        "best_ratio": torchs / ours[best],
    }
