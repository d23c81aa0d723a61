"""From a model's directory to a network that computes: natively, or through transformers."""

import logging
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import torch

from backend.kernels.available import unavailable_reason
from backend.models.adapters import load_adapter
from backend.models.checkpoint import Checkpoint
from backend.models.config import ModelLoadError, read_json
from backend.models.dtypes import compute_dtype
from backend.models.families import FAMILIES, native_family, parse_config
from backend.models.lora import adaptable_modules, stack_adapters
from backend.models.model import Network, network_of
from backend.models.parallel import ALONE, Communicator, check_sharded, sharded
from backend.models.quantization.dequantized import lazy_tensors
from backend.models.quantization.formats import check_quantized, checkpoint_format, is_quantized
from backend.models.qwen3_next import hybrid_family, load_hybrid
from backend.models.weights import load_weights
from backend.models.wrappers import is_wrapper

logger = logging.getLogger(__name__)


def load_network(
    directory: Path,
    *,
    device: torch.device,
    dtype: str,
    quantization: str | None = None,
    adapters: Sequence[Path] = (),
    tell: Callable[[str], None] = logger.debug,
    ranks: Communicator = ALONE,
) -> Network:
    """Load what ``directory`` holds, or the part of one of several ``ranks``.

    ``dtype`` is auto or a name; ``quantization`` int8 quantises weights that are not quantised yet.
    ``adapters`` are directories of LoRA adapters. ``tell`` is called with how far that is. Raises
    ModelLoadError.
    """
    if quantization not in {None, "int8"}:
        raise ModelLoadError(f"quantization {quantization}: expected int8")
    source = directory / "config.json"
    values = read_json(source)
    is_native = native_family(values) is not None
    if ranks.size > 1:
        check_sharded(values, str(source), ranks.size)
    if not is_native and quantization is not None:
        raise ModelLoadError(
            f"{source}: architectures: {values.get('architectures') or []}: quantization "
            f"{quantization} is supported for {', '.join(FAMILIES)} only"
        )
    if not is_native and adapters:
        raise ModelLoadError(
            f"{source}: architectures: {values.get('architectures') or []}: LoRA adapters are "
            f"supported for {', '.join(FAMILIES)} only"
        )
    if quantization is not None and is_quantized(values):
        raise ModelLoadError(f"{source}: quantization {quantization}: it is quantised already")
    try:
        if is_native:
            int8 = quantization is not None
            return _native(
                directory, values, device, dtype, tell, int8=int8, adapters=adapters, ranks=ranks
            )
        load = _generic if hybrid_family(values) is None else load_hybrid
        return load(directory, values, device, dtype, tell)
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
    ranks: Communicator,
    adapters: Sequence[Path],
) -> Network:
    config = parse_config(values, str(directory / "config.json"))
    chosen = compute_dtype(dtype, config.checkpoint_dtype, device)
    weights = load_weights(
        directory, config, device=device, dtype=chosen, int8=int8, tell=tell, ranks=ranks
    )
    reason = unavailable_reason() if device.type == "cuda" else None
    if reason is not None and (int8 or is_quantized(values)):
        logger.warning("quantised weights are dequantised to %s: %s", chosen, reason)
    logger.info("%s: weights of %.1f MiB", directory, weights.num_bytes / 2**20)
    own = sharded(config, ranks.size, str(directory / "config.json"))
    if not adapters:
        return network_of(own, weights, chosen, num_ranks=ranks.size)
    tell(f"reading the adapters {', '.join(map(str, adapters))}")
    modules = adaptable_modules(config)
    read = [load_adapter(each, modules, directory) for each in adapters]
    joined = stack_adapters(config, weights, read, chosen)
    logger.info("%d LoRA adapters: %.1f MiB", joined.number, joined.num_bytes / 2**20)
    return network_of(config, weights, chosen, joined)


def _generic(
    directory: Path,
    values: Mapping[str, Any],
    device: torch.device,
    dtype: str,
    tell: Callable[[str], None],
) -> Network:
    text = values.get("text_config")
    configs = [each for each in (values, text) if isinstance(each, Mapping)]
    names = [each.get(key) for each in configs for key in ("dtype", "torch_dtype")]
    named = next((name for name in names if isinstance(name, str)), "float32")
    chosen = compute_dtype(dtype, named, device)
    source = directory / "config.json"
    if is_wrapper(values) and not isinstance(text, Mapping):
        # transformers would make a model of its default size, and take all memory.
        raise ModelLoadError(f"{source}: text_config: expected an object, got {text!r}")
    held = checkpoint_format(values, str(source))
    checkpoint = Checkpoint(directory, is_wrapped=is_wrapper(values))
    checkpoint.check_files()
    if held is None:
        checkpoint.check_room(device, chosen)
    else:
        check_quantized(checkpoint.names, str(source))
        checkpoint.check_room(device, chosen, held.bits, chosen.itemsize)
        logger.warning("%s: quantised weights are dequantised to %s", directory, chosen)
    # Imported here because transformers takes seconds to import and most models do without.
    try:
        from backend.models.hf import load_generic  # noqa: PLC0415
        from backend.models.hf_check import verify  # noqa: PLC0415
    except ImportError as error:
        raise ModelLoadError(
            f"{source}: architectures: {values.get('architectures') or []} "
            f"needs transformers ({error}): pip install 'refrain-gateway[transformers]'"
        ) from error
    is_own = held is not None or is_wrapper(values)
    tensors = lazy_tensors(checkpoint, held, chosen) if is_own else None
    model = load_generic(directory, values, device=device, dtype=chosen, tensors=tensors)
    if is_own:
        checkpoint.close()
    tell(f"comparing {directory} with transformers")
    shape = verify(model, named)
    return Network(shape, chosen, lambda _length, _operations: model, rules=model.rules)
