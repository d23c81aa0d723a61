"""The decoder that all families of ``config`` share, as plain functions over fused weights.

No nn.Module: on CPU a step of a small model is as much Python as arithmetic, so a layer is a few
dozen tensor operations and nothing else. Tokens of all sequences of a step lie in one dimension;
only attention knows whose they are. What is not a matrix product goes through ``Operations``.
"""

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Self

import torch
from torch import Tensor
from torch.nn import functional

from backend.models.attention import Attention, AttentionLayer
from backend.models.config import DecoderConfig
from backend.models.layers import (
    DenseLinear,
    Embedding,
    Linear,
    Operations,
    RMSNorm,
    TorchOperations,
)
from backend.models.moe import Experts


@dataclass(frozen=True, slots=True)
class MLP:
    """The gated MLP; gate and up are one product."""

    gate_up: Linear
    down: Linear

    @property
    def num_bytes(self) -> int:
        """What the weights take in memory."""
        return self.gate_up.num_bytes + self.down.num_bytes

    def __call__(self, rows: Tensor, operations: Operations) -> Tensor:
        """Map [tokens, hidden] to the same shape."""
        return self.down(operations.gated(self.gate_up(rows)))


@dataclass(frozen=True, slots=True)
class DecoderLayer:
    """One layer; q, k and v are one product.

    ``head_norm`` normalises queries and keys head by head, in the families that do. ``kv_scales``
    [2 * kv_heads], keys before values, are what the checkpoint says of a KV cache in FP8.
    """

    input_norm: RMSNorm
    qkv: Linear
    head_norm: RMSNorm | None
    output: Linear
    mlp_norm: RMSNorm
    mlp: MLP | Experts
    kv_scales: Tensor | None = None


@dataclass(frozen=True, slots=True)
class DecoderWeights:
    """Everything a checkpoint holds; ``head`` shares the embedding where they are tied."""

    embedding: Embedding
    layers: tuple[DecoderLayer, ...]
    final_norm: RMSNorm
    head: Linear

    @property
    def num_bytes(self) -> int:
        """What embedding and matrices take in memory; a tied matrix counts once."""
        return self.streamed_bytes + self.embedding.num_bytes

    @property
    def streamed_bytes(self) -> int:
        """What a decode step reads, if it picks all experts: of the embedding next to nothing."""
        matrices = [self.head.num_bytes]
        for layer in self.layers:
            matrices += [layer.qkv.num_bytes, layer.output.num_bytes, layer.mlp.num_bytes]
        return sum(matrices)

    @property
    def linears(self) -> Iterator[Linear]:
        """All matrices but those of experts that are one tensor."""
        yield self.head
        for layer in self.layers:
            yield layer.qkv
            yield layer.output
            if isinstance(layer.mlp, MLP):
                yield layer.mlp.gate_up
                yield layer.mlp.down
            else:
                for each in (layer.mlp.gate_up, layer.mlp.down):
                    if not isinstance(each, Tensor):
                        yield from each

    @property
    def has_static_steps(self) -> bool:
        """Whether the host learns nothing within a step, so that a graph can hold one."""
        return all(
            layer.mlp.has_static_steps for layer in self.layers if isinstance(layer.mlp, Experts)
        )


