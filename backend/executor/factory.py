"""Puts a model runner together, and finds out how much memory its steps leave."""

import gc
import logging

import torch

from backend.executor.attention.torch import TorchAttention
from backend.executor.cuda_graphs import CudaRecorder
from backend.executor.input_batch import BatchLimits
from backend.executor.kv_cache import KVCache
from backend.executor.memory import MemoryReading
from backend.executor.model_runner import Executable, ModelRunner
from backend.models.layers import TorchOperations
from backend.models.registry import Network

logger = logging.getLogger(__name__)


def make_runner(
    network: Network,
    cache: KVCache,
    limits: BatchLimits,
    *,
    kernels: bool,
    graphs: bool | None = None,
    pads: bool = False,
) -> ModelRunner:
    """Return a runner where the weights of ``network`` are, by our kernels or in plain torch.

    ``graphs`` None: where they can be captured. ``pads`` fills decode batches up to the graphs'
    sizes even without graphs.
    """
    if not kernels:
        model = network.with_context(limits.max_model_len, TorchOperations())
        attention = TorchAttention(cache, network.shape, limits.max_model_len, dtype=network.dtype)
        parts = Executable(model, network.shape.vocab_size, cache, attention)
        return ModelRunner(parts, limits)
    parts = _with_kernels(network, cache, limits)
    on_cuda = parts.model.device.type == "cuda"
    if graphs is None:
        graphs = on_cuda and network.has_static_steps
    logger.info("CUDA graphs: %s", "on" if graphs else "off")
    recorder = CudaRecorder() if graphs else None
    return ModelRunner(parts, limits, recorder=recorder, pads=pads or on_cuda)


def _with_kernels(network: Network, cache: KVCache, limits: BatchLimits) -> Executable:
    # Triton is not everywhere.
    from backend.executor.attention.flashinfer import flashinfer_prefill  # noqa: PLC0415
    from backend.executor.attention.triton import TritonAttention  # noqa: PLC0415
    from backend.executor.sampler.triton import draw_by_kernel  # noqa: PLC0415
    from backend.kernels.operations import KernelOperations  # noqa: PLC0415

    model = network.with_context(limits.max_model_len, KernelOperations())
    shape, device = network.shape, model.device
    heads = (shape.num_heads, shape.num_kv_heads, shape.head_dim)
    # The library is not told of scales.
    plain = cache.dtype is model.dtype
    prefill = flashinfer_prefill(heads, model.dtype, device) if plain else None
    logger.info("prefill attention: %s", "our kernel" if prefill is None else "FlashInfer")
    attention = TritonAttention(cache, shape, limits, dtype=model.dtype, prefill=prefill)
    return Executable(model, shape.vocab_size, cache, attention, draw_by_kernel)


def read_memory(
    network: Network, limits: BatchLimits, kv_dtype: torch.dtype, utilization: float
) -> MemoryReading:
    """Measure what the steps that need most memory take beside the weights; on CUDA only."""
    device = torch.device("cuda")
    torch.cuda.empty_cache()
    held = torch.cuda.memory_allocated(device)
    torch.cuda.reset_peak_memory_stats(device)
    # Its tokens' KV all goes to the padding block, so the smallest pool will do.
    cache = KVCache(network.shape, 1, device=device, dtype=kv_dtype)
    runner = make_runner(network, cache, limits, kernels=True, graphs=False)
    runner.run_worst_case()
    torch.cuda.synchronize(device)
    step = torch.cuda.max_memory_allocated(device) - held
    del runner, cache
    gc.collect()
    torch.cuda.empty_cache()
    free, total = torch.cuda.mem_get_info(device)
    return MemoryReading(total=total, free=free, weights=held, step=step, utilization=utilization)
