"""What penalties look at: the tokens of a sequence, and how often each was generated.

Only tokens that occurred are kept, so a step costs by what was said and not by the vocabulary.
"""

from collections.abc import Sequence as SequenceOf

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from backend.scheduler.request import SamplingParams


class TokenCounts:
    """Follows one sequence's history; what it holds is a pure function of that history."""

    def __init__(self, params: SamplingParams, prompt: SequenceOf[int]) -> None:
        """``prompt`` counts for the repetition penalty alone."""
        self._params = params
        looked_at = prompt if params.repetition_penalty != 1.0 else ()
        unique = np.unique(np.asarray(looked_at, dtype=np.int64))
        self._size = len(unique)
        self._ids = np.zeros(max(64, 2 * self._size), np.int64)
        self._ids[: self._size] = unique
        self._counts = np.zeros(len(self._ids), np.float32)
        self._place = {token: at for at, token in enumerate(unique.tolist())}
        self._seen = len(prompt)

    def follow(self, tokens: SequenceOf[int]) -> None:
        """Count what was generated since the last call; ``tokens`` is the whole history."""
        for token in tokens[self._seen :]:
            at = self._place.setdefault(token, self._size)
            if at == self._size:
                self._make_room()
                self._ids[at] = token
                self._size += 1
            self._counts[at] += 1
        self._seen = len(tokens)

    @property
    def token_ids(self) -> NDArray[np.int64]:
        """The tokens that are looked at, each once."""
        return self._ids[: self._size]

    def factors(self) -> NDArray[np.float32]:
        """Return what divides a positive logit, and multiplies another, for each token."""
        return np.full(self._size, self._params.repetition_penalty, np.float32)

    def deductions(self) -> NDArray[np.float32]:
        """Return what is taken from the logit of each token."""
        counts = self._counts[: self._size]
        frequency, presence = self._params.frequency_penalty, self._params.presence_penalty
        return (frequency * counts + presence * (counts > 0)).astype(np.float32)

    def _make_room(self) -> None:
        if self._size == len(self._ids):
            self._ids = np.concatenate([self._ids, np.zeros_like(self._ids)])
            self._counts = np.concatenate([self._counts, np.zeros_like(self._counts)])


def penalise_(logits: Tensor, rows: SequenceOf[tuple[int, TokenCounts]]) -> None:
    """Apply the penalties of ``rows`` to float32 ``logits`` [rows, vocab], in place.

    First the repetition penalty, then what is deducted, as vLLM does it.
    """
    vocab = logits.shape[-1]
    places = on_device(np.concatenate([row * vocab + each.token_ids for row, each in rows]), logits)
    factors = on_device(np.concatenate([each.factors() for _, each in rows]), logits)
    deductions = on_device(np.concatenate([each.deductions() for _, each in rows]), logits)
    flat = logits.view(-1)
    values = flat.index_select(0, places)
    values = torch.where(values > 0, values / factors, values * factors).sub_(deductions)
    flat.index_copy_(0, places, values)


def on_device(values: NDArray[np.generic], like: Tensor) -> Tensor:
    """Return ``values`` where ``like`` is, without waiting for the device."""
    tensor = torch.from_numpy(values)
    if like.device.type == "cpu":
        return tensor
    return tensor.pin_memory().to(like.device, non_blocking=True)
