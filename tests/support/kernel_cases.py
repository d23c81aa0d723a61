"""Random inputs for kernels, and how their results compare with the oracle's.

``call`` runs a kernel: in the interpreter's process, or here on a GPU. A case is a few numbers, so
that Hypothesis can make it small.
"""

import importlib
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor

from backend.kernels import reference
from backend.kernels.attention import BlockTables, DeviceLimits
from backend.kernels.prefill_attention import PrefillShape, Span, plan_prefill
from backend.kernels.quantized_matmul import pack
from backend.kernels.sampling import SamplingRows
from backend.models.quantization.linears import KernelLinear
from backend.models.quantization.weight import QuantizedWeight

BLOCK_SIZE = 16
Call = Callable[..., tuple[Any, tuple[Any, ...]]]

TOLERANCE = {torch.float32: 2e-6, torch.float16: 2e-3, torch.bfloat16: 1.5e-2}


def call_here(name: str, *arguments: Any, **options: Any) -> tuple[Any, tuple[Any, ...]]:
    """Call ``module:function`` in this process."""
    module, _, function = name.partition(":")
    return getattr(importlib.import_module(module), function)(*arguments, **options), arguments


def assert_close(result: Tensor, expected: Tensor) -> None:
    """Compare by the norm of the difference; NaN never passes."""
    assert result.shape == expected.shape
    assert result.dtype == expected.dtype
    exact = expected.double()
    error = (result.double() - exact).norm() / exact.norm().clamp(min=1e-30)
    assert error <= TOLERANCE[expected.dtype], f"relative error {error:.2e}"


