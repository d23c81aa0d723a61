"""Rotary position embeddings as one complex product.

The checkpoint pairs dimension i with i + d/2 of a head. Query and key rows are reordered at load
(``interleave``) so that pairs lie side by side and are complex numbers; attention scores do not
change, because queries and keys are reordered alike.
"""

import math

import torch
from torch import Tensor

from backend.models.config import RotaryConfig


def rotation_table(
    config: RotaryConfig, head_dim: int, num_positions: int, device: torch.device
) -> Tensor:
    """Return complex64 [num_positions, head_dim / 2]: position times inverse frequency."""
    inverse: Tensor = 1.0 / config.theta ** (
        torch.arange(0, head_dim, 2, dtype=torch.float32) / head_dim
    )
    if config.scaling == "linear":
        inverse = inverse / config.factor
    elif config.scaling == "llama3":
        inverse = _llama3(inverse, config)
    angles = torch.outer(torch.arange(num_positions, dtype=torch.float32), inverse)
    return torch.polar(torch.ones_like(angles), angles).to(device)


def _llama3(inverse: Tensor, config: RotaryConfig) -> Tensor:
    """Slow down long wavelengths by ``factor``, keep short ones, blend between."""
    wavelength = 2 * math.pi / inverse
    turns = config.original_max_positions / wavelength
    blend = (turns - config.low_freq_factor) / (config.high_freq_factor - config.low_freq_factor)
    blend = blend.clamp(0.0, 1.0)
    return (1 - blend) * inverse / config.factor + blend * inverse


def interleave(weight: Tensor, head_dim: int) -> Tensor:
    """Reorder the first dimension, heads of ``head_dim`` rows, for ``rotate_``."""
    heads = weight.view(-1, 2, head_dim // 2, *weight.shape[1:])
    return heads.transpose(1, 2).reshape(weight.shape)


def rotate_(heads: Tensor, rotations: Tensor) -> None:
    """Rotate queries or keys in place, computing in float32.

    ``heads`` is [tokens, heads, head_dim], interleaved; ``rotations`` is complex64
    [tokens, 1, head_dim / 2].
    """
    numbers = heads.float().view(*heads.shape[:-1], -1, 2)
    torch.view_as_complex(numbers).mul_(rotations)
    if heads.dtype is not torch.float32:
        heads.copy_(numbers.flatten(-2))
