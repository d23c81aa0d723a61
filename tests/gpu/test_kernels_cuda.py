"""Every kernel equals its oracle on a CUDA device, in all types that models come in."""

from dataclasses import replace

import pytest
import torch

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="torch finds no CUDA device"),
]
pytest.importorskip("triton", reason="Triton is not installed")

import kernel_cases as cases

from backend.kernels import reference
from backend.kernels.attention import Tiling
from backend.kernels.grouped_matmul import grouped_matmul
from backend.kernels.sampling import sample_tokens
from backend.models.quantization.linears import Float8Linear, KernelLinear, quantized_linear

IN_FP8 = pytest.mark.skipif(
    torch.cuda.is_available() and torch.cuda.get_device_capability() < (8, 9),
    reason="no float8 on this device",
)


@pytest.fixture(params=[torch.float32, torch.float16, torch.bfloat16], ids=str)
def world(request):
    return cases.World(cases.call_here, request.param, "cuda")


def test_elementwise_kernels(world):
    cases.check_kv_write(world, 37, 3, 80)
    cases.check_rms_norm(world, 7, 4096)
    cases.check_add_rms_norm(world, 7, 1030)
    cases.check_silu_mul(world, 5, 14336)


@pytest.mark.parametrize("norm", [False, True])
@pytest.mark.parametrize("shape", [(32, 8, 128, 128), (7, 1, 80, 80), (3, 3, 96, 48)], ids=str)
def test_rotation_norm_and_write(world, norm, shape):
    heads, kv_heads, head_dim, rotated = shape
    cases.check_rotary(
        world,
        tokens=5,
        heads=heads,
        kv_heads=kv_heads,
        head_dim=head_dim,
        rotated=rotated,
        norm=norm,
    )


@pytest.mark.parametrize("head_dim", [64, 80, 96, 128, 192, 256])
@pytest.mark.parametrize("window", [None, 100])
def test_attention_of_every_head_size(world, head_dim, window):
    for splits in (1, 8):
        cases.check_decode(
            world, [1, 33, 2000], head_dim=head_dim, splits=splits, window=window, group=4
        )
    cases.check_prefill(world, [(0, 300), (700, 41)], head_dim=head_dim, window=window, group=4)


@pytest.mark.parametrize("group", [1, 3, 7, 16])
def test_attention_of_every_group_size(world, group):
    cases.check_decode(world, [5, 700], group=group, splits=4)
    cases.check_prefill(world, [(0, 200), (33, 20)], group=group)


@pytest.mark.parametrize("tiling", [Tiling(32), Tiling(128, 8, 2)], ids=str)
def test_attention_of_other_tilings(world, tiling):
    cases.check_decode(world, [1, 1000], tiling=tiling, splits=2)
    large = replace(tiling, rows=64)
    cases.check_prefill(world, [(0, 100), (640, 64)], small=tiling, large=large)


def test_long_prefixes_are_split(world):
    cases.check_decode(world, [20_000, *[30] * 40, 0], splits=32, group=4)
    spans = [(20_000, 50), (9000, 9), (0, 300)]
    assert cases.check_prefill(world, spans, group=4, processors=132) > 20


@pytest.mark.parametrize("storage", [torch.int8, torch.float8_e4m3fn], ids=str)
@pytest.mark.parametrize("head_dim", [64, 128, 256])
def test_a_cache_of_eight_bits(world, head_dim, storage):
    if storage is not torch.int8 and torch.cuda.get_device_capability() < (8, 9):
        pytest.skip("no float8 on this device")
    cases.check_kv_write(world, 37, 3, head_dim, storage)
    shape = {"heads": 8, "kv_heads": 2, "head_dim": head_dim, "rotated": head_dim}
    cases.check_rotary(world, tokens=9, norm=True, storage=storage, **shape)
    cases.check_decode(world, [1, 3000], splits=8, head_dim=head_dim, storage=storage)
    cases.check_prefill(world, [(3000, 50), (0, 90)], head_dim=head_dim, storage=storage)


@pytest.mark.parametrize("storage", [None, torch.float8_e4m3fn], ids=str)
def test_softcaps_and_sinks_behind_a_window(world, storage):
    how = {"softcap": 30.0, "with_sinks": True, "head_dim": 80, "group": 3, "storage": storage}
    cases.check_decode(world, [5, 0, 700], splits=2, window=600, **how)
    cases.check_prefill(world, [(0, 70), (1100, 9)], window=600, **how)


