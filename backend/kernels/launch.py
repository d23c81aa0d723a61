"""Where a kernel may run, decided before every launch.

On a CUDA device Triton compiles. Elsewhere only its interpreter runs (``TRITON_INTERPRET=1`` before
Triton is imported: for tests), and that computes garbage in bfloat16 without an error, so bfloat16
is refused there.
"""

from collections.abc import Mapping
from typing import Any

import torch
import triton

# How a kernel is compiled, not what it computes.
Meta = Mapping[str, Any]


class KernelLaunchError(RuntimeError):
    """A kernel was launched where it cannot compute what it should."""


def interpreted(kernel: Any) -> bool:
    """Return whether ``kernel`` was decorated for Triton's interpreter."""
    return not isinstance(kernel, triton.JITFunction)


def launch(kernel: Any, grid: tuple[int, ...], *arguments: Any, **meta: Any) -> Any:
    """Run ``kernel`` on ``grid``; an empty grid is no launch. Raises KernelLaunchError.

    Returns what Triton compiled, None where it compiled nothing.
    """
    if 0 in grid:
        return None
    tensors = [each for each in arguments if isinstance(each, torch.Tensor)]
    if interpreted(kernel):
        if any(tensor.dtype is torch.bfloat16 for tensor in tensors):
            raise KernelLaunchError(
                "Triton's interpreter computes garbage in bfloat16 without an error; "
                "take float32 or float16, or a CUDA device without TRITON_INTERPRET"
            )
    elif not all(tensor.is_cuda for tensor in tensors):
        raise KernelLaunchError(
            "kernels take tensors on a CUDA device, or any where TRITON_INTERPRET=1 was set "
            "before Triton was imported"
        )
    return kernel[grid](*arguments, **meta)
