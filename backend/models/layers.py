"""What a decoder is made of beside attention: linear maps, embedding, norms, activations.

A weight matrix is a ``Linear``; ``quantization`` has those of four and eight bits.
"""

import math
from dataclasses import dataclass, field
from typing import Protocol

import torch
from torch import Tensor
from torch.nn import functional

# BLAS works on this many columns at once; what is left over costs it dearly.
_COLUMN_TILE = 16

# With these instructions BLAS is fastest with the weight as [in, out], for any number of rows.
_ANY_ROWS_BY_INPUT = torch.backends.cpu.get_cpu_capability() == "AVX512"

# A transposed copy is kept of weights up to this size: beyond it memory bandwidth decides.
_MAX_COPY_BYTES = 16 * 2**20


class Linear(Protocol):
    """A matrix of weights in a type of its own, whatever type activations have."""

    @property
    def num_bytes(self) -> int:
        """What the weights take in memory."""

    def __call__(self, rows: Tensor) -> Tensor:
        """Map [rows, in] to [rows, out] in the type of ``rows``."""


@dataclass(frozen=True, slots=True)
class DenseLinear:
    """``rows @ weight.T + bias``; ``weight`` is [out, in] and does not change any more.

    On CPU in float32 the shape decides how BLAS is asked: it reads a matrix once, and how fast it
    does depends on which way the matrix lies (``benchmarks/LOG.md``).
    """

    weight: Tensor
    bias: Tensor | None = None
    ranks: int = 1
    """In so many parts the whole weight lies: copies are made of the same ones as in one."""
    _by_input: Tensor | None = field(init=False, repr=False)
    """The weight as [in, out] in memory, where a copy is worth its room."""

    def __post_init__(self) -> None:
        """Copy the weight where that pays."""
        small = self.weight.nbytes * self.ranks <= _MAX_COPY_BYTES
        worth = small and self.weight.device.type == "cpu" and self.weight.dtype is torch.float32
        object.__setattr__(self, "_by_input", self.weight.t().contiguous() if worth else None)

    @property
    def num_bytes(self) -> int:
        """What the weights take in memory, the copy included."""
        return self.weight.nbytes + (0 if self._by_input is None else self._by_input.nbytes)

    @property
    def by_input(self) -> Tensor:
        """The weight as [in, out], the way that is best for one row."""
        return self.weight.t() if self._by_input is None else self._by_input

    def __call__(self, rows: Tensor) -> Tensor:
        """Map [rows, in] to [rows, out]; on CPU the result may be transposed in memory."""
        if self._by_input is not None and (_ANY_ROWS_BY_INPUT or rows.shape[0] == 1):
            if self.bias is None:
                return torch.mm(rows, self._by_input)
            return torch.addmm(self.bias, rows, self._by_input)
        num_rows = rows.shape[0]
        is_plain = rows.is_cuda or rows.dtype is not torch.float32
        if is_plain or num_rows == 1 or (num_rows > _COLUMN_TILE and num_rows % _COLUMN_TILE):
            return functional.linear(rows, self.weight, self.bias)
        # For full tiles, and for very few, BLAS is up to twice as fast with the weight on the left.
        if _COLUMN_TILE // 2 < num_rows < _COLUMN_TILE:
            rows = functional.pad(rows, (0, 0, 0, _COLUMN_TILE - num_rows))
        result = torch.mm(self.weight, rows.t()).t()[:num_rows]
        return result if self.bias is None else result + self.bias


@dataclass(frozen=True, slots=True)
class Embedding:
    """A row of ``dtype`` for each token.

    ``rows`` is [vocab, hidden]. Codes of 8 bits lie as their matrix has them, [vocab / width, any,
    width, any]: a token's are ``rows[token // width, :, token % width]``, and more behind them.
    ``scales`` is theirs, [vocab, 1]. ``shared``: the head has the same memory.
    """

    rows: Tensor
    dtype: torch.dtype
    hidden_size: int
    scales: Tensor | None = None
    shared: bool = False

    @property
    def num_bytes(self) -> int:
        """What the rows take in memory beside the head."""
        if self.shared:
            return 0
        return self.rows.nbytes + (0 if self.scales is None else self.scales.nbytes)

    def __call__(self, tokens: Tensor) -> Tensor:
        """Return [tokens, hidden] in new memory."""
        if self.scales is None:
            return self.rows.index_select(0, tokens)
        width = self.rows.shape[2]
        codes = self.rows[tokens // width, :, tokens % width].flatten(1)[:, : self.hidden_size]
        return (codes * self.scales.index_select(0, tokens)).to(self.dtype)


class RMSNorm:
    """Divides by the root mean square of the last dimension, then scales."""

    def __init__(self, weight: Tensor, eps: float) -> None:
        """``weight`` is [size], or [heads, size] to scale each head by its own."""
        self.weight = weight
        self.eps = eps
        self._size = weight.shape[-1]
        # rms(x) * sqrt(size) = hypot(length(x), sqrt(size * eps))
        self._scaled_weight = weight * math.sqrt(self._size)
        self._floor = torch.tensor(math.sqrt(self._size * eps), device=weight.device)

    def __call__(self, rows: Tensor) -> Tensor:
        """Normalise [..., size]; the result is new memory."""
        if rows.dtype is not torch.float32 or rows.is_cuda:
            normed = functional.rms_norm(rows, (self._size,), None, self.eps)
            return normed.mul_(self.weight)
        # The same from the length of a row: half the time of torch's CPU composite.
        length = torch.linalg.vector_norm(rows, dim=-1, keepdim=True)
        return (rows * self._scaled_weight).div_(torch.hypot(length, self._floor))


class Operations(Protocol):
    """Element-wise work of a decoder; ``rows`` and ``hidden`` are [tokens, hidden]."""

    def norm(self, rows: Tensor, norm: RMSNorm) -> Tensor:
        """Return ``rows`` normalised, in new memory."""

    def add_norm(self, hidden: Tensor, update: Tensor, norm: RMSNorm) -> tuple[Tensor, Tensor]:
        """Return the sum of both, and that sum normalised. ``hidden`` may be overwritten."""

    def gated(self, gate_up: Tensor) -> Tensor:
        """Return silu(gate) * up for [rows, 2 * inner], gates first."""


class TorchOperations:
    """``Operations`` in plain torch, on any device."""

    def norm(self, rows: Tensor, norm: RMSNorm) -> Tensor:
        return norm(rows)

    def add_norm(self, hidden: Tensor, update: Tensor, norm: RMSNorm) -> tuple[Tensor, Tensor]:
        total = torch.add(hidden, update)
        return total, norm(total)

    def gated(self, gate_up: Tensor) -> Tensor:
        gate, up = gate_up.chunk(2, -1)
        return functional.silu(gate) * up
