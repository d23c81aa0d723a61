"""From a model's directory to a network that computes: natively, or through transformers."""

import hashlib
import logging
import os
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

import torch
from torch import Tensor

from backend.kernels.available import unavailable_reason
from backend.models.attention import Attention, ScoreRules
from backend.models.checkpoint import Checkpoint
from backend.models.config import (
    DecoderConfig,
    LongRopeScaling,
    ModelLoadError,
    ModelShape,
    read_json,
)
from backend.models.decoder import Decoder, DecoderWeights
from backend.models.families import FAMILIES, native_family, parse_config
from backend.models.layers import Operations
from backend.models.quantization import FP8, FP8_CAPABILITY, is_quantized
from backend.models.rope import rotation_table
from backend.models.weights import load_weights

logger = logging.getLogger(__name__)

_DTYPES = {
    "float32": torch.float32,
    "bfloat16": torch.bfloat16,
    "float16": torch.float16,
}


class Model(Protocol):
    """Computes; stateless, the caches belong to ``attention``."""

    @property
    def device(self) -> torch.device:
        """Where the weights are."""

    @property
    def dtype(self) -> torch.dtype:
        """Return the type of weights, activations and KV."""

    def forward(
        self, tokens: Tensor, positions: Tensor, attention: Attention, logit_rows: Tensor | None
    ) -> Tensor:
        """Compute a step; return what ``logits`` takes, [len(logit_rows), any].

        ``tokens`` and ``positions`` are [tokens]. ``logit_rows`` are the tokens whose successor
        is wanted, all when None.
        """

    def logits(self, hidden: Tensor) -> Tensor:
        """Return [rows, vocab]."""


@dataclass(frozen=True, slots=True)
class Network:
    """Weights on their device.

    ``with_context`` makes the model for a context of that length; one that brings code of its own
    does not use the operations.
    """

    shape: ModelShape
    dtype: torch.dtype
    with_context: Callable[[int, Operations], Model]
    has_static_steps: bool
    """Whether the host learns nothing within a step, so that a graph can hold one."""
    rules: tuple[ScoreRules | None, ...] = ()
    """What becomes of each layer's attention scores; empty where no layer has rules."""
    weights: DecoderWeights | None = None
    """None: the model brings code of its own."""


def load_network(
    directory: Path,
    *,
    device: torch.device,
    dtype: str,
    quantization: str | None = None,
    tell: Callable[[str], None] = logger.debug,
) -> Network:
    """Load what ``directory`` holds. Raises ModelLoadError.

    ``dtype`` is auto or a name; ``quantization`` int8 quantises weights that are not quantised yet.
    ``tell`` is called with how far that is.
    """
    if quantization not in {None, "int8"}:
        raise ModelLoadError(f"quantization {quantization}: expected int8")
    source = directory / "config.json"
    values = read_json(source)
    is_native = native_family(values) is not None
    if not is_native and (quantization is not None or is_quantized(values)):
        raise ModelLoadError(
            f"{source}: architectures: {values.get('architectures') or []}: quantised weights are "
            f"supported for {', '.join(FAMILIES)} only"
        )
    if quantization is not None and is_quantized(values):
        raise ModelLoadError(f"{source}: quantization {quantization}: it is quantised already")
    try:
        if is_native:
            return _native(directory, values, device, dtype, tell, int8=quantization is not None)
        return _generic(directory, values, device, dtype, tell)
    except (torch.OutOfMemoryError, MemoryError) as error:
        raise ModelLoadError(f"{directory}: out of memory on {device} while loading") from error
    except RuntimeError as error:
        # On CPU, torch has no type of its own for memory that it does not get.
        if "allocate memory" not in str(error):
            raise
        raise ModelLoadError(f"{directory}: out of memory while loading") from error


def _native(
    directory: Path,
    values: Mapping[str, Any],
    device: torch.device,
    dtype: str,
    tell: Callable[[str], None],
    *,
    int8: bool,
) -> Network:
    config = parse_config(values, str(directory / "config.json"))
    chosen = compute_dtype(dtype, config.checkpoint_dtype, device)
    weights = load_weights(directory, config, device=device, dtype=chosen, int8=int8, tell=tell)
    reason = unavailable_reason() if device.type == "cuda" else None
    if reason is not None and (int8 or is_quantized(values)):
        logger.warning("quantised weights are dequantised to %s: %s", chosen, reason)
    logger.info("%s: weights of %.1f MiB", directory, weights.num_bytes / 2**20)
    return network_of(config, weights, chosen)


