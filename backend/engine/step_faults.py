"""What a failure means: the device is lost, memory was short, or this step alone is hit."""

from enum import Enum, auto

# torch has a type of its own for memory that its allocator does not get, and for nothing else: not
# for that of the host, of a graph, of a kernel's code, of cuBLAS.
_NO_MEMORY = (
    "allocate memory",
    "CUDA error: out of memory",
    "Triton Error [CUDA]: out of memory",
    "CUBLAS_STATUS_ALLOC_FAILED",
)
# Triton has an error text of its own for what torch calls a CUDA error.
_STICKY = ("CUDA error", "Triton Error [CUDA]")


class DeviceLostError(Exception):
    """The device's state is gone: nothing more can be computed by this process."""


class Fault(Enum):
    """Who is hit by a failed step."""

    STEP = auto()
    MEMORY = auto()
    DEVICE = auto()


def fault_of(error: Exception) -> Fault:
    """Tell by the exception that launching or collecting a step raised."""
    import torch  # noqa: PLC0415  # seconds, and the error of a step comes after them

    if isinstance(error, MemoryError | torch.OutOfMemoryError):
        return Fault.MEMORY
    if isinstance(error, RuntimeError):
        text = str(error)
        if any(each in text for each in _NO_MEMORY):
            return Fault.MEMORY
        # An error of a kernel is sticky: every later call fails as well.
        if isinstance(error, torch.AcceleratorError) or any(each in text for each in _STICKY):
            return Fault.DEVICE
    return Fault.STEP
