"""Whether the engine is right on this device: its own check, and the tests that need a GPU."""

import json
import os
import subprocess
import sys
from collections import Counter
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import torch

from backend.check import QWEN3_600M
from backend.executor.self_check import SelfCheck, self_check
from backend.kernels.attention import BlockTables
from gpu.machine import Machine, Note
from gpu.shapes import random_model

ROOT = Path(__file__).parents[2]
_TEXT = 300
"""Characters that are kept of a failure."""


def random_tables(machine: Machine, lengths: list[int]) -> tuple[BlockTables, int]:
    counts = [-(-length // 16) for length in lengths]
    blocks = torch.randperm(sum(counts)) + 1
    starts = torch.tensor([0, *counts[:-1]]).cumsum(0)
    return BlockTables(
        blocks.to(machine.device, torch.int32), starts.to(machine.device, torch.int32)
    ), sum(counts)


def backend_check(machine: Machine, note: Note) -> None:
    """Run ``refrain backend check``, then the self-check of a model with a sliding window."""
    command = [sys.executable, "-m", "backend", "check"]
    if machine.smoke:
        command += ["--device", "cpu", "--model", "backend/demo/model"]
    done = subprocess.run(command, cwd=ROOT, stdout=subprocess.PIPE, text=True, check=False)
    print(done.stdout)
    # Bad usage has no line of JSON.
    last = done.stdout.rstrip().rpartition("\n")[2] or '{"passed": false}'
    note("backend_check", json.loads(last) | {"exit_code": done.returncode})
    values = QWEN3_600M | {
        "num_hidden_layers": 1,
        "sliding_window": 50,
        "architectures": ["MistralForCausalLM"],
    }
    network = random_model(machine, values).network
    proved = self_check(network, machine.device, machine.dtype, 4096)
    note("self_check_with_window", short(proved))


def short(proved: SelfCheck) -> dict[str, Any]:
    """Return how much was compared, what came nearest to its bound, and what was replaced."""
    nearest = max(proved.findings, key=lambda each: each.difference / max(each.allowed, 1e-9))
    return {
        "comparisons": len(proved.findings),
        "nearest_to_its_bound": str(nearest),
        "replaced": list(proved.detail),
    }


def gpu_tests(machine: Machine, note: Note) -> None:
    """Run tests/gpu to its end; what is known so far is noted after each test."""
    if find_spec("pytest") is None or not (ROOT / "tests" / "gpu").is_dir():
        note("skipped", "pytest or tests/gpu is missing here")
        return
    import pytest  # noqa: PLC0415 (the engine's image has none)

    os.chdir(ROOT)
    what = "tests/gpu/test_kernels_cuda.py" if machine.smoke else "tests/gpu"
    arguments = [what, "-q", "-p", "no:cacheprovider", "--tb=short"]
    # Where a test hangs, the log says in which line.
    arguments += ["-o", "faulthandler_timeout=60"]
    code = pytest.main(arguments, plugins=[_Results(note)])
    note("exit_code", int(code))


class _Results:
    """A plugin of pytest's that notes counts, failures and the test that runs."""

    def __init__(self, note: Note) -> None:
        self._note = note
        self._counts: Counter[str] = Counter()
        self._failures: dict[str, str] = {}

    def pytest_runtest_logstart(self, nodeid: str) -> None:
        self._note("running", nodeid)

    def pytest_runtest_logfinish(self) -> None:
        self._note("running", None)

    def pytest_runtest_logreport(self, report: Any) -> None:
        if report.when == "call" or report.outcome != "passed":
            self._add(report)

    def pytest_collectreport(self, report: Any) -> None:
        if report.outcome == "failed":
            self._add(report)

    def _add(self, report: Any) -> None:
        self._counts[report.outcome] += 1
        if report.outcome == "failed":
            crash = getattr(report.longrepr, "reprcrash", None)
            text = str(report.longrepr) if crash is None else crash.message
            self._failures[report.nodeid] = text[-_TEXT:] if crash is None else text[:_TEXT]
            self._note("failures", self._failures)
        self._note("counts", dict(self._counts))
