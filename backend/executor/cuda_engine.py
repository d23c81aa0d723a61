"""Puts the kernels' model runner together, and finds out how much memory its steps leave.

Imported where there are kernels only: Triton comes with torch for CUDA, not with that for CPU.
"""

import gc
import logging

import torch

from backend.executor.cuda_batch import BatchLimits
from backend.executor.cuda_prefill import choose_backend, make_prefill
from backend.executor.cuda_runner import CudaModelRunner, KernelModel
from backend.executor.kv_cache import KVCache
from backend.executor.sizing import MemoryReading
from backend.kernels.operations import KernelOperations
from backend.models.registry import Network

logger = logging.getLogger(__name__)

# What the interpreter's one processor is to be split for, so that splits are tested.
_PROCESSORS_ELSEWHERE = 2


def make_cuda_runner(
    network: Network,
    cache: KVCache,
    *,
    max_num_seqs: int,
    max_tokens_per_step: int,
    max_model_len: int,
    graphs: bool | None = None,
    prefill: str | None = None,
) -> CudaModelRunner:
    """Return a runner where the weights of ``network`` are.

    ``graphs`` None: where they can be captured. ``prefill`` None: the best that can be imported.
    """
    operations = KernelOperations()
    model = network.with_context(max_model_len, operations)
    on_cuda = model.device.type == "cuda"
    if graphs is None:
        graphs = on_cuda and network.has_static_steps
    name = prefill or choose_backend(
        device=model.device.type, dtype=model.dtype, head_dim=network.shape.head_dim
    )
    logger.info("prefill attention: %s; CUDA graphs of decoding: %s", name, graphs)
    processors = _PROCESSORS_ELSEWHERE
    if on_cuda:
        processors = torch.cuda.get_device_properties(model.device).multi_processor_count
    return CudaModelRunner(
        KernelModel(model, network.shape, operations),
        cache,
        BatchLimits(
            max_num_seqs=max_num_seqs,
            max_tokens_per_step=max_tokens_per_step,
            max_model_len=max_model_len,
            processors=processors,
        ),
        make_prefill(name, device=model.device),
        graphs=graphs,
    )


def read_memory(
    network: Network,
    device: torch.device,
    *,
    max_num_seqs: int,
    max_tokens_per_step: int,
    max_model_len: int,
    utilization: float,
) -> MemoryReading:
    """Measure what the steps that need most memory take beside the weights; on CUDA only."""
    torch.cuda.empty_cache()
    held = torch.cuda.memory_allocated(device)
    torch.cuda.reset_peak_memory_stats(device)
    # Its tokens' KV all goes to the padding block, so the smallest pool will do.
    cache = KVCache(network.shape, 1, device=device, dtype=network.dtype)
    runner = make_cuda_runner(
        network,
        cache,
        max_num_seqs=max_num_seqs,
        max_tokens_per_step=max_tokens_per_step,
        max_model_len=max_model_len,
        graphs=False,
    )
    runner.run_worst_case()
    torch.cuda.synchronize(device)
    step = torch.cuda.max_memory_allocated(device) - held
    del runner, cache
    gc.collect()
    torch.cuda.empty_cache()
    free, total = torch.cuda.mem_get_info(device)
    return MemoryReading(total, free, weights=held, step=step, utilization=utilization)
