"""The decoder that Llama, Qwen2 and Qwen3 share, as plain functions over fused weights.

No nn.Module: on CPU a step of a small model is as much Python as arithmetic, so a layer is a few
dozen tensor operations and nothing else. Tokens of all sequences of a step lie in one dimension;
only attention knows whose they are.
"""

from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn import functional

from backend.models.attention import Attention
from backend.models.config import DecoderConfig
from backend.models.layers import Linear, RMSNorm
from backend.models.rotary import rotate_


@dataclass(frozen=True, slots=True)
class DecoderLayer:
    """One layer; q, k and v are one product, gate and up another.

    ``head_norm`` normalises queries and keys head by head, in the families that do.
    """

    input_norm: RMSNorm
    qkv: Linear
    head_norm: RMSNorm | None
    output: Linear
    mlp_norm: RMSNorm
    gate_up: Linear
    down: Linear


@dataclass(frozen=True, slots=True)
class DecoderWeights:
    """Everything a checkpoint holds; ``head`` shares the embedding where they are tied."""

    embedding: Tensor
    layers: tuple[DecoderLayer, ...]
    final_norm: RMSNorm
    head: Linear


class Decoder:
    """A model ready to compute; stateless, the caches belong to the caller."""

    def __init__(self, config: DecoderConfig, weights: DecoderWeights, rotations: Tensor) -> None:
        """``rotations`` comes from ``rotary.rotation_table`` and bounds the context."""
        self._num_heads = config.num_heads
        self._num_rotated = config.num_heads + config.num_kv_heads
        self._head_dim = config.head_dim
        self._weights = weights
        self._rotations = rotations

    @property
    def device(self) -> torch.device:
        """Where the weights are."""
        return self._weights.embedding.device

    @property
    def dtype(self) -> torch.dtype:
        """Of weights, activations and KV."""
        return self._weights.embedding.dtype

    def forward(
        self,
        tokens: Tensor,
        positions: Tensor,
        attention: Attention,
        logit_rows: Tensor | None,
    ) -> Tensor:
        """Return hidden states [len(logit_rows), hidden], from which ``logits`` goes on.

        ``tokens`` and ``positions`` are [tokens]. ``logit_rows`` are the tokens whose successor
        is wanted, all when None.
        """
        rotations = self._rotations.index_select(0, positions).unsqueeze(1)
        hidden = functional.embedding(tokens, self._weights.embedding)
        last = len(self._weights.layers) - 1
        for index, layer in enumerate(self._weights.layers):
            queries, keys_values = self._project(layer, layer.input_norm(hidden), rotations)
            attended = attention(index, queries, keys_values, None)
            if index == last and logit_rows is not None:
                # Nothing after this reads other tokens' activations: only their KV was needed.
                attended = attended.index_select(0, logit_rows)
                hidden = hidden.index_select(0, logit_rows)
            hidden = hidden + layer.output(attended)
            gate, up = layer.gate_up(layer.mlp_norm(hidden)).chunk(2, -1)
            hidden = hidden + layer.down(functional.silu(gate) * up)
        return hidden

    def logits(self, hidden: Tensor) -> Tensor:
        """Return [rows, vocab] for hidden states [rows, hidden]."""
        return self._weights.head(self._weights.final_norm(hidden))

    def _project(
        self, layer: DecoderLayer, normed: Tensor, rotations: Tensor
    ) -> tuple[Tensor, Tensor]:
        qkv = layer.qkv(normed).contiguous().view(len(normed), -1, self._head_dim)
        queries_keys = qkv[:, : self._num_rotated]
        if layer.head_norm is not None:
            queries_keys.copy_(layer.head_norm(queries_keys))
        rotate_(queries_keys, rotations)
        return qkv[:, : self._num_heads], qkv[:, self._num_heads :]
