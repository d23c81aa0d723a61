"""What a failure means: the device is lost, memory was short, or this step alone is hit."""

from enum import Enum, auto

import torch


class DeviceLostError(Exception):
    """The device's state is gone: nothing more can be computed by this process."""


class Fault(Enum):
    """Who is hit by a failed step."""

    STEP = auto()
    MEMORY = auto()
    DEVICE = auto()


def fault_of(error: Exception) -> Fault:
    """Tell by the exception that launching or collecting a step raised."""
    if isinstance(error, MemoryError | torch.OutOfMemoryError):
        return Fault.MEMORY
    if isinstance(error, RuntimeError):
        text = str(error)
        # On CPU, torch has no type of its own for memory that it does not get.
        if "allocate memory" in text:
            return Fault.MEMORY
        # An error of a kernel is sticky: every later call fails as well.
        if isinstance(error, torch.AcceleratorError) or "CUDA error" in text:
            return Fault.DEVICE
    return Fault.STEP
