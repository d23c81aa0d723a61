"""What only the CPU has: a way of fewer operations for a single token, and threads by size.

A step of a small model on CPU is as much overhead as arithmetic.
"""

import math
from collections.abc import Sequence
from typing import Self

import torch
from torch import Tensor
from torch.nn import functional

from backend.models.attention import Attention, AttentionLayer
from backend.models.config import DecoderConfig
from backend.models.decoder import MLP, Decoder, DecoderLayer, DecoderWeights
from backend.models.layers import DenseLinear, Embedding, Operations, RMSNorm, TorchOperations

# What a core reads in about 0.1 ms: below it a second one gains nothing even where all are idle.
_WORTH_SHARING = 2**20

_DenseLayer = tuple[DecoderLayer, DenseLinear, DenseLinear, DenseLinear, DenseLinear]


class CpuDecoder(Decoder):
    """Has fewer operations for one token whose successor is wanted."""

    def __init__(
        self,
        config: DecoderConfig,
        weights: DecoderWeights,
        rotations: Tensor,
        operations: Operations,
        layers: Sequence[_DenseLayer],
    ) -> None:
        super().__init__(config, weights, rotations, operations)
        self._embedding, self._final_norm = weights.embedding.rows, weights.final_norm
        self._layers = tuple(
            (layer, AttentionLayer(index, window))
            for index, (layer, window) in enumerate(zip(layers, config.windows, strict=True))
        )
        new = weights.embedding.rows.new_empty
        self._hidden = new(1, config.hidden_size)
        self._hidden_row, self._hidden_size = self._hidden[0], config.hidden_size
        self._qkv_row = new(1, (config.num_heads + 2 * config.num_kv_heads) * config.head_dim)
        self._heads = self._qkv_row.view(1, -1, config.head_dim)
        self._rotated = self._heads[:, : config.num_heads + config.num_kv_heads]
        self._pairs = torch.view_as_complex(self._rotated.view(*self._rotated.shape[:2], -1, 2))
        self._gate_up = new(1, 2 * config.intermediate_size)
        self._gate, self._up = self._gate_up.chunk(2, -1)

    @classmethod
    def of(
        cls,
        config: DecoderConfig,
        weights: DecoderWeights,
        rotations: Tensor,
        operations: Operations,
    ) -> Self | None:
        """Return one for ``weights``; None unless all are dense, float32 and on the CPU.

        None with kernels as ``operations`` too, because they are faster.
        """
        like = weights.embedding.rows
        if not isinstance(weights.embedding, Embedding):
            return None  # its rows are on several ranks
        is_plain = like.device.type == "cpu" and like.dtype is torch.float32
        if not is_plain or not isinstance(operations, TorchOperations):
            return None
        layers = _dense_layers(weights.layers)
        return None if layers is None else cls(config, weights, rotations, operations, layers)

    def forward(
        self, tokens: Tensor, positions: Tensor, attention: Attention, logit_rows: Tensor | None
    ) -> Tensor:
        if logit_rows is not None or tokens.shape[0] != 1:
            return super().forward(tokens, positions, attention, logit_rows)
        hidden = self._hidden
        torch.index_select(self._embedding, 0, tokens, out=hidden)
        rotation = self._rotations.index_select(0, positions).unsqueeze(1)
        for dense, attending in self._layers:
            layer, qkv, output, gate_up, down = dense
            self._normed_product(layer.input_norm, qkv, self._qkv_row)
            if layer.head_norm is not None:
                self._rotated.copy_(layer.head_norm(self._rotated))
            self._pairs.mul_(rotation)
            self._add_product(output, attention.forward(attending, self._heads, None))
            self._normed_product(layer.mlp_norm, gate_up, self._gate_up)
            self._add_product(down, functional.silu(self._gate).mul_(self._up))
        return (hidden * self._final_norm.weight).mul_(self._factor(self._final_norm))

    def _normed_product(self, norm: RMSNorm, linear: DenseLinear, out: Tensor) -> None:
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
        return 1.0 / math.sqrt(torch.dot(row, row).item() / self._hidden_size + norm.eps)

    def _add_product(self, linear: DenseLinear, row: Tensor) -> None:
        """Add what ``linear`` makes of ``row`` to the residual."""
        self._hidden.addmm_(row, linear.by_input)
        if linear.bias is not None:
            self._hidden.add_(linear.bias)


def _dense_layers(layers: Sequence[DecoderLayer]) -> list[_DenseLayer] | None:
    """Return each layer with its matrices, None unless all are dense and without experts."""
    found: list[_DenseLayer] = []
    for layer in layers:
        match layer:
            case DecoderLayer(
                qkv=DenseLinear() as qkv,
                output=DenseLinear() as output,
                mlp=MLP(DenseLinear() as gate_up, DenseLinear() as down),
            ):
                found.append((layer, qkv, output, gate_up, down))
            case _:
                return None
    return found


class SingleThreadIfSmall:
    """Within, torch shares operations among threads only where they read enough for that.

    Threads that share an operation wait for the last of them. Where other work takes a core away,
    that is a time slice: hundreds of times what a small operation saves.
    """

    # A class, because contextlib's generators cost as much as a small operation.
    __slots__ = ("_before",)

    def __init__(self, num_bytes: int) -> None:
        """``num_bytes`` are those of the larger of what operations within read and make between."""
        self._before = torch.get_num_threads() if num_bytes < _WORTH_SHARING else 1

    def __enter__(self) -> None:
        """Take away all threads but one."""
        if self._before > 1:
            torch.set_num_threads(1)

    def __exit__(self, *_: object) -> None:
        """Give them back."""
        if self._before > 1:
            torch.set_num_threads(self._before)
