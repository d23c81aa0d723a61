"""Which type activations have, and which cached keys and values."""

import logging

import torch

from backend.models.config import ModelLoadError
from backend.models.quantization.weight import FP8, FP8_CAPABILITY

logger = logging.getLogger(__name__)

DTYPES = {"float32": torch.float32, "bfloat16": torch.bfloat16, "float16": torch.float16}


def kv_cache_dtype(name: str, dtype: torch.dtype, device: torch.device) -> torch.dtype:
    """Return the type of cached keys and values, ``name`` being auto, int8 or fp8.

    Eight bits are int8 on CPU, which has no arithmetic in FP8, and FP8 on CUDA. Raises
    ModelLoadError for the other one, and for GPUs on which Triton does not convert FP8.
    """
    match name, device.type:
        case "auto", _:
            return dtype
        case "int8", "cpu":
            return torch.int8
        case "fp8", "cuda":
            capability = torch.cuda.get_device_capability(device)
            if capability < FP8_CAPABILITY:
                raise ModelLoadError(
                    f"kv-dtype fp8 needs a GPU of compute capability 8.9 or above, {device} has "
                    f"{capability[0]}.{capability[1]}"
                )
            return FP8
        case (("int8" | "fp8"), _):
            other = "fp8" if name == "int8" else "int8"
            raise ModelLoadError(f"kv-dtype {name} is not supported on {device.type}, {other} is")
        case _:
            raise ModelLoadError(f"kv-dtype {name}: expected auto, int8 or fp8")


def compute_dtype(name: str, checkpoint_dtype: str, device: torch.device) -> torch.dtype:
    """Return the type of activations, ``name`` being auto or a type's. Raises ModelLoadError."""
    if name == "auto":
        # CPUs without fast half-precision arithmetic are the common case.
        name = checkpoint_dtype if device.type == "cuda" else "float32"
        if name == "float32" and device.type == "cuda":
            name = "bfloat16"
            logger.info(
                "the checkpoint is of float32, which %s multiplies slowly: it is cast to bfloat16; "
                "--dtype float32 keeps it",
                device,
            )
        if name not in DTYPES:
            raise ModelLoadError(f"config.json: dtype: {name} is none of {', '.join(DTYPES)}")
    if name not in DTYPES:
        raise ModelLoadError(f"dtype {name}: expected auto or one of {', '.join(DTYPES)}")
    return DTYPES[name]
