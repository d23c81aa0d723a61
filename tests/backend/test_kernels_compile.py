"""The large kernels compile for Hopper in bfloat16, where no GPU is needed: Triton brings ptxas.

What the interpreter cannot show: types that only the compiler checks, spilled registers, and
whether loads are pipelined and products run on the matrix units.
"""

import subprocess
from pathlib import Path

import pytest

pytest.importorskip("triton", reason="Triton is not installed")

import triton
from triton.backends.compiler import GPUTarget
from triton.compiler import ASTSource

from backend.kernels import decode_attention, prefill_attention, rotary, sampling

CUOBJDUMP = Path(triton.__file__).parent / "backends" / "nvidia" / "bin" / "cuobjdump"

# Triton 3.9 announces another default of a later version.
pytestmark = pytest.mark.filterwarnings("ignore:TRITON_DEFAULT_FP_FUSION")

HEADS = {"GROUP": 4, "HEAD_DIM": 128, "BLOCK_SIZE": 16, "BLOCK_D": 128, "BLOCK_N": 64}
B, I32, F32 = "*bf16", "*i32", "*fp32"


@pytest.fixture(autouse=True)
def _own_cache(monkeypatch, tmp_path):
    monkeypatch.setenv("TRITON_CACHE_DIR", str(tmp_path))


def compiled(kernel, types, constants, **options):
    """Compile as a launch would: addresses and strides are multiples of 16."""
    names = list(kernel.arg_names)
    arguments = [name for name in names if name not in constants]
    signature = dict(zip(arguments, types, strict=True)) | dict.fromkeys(constants, "constexpr")
    aligned = [["tt.divisibility", 16]]
    attributes = {
        (names.index(name),): aligned
        for name, kind in zip(arguments, types, strict=True)
        if kind[0] in "*i"
    }
    source = ASTSource(kernel, signature, constants, attributes)
    return triton.compile(source, target=GPUTarget("cuda", 90, 32), options=options)


def assert_nothing_is_spilled(kernel, folder):
    binary = folder / "kernel.cubin"
    binary.write_bytes(kernel.asm["cubin"])
    told = subprocess.run(
        [CUOBJDUMP, "--dump-resource-usage", binary], capture_output=True, text=True, check=True
    )
    assert " LOCAL:0 " in told.stdout, told.stdout


def test_decode_attention(tmp_path):
    kernel = compiled(
        decode_attention._attend_split,
        [B, B, I32, I32, I32, B, F32, F32, "fp32", "i32", "i64"],
        HEADS | {"WINDOW": 0, "SPLITS": 8, "BLOCK_M": 16},
        num_warps=4,
        num_stages=3,
    )
    assert_nothing_is_spilled(kernel, tmp_path)
    assert "cp.async.c" in kernel.asm["ptx"]
    assert "mma.sync" in kernel.asm["ptx"]


def test_prefill_attention(tmp_path):
    kernel = compiled(
        prefill_attention._attend_tile,
        [B, B, I32, I32, B, "fp32", "i32", "i64"],
        HEADS | {"WINDOW": 0, "BLOCK_M": 128},
        num_warps=8,
        num_stages=3,
    )
    assert_nothing_is_spilled(kernel, tmp_path)
    assert "cp.async.c" in kernel.asm["ptx"]
    assert "wgmma.mma_async" in kernel.asm["ptx"]


def test_sampling(tmp_path):
    kernel = compiled(
        sampling._sample,
        [B, F32, F32, F32, F32, I32, "*i64", "i32", "i32"],
        {"BLOCK": 4096, "PIVOTS": 4, "FURTHEST": sampling._FURTHEST}
        | {"MIN_TEMPERATURE": 1e-5, "NOT_FINITE": -1},
        num_warps=16,
    )
    assert_nothing_is_spilled(kernel, tmp_path)


def test_rotary(tmp_path):
    kernel = compiled(
        rotary._rotate_and_write,
        [B, F32, I32, B, B, "i32", "i64", "fp32"],
        {"QUERY_HEADS": 32, "KV_HEADS": 8, "HEAD_DIM": 128, "ROTATED": 128, "NORM": True}
        | {"KEEP_KEYS": False, "BLOCK_SIZE": 16, "BLOCK_H": 8, "BLOCK_D": 128},
    )
    assert_nothing_is_spilled(kernel, tmp_path)
