"""The device: what it is, how fast it copies, how to time what runs on it."""

import shutil
import statistics
import subprocess
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
import triton
from torch import Tensor

from backend.check import copy_bandwidth

Note = Callable[[str, Any], None]
"""Keeps a figure under a name; it is written to disk before the call returns."""

_SMI_FIELDS = (
    *("driver_version", "pstate", "clocks.sm", "clocks.mem", "clocks.max.sm", "clocks.max.mem"),
    *("power.limit", "temperature.gpu", "ecc.mode.current", "mig.mode.current"),
)
# Dense bfloat16 with sums in float32, by the data sheets: TFLOPS by how torch's name begins.
_PEAKS = {
    "A100": 312,
    "B200": 2250,
    "GeForce RTX 3090": 71,
    "GeForce RTX 4090": 165,
    "H100 80GB HBM3": 989,
    "H100 NVL": 835,
    "H100 PCIe": 756,
    "H200": 989,
    "L4": 121,
    "L40": 181,
    "L40S": 362,
}


class NoDeviceError(Exception):
    """torch finds no CUDA device."""


@dataclass(frozen=True)
class Machine:
    """Where things run; ``smoke`` is tiny and on CPU, in Triton's interpreter."""

    device: torch.device
    dtype: torch.dtype
    smoke: bool

    @classmethod
    def here(cls, *, smoke: bool) -> "Machine":
        if smoke:
            return cls(torch.device("cpu"), torch.float32, smoke=True)
        if not torch.cuda.is_available():
            built = torch.version.cuda
            why = "the build has no CUDA" if built is None else f"built for CUDA {built}"
            raise NoDeviceError(f"torch {torch.__version__} finds no CUDA device: {why}")
        return cls(torch.device("cuda"), torch.bfloat16, smoke=False)

    def facts(self) -> dict[str, Any]:
        facts: dict[str, Any] = {
            "torch": torch.__version__,
            "triton": triton.__version__,
            "cuda": torch.version.cuda,
        }
        if not self.smoke:
            properties = torch.cuda.get_device_properties(self.device)
            free, total = torch.cuda.mem_get_info(self.device)
            facts |= {
                "device": properties.name,
                "capability": f"{properties.major}.{properties.minor}",
                "processors": properties.multi_processor_count,
                "memory_gib": total / 2**30,
                "free_gib": free / 2**30,
            }
        return facts

    @property
    def name(self) -> str:
        return "CPU" if self.smoke else torch.cuda.get_device_name(self.device)

    @property
    def peak_flops(self) -> float | None:
        """What the data sheet says; None: this card's is not known here."""
        name = self.name.removeprefix("NVIDIA ")
        found = max((each for each in _PEAKS if name.startswith(each)), key=len, default=None)
        return None if found is None else _PEAKS[found] * 1e12

    def copy_rate(self) -> float:
        """Return bytes read and written per second by a copy."""
        return copy_bandwidth(self.device, 2**12 if self.smoke else 2**30)

    def product_rate(self) -> float:
        """Return operations per second of a large product of torch's."""
        size = 64 if self.smoke else 8192
        left, right = (self.random(size, size) for _ in range(2))
        return 2 * size**3 / self.seconds([partial(torch.mm, left, right)], 10)

    def free_bytes(self) -> int:
        if self.smoke:
            return 0
        torch.cuda.empty_cache()
        return int(torch.cuda.mem_get_info(self.device)[0])

    def synchronise(self) -> None:
        if not self.smoke:
            torch.cuda.synchronize()

    def random(self, *shape: int, dtype: torch.dtype | None = None) -> Tensor:
        return torch.randn(shape, device=self.device, dtype=torch.float32).to(dtype or self.dtype)

    def seconds(self, calls: Sequence[Callable[[], Any]], repetitions: int = 30) -> float:
        """Return the median time of one of ``calls``, which take turns over inputs of their own.

        On a GPU they are captured as one graph, so that launching costs nothing.
        """
        if self.smoke:
            start = time.perf_counter()
            for call in calls:
                call()
            return (time.perf_counter() - start) / len(calls)
        stream = torch.cuda.Stream()  # type: ignore[no-untyped-call]
        stream.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(stream):
            for _ in range(3):
                for call in calls:
                    call()
        torch.cuda.current_stream().wait_stream(stream)
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            for call in calls:
                call()
        graph.replay()
        times: list[float] = []
        for _ in range(repetitions):
            start_event, end_event = (
                torch.cuda.Event(enable_timing=True)  # type: ignore[no-untyped-call]
                for _ in range(2)
            )
            start_event.record()
            graph.replay()
            end_event.record()
            end_event.synchronize()
            times.append(float(start_event.elapsed_time(end_event)) / 1000 / len(calls))
        return statistics.median(times)


def facts(machine: Machine, note: Note) -> None:
    """Say what the machine is, and what its driver says of clocks and power."""
    note("machine", machine.facts())
    note("driver", _driver(machine))
    note("copy_bytes_per_s", machine.copy_rate())
    note("product_flops_per_s", machine.product_rate())
    note("peak_flops_per_s", machine.peak_flops)


def _driver(machine: Machine) -> dict[str, str] | str:
    """Return what nvidia-smi says of the card, or why it says nothing."""
    program = shutil.which("nvidia-smi")
    if machine.smoke or program is None:
        return "nvidia-smi is not installed"
    # The driver counts all cards, torch only the visible ones.
    identity = getattr(torch.cuda.get_device_properties(machine.device), "uuid", None)
    which = [] if identity is None else [f"--id=GPU-{identity}"]
    try:
        done = subprocess.run(
            [program, f"--query-gpu={','.join(_SMI_FIELDS)}", "--format=csv,noheader", *which],
            capture_output=True,
            text=True,
            timeout=10,
            check=False,
        )
    except (OSError, subprocess.SubprocessError) as error:
        return str(error)
    if done.returncode:
        return (done.stderr or done.stdout).strip()[:300]
    values = done.stdout.splitlines()[0].split(",")
    return dict(zip(_SMI_FIELDS, (value.strip() for value in values), strict=True))
