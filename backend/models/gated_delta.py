"""The gated delta rule: linear attention whose memory of a sequence is a state of fixed size.

A head keeps a matrix S [key_dim, value_dim]. For each token, S fades by exp(decay), then what S
answers to the key moves towards the value by ``beta``: S += k (beta (v - S^T k))^T. The output is
S^T q. Before that, queries, keys and values pass a short convolution along the sequence, whose last
inputs are part of the state. Source: Yang, Kautz, Hatamizadeh, "Gated Delta Networks" (2024).

Everything here is computed in float32, whatever type activations have.
"""

import math
from dataclasses import dataclass
from typing import NamedTuple, Protocol

import torch
from torch import Tensor
from torch.nn import functional

from backend.models.attention import Attention

# Tokens that are computed at once within a sequence: more are quadratic work, fewer more launches.
_CHUNK = 64
_EPS = 1e-6


@dataclass(frozen=True, slots=True)
class StateShape:
    """The states of a sequence: in each of ``num_layers`` layers what ``DeltaState`` says.

    ``kernel`` is how many tokens the convolution spans, the newest included.
    """

    num_layers: int
    num_key_heads: int
    num_value_heads: int
    key_dim: int
    value_dim: int
    kernel: int

    @property
    def channels(self) -> int:
        """Numbers of a token that are convolved: queries, keys, values."""
        return 2 * self.num_key_heads * self.key_dim + self.num_value_heads * self.value_dim

    @property
    def of_a_layer(self) -> tuple[tuple[int, ...], tuple[int, ...]]:
        """The shapes of ``DeltaState`` for one sequence."""
        memory = (self.num_value_heads, self.key_dim, self.value_dim)
        return (self.channels, self.kernel - 1), memory

    def num_bytes(self, dtype: torch.dtype) -> int:
        """Return what the states of one sequence take; ``dtype`` is that of activations."""
        inputs, memory = map(math.prod, self.of_a_layer)
        return self.num_layers * (inputs * dtype.itemsize + memory * torch.float32.itemsize)


class DeltaState(NamedTuple):
    """States of one layer, a row for each sequence.

    ``inputs`` [rows, channels, kernel - 1] are the last that were convolved, oldest first.
    ``memory`` [rows, value_heads, key_dim, value_dim] is float32.
    """

    inputs: Tensor
    memory: Tensor


class DeltaInputs(NamedTuple):
    """What a layer's projection gives for each token.

    ``mixed`` [tokens, channels] is not convolved yet. ``decay`` (a logarithm, at most 0) and
    ``beta`` are float32 [tokens, value_heads].
    """

    mixed: Tensor
    decay: Tensor
    beta: Tensor

    def part(self, start: int, stop: int) -> "DeltaInputs":
        """Return the tokens ``start`` to ``stop``."""
        return DeltaInputs(*(each[start:stop] for each in self))


class RecurrentAttention(Attention, Protocol):
    """Attention of one step that knows the states of its sequences, too."""

    def recur(self, layer: int, weight: Tensor, inputs: DeltaInputs) -> Tensor:
        """Return [tokens, value_heads, value_dim], float32, and advance the states.

        ``layer`` counts those with states; ``weight`` [channels, kernel] convolves.
        """


def advance_each(
    shape: StateShape, weight: Tensor, inputs: DeltaInputs, state: DeltaState
) -> tuple[Tensor, DeltaState]:
    """Compute a single token of each of several sequences.

    Returns the output [sequences, value_heads, value_dim], and the new states.
    """
    window = torch.cat((state.inputs, inputs.mixed.unsqueeze(2)), dim=2)
    query, key, value = _heads(shape, (window.float() * weight.float()).sum(2))
    memory = state.memory * inputs.decay.exp()[..., None, None]
    known = torch.einsum("nhk,nhkv->nhv", key, memory)
    update = inputs.beta.unsqueeze(2) * (value - known)
    memory = memory.addcmul_(key.unsqueeze(3), update.unsqueeze(2))
    return torch.einsum("nhk,nhkv->nhv", query, memory), DeltaState(window[..., 1:], memory)


def advance_span(
    shape: StateShape, weight: Tensor, inputs: DeltaInputs, state: DeltaState
) -> tuple[Tensor, DeltaState]:
    """Compute consecutive tokens of one sequence; ``state`` is one row without its dimension.

    Chunks of tokens are products of matrices: within a chunk, the updates u solve the triangular
    system (I + A) u = beta (v - fade S^T k), where A says how much each key finds of those before.
    """
    window, count = torch.cat((state.inputs.t(), inputs.mixed)), len(inputs.mixed)
    taps = weight.float().unbind(1)
    convolved = window[:count].float() * taps[0]
    for at, tap in enumerate(taps[1:], 1):
        convolved.addcmul_(window[at : at + count].float(), tap)
    heads = _heads(shape, convolved)
    outputs: list[Tensor] = []
    memory = state.memory
    for start in range(0, count, _CHUNK):
        query, key, value, decay, beta = (
            each[start : start + _CHUNK].transpose(0, 1)
            for each in (*heads, inputs.decay, inputs.beta)
        )
        faded = decay.cumsum(1)
        # Above the diagonal, where tokens would see later ones, the exponent may overflow.
        between = (faded.unsqueeze(2) - faded.unsqueeze(1)).tril().exp().tril()
        fade, beta = faded.exp().unsqueeze(2), beta.unsqueeze(2)
        system = beta * (key @ key.transpose(1, 2)) * between
        update = torch.linalg.solve_triangular(
            system, beta * (value - fade * (key @ memory)), upper=False, unitriangular=True
        )
        found = (query @ key.transpose(1, 2)) * between
        outputs.append(fade * (query @ memory) + found @ update)
        left = (faded[:, -1:] - faded).exp().unsqueeze(2)
        memory = fade[:, -1:] * memory + (key * left).transpose(1, 2) @ update
    output = torch.cat(outputs, dim=1).transpose(0, 1)
    return output, DeltaState(window[count:].t(), memory)


def _heads(shape: StateShape, convolved: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Return queries, keys and values, [rows, value_heads, any], of [rows, channels]."""
    activated, count = functional.silu(convolved), shape.num_key_heads * shape.key_dim
    heads = activated[:, : 2 * count].view(len(activated), 2, shape.num_key_heads, shape.key_dim)
    normed = heads * torch.rsqrt(heads.square().sum(-1, keepdim=True) + _EPS)
    each = normed.repeat_interleave(shape.num_value_heads // shape.num_key_heads, dim=2)
    value = activated[:, 2 * count :].view(len(activated), shape.num_value_heads, shape.value_dim)
    return each[:, 0] * shape.key_dim**-0.5, each[:, 1], value
