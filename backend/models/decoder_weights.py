"""What a checkpoint of a decoder holds, as the decoder computes with it."""

from dataclasses import dataclass

from torch import Tensor

from backend.models.layers import Linear, RMSNorm
from backend.models.moe import Experts
from backend.models.operations import Operations


@dataclass(frozen=True, slots=True)
class MLP:
    """The gated MLP; gate and up are one product."""

    gate_up: Linear
    down: Linear

    def __call__(self, rows: Tensor, operations: Operations) -> Tensor:
        """Map [tokens, hidden] to the same shape."""
        return self.down(operations.gated(self.gate_up(rows)))


@dataclass(frozen=True, slots=True)
class DecoderLayer:
    """One layer; q, k and v are one product.

    ``head_norm`` normalises queries and keys head by head, in the families that do.
    """

    input_norm: RMSNorm
    qkv: Linear
    head_norm: RMSNorm | None
    output: Linear
    mlp_norm: RMSNorm
    mlp: MLP | Experts


@dataclass(frozen=True, slots=True)
class DecoderWeights:
    """Everything a checkpoint holds; ``head`` shares the embedding where they are tied."""

    embedding: Tensor
    layers: tuple[DecoderLayer, ...]
    final_norm: RMSNorm
    head: Linear
