"""The decoder's element-wise operations by kernels, in place of ``TorchOperations``."""

from torch import Tensor

from backend.kernels.elementwise import add_rms_norm, rms_norm, silu_mul
from backend.models.layers import RMSNorm


class KernelOperations:
    """``Operations`` by the kernels of ``kernels.elementwise``."""

    def norm(self, rows: Tensor, norm: RMSNorm) -> Tensor:
        return rms_norm(rows, norm.weight, norm.eps)

    def add_norm(self, hidden: Tensor, update: Tensor, norm: RMSNorm) -> tuple[Tensor, Tensor]:
        """Overwrite ``hidden`` with the sum, and normalise it."""
        # Products may come transposed on CPU (see ``layers.Linear``); elsewhere this does nothing.
        return hidden, add_rms_norm(update.contiguous(), hidden, norm.weight, norm.eps)

    def gated(self, gate_up: Tensor) -> Tensor:
        return silu_mul(gate_up.contiguous())
