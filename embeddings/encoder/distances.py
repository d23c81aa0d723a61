"""How far apart two tokens are, as MPNet's attention sees it (Song et al. 2020, after T5). Pure."""

from typing import Final

import numpy as np
from numpy.typing import NDArray

DISTANCES: Final = "encoder.relative_attention_bias.weight"
"""The table among a network's weights, shape (buckets, heads)."""
_FARTHEST: Final = 128
"""Tokens; all that is farther is one bucket."""


def distance_bias(table: NDArray[np.float32], length: int) -> NDArray[np.float32]:
    """Return what a table adds to attention, shape (heads, length, length): from row to column."""
    places = np.arange(length)
    found: NDArray[np.float32] = table[_buckets(places[None, :] - places[:, None], len(table))]
    return np.ascontiguousarray(found.transpose(2, 0, 1))


def _buckets(distance: NDArray[np.int64], count: int) -> NDArray[np.int64]:
    """Return the bucket of each distance: one each near by, then ever wider ones."""
    half, near = count // 2, count // 4
    away = np.abs(distance)
    steps = np.log(np.maximum(away, near) / near) / np.log(_FARTHEST / near)
    wide = np.minimum(near + (steps * (half - near)).astype(np.int64), half - 1)
    after: NDArray[np.int64] = np.where(distance > 0, half, 0)
    return after + np.where(away < near, away, wide)