@dataclass(frozen=True)
class World:
    """Where and in what a case is computed."""

    call: Call
    dtype: torch.dtype = torch.float32
    device: str = "cpu"

    def random(self, *shape: int, seed: int = 0) -> Tensor:
        generator = torch.Generator().manual_seed(1000 * len(shape) + seed)
        return torch.randn(shape, generator=generator).to(self.device, self.dtype)

    def integers(self, values: Any, dtype: torch.dtype = torch.int32) -> Tensor:
        return torch.tensor(values, dtype=dtype, device=self.device)

    def cache(self, blocks: int, kv_heads: int, head_dim: int) -> Tensor:
        """Random everywhere, so that reading a wrong row shows."""
        return self.random(blocks + 1, 2 * kv_heads, BLOCK_SIZE, head_dim, seed=1)

    def tables(self, lengths: Sequence[int]) -> tuple[BlockTables, int]:
        """Shuffled blocks for sequences of ``lengths``, and how many there are."""
        counts = [-(-length // BLOCK_SIZE) for length in lengths]
        starts = [sum(counts[:row]) for row in range(len(counts))]
        order = torch.randperm(sum(counts), generator=torch.Generator().manual_seed(5)) + 1
        blocks = order.to(self.device, torch.int32)
        return BlockTables(blocks, self.integers(starts)), sum(counts)


def check_kv_write(
    world: World, tokens: int, kv_heads: int, head_dim: int, storage: torch.dtype | None = None
) -> None:
    cache, scales = stored(world.cache(5, kv_heads, head_dim), storage)
    # A view into a fused projection, as the decoder has it.
    fused = world.random(tokens, 3 + 2 * kv_heads, head_dim)
    slots = torch.randperm(5 * BLOCK_SIZE, generator=torch.Generator().manual_seed(2))[:tokens]
    slots = (slots + BLOCK_SIZE).to(world.device)
    expected = cache.clone()
    reference.write_kv(fused[:, 3:], expected, slots, scales)
    name = "backend.kernels.kv_write:write_kv"
    _, changed = world.call(name, fused[:, 3:], cache, slots, scales)
    if storage is None:
        assert torch.equal(changed[1], expected)
    else:
        assert_same_but_rounding(changed[1], expected)


def stored(cache: Tensor, storage: torch.dtype | None) -> tuple[Tensor, Tensor | None]:
    """Return ``cache`` in ``storage`` and a scale of each head, or as it is and None."""
    if storage is None:
        return cache, None
    top = 127 if storage is torch.int8 else torch.finfo(storage).max
    scales = cache.float().abs().amax(dim=(0, 2, 3)) / top
    scaled = cache.float() / scales.view(-1, 1, 1)
    return (scaled.round() if storage is torch.int8 else scaled).to(storage), scales


def assert_same_but_rounding(result: Tensor, expected: Tensor, share: float = 0.002) -> None:
    """Compare values of 8 bits: a few lie so near the middle that they are rounded otherwise."""
    assert result.dtype == expected.dtype
    differing = result.view(torch.int8) != expected.view(torch.int8)
    assert differing.float().mean() <= share
    difference = (result.float() - expected.float()).abs()
    assert (difference <= expected.float().abs() / 8 + 1).all()


def check_rms_norm(world: World, rows: int, size: int) -> None:
    inputs, weight = world.random(rows, size), world.random(size, seed=3)
    expected = reference.rms_norm(inputs, weight, 1e-6)
    result, _ = world.call("backend.kernels.elementwise:rms_norm", inputs, weight, 1e-6)
    assert_close(result, expected)


def check_add_rms_norm(world: World, rows: int, size: int) -> None:
    inputs, weight = world.random(rows, size), world.random(size, seed=3)
    residual = world.random(rows, size, seed=4)
    total = residual.clone()
    expected = reference.add_rms_norm(inputs, total, weight, 1e-6)
    name = "backend.kernels.elementwise:add_rms_norm"
    result, changed = world.call(name, inputs, residual, weight, 1e-6)
    assert_close(result, expected)
    assert torch.equal(changed[1], total)


def check_silu_mul(world: World, rows: int, size: int) -> None:
    inputs = world.random(rows, 2 * size)
    result, _ = world.call("backend.kernels.elementwise:silu_mul", inputs)
    assert_close(result, reference.silu_mul(inputs))


def check_quantize_rows(
    world: World, rows: int, size: int, name: str = "backend.kernels.elementwise:quantize_rows"
) -> None:
    """Every row has another size; one is the row of a wider matrix, one has zeros alone."""
    inputs = world.random(rows, size + 3)[:, :size] * world.random(rows, 1, seed=4)
    inputs[rows // 2] = 0
    (codes, scales), _ = world.call(name, inputs)
    expected, exact_scales = reference.quantize_rows(inputs)
    torch.testing.assert_close(scales, exact_scales, rtol=1e-6, atol=0)
    # On sm_89 a value is rounded to float16 first.
    assert_same_but_rounding(codes, expected, 0.01)


def check_rotary(
    world: World,
    *,
    tokens: int,
    heads: int,
    kv_heads: int,
    head_dim: int,
    rotated: int,
    norm: bool,
    keep_keys: bool = False,
    storage: torch.dtype | None = None,
) -> None:
    qkv = world.random(tokens, heads + 2 * kv_heads, head_dim)
    cache, scales = stored(world.cache(4, kv_heads, head_dim), storage)
    angles = torch.outer(7.0 * torch.arange(tokens), 0.7 ** torch.arange(rotated // 2))
    rotations = torch.stack([angles.cos(), angles.sin()], dim=-1).to(world.device)
    slots = (torch.arange(tokens) * 3 + BLOCK_SIZE).to(world.device)
    weights = world.random(heads + kv_heads, head_dim, seed=6) if norm else None
    options = {"head_weights": weights, "eps": 1e-6, "keep_keys": keep_keys, "scales": scales}
    expected, expected_cache = qkv.clone(), cache.clone()
    reference.rotate_and_write(expected, rotations, slots, expected_cache, **options)
    name = "backend.kernels.kv_write:rotate_and_write"
    _, changed = world.call(name, qkv, rotations, slots, cache, **options)
    assert_close(changed[0], expected)
    if storage is None:
        assert_close(changed[3], expected_cache)
    else:
        assert_same_but_rounding(changed[3], expected_cache)


def check_decode(
    world: World,
    lengths: Sequence[int],
    *,
    group: int = 2,
    kv_heads: int = 2,
    head_dim: int = 64,
    window: int | None = None,
    softcap: float | None = None,
    with_sinks: bool = False,
    storage: torch.dtype | None = None,
    **options: Any,
) -> Tensor:
    """``storage`` is the type of a cache of 8 bits; returns the result."""
    tables, blocks = world.tables(lengths)
    cache, scales = stored(world.cache(blocks, kv_heads, head_dim), storage)
    fused = world.random(len(lengths), kv_heads * (group + 2), head_dim)
    queries = fused[:, : kv_heads * group]
    counts = world.integers(list(lengths))
    sinks = world.random(kv_heads * group, seed=7) if with_sinks else None
    how = {"window": window, "softcap": softcap, "sinks": sinks, "scales": scales}
    expected = reference.decode_attention(queries, cache, tables, counts, **how)
    name = "backend.kernels.decode_attention:decode_attention"
    result, _ = world.call(name, queries, cache, tables, counts, **how, **options)
    assert_close(result, expected)
    return result


def check_prefill(
    world: World,
    spans: Sequence[tuple[int, int]],
    *,
    group: int = 2,
    kv_heads: int = 2,
    head_dim: int = 64,
    processors: int = 2,
    window: int | None = None,
    softcap: float | None = None,
    with_sinks: bool = False,
    storage: torch.dtype | None = None,
    **tilings: Any,
) -> int:
    """``spans`` are (prefix, new tokens) of one sequence each; returns how many items there are."""
    tables, blocks = world.tables([prefix + new for prefix, new in spans])
    cache, scales = stored(world.cache(blocks, kv_heads, head_dim), storage)
    starts = [sum(new for _, new in spans[:index]) for index in range(len(spans) + 1)]
    laid_out = [
        Span(table, start, new, prefix)
        for table, start, (prefix, new) in zip(tables.starts.tolist(), starts, spans, strict=False)
    ]
    shape = PrefillShape.of(
        world.dtype,
        heads=kv_heads * group,
        kv_heads=kv_heads,
        head_dim=head_dim,
        limits=DeviceLimits(processors, 99 * 2**10),
        quantized=storage is not None,
    )
    work = plan_prefill(laid_out, replace(shape, **tilings))
    work = replace(work, items=work.items.to(world.device))
    fused = world.random(starts[-1], kv_heads * (group + 2), head_dim)
    queries = fused[:, : kv_heads * group]
    sinks = world.random(kv_heads * group, seed=7) if with_sinks else None
    how = {"window": window, "softcap": softcap, "sinks": sinks, "scales": scales}
    expected = reference.prefill_attention(queries, cache, tables.blocks, laid_out, **how)
    name = "backend.kernels.prefill_attention:prefill_attention"
    result, _ = world.call(name, queries, cache, tables.blocks, work, **how)
    assert_close(result, expected)
    return work.small + work.large


def sampling_rows(
    world: World, logits: Tensor, *, temperature: float, top_k: int, top_p: float, min_p: float
) -> SamplingRows:
    rows, vocab = logits.shape
    generator = torch.Generator().manual_seed(rows)
    keys = torch.randint(-(2**31), 2**31 - 1, (rows, 2), generator=generator)

    def column(value: float) -> Tensor:
        return torch.full((rows, 1), float(value), device=world.device)

    return SamplingRows(
        temperature=column(temperature),
        top_k=column(top_k or vocab),
        top_p=column(top_p),
        log_min_p=column(min_p).log(),
        keys=keys.to(world.device, torch.int32),
    )


def kernel_linear(weight: QuantizedWeight, bias: Tensor, rows: Tensor, *, fp8: bool) -> Tensor:
    """Map ``rows`` as a matrix of the decoder does on CUDA.

    Codes come as bytes, because FP8 cannot be pickled.
    """
    if fp8:
        weight = replace(weight, codes=weight.codes.view(torch.float8_e4m3fn))
    return KernelLinear(weight, bias)(rows)


def to_fp8(weight: Tensor) -> QuantizedWeight:
    """Return [rows, columns] in FP8, with one scale for each row."""
    scales = weight.abs().amax(dim=1, keepdim=True).float() / 448
    return QuantizedWeight((weight / scales).to(torch.float8_e4m3fn), scales, None, weight.shape[1])


def check_quantized_matmul(
    world: World, kind: str, *, tokens: int, rows: int, columns: int, group: int
) -> None:
    """Products with a weight of ``kind``, whose groups have zeros if it is of four bits."""
    generator = torch.Generator().manual_seed(tokens + rows)
    groups = -(-columns // group)
    if kind == "fp8":
        codes = torch.randn(rows, columns, generator=generator).mul_(50).to(torch.float8_e4m3fn)
        codes.view(torch.uint8)[0, :16] = torch.arange(16, dtype=torch.uint8)  # subnormal ones too
    else:
        half = 8 if kind == "int4" else 128
        codes = torch.randint(-half, half, (rows, columns), generator=generator, dtype=torch.int8)
    scales = torch.rand(rows, groups, generator=generator) + 0.5
    zeros = torch.randint(-8, 8, (rows, groups), generator=generator).float()
    codes, scales = codes.to(world.device), scales.to(world.device)
    zeros = zeros.to(world.device) if kind == "int4" else None
    weight = pack(codes, scales, zeros, group, bits=4 if kind == "int4" else 8)
    by_column = torch.arange(columns, device=world.device) // group
    expected = codes.double() - (0 if zeros is None else zeros.double()[:, by_column])
    assert torch.equal(weight.dequantized(torch.float64), expected * scales.double()[:, by_column])
    inputs = world.random(tokens, columns)
    result, _ = world.call("backend.kernels.quantized_matmul:quantized_matmul", inputs, weight)
    assert_close(result, reference.quantized_matmul(inputs, weight))


def check_grouped_matmul(
    world: World, counts: Sequence[int], *, rows: int = 24, columns: int = 40
) -> None:
    """Products of experts, of which each has as many pairs as ``counts`` says."""
    pairs, weights = world.random(sum(counts), columns), world.random(len(counts), rows, columns)
    ends = world.integers(torch.tensor(counts).cumsum(0).tolist())
    result, _ = world.call("backend.kernels.grouped_matmul:grouped_matmul", pairs, weights, ends)
    assert_close(result, reference.grouped_matmul(pairs, weights, ends))