class Decoder:
    """A model ready to compute, for one thread at a time; the caches belong to the caller."""

    def __init__(
        self,
        config: DecoderConfig,
        weights: DecoderWeights,
        rotations: Tensor,
        operations: Operations | None = None,
    ) -> None:
        """``rotations`` comes from ``rope.rotation_table`` and bounds the context."""
        self._head_dim = config.head_dim
        self._weights = weights
        self.attended_size = config.num_heads * config.head_dim
        """Numbers that an attention returns for a token."""
        self.attention_layers = tuple(
            AttentionLayer(index, window, layer.head_norm)
            for index, (layer, window) in enumerate(
                zip(weights.layers, config.windows, strict=True)
            )
        )
        self._rotations = rotations
        self._operations = TorchOperations() if operations is None else operations
        # Kernels are faster than it, where there are any.
        in_torch = isinstance(self._operations, TorchOperations)
        self._single = SingleRowDecoder.of(config, weights, rotations) if in_torch else None
        # The norm after a layer is the next one's first, so that it fuses with the addition.
        next_norms = [layer.input_norm for layer in weights.layers[1:]]
        self._next_norms = (*next_norms, weights.final_norm)

    @property
    def device(self) -> torch.device:
        """Where the weights are."""
        return self._weights.embedding.rows.device

    @property
    def dtype(self) -> torch.dtype:
        """Return the type of activations, and of KV unless it is quantised."""
        return self._weights.embedding.dtype

    def forward(
        self,
        tokens: Tensor,
        positions: Tensor,
        attention: Attention,
        logit_rows: Tensor | None,
    ) -> Tensor:
        """Return the last hidden states [len(logit_rows), hidden], normalised.

        ``tokens`` and ``positions`` are [tokens]. ``logit_rows`` are the tokens whose successor
        is wanted, all when None. ``logits`` goes on from here.
        """
        if self._single is not None and logit_rows is None and tokens.shape[0] == 1:
            return self._single.forward(tokens, positions, attention)
        hidden, qkv, rotations = self.enter(tokens, positions)
        for layer in self.attention_layers[:-1]:
            attended = attention.forward(layer, qkv, rotations)
            hidden, qkv = self.between(layer.index, hidden, attended)
        attended = attention.forward(self.attention_layers[-1], qkv, rotations)
        return self.leave(hidden, attended, logit_rows)

    def enter(self, tokens: Tensor, positions: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Return the residual, and what the first attention takes: qkv and rotations."""
        rotations = self._rotations.index_select(0, positions).unsqueeze(1)
        hidden = self._weights.embedding(tokens)
        normed = self._operations.norm(hidden, self._weights.layers[0].input_norm)
        return hidden, self._qkv(0, normed), rotations

    def between(self, index: int, hidden: Tensor, attended: Tensor) -> tuple[Tensor, Tensor]:
        """Return the residual and the next layer's qkv, from what layer ``index`` attended to."""
        hidden, normed = self._after_attention(index, hidden, attended)
        return hidden, self._qkv(index + 1, normed)

    def leave(self, hidden: Tensor, attended: Tensor, logit_rows: Tensor | None) -> Tensor:
        """Return the last hidden states of ``logit_rows``, normalised."""
        if logit_rows is not None:
            # Nothing after this reads other tokens' activations: only their KV was needed.
            attended = attended.index_select(0, logit_rows)
            hidden = hidden.index_select(0, logit_rows)
            if not len(logit_rows):
                return hidden
        _, normed = self._after_attention(len(self.attention_layers) - 1, hidden, attended)
        return normed

    def _qkv(self, index: int, normed: Tensor) -> Tensor:
        qkv = self._weights.layers[index].qkv(normed)
        return qkv.contiguous().view(len(normed), -1, self._head_dim)

    def _after_attention(
        self, index: int, hidden: Tensor, attended: Tensor
    ) -> tuple[Tensor, Tensor]:
        operations, layer = self._operations, self._weights.layers[index]
        hidden, normed = operations.add_norm(hidden, layer.output(attended), layer.mlp_norm)
        return operations.add_norm(hidden, layer.mlp(normed, operations), self._next_norms[index])

    def logits(self, hidden: Tensor) -> Tensor:
        """Return [rows, vocab] for hidden states [rows, hidden] of ``forward``."""
        return self._weights.head(hidden)


_DenseLayer = tuple[DecoderLayer, DenseLinear, DenseLinear, DenseLinear, DenseLinear]


class SingleRowDecoder:
    """``Decoder.forward`` of one token whose successor is wanted."""

    def __init__(
        self,
        config: DecoderConfig,
        weights: DecoderWeights,
        layers: Sequence[_DenseLayer],
        rotations: Tensor,
    ) -> None:
        self._embedding, self._final_norm = weights.embedding.rows, weights.final_norm
        self._layers = tuple(
            (layer, AttentionLayer(index, window))
            for index, (layer, window) in enumerate(zip(layers, config.windows, strict=True))
        )
        self._rotations = rotations
        new = weights.embedding.rows.new_empty
        self._hidden = new(1, config.hidden_size)
        self._hidden_row, self._hidden_size = self._hidden[0], config.hidden_size
        self._qkv = new(1, (config.num_heads + 2 * config.num_kv_heads) * config.head_dim)
        self._heads = self._qkv.view(1, -1, config.head_dim)
        self._rotated = self._heads[:, : config.num_heads + config.num_kv_heads]
        self._pairs = torch.view_as_complex(self._rotated.view(*self._rotated.shape[:2], -1, 2))
        self._gate_up = new(1, 2 * config.intermediate_size)
        self._gate, self._up = self._gate_up.chunk(2, -1)

    @classmethod
    def of(cls, config: DecoderConfig, weights: DecoderWeights, rotations: Tensor) -> Self | None:
        """Return one for ``weights``; None: not all are float32 on CPU, or there are experts."""
        like = weights.embedding.rows
        if like.device.type != "cpu" or like.dtype is not torch.float32:
            return None
        layers = _dense_layers(weights.layers)
        return None if layers is None else cls(config, weights, layers, rotations)

    def forward(self, token: Tensor, position: Tensor, attention: Attention) -> Tensor:
        hidden = self._hidden
        torch.index_select(self._embedding, 0, token, out=hidden)
        rotation = self._rotations.index_select(0, position).unsqueeze(1)
        for dense, attending in self._layers:
            layer, qkv, output, gate_up, down = dense
            self._normed_product(layer.input_norm, qkv, self._qkv)
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
