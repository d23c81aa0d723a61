"""Puts the kernels' model runner together."""

import torch

from backend.kernels.operations import KernelOperations
from backend.models.config import DecoderConfig
from backend.models.decoder import Decoder, DecoderWeights
from backend.runtime.cuda_batch import BatchLimits
from backend.runtime.cuda_prefill import choose_backend, make_prefill
from backend.runtime.cuda_runner import CudaModelRunner, KernelModel
from backend.runtime.kv_cache import KVCache

# What the interpreter's one processor is to be split for, so that splits are tested.
_PROCESSORS_ELSEWHERE = 2


def make_cuda_runner(
    config: DecoderConfig,
    weights: DecoderWeights,
    rotations: torch.Tensor,
    cache: KVCache,
    *,
    max_num_seqs: int,
    max_tokens_per_step: int,
    graphs: bool | None = None,
    prefill: str | None = None,
) -> CudaModelRunner:
    """Return a runner where ``weights`` are.

    ``graphs`` None: where they can be captured. ``prefill`` None: the best that can be imported.
    """
    operations = KernelOperations()
    model = Decoder(config, weights, rotations, operations)
    device = model.device
    on_cuda = device.type == "cuda"
    if graphs is None:
        # The sizes of experts' groups are known to the host only, which a graph cannot wait for.
        graphs = on_cuda and config.experts is None
    name = prefill or choose_backend(device=device.type, dtype=model.dtype)
    processors = _PROCESSORS_ELSEWHERE
    if on_cuda:
        processors = torch.cuda.get_device_properties(device).multi_processor_count
    limits = BatchLimits(
        max_num_seqs=max_num_seqs,
        max_tokens_per_step=max_tokens_per_step,
        max_model_len=len(rotations),
        processors=processors,
    )
    return CudaModelRunner(
        KernelModel(model, operations, config.num_heads, config.num_kv_heads, config.head_dim),
        cache,
        limits,
        make_prefill(name, device=device),
        graphs=graphs,
    )
