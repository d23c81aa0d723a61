"""Kernels compile for real GPUs as they are launched, where none is: Triton brings ptxas.

What the interpreter cannot show: types that only the compiler checks, spilled registers, shared
memory, and whether loads are wide and in flight and products run on the matrix units.
"""

import os
import re
from functools import partial

import pytest
import torch

pytest.importorskip("triton", reason="Triton is not installed")

import compiled_kernels as kernels

from backend.kernels.grouped_matmul import FEW_PAIRS, MANY_PAIRS

pytestmark = [
    # Triton 3.9 announces another default of a later version.
    pytest.mark.filterwarnings("ignore:TRITON_DEFAULT_FP_FUSION"),
    pytest.mark.skipif(
        not all((kernels.BINARIES / name).exists() for name in ("ptxas", "cuobjdump")),
        reason="this Triton brings no ptxas and cuobjdump",
    ),
]

BF16, F16, F32 = torch.bfloat16, torch.float16, torch.float32
F8 = torch.float8_e4m3fn
MOST_STACK = 96
"""Bytes a thread that may be spilled outside the loops."""
WIDE_AND_IN_FLIGHT = "cp.async.cg.shared.global"
WARPS_PRODUCT = "mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32"
# Of a cache of 8 bits: float16 on either side.
FP8_PRODUCT = WARPS_PRODUCT.replace("bf16", "f16")
PRODUCTS = {
    80: WARPS_PRODUCT,
    86: WARPS_PRODUCT,
    89: WARPS_PRODUCT,
    90: "wgmma.mma_async.sync.aligned.m64n",
    100: "tcgen05.mma.cta_group::1.kind::f16",
}


@pytest.fixture
def compiled(monkeypatch, tmp_path):
    """Compile all that a call launches; every kernel must fit its registers and memory."""
    monkeypatch.setenv("TRITON_CACHE_DIR", str(tmp_path))

    def build(call, architecture=90):
        found = []
        for launch in kernels.launches(call, monkeypatch):
            kernel = kernels.compile_for(architecture, launch, tmp_path)
            # A few registers outside the loops may make room for another program.
            assert kernel.spills == 0, (kernel.name, "spills in a loop")
            assert kernel.stack <= MOST_STACK, (kernel.name, "spills", kernel.stack)
            assert kernel.shared <= kernels.SHARED_MEMORY[architecture], kernel.name
            found.append(kernel)
        return found

    return build


@pytest.mark.parametrize(
    ("architecture", "head_dim", "storage"),
    [
        (80, 128, None),
        (89, 256, F8),
        (90, 128, None),
        (100, 128, F8),
    ],
)
def test_decode_attention(compiled, architecture, head_dim, storage):
    split, join = compiled(
        kernels.decode(BF16, head_dim, architecture, storage=storage), architecture
    )
    assert WIDE_AND_IN_FLIGHT in split.ptx
    assert split.tiles_in_flight >= 2
    assert (WARPS_PRODUCT if storage is None else FP8_PRODUCT) in split.ptx
    assert "ld.global.v4" in join.ptx


def test_decode_attention_behind_a_window_without_groups(compiled):
    (split,) = compiled(kernels.decode(BF16, 80, 90, heads=8, splits=1, window=4096))
    assert WIDE_AND_IN_FLIGHT in split.ptx
    assert split.tiles_in_flight >= 2


# Before sm_90 registers decide, which are as many on all: one architecture for each head size.
@pytest.mark.parametrize(
    ("architecture", "head_dim", "storage"),
    [
        (80, 128, None),
        (86, 256, None),
        (89, 128, F8),
        (90, 128, None),
        (90, 256, None),
        (100, 64, None),
    ],
)
def test_prefill_attention(compiled, architecture, head_dim, storage):
    call = kernels.prefill(BF16, head_dim, architecture, storage=storage)
    small, large, _ = compiled(call, architecture)
    for tile in (small, large):
        assert WIDE_AND_IN_FLIGHT in tile.ptx
        assert tile.tiles_in_flight >= 2
        product = PRODUCTS[architecture]
        assert (product if storage is None else product.replace("bf16", "f16")) in tile.ptx


