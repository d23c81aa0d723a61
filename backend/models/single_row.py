"""The decoder for a step of one token, on CPU: a sequence that decodes alone.

There an operation takes longer to ask for than to do, matrix products aside, so they are as few as
can be: every result has its place and every view of it is made once, what a norm divides by goes
through the product as a factor, and products add to the residual. Equal to ``decoder`` but for the
order of sums. Law: one thread at a time; what ``forward`` returns is new memory.
"""

import math
from collections.abc import Sequence
from typing import Self

import torch
from torch import Tensor
from torch.nn import functional

from backend.models.attention import Attention
from backend.models.config import DecoderConfig
from backend.models.decoder_weights import MLP, DecoderLayer, DecoderWeights
from backend.models.layers import Linear, RMSNorm


class SingleRowDecoder:
    """``Decoder.forward`` of one token whose successor is wanted."""

    def __init__(
        self,
        config: DecoderConfig,
        weights: DecoderWeights,
        mlps: Sequence[MLP],
        rotations: Tensor,
    ) -> None:
        self._embedding, self._final_norm = weights.embedding, weights.final_norm
        self._layers: tuple[tuple[DecoderLayer, MLP, int | None], ...] = tuple(
            zip(weights.layers, mlps, config.windows, strict=True)
        )
        self._rotations = rotations
        new = weights.embedding.new_empty
        self._hidden = new(1, config.hidden_size)
        self._hidden_row = self._hidden[0]
        self._qkv = new(1, (config.num_heads + 2 * config.num_kv_heads) * config.head_dim)
        heads = self._qkv.view(1, -1, config.head_dim)
        self._queries = heads[:, : config.num_heads]
        self._keys_values = heads[:, config.num_heads :]
        self._rotated = heads[:, : config.num_heads + config.num_kv_heads]
        self._pairs = torch.view_as_complex(self._rotated.view(*self._rotated.shape[:2], -1, 2))
        self._gate_up = new(1, 2 * config.intermediate_size)
        self._gate, self._up = self._gate_up.chunk(2, -1)

    @classmethod
    def of(cls, config: DecoderConfig, weights: DecoderWeights, rotations: Tensor) -> Self | None:
        """Return one for ``weights``; None: they are not in float32 on CPU, or have experts."""
        like = weights.embedding
        mlps = [layer.mlp for layer in weights.layers if isinstance(layer.mlp, MLP)]
        if like.device.type != "cpu" or like.dtype is not torch.float32:
            return None
        if len(mlps) < len(weights.layers):
            return None
        return cls(config, weights, mlps, rotations)

    def forward(self, token: Tensor, position: Tensor, attention: Attention) -> Tensor:
        hidden = self._hidden
        torch.index_select(self._embedding, 0, token, out=hidden)
        rotation = self._rotations.index_select(0, position).unsqueeze(1)
        for index, (layer, mlp, window) in enumerate(self._layers):
            self._normed_product(layer.input_norm, layer.qkv, self._qkv)
            if layer.head_norm is not None:
                self._rotated.copy_(layer.head_norm(self._rotated))
            self._pairs.mul_(rotation)
            self._add_product(
                layer.output, attention(index, self._queries, self._keys_values, window)
            )
            self._normed_product(layer.mlp_norm, mlp.gate_up, self._gate_up)
            self._add_product(mlp.down, functional.silu(self._gate).mul_(self._up))
        return (hidden * self._final_norm.weight).mul_(self._factor(self._final_norm))

    def _normed_product(self, norm: RMSNorm, linear: Linear, out: Tensor) -> None:
        """Write what ``linear`` makes of the normalised residual."""
        bias, weight = linear.bias, linear.by_input
        torch.addmm(
            out if bias is None else bias,
            self._hidden * norm.weight,
            weight,
            beta=0 if bias is None else 1,
            alpha=self._factor(norm),
            out=out,
        )

    def _factor(self, norm: RMSNorm) -> float:
        row = self._hidden_row
        return 1.0 / math.sqrt(torch.dot(row, row).item() / len(row) + norm.eps)

    def _add_product(self, linear: Linear, row: Tensor) -> None:
        """Add what ``linear`` makes of ``row`` to the residual."""
        self._hidden.addmm_(row, linear.by_input)
        if linear.bias is not None:
            self._hidden.add_(linear.bias)
