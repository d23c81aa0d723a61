"""The decoder that all families of ``config`` share, as plain functions over fused weights.

No nn.Module: on CPU a step of a small model is as much Python as arithmetic, so a layer is a few
dozen tensor operations and nothing else. Tokens of all sequences of a step lie in one dimension;
only attention knows whose they are. What is not a matrix product goes through ``Operations``.
"""

import torch
from torch import Tensor
from torch.nn import functional

from backend.models.attention import Attention
from backend.models.config import DecoderConfig
from backend.models.decoder_weights import DecoderWeights
from backend.models.operations import Operations, TorchOperations
from backend.models.single_row import SingleRowDecoder


class Decoder:
    """A model ready to compute, for one thread at a time; the caches belong to the caller."""

    def __init__(
        self,
        config: DecoderConfig,
        weights: DecoderWeights,
        rotations: Tensor,
        operations: Operations | None = None,
    ) -> None:
        """``rotations`` comes from ``rotary.rotation_table`` and bounds the context."""
        self._num_heads = config.num_heads
        self._num_rotated = config.num_heads + config.num_kv_heads
        self._head_dim = config.head_dim
        self._weights = weights
        self._rotations = rotations
        self._operations = TorchOperations() if operations is None else operations
        # Kernels are faster than it, where there are any.
        in_torch = isinstance(self._operations, TorchOperations)
        self._single = SingleRowDecoder.of(config, weights, rotations) if in_torch else None
        # The norm after a layer is the next one's first, so that it fuses with the addition.
        next_norms = [layer.input_norm for layer in weights.layers[1:]]
        self._layers = tuple(
            zip(
                weights.layers,
                config.windows,
                (*next_norms, weights.final_norm),
                strict=True,
            )
        )

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
        """Return the last hidden states [len(logit_rows), hidden], normalised.

        ``tokens`` and ``positions`` are [tokens]. ``logit_rows`` are the tokens whose successor
        is wanted, all when None. ``logits`` goes on from here.
        """
        if self._single is not None and logit_rows is None and tokens.shape[0] == 1:
            return self._single.forward(tokens, positions, attention)
        operations = self._operations
        rotations = self._rotations.index_select(0, positions).unsqueeze(1)
        hidden = functional.embedding(tokens, self._weights.embedding)
        normed = operations.norm(hidden, self._weights.layers[0].input_norm)
        last = len(self._layers) - 1
        for index, (layer, window, next_norm) in enumerate(self._layers):
            qkv = layer.qkv(normed).contiguous().view(len(normed), -1, self._head_dim)
            operations.rotate(qkv[:, : self._num_rotated], layer.head_norm, rotations)
            attended = attention(
                index, qkv[:, : self._num_heads], qkv[:, self._num_heads :], window
            )
            if index == last and logit_rows is not None:
                # Nothing after this reads other tokens' activations: only their KV was needed.
                attended = attended.index_select(0, logit_rows)
                hidden = hidden.index_select(0, logit_rows)
                if not len(logit_rows):
                    return hidden
            hidden, normed = operations.add_norm(hidden, layer.output(attended), layer.mlp_norm)
            hidden, normed = operations.add_norm(hidden, layer.mlp(normed, operations), next_norm)
        return normed

    def logits(self, hidden: Tensor) -> Tensor:
        """Return [rows, vocab] for hidden states [rows, hidden] of ``forward``."""
        return self._weights.head(hidden)