@pytest.mark.skipif(
    "COMPILE_EVERY_KERNEL" not in os.environ, reason="takes an hour: COMPILE_EVERY_KERNEL=1"
)
@pytest.mark.parametrize("group", [1, 2, 3, 4, 8])
@pytest.mark.parametrize("head_dim", [64, 80, 96, 128, 192, 256])
@pytest.mark.parametrize("types", [(BF16, None), (F16, None), (F32, None), (BF16, F8)], ids=str)
@pytest.mark.parametrize("architecture", [80, 86, 89, 90, 100])
def test_attention_of_every_kind(compiled, architecture, head_dim, types, group):
    dtype, storage = types
    if storage is F8 and architecture < 89:
        pytest.skip("float8 from sm_89 on")
    how = {"heads": 8 * group, "storage": storage}
    compiled(kernels.decode(dtype, head_dim, architecture, **how), architecture)
    compiled(kernels.prefill(dtype, head_dim, architecture, **how), architecture)


# Gemma 2 and GPT-OSS.
@pytest.mark.parametrize(
    ("head_dim", "heads", "rules", "storage"),
    [
        (256, 16, {"softcap": 50.0}, F8),
        (64, 64, {"sinks": kernels.tensor(64, dtype=BF16)}, None),
    ],
    ids=str,
)
def test_attention_with_softcaps_and_sinks(compiled, head_dim, heads, rules, storage):
    how = {"heads": heads, "storage": storage, "window": 128, **rules}
    kernel, _ = compiled(kernels.decode(BF16, head_dim, 90, **how))
    assert kernel.tiles_in_flight >= 2
    compiled(kernels.prefill(BF16, head_dim, 90, **how))


def test_damage_of_a_query_outlives_its_bounds(compiled):
    split, _ = compiled(kernels.decode(BF16, 128, 90, storage=F8))
    # Of minimum and maximum on a GPU, the number comes out where the other is NaN.
    assert re.search(r"selp\.f32\s+%\w+, %\w+, 0f7FC00000", split.ptx)


def test_attention_in_float32_takes_no_tf32(compiled):
    for call in (kernels.decode(F32, 256, 90, splits=1), kernels.prefill(F32, 64, 90)):
        for kernel in compiled(call):
            assert "tf32" not in kernel.ptx


def test_keys_and_values_in_eight_bits(compiled):
    for kernel in compiled(lambda: kernels.elementwise(BF16, F8), 89):
        assert "st.global.v4" in kernel.ptx or "st.global.v2" in kernel.ptx, kernel.name


def test_elementwise_kernels(compiled):
    for kernel in compiled(lambda: kernels.elementwise(BF16)):
        assert "ld.global.v4" in kernel.ptx, kernel.name
        assert "st.global.v4" in kernel.ptx, kernel.name


@pytest.mark.parametrize("size", [4096, 14336, 28672])
@pytest.mark.parametrize("architecture", [89, 100])
def test_rows_become_fp8(compiled, architecture, size):
    (kernel,) = compiled(lambda: kernels.quantize_rows(BF16, size), architecture)
    assert "ld.global.v4" in kernel.ptx
    assert "st.global.v4" in kernel.ptx
    # By the hardware, which keeps NaN.
    assert "cvt.rn.satfinite.e4m3x2" in kernel.ptx


@pytest.mark.parametrize("dtype", [BF16, F32], ids=str)
def test_sampling(compiled, dtype):
    (kernel,) = compiled(lambda: kernels.sample(dtype, 151_936))
    loops = kernel.inner_loops()
    assert len(loops) == 2
    for loop in loops:
        assert "ld.global" in loop
        # Lanes are added up after a pass over the logits, and nothing is divided in one.
        assert not re.search(r"\bbar\.|\bshfl\.|\bdiv\.|\bld\.shared", loop)


