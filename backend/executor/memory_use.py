"""How much memory an engine's process and its device use."""

import os
from pathlib import Path

import torch

from backend.scheduler.stats import MemoryUse

_STATM = Path("/proc/self/statm")
_FRESH_SECONDS = 1.0


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
