"""The form that all published layouts become at load.

A weight is ``(code - zero) * scale``, with a scale for each row and group of columns.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Self

import torch
from torch import Tensor

FP8 = torch.float8_e4m3fn
FP8_CAPABILITY = (8, 9)
"""GPUs from this compute capability on convert FP8 and multiply in it."""


@dataclass(frozen=True, slots=True)
class QuantizedWeight:
    """``codes`` [rows, columns] are int8 or FP8; ``bits`` 4 says that they lie within -8 to 7.

    ``scales`` and ``zeros`` are float32 [rows, groups], a group being ``group_size`` columns. None
    is a zero of 0.
    """

    codes: Tensor
    scales: Tensor
    zeros: Tensor | None
    group_size: int
    bits: int = 8

    def to(self, device: torch.device) -> Self:
        """Return a copy on ``device``."""
        return self._each(lambda tensor: tensor.to(device))

    def dequantized(self) -> Tensor:
        """Return the weights as float32."""
        codes = self.codes.float()
        if self.zeros is not None:
            codes -= self._by_column(self.zeros)
        return codes.mul_(self._by_column(self.scales))

    def take(self, order: Tensor) -> Self:
        """Return the rows ``order``."""
        return self._each(lambda tensor: tensor.index_select(0, order))

    @classmethod
    def join(cls, parts: Sequence[Self]) -> Self:
        """Return the rows of all ``parts``, which are of one layout."""
        zeros = None
        if any(part.zeros is not None for part in parts):
            zeros = torch.cat(
                [torch.zeros_like(p.scales) if p.zeros is None else p.zeros for p in parts]
            )
        codes = torch.cat([part.codes for part in parts])
        return replace(
            parts[0], codes=codes, scales=torch.cat([p.scales for p in parts]), zeros=zeros
        )

    def _each(self, change: Callable[[Tensor], Tensor]) -> Self:
        # Not everything is there for FP8.
        codes = change(self.codes.view(torch.int8)).view(self.codes.dtype)
        zeros = None if self.zeros is None else change(self.zeros)
        return replace(self, codes=codes, scales=change(self.scales), zeros=zeros)

    def _by_column(self, values: Tensor) -> Tensor:
        columns = self.codes.shape[1]
        if values.shape[1] == 1:
            return values
        return values.repeat_interleave(self.group_size, dim=1)[:, :columns]


def quantize(weight: Tensor) -> QuantizedWeight:
    """Return [rows, columns] in int8, symmetric, with one scale for each row."""
    scales = weight.abs().amax(dim=1, keepdim=True).float() / 127
    inverse = torch.where(scales > 0, 1 / scales, 0.0)
    codes = (weight.float() * inverse).round_().clamp_(-127, 127).to(torch.int8)
    return QuantizedWeight(codes, scales, None, weight.shape[1])
