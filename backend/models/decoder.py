"""The decoder that all families of ``config`` share, as plain functions over fused weights.

No nn.Module: on CPU a step of a small model is as much Python as arithmetic, so a layer is a few
dozen tensor operations and nothing else. Tokens of all sequences of a step lie in one dimension;
only attention knows whose they are. What is not a matrix product goes through ``Operations``.
The CPU's way of a single token is in ``cpu_decoder``.
"""

from collections.abc import Iterator
from dataclasses import dataclass

from torch import Tensor

from backend.models.attention import Attention, AttentionLayer
from backend.models.config import DecoderConfig
from backend.models.layers import Embedding, Linear, Operations, RMSNorm
from backend.models.moe import Experts
from backend.models.parallel import (
    RowParallel,
    VocabularyParallelEmbedding,
    VocabularyParallelHead,
)


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

    embedding: Embedding | VocabularyParallelEmbedding
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
        """All matrices as this rank has them, but those of experts that are one tensor."""
        yield _own(self.head)
        for layer in self.layers:
            yield layer.qkv
            yield _own(layer.output)
            if isinstance(layer.mlp, MLP):
                yield layer.mlp.gate_up
                yield _own(layer.mlp.down)
            else:
                for each in (layer.mlp.gate_up, layer.mlp.down):
                    if not isinstance(each, Tensor):
                        yield from each

    @property
    def experts(self) -> Iterator[Experts]:
        """The mixture of each layer that has one."""
        return (layer.mlp for layer in self.layers if isinstance(layer.mlp, Experts))


def _own(linear: Linear) -> Linear:
    return linear.linear if isinstance(linear, RowParallel | VocabularyParallelHead) else linear


class Decoder:
    """A model ready to compute, for one thread at a time; the caches belong to the caller."""

    def __init__(
        self,
        config: DecoderConfig,
        weights: DecoderWeights,
        rotations: Tensor,
        operations: Operations,
    ) -> None:
        """``rotations`` comes from ``rope.rotation_table`` and bounds the context."""
        self.device = weights.embedding.rows.device
        self._head_dim = config.head_dim
        self._weights = weights
        self.attended_size = config.num_heads * config.head_dim
        """Numbers that an attention returns for a token."""
        self.attention_layers = tuple(
            AttentionLayer(index, window, weights.layers[index].head_norm)
            for index, window in enumerate(config.windows)
        )
        self._rotations = rotations
        self._operations = operations
        # The norm after a layer is the next one's first, so that it fuses with the addition.
        self._next_norms = [each.input_norm for each in weights.layers[1:]] + [weights.final_norm]
        self.logits = weights.head
        """From hidden states [rows, hidden] of ``forward`` to [rows, vocab]."""

    def forward(
        self, tokens: Tensor, positions: Tensor, attention: Attention, logit_rows: Tensor | None
    ) -> Tensor:
        """Return the last hidden states [len(logit_rows), hidden], normalised.

        ``tokens`` and ``positions`` are [tokens]. ``logit_rows`` are the tokens whose successor
        is wanted, all when None. ``logits`` goes on from here.
        """
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
