"""What the texts of CUDA's errors mean: a lost device is told from memory that was short."""

import pytest
import torch

from backend.engine.stepper import Fault, fault_of


@pytest.mark.parametrize(
    ("error", "fault"),
    [
        (torch.OutOfMemoryError("CUDA out of memory. Tried to allocate"), Fault.MEMORY),
        (RuntimeError("[enforce fail] DefaultCPUAllocator: can't allocate memory"), Fault.MEMORY),
        (torch.AcceleratorError("CUDA error: out of memory"), Fault.MEMORY),
        (RuntimeError("Triton Error [CUDA]: out of memory"), Fault.MEMORY),
        (RuntimeError("CUDA error: CUBLAS_STATUS_ALLOC_FAILED when calling"), Fault.MEMORY),
        (torch.AcceleratorError("CUDA error: unspecified launch failure"), Fault.DEVICE),
        (RuntimeError("CUDA error: CUBLAS_STATUS_EXECUTION_FAILED when calling"), Fault.DEVICE),
        (RuntimeError("Triton Error [CUDA]: an illegal memory access"), Fault.DEVICE),
        (RuntimeError("shape '[3]' is invalid for input of size 4"), Fault.STEP),
        (ValueError("CUDA error"), Fault.STEP),
    ],
    ids=str,
)
def test_a_fault_is_known_by_its_text(error, fault):
    assert fault_of(error) is fault
