"""The decoder that Llama, Qwen2 and Qwen3 share, as plain functions over fused weights.

No nn.Module: on CPU a step of a small model is as much Python as arithmetic, so a layer is a dozen
tensor operations and nothing else. Tokens of all sequences of a step lie in one dimension; only
attention knows whose they are.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn import functional

from backend.models.attention import AttentionPlan, paged_attention
from backend.models.config import DecoderConfig
from backend.models.rotary import rotate

# Below this many rows BLAS is several times slower on a transposed operand than on a copy.
_MIN_ROWS_TRANSPOSED = 16


@dataclass(frozen=True, slots=True)
class Linear:
    """``weight`` is [out, in]."""

    weight: Tensor
    bias: Tensor | None


@dataclass(frozen=True, slots=True)
class DecoderLayer:
    """One layer; q, k and v are one product, gate and up another."""

    input_norm: Tensor
    qkv: Linear
    query_norm: Tensor | None
    key_norm: Tensor | None
    output: Linear
    mlp_norm: Tensor
    gate_up: Linear
    down: Linear


@dataclass(frozen=True, slots=True)
class DecoderWeights:
    """Everything a checkpoint holds; ``head`` is the embedding itself where they are tied."""

    embedding: Tensor
    layers: tuple[DecoderLayer, ...]
    final_norm: Tensor
    head: Tensor


class Decoder:
    """A model ready to compute; stateless, the caches belong to the caller."""

    def __init__(self, config: DecoderConfig, weights: DecoderWeights, rotations: Tensor) -> None:
        """``rotations`` comes from ``rotary.rotation_table`` and bounds the context."""
        self.config = config
        self.weights = weights
        self._rotations = rotations

    @property
    def device(self) -> torch.device:
        """Where the weights are."""
        return self.weights.embedding.device

    @property
    def dtype(self) -> torch.dtype:
        """Of weights, activations and KV."""
        return self.weights.embedding.dtype

    def forward(
        self,
        tokens: Tensor,
        positions: Tensor,
        caches: Sequence[Tensor],
        plan: AttentionPlan,
        logit_rows: Tensor | None,
    ) -> Tensor:
        """Return logits [len(logit_rows), vocab] and leave the new KV in ``caches``.

        ``tokens`` and ``positions`` are [tokens]. ``logit_rows`` are the tokens whose successor
        is wanted, all when None.
        """
        eps = self.config.rms_eps
        rotations = self._rotations.index_select(0, positions).unsqueeze(1)
        hidden = functional.embedding(tokens, self.weights.embedding)
        last = self.weights.layers[-1]
        for layer, cache in zip(self.weights.layers, caches, strict=True):
            attended = self._attend(
                layer, _rms_norm(hidden, layer.input_norm, eps), rotations, cache, plan
            )
            if layer is last and logit_rows is not None:
                # Nothing after this reads other tokens' activations: only their KV was needed.
                attended = attended.index_select(0, logit_rows)
                hidden = hidden.index_select(0, logit_rows)
            hidden = hidden + _project(attended, layer.output)
            gate, up = _project(_rms_norm(hidden, layer.mlp_norm, eps), layer.gate_up).chunk(2, -1)
            hidden = hidden + _project(functional.silu(gate) * up, layer.down)
        normed = _rms_norm(hidden, self.weights.final_norm, eps)
        return _project(normed, Linear(self.weights.head, None))

    def _attend(
        self,
        layer: DecoderLayer,
        normed: Tensor,
        rotations: Tensor,
        cache: Tensor,
        plan: AttentionPlan,
    ) -> Tensor:
        config = self.config
        num_rotated = config.num_heads + config.num_kv_heads
        qkv = _project(normed, layer.qkv).contiguous().view(len(normed), -1, config.head_dim)
        queries, keys = qkv[:, : config.num_heads], qkv[:, config.num_heads : num_rotated]
        values = qkv[:, num_rotated:]
        if layer.query_norm is not None and layer.key_norm is not None:
            queries = rotate(_rms_norm(queries, layer.query_norm, config.rms_eps), rotations)
            keys = rotate(_rms_norm(keys, layer.key_norm, config.rms_eps), rotations)
        else:
            rotated = rotate(qkv[:, :num_rotated], rotations)
            queries, keys = rotated[:, : config.num_heads], rotated[:, config.num_heads :]
        return paged_attention(queries, keys, values, cache, plan)


def _project(rows: Tensor, linear: Linear) -> Tensor:
    """Return ``rows @ weight.T + bias``; on CPU the result may be transposed in memory."""
    if rows.is_cuda:
        return functional.linear(rows, linear.weight, linear.bias)
    # BLAS is up to 1.6 times faster for a few rows when the large operand stands on the left.
    if len(rows) < _MIN_ROWS_TRANSPOSED:
        rows = rows.contiguous()
    result = torch.mm(linear.weight, rows.t()).t()
    return result if linear.bias is None else result + linear.bias


def _rms_norm(rows: Tensor, weight: Tensor, eps: float) -> Tensor:
    """Divide by the root mean square of the last dimension and scale by ``weight``."""
    size = rows.shape[-1]
    if rows.is_cuda or rows.dtype is not torch.float32:
        return functional.rms_norm(rows, (size,), weight, eps)
    # The same, from the length of the row; half the time of torch's CPU composite.
    length = torch.linalg.vector_norm(rows, dim=-1, keepdim=True)
    scale: Tensor = length.square_().add_(size * eps).rsqrt_().mul_(math.sqrt(size))
    return (rows * scale).mul_(weight)
