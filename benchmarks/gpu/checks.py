"""Every kernel against its oracle, on the device and in the type that is timed."""

import torch

from backend.check import QWEN3_600M
from backend.executor.self_check import self_check
from backend.kernels.attention import BlockTables
from gpu.machine import Machine
from gpu.shapes import random_model


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
    """Return the greatest difference of each kernel. Raises CheckFailedError."""
    differences: dict[str, float] = {}
    for window in (None, 50):
        windowed = {"sliding_window": window, "architectures": ["MistralForCausalLM"]}
        values = {**QWEN3_600M, "num_hidden_layers": 1} | (windowed if window else {})
        network = random_model(machine, values).network
        proved = self_check(network, machine.device, machine.dtype, 4096)
        if proved.detail:
            raise CheckFailedError("; ".join(proved.detail))
        for each in proved.findings:
            differences[f"{each.kernel}, {each.shape}"] = each.difference
    return differences
