"""The paged KV cache: one preallocated tensor for each layer.

A layer's tensor is [blocks + 1, 2 * kv_heads, block, head_dim]: in every block the heads of the
keys, then those of the values. Block 0 pads block tables.
"""

from collections.abc import Iterable

import torch
from torch import Tensor

from backend.models.config import ModelShape
from backend.scheduler.block_pool import BLOCK_SIZE


def block_bytes(config: ModelShape, dtype: torch.dtype) -> int:
    """Return the bytes that one block takes over all layers."""
    row = config.num_kv_heads * config.head_dim * dtype.itemsize
    return 2 * config.num_layers * BLOCK_SIZE * row


class KVCache:
    """``num_blocks`` usable blocks; which belong to whom is the block pool's business."""

    def __init__(
        self, config: ModelShape, num_blocks: int, *, device: torch.device, dtype: torch.dtype
    ) -> None:
        """Allocate. Zeros, because masked positions are still multiplied (0 * NaN is NaN)."""
        shape = (num_blocks + 1, 2 * config.num_kv_heads, BLOCK_SIZE, config.head_dim)
        self.layers: tuple[Tensor, ...] = tuple(
            torch.zeros(shape, device=device, dtype=dtype) for _ in range(config.num_layers)
        )

    def clear(self, blocks: Iterable[int]) -> None:
        """Zero blocks whose content is not finite, before somebody else gets them."""
        rows = list(blocks)
        for layer in self.layers:
            layer[rows] = 0
