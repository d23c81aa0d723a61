"""How many KV blocks and how long a context: the arithmetic between a model and a machine."""

import os
from dataclasses import dataclass

import torch

from backend.core.block_pool import BLOCK_SIZE, blocks_for
from backend.models.errors import ModelLoadError
from backend.models.model import ModelShape
from backend.runtime.kv_cache import block_bytes

_CPU_SHARE = 0.25
_CUDA_SHARE = 0.85


@dataclass(frozen=True, slots=True)
class Sizing:
    """``num_blocks`` of KV, and the context, never longer than these blocks hold."""

    num_blocks: int
    max_model_len: int


def size_cache(
    config: ModelShape,
    *,
    device: torch.device,
    dtype: torch.dtype,
    max_num_seqs: int,
    max_model_len: int | None,
    kv_bytes: int | None,
) -> Sizing:
    """Decide the size of the pool, weights already loaded.

    Without ``kv_bytes`` the pool takes a share of the memory, and no more than ``max_num_seqs``
    full contexts need. Raises ModelLoadError when the wishes contradict model or memory.
    """
    wanted_len = config.max_positions if max_model_len is None else max_model_len
    if not 1 < wanted_len <= config.max_positions:
        raise ModelLoadError(
            f"max-model-len {wanted_len}: the model's context is {config.max_positions} tokens"
        )
    per_block = block_bytes(config, dtype)
    if kv_bytes is None:
        num_blocks = min(_spare_bytes(device) // per_block, max_num_seqs * blocks_for(wanted_len))
    else:
        num_blocks = kv_bytes // per_block
    if num_blocks < 1:
        raise ModelLoadError(f"no memory for one KV block of {per_block} bytes")
    return Sizing(num_blocks, min(wanted_len, num_blocks * BLOCK_SIZE))


def _spare_bytes(device: torch.device) -> int:
    if device.type == "cuda":
        free, _ = torch.cuda.mem_get_info(device)
        return int(free * _CUDA_SHARE)
    # Pages of the pool that are never written cost nothing, so a share of the total is safe.
    return int(os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") * _CPU_SHARE)
