"""How much memory there is for KV blocks, and how much an engine uses."""

import logging
import os
from dataclasses import dataclass
from pathlib import Path

import torch

from backend.executor.kv_cache import block_bytes
from backend.models.config import ModelLoadError, ModelShape
from backend.scheduler.block_pool import BLOCK_SIZE, blocks_for
from backend.scheduler.stats import MemoryUse

logger = logging.getLogger(__name__)

_CPU_SHARE = 0.25
_CUDA_SHARE = 0.85
_MIB = 2**20
_STATM = Path("/proc/self/statm")
_FRESH_SECONDS = 1.0


@dataclass(frozen=True, slots=True)
class MemoryReading:
    """A device's memory in bytes, weights loaded.

    ``weights`` is what they take, ``step`` what the largest step takes. All that this process takes
    is to be at most the share ``utilization`` of ``total``; the rest is for graphs, libraries'
    workspaces, fragmentation and other processes.
    """

    total: int
    free: int
    weights: int
    step: int
    utilization: float

    @property
    def spare(self) -> int:
        """What is left for the KV pool."""
        return min(int(self.total * self.utilization) - self.weights, self.free) - self.step

    def __str__(self) -> str:
        return (
            f"{self.utilization:g} of {self.total // _MIB} MiB, "
            f"less {self.weights // _MIB} for weights, at most {self.free // _MIB} that are free, "
            f"less {self.step // _MIB} for the largest step = {self.spare // _MIB} MiB"
        )


@dataclass(frozen=True, slots=True)
class Sizing:
    """``num_blocks`` of KV, and the context, never longer than these blocks hold."""

    num_blocks: int
    max_model_len: int


def size_cache(
    config: ModelShape,
    *,
    device: torch.device,
    dtype: torch.dtype,
    max_num_seqs: int,
    max_model_len: int | None,
    kv_bytes: int | None,
    reading: MemoryReading | None = None,
    utilization: float = 1.0,
    ranks: int = 1,
    draft_block_bytes: int = 0,
    state_bytes: int = 0,
) -> Sizing:
    """Decide the size of the pool, weights already loaded.

    Without ``kv_bytes`` the pool takes what a ``reading`` leaves, else a share of the memory, on
    CUDA within ``utilization``. On the CPU it takes no more than ``max_num_seqs`` full contexts
    need, and leaves as much to each of the other ``ranks``. On CUDA the memory has no other use,
    and the prefix cache fills it. A draft model takes ``draft_block_bytes`` of each block.
    ``state_bytes`` are not allocated yet; a ``reading`` knows of them. Raises ModelLoadError when
    the wishes contradict model or memory.
    """
    wanted_len = context_length(config, max_model_len)
    per_block = block_bytes(config, dtype) + draft_block_bytes
    if kv_bytes is None:
        if reading is None:
            spare = _spare_bytes(device, utilization, ranks) - state_bytes
        else:
            spare = reading.spare
            logger.info("memory for the KV pool on %s: %s", device, reading)
        num_blocks = spare // per_block
        if device.type != "cuda":
            num_blocks = min(num_blocks, max_num_seqs * blocks_for(wanted_len))
    else:
        num_blocks = kv_bytes // per_block
    if num_blocks < 1:
        raise ModelLoadError(f"no memory for one KV block of {per_block} bytes")
    return Sizing(num_blocks, min(wanted_len, num_blocks * BLOCK_SIZE))


def context_length(config: ModelShape, max_model_len: int | None) -> int:
    """Return the context that is wanted. Raises ModelLoadError when the model has none as long."""
    wanted_len = config.max_positions if max_model_len is None else max_model_len
    if not 1 < wanted_len <= config.max_positions:
        raise ModelLoadError(
            f"max-model-len {wanted_len}: the model's context is {config.max_positions} tokens"
        )
    return wanted_len


def _spare_bytes(device: torch.device, utilization: float, ranks: int) -> int:
    if device.type == "cuda":
        free, total = torch.cuda.mem_get_info(device)
        allowed = int(total * utilization) - torch.cuda.memory_allocated(device)
        return int(min(free, allowed) * _CUDA_SHARE)
    # Pages of the pool that are never written cost nothing, so a share of the total is safe.
    return int(os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") * _CPU_SHARE / ranks)


class MemoryMeter:
    """Asks the system once a second at most."""

    def __init__(self, device: torch.device) -> None:
        """``device`` is the engine's."""
        self._device = device
        self._asked_at = -float("inf")
        self._use: MemoryUse | None = None

    def read(self, now: float) -> MemoryUse | None:
        """Return what is in use; None where the system does not tell."""
        if now - self._asked_at >= _FRESH_SECONDS:
            self._asked_at = now
            self._use = self._ask()
        return self._use

    def _ask(self) -> MemoryUse | None:
        try:
            pages = int(_STATM.read_text().split()[1])
        except (OSError, ValueError, IndexError):
            return None  # not Linux
        resident = pages * os.sysconf("SC_PAGE_SIZE")
        if self._device.type != "cuda":
            return MemoryUse(resident)
        free, total = torch.cuda.mem_get_info(self._device)
        return MemoryUse(resident, total - free, total)