@pytest.mark.parametrize("architecture", [80, 90])
@pytest.mark.parametrize(("kind", "most"), [("int4", 400), ("int8", 470), ("fp8", 540)])
def test_products_of_few_rows_with_quantized_weights(compiled, architecture, kind, most):
    product, join = compiled(partial(kernels.quantized, kind, 16), architecture)
    assert WIDE_AND_IN_FLIGHT in product.ptx
    assert product.tiles_in_flight >= 2
    assert WARPS_PRODUCT in product.ptx
    # Of a warp, for 32 x 128 weights.
    assert product.loop_instructions <= most
    # The smallest codes and FP8 values are subnormal until they are scaled.
    assert ".ftz" not in product.ptx
    assert "ld.global.v4" in join.ptx


@pytest.mark.parametrize(("kind", "most"), [("int4", 320), ("int8", 420), ("fp8", 460)])
def test_products_of_one_row_with_quantized_weights(compiled, kind, most):
    product, _ = compiled(partial(kernels.quantized, kind, 1))
    assert product.tiles_in_flight >= 2
    assert product.loop_instructions <= most


@pytest.mark.parametrize(
    ("architecture", "kind"), [(80, "int8"), (86, "int4"), (89, "fp8"), (90, "int4"), (100, "fp8")]
)
def test_products_of_many_rows_with_quantized_weights(compiled, architecture, kind):
    product, _ = compiled(partial(kernels.quantized, kind, 100), architecture)
    assert WIDE_AND_IN_FLIGHT in product.ptx
    assert product.tiles_in_flight >= 2
    assert PRODUCTS[architecture] in product.ptx
    (dequantize,) = compiled(partial(kernels.quantized, kind, 512), architecture)
    assert "st.global.v4" in dequantize.ptx


@pytest.mark.parametrize(("kind", "group"), [("int4", 32), ("int8", 64), ("fp8", 4096)])
def test_products_with_quantized_weights_in_float16_and_float32(compiled, kind, group):
    for dtype, tokens in ((F16, 100), (F32, 16)):
        call = partial(kernels.quantized, kind, tokens, group=group, dtype=dtype)
        for kernel in compiled(call, 86):
            assert not re.search(r"\.ftz|tf32", kernel.ptx)


# Down of Mixtral, gate and up of Qwen3-30B-A3B, and sizes that no tile divides.
@pytest.mark.parametrize(
    ("architecture", "dtype", "weights"),
    [
        *((each, BF16, (8, 4096, 14336)) for each in sorted(kernels.SHARED_MEMORY)),
        (90, BF16, (128, 1536, 2048)),
        (86, F16, (8, 1000, 776)),
    ],
    ids=str,
)
def test_products_of_experts(compiled, architecture, dtype, weights):
    few, some, many = (
        compiled(lambda pairs=pairs: kernels.grouped(dtype, pairs, *weights), architecture)[0]
        for pairs in (8, FEW_PAIRS * weights[0] + 1, MANY_PAIRS * weights[0] + 1)
    )
    for tile in (few, some, many):
        assert WIDE_AND_IN_FLIGHT in tile.ptx
        # Two steps of both sides.
        assert tile.tiles_in_flight >= 4
        assert tile.shared <= min(kernels.SHARED_MEMORY.values())
    suffix = "bf16.bf16.f32" if dtype is BF16 else "f16.f16.f32"
    assert WARPS_PRODUCT.replace("bf16.bf16.f32", suffix) in few.ptx
    for tile in (some, many):
        assert PRODUCTS[architecture].replace("bf16.bf16.f32", suffix) in tile.ptx


def test_products_of_experts_in_float32_take_no_tf32(compiled):
    for pairs in (8, FEW_PAIRS * 8 + 1, MANY_PAIRS * 8 + 1):
        (kernel,) = compiled(lambda pairs=pairs: kernels.grouped(F32, pairs, 8, 4096, 14336), 86)
        assert WIDE_AND_IN_FLIGHT in kernel.ptx
        assert "tf32" not in kernel.ptx
