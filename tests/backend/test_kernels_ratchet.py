"""What compiled kernels take from a GPU is written down, and may only get better.

``kernel_ratchet.json`` has a row for each kernel and architecture. A change that makes kernels
better writes it anew: ``KERNEL_RATCHET=write pytest tests/backend/test_kernels_ratchet.py``. A row
that has to get worse, as where fewer turns have more registers, is deleted by hand before.
"""

import json
import os
from pathlib import Path

import pytest
import torch

triton = pytest.importorskip("triton", reason="Triton is not installed")

import compiled_kernels as kernels

ROWS = Path(__file__).with_name("kernel_ratchet.json")
RECORDED = json.loads(ROWS.read_text())
WRITES = os.environ.get("KERNEL_RATCHET") == "write"
# Of these more is better.
MORE = {"copies in flight", "programs"}

pytestmark = [
    # Triton 3.9 announces another default of a later version.
    pytest.mark.filterwarnings("ignore:TRITON_DEFAULT_FP_FUSION"),
    pytest.mark.skipif(
        not all((kernels.BINARIES / name).exists() for name in ("ptxas", "cuobjdump")),
        reason="this Triton brings no ptxas and cuobjdump",
    ),
    pytest.mark.skipif(
        triton.__version__ != RECORDED["triton"] and not WRITES,
        reason=f"kernel_ratchet.json is of Triton {RECORDED['triton']}",
    ),
]

BF16, FP8 = torch.bfloat16, torch.float8_e4m3fn
CALLS = {
    "decode": lambda architecture: kernels.decode(BF16, 128, architecture),
    "decode, FP8 cache": lambda architecture: kernels.decode(BF16, 128, architecture, storage=FP8),
    "prefill": lambda architecture: kernels.prefill(BF16, 128, architecture),
    "prefill, FP8 cache": lambda architecture: kernels.prefill(
        BF16, 128, architecture, storage=FP8
    ),
    "int4 product, one row": lambda architecture: lambda: kernels.quantized("int4", 1),
    "sampler": lambda architecture: lambda: kernels.sample(BF16, 151_936),
}
LARGE_TILES = {"prefill", "prefill, FP8 cache"}


def measured(name, architecture, monkeypatch, folder):
    monkeypatch.setenv("TRITON_CACHE_DIR", str(folder))
    launches = kernels.launches(CALLS[name](architecture), monkeypatch)
    launch = launches[1 if name in LARGE_TILES else 0]
    kernel = kernels.compile_for(architecture, launch, folder)
    limits = kernels.PROCESSORS[architecture]
    return {
        "registers": kernel.registers,
        "shared bytes": kernel.shared,
        "spills in loops": kernel.spills,
        "copies in flight": kernel.tiles_in_flight,
        "instructions of a loop": max(map(len, kernel.loops)),
        "programs": limits.programs(kernel.registers, kernel.shared, kernel.num_warps),
    }


def check(name, architecture, monkeypatch, folder):
    found = measured(name, architecture, monkeypatch, folder)
    row = f"{name}, sm_{architecture}"
    recorded = RECORDED["rows"].get(row, found if WRITES else {})
    worse = {
        what: f"{value}, recorded {recorded[what]}"
        for what, value in found.items()
        if (value < recorded[what] if what in MORE else value > recorded[what])
    }
    assert not worse, row
    if WRITES:
        now = json.loads(ROWS.read_text())
        now["triton"], now["rows"][row] = triton.__version__, found
        ROWS.write_text(json.dumps(now, indent=1) + "\n")


@pytest.mark.parametrize("name", CALLS)
def test_kernels_of_hopper_get_no_worse(name, monkeypatch, tmp_path):
    check(name, 90, monkeypatch, tmp_path)


@pytest.mark.parametrize("architecture", [80, 86, 89, 100])
@pytest.mark.parametrize("name", CALLS)
def test_kernels_of_other_architectures_get_no_worse(name, architecture, monkeypatch, tmp_path):
    if "FP8 cache" in name and architecture < 89:
        assert f"{name}, sm_{architecture}" not in RECORDED["rows"]
        return
    check(name, architecture, monkeypatch, tmp_path)
