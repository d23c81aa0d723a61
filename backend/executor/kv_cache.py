"""The paged KV cache: preallocated tensors for each layer.

A layer's blocks are [blocks + 1, 2 * kv_heads, block, head_dim]: in every block the heads of the
keys, then those of the values. Block 0 pads block tables. KV in eight bits has scales beside it:
int8 one for each token and head, FP8 one for each head. ``models.dtypes`` chooses the type.
"""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass

import torch
from torch import Tensor

from backend.models.config import ModelShape
from backend.scheduler.block_pool import BLOCK_SIZE

FP8 = torch.float8_e4m3fn
_SCALE = torch.float16


@dataclass(frozen=True, slots=True)
class LayerKV:
    """One layer: ``blocks``, and ``scales`` that their numbers are multiplied by, None for none.

    ``scales`` is float16 [blocks + 1, 2 * kv_heads, block] for int8, float32 [2 * kv_heads] for
    FP8.
    """

    blocks: Tensor
    scales: Tensor | None = None


def block_bytes(shape: ModelShape, dtype: torch.dtype) -> int:
    """Return the bytes that one block takes over all layers, scales included."""
    row = shape.head_dim * dtype.itemsize + (_SCALE.itemsize if dtype is torch.int8 else 0)
    return 2 * shape.num_layers * shape.num_kv_heads * BLOCK_SIZE * row


class KVCache:
    """``num_blocks`` usable blocks; which belong to whom is the block pool's business."""

    def __init__(
        self, shape: ModelShape, num_blocks: int, *, device: torch.device, dtype: torch.dtype
    ) -> None:
        """Allocate. Zeros, because masked positions are still multiplied (0 * NaN is NaN)."""
        heads = (num_blocks + 1, 2 * shape.num_kv_heads, BLOCK_SIZE)
        self.dtype = dtype
        self.layers = tuple(
            LayerKV(
                torch.zeros((*heads, shape.head_dim), device=device, dtype=dtype),
                _scales(heads, dtype, device),
            )
            for _ in range(shape.num_layers)
        )

    def set_scales(self, scales: Iterable[Tensor | None]) -> None:
        """Take a layer's [2 * kv_heads] each for KV in FP8; None leaves them at 1."""
        for layer, given in zip(self.layers, scales, strict=True):
            if layer.scales is not None and given is not None:
                layer.scales.copy_(given)

    @property
    def parts(self) -> Iterator[Tensor]:
        """Yield all that belongs to blocks, as bytes [blocks + 1, bytes], layer by layer."""
        for layer in self.layers:
            yield layer.blocks.view(torch.uint8).flatten(1)
            if layer.scales is not None and layer.scales.dim() > 1:
                yield layer.scales.view(torch.uint8).flatten(1)

    @property
    def bytes_of_block(self) -> int:
        """What ``copy_out`` copies of each block."""
        return sum(part.shape[1] for part in self.parts)

    def copy_out(self, blocks: Tensor, rows: Tensor) -> None:
        """Copy everything of ``blocks`` [n] to ``rows``, uint8 [n, ``bytes_of_block``]."""
        start = 0
        for part in self.parts:
            stop = start + part.shape[1]
            rows[:, start:stop] = part.index_select(0, blocks)
            start = stop

    def copy_in(self, blocks: Tensor, rows: Tensor) -> None:
        """Copy ``rows`` to ``blocks``: undoes ``copy_out``."""
        start = 0
        for part in self.parts:
            stop = start + part.shape[1]
            part.index_copy_(0, blocks, rows[:, start:stop])
            start = stop

    def clear(self, blocks: Iterable[int]) -> None:
        """Zero blocks whose content is not finite, before somebody else gets them."""
        rows = list(blocks)
        for layer in self.layers:
            if layer.blocks.dtype is FP8:
                layer.blocks.view(torch.uint8)[rows] = 0
                continue
            layer.blocks[rows] = 0
            if layer.scales is not None:
                layer.scales[rows] = 0


def _scales(heads: tuple[int, int, int], dtype: torch.dtype, device: torch.device) -> Tensor | None:
    if dtype is torch.int8:
        return torch.zeros(heads, device=device, dtype=_SCALE)
    if dtype is FP8:
        return torch.ones(heads[1], device=device, dtype=torch.float32)
    return None
