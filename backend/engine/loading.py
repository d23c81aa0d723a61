"""Builds an engine from its options: tokenizer, network, KV cache, runner and core."""

import logging
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from backend.engine.core import EngineCore, EngineLimits
from backend.engine.engine import Engine
from backend.engine.messages import EngineDescription
from backend.engine.model_files import resolve_model
from backend.executor.factory import (
    NO_KERNELS,
    KernelGroup,
    Kernels,
    kernels_for,
    make_runner,
    read_memory,
)
from backend.executor.input_batch import BatchLimits
from backend.executor.kv_cache import FP8, KVCache, block_bytes
from backend.executor.memory import MemoryReading, Sizing, context_length, size_cache
from backend.grammar.compiler import GrammarCompiler
from backend.grammar.worker import Vocabulary
from backend.kernels.available import unavailable_reason
from backend.models.config import ModelLoadError
from backend.models.registry import Network, kv_cache_dtype, load_network, model_fingerprint
from backend.scheduler.block_pool import BLOCK_SIZE
from backend.scheduler.scheduler import slots_for
from backend.settings import EngineOptions
from backend.tokenizer.tokenizer import Tokenizer

logger = logging.getLogger(__name__)

# A chunk of prefill delays everybody's next token by the time that it takes to compute.
_TOKENS_PER_STEP_CPU = 512
_TOKENS_PER_STEP_CUDA = 8192
_MAX_NUM_SEQS_CPU = 16
_MAX_NUM_SEQS_CUDA = 256


@dataclass(frozen=True, slots=True)
class LoadedEngine:
    """An engine that is ready for its first step, and the tokenizer of its model."""

    core: EngineCore
    tokenizer: Tokenizer
    description: EngineDescription


def load_engine(model: str, **options: Any) -> tuple[Engine, Tokenizer]:
    """Load ``model`` and return an engine in this process that is yet to be started.

    ``options`` are those of EngineOptions. Raises ModelLoadError, whose text names what is wrong.
    """
    loaded = load_model(EngineOptions(model, **options))
    return Engine(loaded.core, loaded.tokenizer, loaded.description), loaded.tokenizer


def load_model(
    options: EngineOptions, progress: Callable[[str], None] = logger.debug
) -> LoadedEngine:
    """Load what ``options`` name; ``progress`` is called with the stage of loading, for people.

    Raises ModelLoadError, whose text names what is wrong.
    """
    if options.max_num_seqs is not None and options.max_num_seqs < 1:
        raise ModelLoadError(f"max-num-seqs must be at least 1, got {options.max_num_seqs}")
    utilization = options.gpu_memory_utilization
    if not 0 < utilization <= 1:
        raise ModelLoadError(
            f"gpu-memory-utilization must be above 0 and at most 1, got {utilization}"
        )
    if options.threads is not None:
        torch.set_num_threads(options.threads)
    directory = resolve_model(options.model)
    tokenizer = Tokenizer.load(directory)
    torch_device = device_of(options.device)
    on_cuda = torch_device.type == "cuda"
    max_num_seqs = options.max_num_seqs or (_MAX_NUM_SEQS_CUDA if on_cuda else _MAX_NUM_SEQS_CPU)
    progress(f"reading the weights of {directory}")
    network = load_network(
        directory,
        device=torch_device,
        dtype=options.dtype,
        quantization=options.quantization,
        tell=progress,
    )
    kv_dtype = kv_cache_dtype(options.kv_dtype, network.dtype, torch_device)
    shape = network.shape
    max_tokens_per_step = options.max_tokens_per_step
    if max_tokens_per_step is None:
        max_tokens_per_step = _TOKENS_PER_STEP_CUDA if on_cuda else _TOKENS_PER_STEP_CPU
    max_tokens_per_step = max(max_tokens_per_step, max_num_seqs)
    # No kernel here knows rules.
    has_kernels = on_cuda and not network.needs_rules and _triton_compiles()
    wanted_len = context_length(shape, options.max_model_len)
    kernels = kernels_for(options.attention) if has_kernels else NO_KERNELS
    detail: tuple[str, ...] = ()
    if has_kernels and options.self_check:
        progress("comparing the kernels with their references")
        kernels, detail = _proved_kernels(network, kernels, kv_dtype, wanted_len)
    if on_cuda and not {KernelGroup.ATTENTION, KernelGroup.KV_8_BITS} <= kernels:
        # Of plain torch's attention, FP8 knows none.
        kv_dtype = network.dtype
    reading = None
    if KernelGroup.ATTENTION in kernels and options.kv_bytes is None:
        progress("measuring the memory of the largest step")
        wanted = _batch_limits(max_num_seqs, max_tokens_per_step, wanted_len)
        reading = _read_memory(network, wanted, kv_dtype, utilization, kernels)
    sizing = size_cache(
        shape,
        device=torch_device,
        dtype=kv_dtype,
        max_num_seqs=max_num_seqs,
        max_model_len=options.max_model_len,
        kv_bytes=options.kv_bytes,
        reading=reading,
        utilization=utilization,
    )
    progress("making the KV pool")
    cache = _kv_cache(network, sizing, torch_device, kv_dtype, directory)
    limits = EngineLimits(
        num_blocks=sizing.num_blocks,
        max_num_seqs=max_num_seqs,
        max_model_len=sizing.max_model_len,
        max_tokens_per_step=max_tokens_per_step,
        max_waiting=options.max_waiting,
        queue_seconds=options.queue_timeout,
        target_ttft=_in_seconds(options.target_ttft_ms),
        target_itl=_in_seconds(options.target_itl_ms),
        overlap=on_cuda if options.overlap is None else options.overlap,
        speculation=options.speculation != "off",
    )
    batches = _batch_limits(max_num_seqs, max_tokens_per_step, sizing.max_model_len)
    runner = make_runner(network, cache, batches, kernels=kernels)
    grammars = GrammarCompiler(lambda: _vocabulary(tokenizer, shape.vocab_size))
    made_of = f"{network.dtype} {kv_dtype} {options.quantization}"
    fingerprint = model_fingerprint(directory, made_of)
    description = EngineDescription(sizing.max_model_len, shape.vocab_size, fingerprint, detail)
    core = EngineCore(
        runner,
        tokenizer.eos_token_ids,
        limits,
        grammars,
        fingerprint=fingerprint,
        cache_events=options.kv_events,
    )
    return LoadedEngine(core, tokenizer, description)


