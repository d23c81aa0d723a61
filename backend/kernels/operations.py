"""A decoder's element-wise work in fused kernels.

Law: queries and keys are turned together with the KV write, by the ``KernelAttention`` that follows
``rotate`` at once; until then they are as the projection left them.
"""

from dataclasses import dataclass

import torch
from torch import Tensor

from backend.kernels.activation import silu_mul
from backend.kernels.norm import add_rms_norm, rms_norm
from backend.models.layers import RMSNorm


@dataclass(frozen=True, slots=True)
class Turn:
    """What ``rotate`` was asked to do."""

    heads: Tensor
    head_norm: RMSNorm | None
    rotations: Tensor


class KernelOperations:
    """``models.layers.Operations``."""

    def __init__(self) -> None:
        self._turn: Turn | None = None

    def norm(self, rows: Tensor, norm: RMSNorm) -> Tensor:
        """See Operations."""
        return rms_norm(rows, norm.weight, norm.eps)

    def add_norm(self, hidden: Tensor, update: Tensor, norm: RMSNorm) -> tuple[Tensor, Tensor]:
        """See Operations; overwrites ``hidden``."""
        # Products may come transposed on CPU (see ``layers.Linear``); elsewhere this does nothing.
        return hidden, add_rms_norm(update.contiguous(), hidden, norm.weight, norm.eps)

    def rotate(self, heads: Tensor, head_norm: RMSNorm | None, rotations: Tensor) -> None:
        """See Operations; done when the attention takes it."""
        self._turn = Turn(heads, head_norm, torch.view_as_real(rotations.squeeze(1)))

    def take_turn(self) -> Turn | None:
        """Return what ``rotate`` left to do, once."""
        turn, self._turn = self._turn, None
        return turn

    def gated(self, gate_up: Tensor) -> Tensor:
        """See Operations."""
        return silu_mul(gate_up.contiguous())
