"""Puts a model runner together, and finds out how much memory its steps leave."""

import gc
import logging
from enum import StrEnum
from typing import Self

import torch
from torch import Tensor

from backend.executor.attention.backend import AttentionBackend
from backend.executor.attention.torch import TorchAttention
from backend.executor.cuda_graphs import CudaRecorder
from backend.executor.input_batch import BatchLimits
from backend.executor.kv_cache import FP8, KVCache
from backend.executor.memory import MemoryReading
from backend.executor.model_runner import ModelRunner, RunnerParts
from backend.executor.sampler.batch import DrawGroup
from backend.executor.states import RecurrentBackend, StatePool
from backend.executor.transfer import BlockTransfer
from backend.models.decoder import Decoder
from backend.models.layers import Operations, TorchOperations
from backend.models.model import Network
from backend.models.quantization.linears import Float8Linear, KernelLinear

logger = logging.getLogger(__name__)


class KernelGroup(StrEnum):
    """Kernels that are replaced together: what people call them, and what serves instead."""

    instead: str

    def __new__(cls, name: str, instead: str) -> Self:
        """Return the member whose value is ``name``."""
        member = str.__new__(cls, name)
        member._value_ = name
        member.instead = instead
        return member

    ATTENTION = "attention", "PyTorch's attention, without CUDA graphs"
    KV_8_BITS = "KV in 8 bits", "KV in the type of activations"
    OPERATIONS = "element-wise operations", "PyTorch's operations"
    SAMPLING = "sampling", "PyTorch's sampling"
    MATMUL = "products with quantised weights", "PyTorch's products with dequantised weights"
    EXPERTS = "products of experts", "PyTorch's products, one by one and without CUDA graphs"


Kernels = frozenset[KernelGroup]
"""What a runner computes by kernels, where it has any use for them."""

ALL_KERNELS: Kernels = frozenset(KernelGroup)
NO_KERNELS: Kernels = frozenset()


def make_cache(
    network: Network, num_blocks: int, *, device: torch.device, dtype: torch.dtype
) -> KVCache:
    """Return a KV pool of ``num_blocks`` blocks; FP8 has the scales of the checkpoint."""
    cache = KVCache(network.shape, num_blocks, device=device, dtype=dtype)
    if dtype is FP8 and network.weights is not None:
        cache.set_scales(layer.kv_scales for layer in network.weights.layers)
    return cache


def make_runner(
    network: Network,
    cache: KVCache,
    limits: BatchLimits,
    *,
    kernels: Kernels,
    graphs: bool | None = None,
    pads: bool = False,
    transfer: BlockTransfer | None = None,
) -> ModelRunner:
    """Return a runner where the weights of ``network`` are: ``kernels``, and plain torch for more.

    ``graphs`` None: where they can be captured. ``pads`` fills decode batches up to the graphs'
    sizes even without graphs.
    """
    if KernelGroup.MATMUL not in kernels and network.weights is not None:
        for linear in network.weights.linears:
            if isinstance(linear, Float8Linear | KernelLinear):
                linear.compute_in_torch()
    if KernelGroup.EXPERTS not in kernels and network.weights is not None:
        for experts in network.weights.experts:
            experts.compute_in_torch()
    model = network.with_context(limits.max_model_len, _operations(kernels))
    attention = make_attention(network, cache, limits, kernels)
    states = None
    if network.states is not None:
        states = StatePool(
            network.states,
            limits.num_slots,
            limits.num_snapshots,
            device=model.device,
            dtype=network.dtype,
        )
        attention = RecurrentBackend(attention, states)
    draw = draw_by_kernel if KernelGroup.SAMPLING in kernels else None
    adapted = None
    if network.adapters is not None and isinstance(model, Decoder):
        most = max(limits.max_tokens_per_step, limits.max_num_seqs)
        adapted = network.adapters.decoder(model, most)
    parts = RunnerParts(
        model,
        network.shape.vocab_size,
        cache,
        attention,
        draw,
        adapted,
        transfer,
        states,
        num_ranks=network.num_ranks,
    )
    if KernelGroup.ATTENTION not in kernels:
        return ModelRunner(parts, limits)
    on_cuda = model.device.type == "cuda"
    if graphs is None:
        graphs = on_cuda and network.has_static_steps
    logger.info("CUDA graphs: %s", "on" if graphs else "off")
    recorder = CudaRecorder() if graphs else None
    return ModelRunner(parts, limits, recorder=recorder, pads=pads or on_cuda)


def make_attention(
    network: Network, cache: KVCache, limits: BatchLimits, kernels: Kernels
) -> AttentionBackend:
    """Return what attends with the heads of ``network`` over ``cache``."""
    shape, dtype = network.shape, network.dtype
    if KernelGroup.ATTENTION not in kernels:
        return TorchAttention(cache, shape, limits.max_model_len, dtype=dtype)
    # Triton is not everywhere.
    from backend.executor.attention.triton import TritonAttention  # noqa: PLC0415

    return TritonAttention(cache, shape, limits, dtype=dtype)


def _operations(kernels: Kernels) -> Operations:
    if KernelGroup.OPERATIONS not in kernels:
        return TorchOperations()
    from backend.executor.kernel_operations import KernelOperations  # noqa: PLC0415

    return KernelOperations()


def draw_by_kernel(logits: Tensor, group: DrawGroup, keys: Tensor) -> Tensor:
    """Draw the same tokens for the same keys as torch does, but for rounding."""
    from backend.kernels.sampling import SamplingRows, sample_tokens  # noqa: PLC0415

    rows = SamplingRows(group.temperature, group.top_k, group.top_p, group.log_min_p, keys)
    # Non-finite rows are reported elsewhere; the next embedding lookup has to stay in range.
    return sample_tokens(logits, rows).clamp_(min=0)


def kernels_for(attention: str) -> Kernels:
    """Return the kernels for ``attention``: auto, triton or torch."""
    return ALL_KERNELS - {KernelGroup.ATTENTION} if attention == "torch" else ALL_KERNELS


def read_memory(
    network: Network,
    limits: BatchLimits,
    *,
    device: torch.device,
    kv_dtype: torch.dtype,
    utilization: float,
    kernels: Kernels,
) -> MemoryReading:
    """Measure what the steps that need most memory take beside the weights; on CUDA only."""
    torch.cuda.empty_cache()
    held = torch.cuda.memory_allocated(device)
    torch.cuda.reset_peak_memory_stats(device)
    # Its tokens' KV all goes to the padding block, so the smallest pool will do.
    cache = KVCache(network.shape, 1, device=device, dtype=kv_dtype)
    runner = make_runner(network, cache, limits, kernels=kernels, graphs=False)
    runner.run_worst_case()
    torch.cuda.synchronize(device)
    step = torch.cuda.max_memory_allocated(device) - held
    del runner, cache
    gc.collect()
    torch.cuda.empty_cache()
    free, total = torch.cuda.mem_get_info(device)
    return MemoryReading(total=total, free=free, weights=held, step=step, utilization=utilization)
