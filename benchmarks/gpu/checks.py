"""Every kernel against its oracle, on the device and in the type that is timed."""

from collections.abc import Callable
from dataclasses import replace
from functools import partial
from typing import Any

import torch
from torch import Tensor

from backend.kernels import reference
from backend.kernels.attention import BlockTables, device_limits
from backend.kernels.decode_attention import decode_attention
from backend.kernels.elementwise import add_rms_norm, rms_norm, silu_mul
from backend.kernels.kv_write import rotate_and_write, write_kv
from backend.kernels.prefill_attention import PrefillShape, Span, plan_prefill, prefill_attention
from backend.kernels.sampling import SamplingRows, sample_tokens
from gpu.machine import Machine

_MOST = {torch.float32: 1e-5, torch.bfloat16: 1.5e-2}


Check = Callable[[Machine], float]
"""Returns a relative error."""


class CheckFailedError(Exception):
    """A kernel's result is not its oracle's."""


def random_tables(machine: Machine, lengths: list[int]) -> tuple[BlockTables, int]:
    counts = [-(-length // 16) for length in lengths]
    blocks = torch.randperm(sum(counts)) + 1
    starts = torch.tensor([0, *counts[:-1]]).cumsum(0)
    return BlockTables(
        blocks.to(machine.device, torch.int32), starts.to(machine.device, torch.int32)
    ), sum(counts)


def run_checks(machine: Machine) -> dict[str, float]:
    """Return each kernel's relative error. Raises CheckFailedError."""
    torch.manual_seed(0)
    errors: dict[str, float] = {}
    checks: dict[str, Check] = {
        "norms": _norms,
        "silu_mul": _silu_mul,
        "kv_write": _kv_write,
        "rotary": _rotary,
        "sampling": _sampling,
    }
    for splits in (1, 4):
        checks[f"decode_{splits}"] = partial(_decode, splits=splits, window=None)
    checks["decode_window"] = partial(_decode, splits=2, window=50)
    checks["prefill"] = partial(_prefill, window=None)
    checks["prefill_window"] = partial(_prefill, window=50)
    for name, check in checks.items():
        errors[name] = check(machine)
        # NaN fails as well.
        if not errors[name] <= _MOST[machine.dtype]:
            raise CheckFailedError(f"{name}: relative error {errors[name]:.2e}")
    return errors


def _error(result: Tensor, expected: Tensor) -> float:
    exact = expected.double()
    return float((result.double() - exact).norm() / exact.norm().clamp(min=1e-30))


def _norms(machine: Machine) -> float:
    rows, weight = machine.random(5, 200), machine.random(200)
    residual = machine.random(5, 200)
    total = residual.clone()
    alone = _error(rms_norm(rows, weight, 1e-6), reference.rms_norm(rows, weight, 1e-6))
    expected = reference.add_rms_norm(rows, total, weight, 1e-6)
    added = _error(add_rms_norm(rows, residual, weight, 1e-6), expected)
    return max(alone, added, _error(residual, total))


def _silu_mul(machine: Machine) -> float:
    rows = machine.random(3, 500)
    return _error(silu_mul(rows), reference.silu_mul(rows))


def _kv_write(machine: Machine) -> float:
    cache, expected = (torch.zeros(6, 4, 16, 80, device=machine.device) for _ in range(2))
    rows = machine.random(9, 4, 80, dtype=torch.float32)
    slots = torch.randperm(80)[:9].to(machine.device, torch.int32) + 16
    write_kv(rows, cache, slots)
    reference.write_kv(rows, expected, slots)
    return _error(cache, expected)


def _rotary(machine: Machine) -> float:
    qkv, cache = machine.random(5, 8, 128), machine.random(4, 4, 16, 128)
    angles = torch.outer(torch.arange(5.0), 0.9 ** torch.arange(64))
    turns = torch.stack([angles.cos(), angles.sin()], dim=-1).to(machine.device)
    slots = torch.arange(20, 25, device=machine.device, dtype=torch.int32)
    expected, expected_cache = qkv.clone(), cache.clone()
    options: dict[str, Any] = {"head_weights": machine.random(6, 128), "eps": 1e-6}
    rotate_and_write(qkv, turns, slots, cache, **options)
    reference.rotate_and_write(expected, turns, slots, expected_cache, **options)
    return max(_error(qkv, expected), _error(cache, expected_cache))


def _decode(machine: Machine, *, splits: int, window: int | None) -> float:
    lengths = [1, 70, 200] if machine.smoke else [1, 16, 1000, 5000]
    tables, blocks = random_tables(machine, lengths)
    cache = machine.random(blocks + 1, 2 * 2, 16, 128)
    queries = machine.random(len(lengths), 8, 128)
    counts = torch.tensor(lengths, device=machine.device, dtype=torch.int32)
    result = decode_attention(queries, cache, tables, counts, splits=splits, window=window)
    expected = reference.decode_attention(queries, cache, tables, counts, window=window)
    return _error(result, expected)


def _prefill(machine: Machine, *, window: int | None) -> float:
    spans = [(0, 40), (90, 9)]
    if not machine.smoke:
        spans = [(0, 700), (1000, 130), (17, 1), (30_000, 50), (20_000, 9)]
    tables, blocks = random_tables(machine, [prefix + new for prefix, new in spans])
    laid_out, at = [], 0
    for table, (prefix, new) in zip(tables.starts.tolist(), spans, strict=True):
        laid_out.append(Span(table, at, new, prefix))
        at += new
    limits = device_limits(machine.device)
    shape = PrefillShape.of(machine.dtype, heads=8, kv_heads=2, head_dim=128, limits=limits)
    work = plan_prefill(laid_out, shape)
    work = replace(work, items=work.items.to(machine.device))
    cache = machine.random(blocks + 1, 2 * 2, 16, 128)
    queries = machine.random(at, 8, 128)
    result = prefill_attention(queries, cache, tables.blocks, work, window=window)
    expected = reference.prefill_attention(queries, cache, tables.blocks, laid_out, window=window)
    return _error(result, expected)


def _sampling(machine: Machine) -> float:
    """Return the share of rows that draw another token: rounding may move one of a thousand."""
    rows, vocab = (2, 300) if machine.smoke else (1000, 50_000)
    logits = 3 * machine.random(rows, vocab, dtype=torch.float32)

    def column(value: float) -> Tensor:
        return torch.full((rows, 1), value, device=machine.device)

    keys = torch.randint(-(2**31), 2**31 - 1, (rows, 2)).to(machine.device, torch.int32)
    how = SamplingRows(column(0.9), column(50.0), column(0.95), column(0.01).log(), keys)
    differing = sample_tokens(logits, how) != reference.sample_tokens(logits, how)
    return float(differing.float().mean()) / 100
