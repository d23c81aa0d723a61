"""Noise to draw tokens by: a pure function of a choice's seed, a token's number and its id.

The token whose scaled logit and Gumbel noise have the largest sum is a draw from the softmax. Each
token has noise of its own, so what differs in the last bit of a logit (as it may between batches)
decides only between two tokens that are as good as equal. With one number for each draw and a
running sum over the vocabulary, it would move every boundary behind it.
"""

from functools import cache

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from backend.scheduler.request import GOLDEN, MULTIPLIERS

Uint64s = NDArray[np.uint64]

_SHIFTS = (np.uint64(30), np.uint64(27), np.uint64(31))
_GOLDEN, _FIRST, _SECOND = (np.uint64(value) for value in (GOLDEN, *MULTIPLIERS))

# Multipliers of a 32-bit finaliser ("lowbias32"), the second as a signed number.
_LOW_BIAS = (0x7FEB352D, 0x846CA68B - 2**32)
_FIRST_LOW, _SECOND_LOW = np.uint32(0x7FEB352D), np.uint32(0x846CA68B)

MIN_TEMPERATURE = 1e-5
"""Below this, logits divided by the temperature leave the range of float32: greedy."""

# Takes odd magnitudes up to 2**31 to (0, 1), the ends left out.
_SCALE = (1 - 2**-23) / 2**31


def draw_keys(seeds: Uint64s, numbers: Uint64s) -> NDArray[np.int32]:
    """Return [rows, 2] random words: number ``numbers`` of each stream of ``seeds``."""
    mixed = seeds + (numbers + np.uint64(1)) * _GOLDEN  # wraps, as it should
    mixed = (mixed ^ (mixed >> _SHIFTS[0])) * _FIRST
    mixed = (mixed ^ (mixed >> _SHIFTS[1])) * _SECOND
    mixed ^= mixed >> _SHIFTS[2]
    words: NDArray[np.int32] = mixed.view(np.int32)
    return words.reshape(-1, 2)


def log_exponential(keys: Tensor, token_ids: Tensor) -> Tensor:
    """Return the logarithm of exponential noise: Gumbel noise with its sign turned.

    ``keys`` are int32 [rows, 2], ``token_ids`` int32 [rows or 1, tokens]. Returns float32
    [rows, tokens].
    """
    words = _host_words(keys, token_ids) if keys.device.type == "cpu" else _words(keys, token_ids)
    # By magnitude: floats are densest near 0, and small exponentials are what unlikely tokens need.
    uniform = words.bitwise_or_(1).float().abs_().mul_(-_SCALE)
    return uniform.log1p_().neg_().log_()


def _words(keys: Tensor, token_ids: Tensor) -> Tensor:
    words = token_ids + keys[:, :1]
    words ^= (words >> 16).bitwise_and_(0xFFFF)
    words *= _LOW_BIAS[0]
    words ^= keys[:, 1:]
    words ^= (words >> 15).bitwise_and_(0x1FFFF)
    words *= _LOW_BIAS[1]
    words ^= (words >> 16).bitwise_and_(0xFFFF)
    return words


def _host_words(keys: Tensor, token_ids: Tensor) -> Tensor:
    """Return ``_words``, in half the operations: torch cannot shift unsigned numbers."""
    unsigned = keys.numpy().view(np.uint32)
    words = token_ids.numpy().view(np.uint32) + unsigned[:, :1]
    words ^= words >> 16
    words *= _FIRST_LOW
    words ^= unsigned[:, 1:]
    words ^= words >> 15
    words *= _SECOND_LOW
    words ^= words >> 16
    return torch.from_numpy(words.view(np.int32))


@cache
def vocabulary(size: int, device: torch.device) -> Tensor:
    """Return all token ids as ``log_exponential`` takes them; made once, not to be changed."""
    return torch.arange(size, dtype=torch.int32, device=device).unsqueeze(0)
