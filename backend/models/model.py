"""What the engine needs of a model, whoever computes it."""

from typing import Protocol

import torch
from torch import Tensor

from backend.models.attention import Attention


class ModelShape(Protocol):
    """What decides the size of caches and inputs, the same in every layer."""

    @property
    def vocab_size(self) -> int:
        """How many tokens there are."""
        ...

    @property
    def num_layers(self) -> int:
        """How many layers attend."""
        ...

    @property
    def num_heads(self) -> int:
        """Query heads of a layer."""
        ...

    @property
    def num_kv_heads(self) -> int:
        """Key heads of a layer, and as many value heads."""
        ...

    @property
    def head_dim(self) -> int:
        """Length of a cached key or value."""
        ...

    @property
    def max_positions(self) -> int:
        """The longest context."""
        ...

    @property
    def windows(self) -> tuple[int | None, ...]:
        """How far each layer looks back, None without bound."""
        ...

    @property
    def checkpoint_dtype(self) -> str:
        """The type that ``config.json`` names."""
        ...


class Model(Protocol):
    """Computes; stateless, the caches belong to ``attention``."""

    @property
    def device(self) -> torch.device:
        """Where the weights are."""
        ...

    @property
    def dtype(self) -> torch.dtype:
        """Of weights, activations and KV."""
        ...

    def forward(
        self, tokens: Tensor, positions: Tensor, attention: Attention, logit_rows: Tensor | None
    ) -> Tensor:
        """Compute a step; return what ``logits`` takes, [len(logit_rows), any].

        ``tokens`` and ``positions`` are [tokens]. ``logit_rows`` are the tokens whose successor
        is wanted, all when None.
        """
        ...

    def logits(self, hidden: Tensor) -> Tensor:
        """Return [rows, vocab]."""
        ...
