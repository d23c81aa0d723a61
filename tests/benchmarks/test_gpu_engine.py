"""The GPU benchmark runs to its end in tiny shapes, on CPU in Triton's interpreter."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

pytest.importorskip("triton", reason="Triton is not installed")

ROOT = Path(__file__).parents[2]


def test_every_part_runs_in_small(tmp_path):
    written = tmp_path / "figures.json"
    script = ROOT / "benchmarks" / "gpu_engine.py"
    done = subprocess.run(
        [sys.executable, str(script), "--smoke", "--json", str(written)],
        cwd=ROOT,
        env={**os.environ, "PYTHONPATH": str(ROOT), "CUDA_VISIBLE_DEVICES": ""},
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    figures = json.loads(written.read_text())
    assert figures == json.loads(done.stdout.splitlines()[-1])
    assert figures["smoke"]
    assert figures["checks"]
    assert figures["alone"]["graphs_on_overlap_on"]["tokens_per_s"] > 0
    assert figures["many"]["equal_answers"] == [figures["many"]["requests"]]
