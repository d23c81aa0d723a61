"""What a decoder does beside matrix products and attention, as a seam for fused kernels.

A kernel may fuse what one method does; ``rotate`` alone may be left to the attention that follows
it at once. The decoder calls nothing else.
"""

from typing import Protocol

import torch
from torch import Tensor
from torch.nn import functional

from backend.models.layers import RMSNorm
from backend.models.rotary import rotate_


class Operations(Protocol):
    """Element-wise work of a decoder; ``rows`` and ``hidden`` are [tokens, hidden]."""

    def norm(self, rows: Tensor, norm: RMSNorm) -> Tensor:
        """Return ``rows`` normalised, in new memory."""
        ...

    def add_norm(self, hidden: Tensor, update: Tensor, norm: RMSNorm) -> tuple[Tensor, Tensor]:
        """Return the sum of both, and that sum normalised. ``hidden`` may be overwritten."""
        ...

    def rotate(self, heads: Tensor, head_norm: RMSNorm | None, rotations: Tensor) -> None:
        """Normalise queries and keys [tokens, heads, head_dim] by head if need be, and turn them.

        In place. ``rotations`` is complex64 [tokens, 1, head_dim / 2] (see ``rotary``).
        """
        ...

    def gated(self, gate_up: Tensor) -> Tensor:
        """Return silu(gate) * up for [rows, 2 * inner], gates first."""
        ...


class TorchOperations:
    """``Operations`` in plain torch, on any device."""

    def norm(self, rows: Tensor, norm: RMSNorm) -> Tensor:
        """See Operations."""
        return norm(rows)

    def add_norm(self, hidden: Tensor, update: Tensor, norm: RMSNorm) -> tuple[Tensor, Tensor]:
        """See Operations."""
        total = torch.add(hidden, update)
        return total, norm(total)

    def rotate(self, heads: Tensor, head_norm: RMSNorm | None, rotations: Tensor) -> None:
        """See Operations."""
        if head_norm is not None:
            heads.copy_(head_norm(heads))
        rotate_(heads, rotations)

    def gated(self, gate_up: Tensor) -> Tensor:
        """See Operations."""
        gate, up = gate_up.chunk(2, -1)
        return functional.silu(gate) * up