def test_a_cache_whose_offsets_pass_32_bits():
    """2**31 elements and more lie before the last blocks."""
    heads, head_dim = 8, 128
    blocks = 2**31 // (2 * heads * 16 * head_dim) + 8
    free, _ = torch.cuda.mem_get_info()
    if free < 3 * blocks * 2 * heads * 16 * head_dim:
        pytest.skip("not enough device memory")
    world = cases.World(cases.call_here, torch.float16, "cuda")
    cache = torch.zeros(blocks, 2 * heads, 16, head_dim, device="cuda", dtype=torch.float16)
    rows = world.random(3, 2 * heads, head_dim)
    slots = torch.tensor([(blocks - 1) * 16 + at for at in range(3)], device="cuda")
    cases.call_here("backend.kernels.kv_write:write_kv", rows, cache, slots)
    assert torch.equal(cache[-1, :, :3].transpose(0, 1), rows)
    tables = cases.BlockTables(world.integers([blocks - 1]), world.integers([0]))
    queries, lengths = world.random(1, heads, head_dim), world.integers([3])
    result, _ = cases.call_here(
        "backend.kernels.decode_attention:decode_attention", queries, cache, tables, lengths
    )
    cases.assert_close(result, reference.decode_attention(queries, cache, tables, lengths))


@pytest.mark.parametrize(
    "how",
    [
        {"temperature": 0.0, "top_k": 0, "top_p": 1.0, "min_p": 0.0},
        {"temperature": 0.8, "top_k": 0, "top_p": 1.0, "min_p": 0.0},
        {"temperature": 1.0, "top_k": 50, "top_p": 0.9, "min_p": 0.01},
    ],
    ids=str,
)
def test_sampling(world, how):
    logits = 3 * world.random(500, 50_000)
    rows = cases.sampling_rows(world, logits, **how)
    differing = sample_tokens(logits, rows) != reference.sample_tokens(logits, rows)
    # Where a sum ends up a rounding error from top_p, another token may be the last one kept.
    assert differing.float().mean() <= 0.005


@IN_FP8
@pytest.mark.parametrize("size", [64, 1030, 14336])
def test_rows_become_fp8(world, size):
    cases.check_quantize_rows(world, 33, size)


@IN_FP8
@pytest.mark.parametrize("has_bias", [False, True])
@pytest.mark.parametrize("tokens", [1, 16, 100, 700])
def test_products_in_fp8(world, tokens, has_bias):
    """In 16 bits they take two launches; in 32 bits the kernel keeps activations as they are."""
    exact = world.dtype is torch.float32
    weight, rows = cases.to_fp8(world.random(1280, 4096)), world.random(tokens, 4096, seed=1)
    bias = world.random(1280, seed=2) if has_bias else None
    linear = quantized_linear(weight, bias, world.dtype)
    assert isinstance(linear, KernelLinear if exact else Float8Linear)
    expected = rows.float() @ weight.dequantized().t() + (bias if has_bias else 0)
    for bound in (1e-5 if exact else 0.04, 1e-5 if exact else 0.01):
        result = linear(rows)
        assert result.dtype is world.dtype
        errors = (result.float() - expected).norm(dim=1) / expected.norm(dim=1)
        assert errors.max() < bound
        linear.compute_in_torch()


@pytest.mark.parametrize("kind", ["int4", "int8", "fp8"])
@pytest.mark.parametrize(("tokens", "group"), [(1, 128), (16, 4096), (100, 32), (300, 64)])
def test_products_with_quantized_weights(world, kind, tokens, group):
    cases.check_quantized_matmul(
        world, kind, tokens=tokens, rows=4096 + 8, columns=4096, group=group
    )


@pytest.mark.parametrize("counts", [[0, 3, 0, 1], [100, 0, 17, 60], [3000, 1, 0, 90]], ids=str)
def test_products_of_experts(world, counts):
    cases.check_grouped_matmul(world, counts, rows=1536 + 8, columns=2048)
    cases.check_grouped_matmul(world, counts, rows=200, columns=99)


def test_a_graph_of_products_of_experts_finds_other_groups(world):
    """The host may learn nothing, or it could not be captured."""
    pairs, weights = world.random(64, 512), world.random(8, 256, 512)
    groups = [[0] * 7 + [64], [8 * at + 8 for at in range(8)], [1, 1, 60, 60, 61, 62, 63, 64]]
    ends = world.integers(groups[0])
    grouped_matmul(pairs, weights, ends)
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        result = grouped_matmul(pairs, weights, ends)
    for group in groups:
        ends.copy_(world.integers(group))
        graph.replay()
        cases.assert_close(result, reference.grouped_matmul(pairs, weights, ends))
