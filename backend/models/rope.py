"""Rotary position embeddings as one complex product.

The checkpoint pairs dimension i with i + d/2 of the d that turn. Query and key rows are reordered
at load (``interleave``) so that pairs lie side by side and are complex numbers; attention scores do
not change, because queries and keys are reordered alike. Dimensions that do not turn are pairs
whose angle is 0, so whoever rotates need not know of them.
"""

import math
from typing import assert_never

import torch
from torch import Tensor

from backend.models.config import (
    LinearScaling,
    Llama3Scaling,
    LongRopeScaling,
    RotaryConfig,
    YarnScaling,
)


def rotation_table(
    config: RotaryConfig, head_dim: int, num_positions: int, device: torch.device
) -> Tensor:
    """Return complex64 [num_positions, head_dim / 2]: position times inverse frequency.

    LongRoPE's factors are those of a context of ``num_positions``, for short texts too: KV that
    was cached under one set cannot be read under the other.
    """
    inverse, magnitude = _inverse_frequencies(config, num_positions)
    angles = torch.outer(torch.arange(num_positions, dtype=torch.float32), inverse)
    table = torch.ones(num_positions, head_dim // 2, dtype=torch.complex64)
    table[:, : config.dim // 2] = torch.polar(torch.full_like(angles, magnitude), angles)
    return table.to(device)


def _inverse_frequencies(config: RotaryConfig, num_positions: int) -> tuple[Tensor, float]:
    steps = torch.arange(0, config.dim, 2, dtype=torch.float32) / config.dim
    inverse: Tensor = 1.0 / config.theta**steps
    match config.scaling:
        case None:
            return inverse, 1.0
        case LinearScaling(factor):
            return inverse / factor, 1.0
        case Llama3Scaling() as scaling:
            return _llama3(inverse, scaling), 1.0
        case YarnScaling() as scaling:
            return _yarn(inverse, config, scaling), scaling.magnitude
        case LongRopeScaling() as scaling:
            is_long = num_positions > scaling.original_max_positions
            factors = scaling.long_factor if is_long else scaling.short_factor
            return 1.0 / (torch.tensor(factors) * config.theta**steps), scaling.magnitude
        case _ as never:
            assert_never(never)


def _llama3(inverse: Tensor, scaling: Llama3Scaling) -> Tensor:
    """Slow down long wavelengths by ``factor``, keep short ones, blend between."""
    wavelength = 2 * math.pi / inverse
    turns = scaling.original_max_positions / wavelength
    blend = (turns - scaling.low_freq_factor) / (scaling.high_freq_factor - scaling.low_freq_factor)
    blend = blend.clamp(0.0, 1.0)
    return (1 - blend) * inverse / scaling.factor + blend * inverse


def _yarn(inverse: Tensor, config: RotaryConfig, scaling: YarnScaling) -> Tensor:
    """Keep what turns more than ``beta_fast`` times, slow down what turns less than ``beta_slow``.

    A dimension's number of turns is that over the original context.
    """

    def dimension_of(turns: float) -> float:
        ratio = scaling.original_max_positions / (turns * 2 * math.pi)
        return config.dim * math.log(ratio) / (2 * math.log(config.theta))

    low, high = dimension_of(scaling.beta_fast), dimension_of(scaling.beta_slow)
    if scaling.truncate:
        low, high = math.floor(low), math.ceil(high)
    low, high = max(low, 0), min(high, config.dim - 1)
    if low == high:
        high += 0.001
    slowed = ((torch.arange(config.dim // 2, dtype=torch.float32) - low) / (high - low)).clamp(0, 1)
    return slowed * inverse / scaling.factor + (1 - slowed) * inverse


def interleave(rows: Tensor, head_dim: int, rotary_dim: int) -> Tensor:
    """Reorder the first dimension, heads of ``head_dim`` rows, for ``rotate_``."""
    order = torch.arange(head_dim, device=rows.device)
    order[:rotary_dim] = order[:rotary_dim].view(2, -1).t().reshape(-1)
    return rows.view(-1, head_dim, *rows.shape[1:]).index_select(1, order).view(rows.shape)


def rotate_(heads: Tensor, rotations: Tensor) -> None:
    """Rotate queries or keys in place, computing in float32.

    ``heads`` is [tokens, heads, head_dim], interleaved; ``rotations`` is complex64
    [tokens, 1, head_dim / 2].
    """
    numbers = heads.float().view(*heads.shape[:-1], -1, 2)
    torch.view_as_complex(numbers).mul_(rotations)
    if heads.dtype is not torch.float32:
        heads.copy_(numbers.flatten(-2))