def _kv_cache(
    network: Network, sizing: Sizing, device: torch.device, dtype: torch.dtype, directory: Path
) -> KVCache:
    try:
        cache = KVCache(network.shape, sizing.num_blocks, device=device, dtype=dtype)
    except torch.OutOfMemoryError as error:
        raise ModelLoadError(f"{directory}: out of device memory for the KV pool") from error
    except RuntimeError as error:
        # On CPU, torch has no type of its own for memory that it does not get.
        if "allocate memory" not in str(error):
            raise
        raise ModelLoadError(f"{directory}: out of memory for the KV pool") from error
    if dtype is FP8 and network.weights is not None:
        cache.set_scales(layer.kv_scales for layer in network.weights.layers)
    per_block = block_bytes(network.shape, dtype)
    logger.info(
        "%s on %s in %s: context %d tokens; KV pool in %s: %d blocks of %d tokens x %d bytes = "
        "%.0f MiB",
        directory,
        device,
        network.dtype,
        sizing.max_model_len,
        dtype,
        sizing.num_blocks,
        BLOCK_SIZE,
        per_block,
        sizing.num_blocks * per_block / 2**20,
    )
    return cache


def _in_seconds(milliseconds: float | None) -> float | None:
    return None if milliseconds is None else milliseconds / 1000


def _triton_compiles() -> bool:
    reason = unavailable_reason()
    if reason is not None:
        logger.warning("Triton kernels are off, attention runs in PyTorch: %s", reason)
    return reason is None


def _proved_kernels(
    network: Network, kernels: Kernels, kv_dtype: torch.dtype, max_model_len: int
) -> tuple[Kernels, tuple[str, ...]]:
    # Triton is not everywhere.
    from backend.executor.self_check import self_check  # noqa: PLC0415

    proved = self_check(network, torch.device("cuda"), kv_dtype, max_model_len, kernels)
    return proved.kernels, proved.detail


def _vocabulary(tokenizer: Tokenizer, size: int) -> Vocabulary:
    tokens = tuple(tokenizer.visible_bytes(token) for token in range(size))
    return Vocabulary(
        tokens, size, frozenset(each for each in tokenizer.eos_token_ids if each < size)
    )


def _batch_limits(max_num_seqs: int, max_tokens_per_step: int, max_model_len: int) -> BatchLimits:
    return BatchLimits(
        num_slots=slots_for(max_num_seqs),
        max_num_seqs=max_num_seqs,
        max_tokens_per_step=max_tokens_per_step,
        max_model_len=max_model_len,
    )


def _read_memory(
    network: Network,
    limits: BatchLimits,
    kv_dtype: torch.dtype,
    utilization: float,
    kernels: Kernels,
) -> MemoryReading:
    try:
        return read_memory(network, limits, kv_dtype, utilization, kernels)
    except torch.OutOfMemoryError as error:
        raise ModelLoadError(
            f"a step of {limits.max_tokens_per_step} tokens does not fit into device memory; "
            "take less with max-tokens-per-step or max-num-seqs"
        ) from error


def device_of(name: str) -> torch.device:
    """Return the device that auto, cpu or cuda names here. Raises ModelLoadError."""
    if name not in {"auto", "cpu", "cuda"}:
        raise ModelLoadError(f"device {name}: expected auto, cpu or cuda")
    available = torch.cuda.is_available()
    if name == "cuda" and not available:
        raise ModelLoadError("device cuda: torch finds no CUDA device")
    return torch.device("cuda" if available and name != "cpu" else "cpu")
