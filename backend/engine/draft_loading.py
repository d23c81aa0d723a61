"""Loads a draft model beside the model that it guesses for."""

import logging
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path

import torch

from backend.engine.model_files import resolve_model
from backend.executor.draft_runner import DraftRunner
from backend.executor.factory import KernelGroup, Kernels, make_cache, make_runner, read_memory
from backend.executor.input_batch import BatchLimits
from backend.executor.kv_cache import FP8, block_bytes
from backend.executor.memory import MemoryReading
from backend.models.config import ModelLoadError
from backend.models.families import FAMILIES
from backend.models.loading import load_network
from backend.models.model import Network
from backend.settings import EngineOptions
from backend.tokenizer.tokenizer import Tokenizer

logger = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Draft:
    """A draft model whose weights are loaded; its KV is made when the pool's size is known."""

    network: Network
    kernels: Kernels
    kv_dtype: torch.dtype
    limits: BatchLimits
    device: torch.device

    @property
    def block_bytes(self) -> int:
        """What it takes for each block of the pool."""
        return block_bytes(self.network.shape, self.kv_dtype)

    def reading(self, measured: MemoryReading) -> MemoryReading:
        """Return ``measured`` with the larger of both models' largest steps; on CUDA only."""
        own = read_memory(
            self.network,
            self.limits,
            device=self.device,
            kv_dtype=self.kv_dtype,
            utilization=measured.utilization,
            kernels=self.kernels,
        )
        return replace(own, step=max(own.step, measured.step))

    def runner(self, num_blocks: int) -> DraftRunner:
        """Return what runs it over ``num_blocks`` blocks."""
        dtype = self.kv_dtype
        cache = make_cache(self.network, num_blocks, device=self.device, dtype=dtype)
        size = num_blocks * self.block_bytes / 2**20
        logger.info("the draft model's KV pool in %s: %d blocks, %.0f MiB", dtype, num_blocks, size)
        runner = make_runner(self.network, cache, self.limits, kernels=self.kernels)
        return DraftRunner(runner, max_model_len=self.limits.max_model_len)


def load_draft(
    options: EngineOptions,
    target: Network,
    tokenizer: Tokenizer,
    *,
    device: torch.device,
    kernels: Kernels,
    kv_dtype: torch.dtype,
    limits: BatchLimits,
    tell: Callable[[str], None],
) -> Draft | None:
    """Load what ``speculative_model`` names, None for nothing.

    ``target`` has the same ``kernels``, ``kv_dtype`` and ``limits``. Raises ModelLoadError where
    the draft model has other tokens, or is computed by transformers' code.
    """
    if options.speculative_model is None:
        return None
    directory = resolve_model(options.speculative_model)
    tell(f"reading the draft model's weights of {directory}")
    network = load_network(directory, device=device, dtype=options.dtype, tell=tell)
    if network.weights is None:
        why = "is computed by transformers' code" if network.states is None else "has states"
        raise ModelLoadError(
            f"speculative-model {directory}: it {why}; a draft model is one of "
            f"{', '.join(FAMILIES)}"
        )
    _check_tokens(directory, network, target, tokenizer)
    if network.dtype is not target.dtype and kv_dtype is target.dtype:
        kv_dtype = network.dtype
    limits = replace(limits, max_model_len=min(limits.max_model_len, network.shape.max_positions))
    if KernelGroup.ATTENTION in kernels and options.self_check:
        # Triton is not everywhere.
        from backend.executor.self_check import self_check  # noqa: PLC0415

        tell("comparing the draft model's kernels with their references")
        kernels = self_check(network, device, kv_dtype, limits.max_model_len, kernels).kernels
    if KernelGroup.ATTENTION not in kernels and kv_dtype is FP8:
        kv_dtype = network.dtype
    return Draft(network, kernels, kv_dtype, limits, device)


def _check_tokens(directory: Path, draft: Network, target: Network, tokenizer: Tokenizer) -> None:
    ours, theirs = target.shape.vocab_size, draft.shape.vocab_size
    if ours != theirs:
        raise ModelLoadError(
            f"speculative-model {directory}: its vocabulary has {theirs} tokens, that of the model "
            f"{ours}; take a draft model of the same family"
        )
    other = Tokenizer.load(directory)
    differ = [
        token for token in range(ours) if tokenizer.token_bytes(token) != other.token_bytes(token)
    ]
    if differ:
        first = differ[0]
        raise ModelLoadError(
            f"speculative-model {directory}: {len(differ)} of {ours} tokens differ from the "
            f"model's; the first is {first}: {other.token_bytes(first)!r}, there "
            f"{tokenizer.token_bytes(first)!r}"
        )
