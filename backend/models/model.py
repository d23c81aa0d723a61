"""What the executor runs: a model, and the network that makes one for a context."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol

import torch
from torch import Tensor

from backend.models.attention import Attention, ScoreRules
from backend.models.config import DecoderConfig, ModelShape
from backend.models.cpu_decoder import CpuDecoder
from backend.models.decoder import Decoder, DecoderWeights
from backend.models.gated_delta import StateShape
from backend.models.layers import Operations
from backend.models.lora import Adapters
from backend.models.rope import rotation_table


class Model(Protocol):
    """Computes; stateless, the caches belong to ``attention``."""

    @property
    def device(self) -> torch.device:
        """Where the weights are."""

    def forward(
        self, tokens: Tensor, positions: Tensor, attention: Attention, logit_rows: Tensor | None
    ) -> Tensor:
        """Compute a step; return what ``logits`` takes, [len(logit_rows), any].

        ``tokens`` and ``positions`` are [tokens]. ``logit_rows`` are the tokens whose successor
        is wanted, all when None.
        """

    def logits(self, hidden: Tensor, /) -> Tensor:
        """Return [rows, vocab]."""


@dataclass(frozen=True, slots=True)
class Network:
    """Weights on their device.

    ``with_context`` makes the model for a context of that length; one that brings code of its own
    does not use the operations.
    """

    shape: ModelShape
    dtype: torch.dtype
    with_context: Callable[[int, Operations], Model]
    rules: tuple[ScoreRules | None, ...] = ()
    """What becomes of each layer's attention scores; empty where no layer has rules."""
    weights: DecoderWeights | None = None
    """None: the model brings code of its own."""
    num_ranks: int = 1
    adapters: Adapters | None = None
    states: StateShape | None = None
    """What each sequence has beside KV, None for nothing."""

    @property
    def has_static_steps(self) -> bool:
        """Whether the host learns nothing within a step, so that a graph can hold one."""
        weights = self.weights
        return weights is not None and all(each.product is not None for each in weights.experts)


def network_of(
    config: DecoderConfig,
    weights: DecoderWeights,
    dtype: torch.dtype,
    adapters: Adapters | None = None,
    *,
    num_ranks: int = 1,
) -> Network:
    """Return the network of our own decoder with ``weights``; ``dtype`` is that of activations."""
    device = weights.embedding.rows.device

    def with_context(length: int, operations: Operations) -> Model:
        rotations = rotation_table(config.rotary, config.head_dim, length, device=device)
        fast = CpuDecoder.of(config, weights, rotations, operations)
        return fast or Decoder(config, weights, rotations, operations)

    return Network(
        config, dtype, with_context, weights=weights, adapters=adapters, num_ranks=num_ranks
    )