def network_of(config: DecoderConfig, weights: DecoderWeights, dtype: torch.dtype) -> Network:
    """Return the network of our own decoder with ``weights``; ``dtype`` is that of activations."""
    device = weights.embedding.rows.device

    def with_context(length: int, operations: Operations) -> Model:
        _tell_of_long_factors(config, length)
        rotations = rotation_table(config.rotary, config.head_dim, length, device=device)
        return Decoder(config, weights, rotations, operations)

    return Network(
        config,
        dtype,
        with_context,
        has_static_steps=weights.has_static_steps,
        weights=weights,
    )


def _tell_of_long_factors(config: DecoderConfig, context: int) -> None:
    scaling = config.rotary.scaling
    if isinstance(scaling, LongRopeScaling) and context > scaling.original_max_positions:
        logger.warning(
            "LongRoPE: all texts take the factors of a context of %d tokens; with --max-model-len "
            "%d they take those of short texts",
            context,
            scaling.original_max_positions,
        )


def _generic(
    directory: Path,
    values: Mapping[str, Any],
    device: torch.device,
    dtype: str,
    tell: Callable[[str], None],
) -> Network:
    text = values.get("text_config")
    named = next(
        (
            each[key]
            for each in (values, text if isinstance(text, dict) else {})
            for key in ("dtype", "torch_dtype")
            if isinstance(each.get(key), str)
        ),
        "float32",
    )
    chosen = compute_dtype(dtype, named, device)
    checkpoint = Checkpoint(directory)
    checkpoint.check_files()
    checkpoint.check_room(device, chosen)
    # Imported here because transformers takes seconds to import and most models do without.
    try:
        from backend.models.hf import load_generic  # noqa: PLC0415
        from backend.models.hf_check import verify  # noqa: PLC0415
    except ImportError as error:
        raise ModelLoadError(
            f"{directory / 'config.json'}: architectures: {values.get('architectures') or []} "
            f"needs transformers ({error}): pip install 'refrain-gateway[transformers]'"
        ) from error
    model = load_generic(directory, values, device=device, dtype=chosen)
    tell(f"comparing {directory} with transformers")
    shape = verify(model, named)
    return Network(
        shape,
        chosen,
        lambda _length, _operations: model,
        has_static_steps=False,
        rules=model.rules,
    )


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
        if name not in _DTYPES:
            raise ModelLoadError(f"config.json: dtype: {name} is none of {', '.join(_DTYPES)}")
    if name not in _DTYPES:
        raise ModelLoadError(f"dtype {name}: expected auto or one of {', '.join(_DTYPES)}")
    return _DTYPES[name]


_NAMES = ("config.json", "tokenizer.json")
_SAMPLE_BYTES = 1 << 16
_SAMPLES = 8


def model_fingerprint(directory: Path, dtype: str) -> bytes:
    """Return 32 bytes for a model directory, computed with in ``dtype``. Raises OSError."""
    digest = hashlib.sha256(dtype.encode())
    for name in _NAMES:
        path = directory / name
        digest.update(hashlib.sha256(path.read_bytes() if path.is_file() else b"").digest())
    for path in sorted(directory.glob("*.safetensors")):
        digest.update(path.name.encode() + b"\0" + _sampled(path))
    return digest.digest()


def _sampled(path: Path) -> bytes:
    """Hash a file's size, its head with the table of tensors, and samples up to its end."""
    with path.open("rb") as file:
        size = file.seek(0, os.SEEK_END)
        digest = hashlib.sha256(size.to_bytes(8, "little"))
        last = max(size - _SAMPLE_BYTES, 0)
        for number in range(_SAMPLES):
            file.seek(last * number // (_SAMPLES - 1))
            digest.update(file.read(_SAMPLE_BYTES))
    return digest.digest()
