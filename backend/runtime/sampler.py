"""From logits to tokens.

A sequence's random numbers come from a generator of its own, one number for each token, so the
same seed gives the same text whatever else is in the batch. Filters apply in the usual order:
temperature, then top_k, then top_p.
"""

import random
from collections.abc import Sequence

import torch
from torch import Tensor

from backend.core.types import SamplingParams

# Below this, logits divided by the temperature leave the range of float32; it is greedy anyway.
_MIN_TEMPERATURE = 1e-5


class SequenceSampler:
    """How one choice samples, and its generator."""

    def __init__(self, params: SamplingParams, index: int) -> None:
        """Choices of one request (``index``) draw different numbers from the same ``seed``."""
        self.params = params
        self._random = random.Random(None if params.seed is None else f"{params.seed}/{index}")

    def draw(self) -> float:
        """Return the next number in [0, 1)."""
        return self._random.random()


def sample(logits: Tensor, samplers: Sequence[SequenceSampler]) -> list[int | None]:
    """Choose one token for each row of ``logits`` [rows, vocab].

    None marks a row whose logits are not finite. A number is drawn for each row that is not
    greedy, and only for those.
    """
    top, tokens = logits.max(dim=-1)
    # Two ways, chosen row by row: a neighbour in the batch must not change how a row is drawn.
    for filtered in (False, True):
        drawn_rows = [
            row
            for row, sampler in enumerate(samplers)
            if sampler.params.temperature >= _MIN_TEMPERATURE
            and _is_filtered(sampler.params) is filtered
        ]
        if drawn_rows:
            rows = torch.tensor(drawn_rows, device=logits.device)
            draw = _draw_filtered if filtered else _draw
            drawn = draw(logits.index_select(0, rows), [samplers[row] for row in drawn_rows])
            tokens.index_copy_(0, rows, drawn)
    # max propagates NaN, and an overflow shows as inf. -inf elsewhere in a row is legitimate.
    finite = torch.isfinite(top).tolist()
    return [token if valid else None for token, valid in zip(tokens.tolist(), finite, strict=True)]


def _is_filtered(params: SamplingParams) -> bool:
    return params.top_k > 0 or params.top_p < 1.0


def _column(values: list[float], like: Tensor) -> Tensor:
    return torch.tensor(values, device=like.device, dtype=torch.float32).unsqueeze(1)


def _draw(logits: Tensor, samplers: Sequence[SequenceSampler]) -> Tensor:
    scaled = logits.float() / _column([each.params.temperature for each in samplers], logits)
    draws = _column([each.draw() for each in samplers], logits)
    return _pick(torch.softmax(scaled, dim=-1), draws)


def _draw_filtered(logits: Tensor, samplers: Sequence[SequenceSampler]) -> Tensor:
    vocab = logits.shape[-1]
    scaled = logits.float() / _column([each.params.temperature for each in samplers], logits)
    ordered, order = scaled.sort(dim=-1, descending=True, stable=True)
    limits = _column([each.params.top_k or vocab for each in samplers], logits)
    ordered = ordered.masked_fill(torch.arange(vocab, device=logits.device) >= limits, -torch.inf)
    probabilities = torch.softmax(ordered, dim=-1)
    # A token stays while those before it have not reached top_p; the first always stays.
    before = probabilities.cumsum(dim=-1) - probabilities
    dropped = before >= _column([each.params.top_p for each in samplers], logits)
    dropped[:, 0] = False
    draws = _column([each.draw() for each in samplers], logits)
    ranks = _pick(probabilities.masked_fill(dropped, 0.0), draws)
    return order.gather(1, ranks.unsqueeze(1)).squeeze(1)


def _pick(weights: Tensor, draws: Tensor) -> Tensor:
    """Return for each row the index at which the share ``draws`` [rows, 1] of its sum lies."""
    # float64: with a large vocabulary a float32 running sum loses the small probabilities.
    cumulative = weights.double().cumsum(dim=-1)
    target = draws.double() * cumulative[:, -1:]
    index = torch.searchsorted(cumulative, target, right=True).squeeze(1)
    return index.clamp_(max=weights.shape[-1] - 1)
