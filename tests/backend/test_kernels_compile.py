"""Kernels compile for real GPUs as they are launched, where none is: Triton brings ptxas.

What the interpreter cannot show: types that only the compiler checks, spilled registers, shared
memory, and whether loads are wide and in flight and products run on the matrix units.
"""

import pytest
import torch

pytest.importorskip("triton", reason="Triton is not installed")

import compiled_kernels as kernels

pytestmark = [
    # Triton 3.9 announces another default of a later version.
    pytest.mark.filterwarnings("ignore:TRITON_DEFAULT_FP_FUSION"),
    pytest.mark.skipif(
        not all((kernels.BINARIES / name).exists() for name in ("ptxas", "cuobjdump")),
        reason="this Triton brings no ptxas and cuobjdump",
    ),
]

BF16, F32 = torch.bfloat16, torch.float32
WIDE_AND_IN_FLIGHT = "cp.async.cg.shared.global"


@pytest.fixture
def compiled(monkeypatch, tmp_path):
    """Compile all that a call launches; every kernel must fit its registers and memory."""
    monkeypatch.setenv("TRITON_CACHE_DIR", str(tmp_path))

    def build(call, architecture=90):
        found = []
        for launch in kernels.launches(call, monkeypatch):
            kernel = kernels.compile_for(architecture, launch, tmp_path)
            assert kernel.stack == 0, (kernel.name, "spills", kernel.stack)
            assert kernel.shared <= kernels.SHARED_MEMORY[architecture], kernel.name
            found.append(kernel)
        return found

    return build


@pytest.mark.parametrize(("architecture", "head_dim"), [(90, 128), (90, 256), (80, 128)])
def test_decode_attention(compiled, architecture, head_dim):
    split, join = compiled(kernels.decode(BF16, head_dim), architecture)
    assert WIDE_AND_IN_FLIGHT in split.ptx
    assert "mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32" in split.ptx
    assert "ld.global.v4" in join.ptx


def test_decode_attention_behind_a_window_without_groups(compiled):
    (split,) = compiled(kernels.decode(BF16, 80, heads=8, splits=1, window=4096))
    assert WIDE_AND_IN_FLIGHT in split.ptx


@pytest.mark.parametrize("head_dim", [128, 256])
def test_prefill_attention(compiled, head_dim):
    (tile,) = compiled(kernels.prefill(BF16, head_dim))
    assert WIDE_AND_IN_FLIGHT in tile.ptx
    assert "wgmma.mma_async.sync.aligned.m64n" in tile.ptx
    assert ".f32.bf16.bf16" in tile.ptx


def test_attention_in_float32_takes_no_tf32(compiled):
    for call in (kernels.decode(F32, 256, splits=1), kernels.prefill(F32, 64)):
        (kernel,) = compiled(call)
        assert "tf32" not in kernel.ptx


def test_elementwise_kernels(compiled):
    for kernel in compiled(lambda: kernels.elementwise(BF16)):
        assert "ld.global.v4" in kernel.ptx, kernel.name
        assert "st.global.v4" in kernel.ptx, kernel.name


def test_sampling(compiled):
    (kernel,) = compiled(lambda: kernels.sample(BF16, 128_256))
    assert "ld.global.v4" in kernel.ptx


@pytest.mark.parametrize("architecture", sorted(kernels.SHARED_MEMORY))
@pytest.mark.parametrize("kind", ["int4", "int8", "fp8"])
def test_products_with_quantized_weights(compiled, architecture, kind):
    (one,) = compiled(lambda: kernels.quantized(kind, 1), architecture)
    assert "mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32" in one.ptx
    (many,) = compiled(lambda: kernels.quantized(kind, 512), architecture)
    for kernel in (one, many):
        assert "cp.async.cg.shared.global" in kernel.ptx
        # The smallest FP8 values are subnormal until they are scaled.
        assert "mul.ftz" not in kernel.ptx
