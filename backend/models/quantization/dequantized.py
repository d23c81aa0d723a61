"""A checkpoint's tensors for code that knows no quantised weights: dequantised as they are read.

Memory stays at the weights and those few tensors that are being read.
"""

from collections.abc import Callable, Iterator
from functools import partial

import torch
from torch import Tensor

from backend.models.checkpoint import FLOATS, Checkpoint, Slice
from backend.models.quantization.formats import CheckpointFormat

_PLAIN = FLOATS | {torch.int64, torch.int32}
_BYTES = frozenset({torch.uint8})
# E2M1: a sign, two bits of exponent, one of fraction.
_FP4 = (0.0, 0.5, 1.0, 1.5, 2.0, 3.0, 4.0, 6.0)


class LazyTensor:
    """Reads when it is indexed, as a slice of safetensors does."""

    def __init__(self, read: Callable[[], Tensor]) -> None:
        """``read`` returns the whole tensor. Raises ModelLoadError."""
        self._read = read

    def __getitem__(self, _: object) -> Tensor:
        return self._read()


def lazy_tensors(
    checkpoint: Checkpoint, held: CheckpointFormat | None, dtype: torch.dtype
) -> dict[str, LazyTensor]:
    """Return all tensors by the names that they have unquantised; quantised ones become ``dtype``.

    ``held`` None: none of them are quantised.
    """
    return {name: LazyTensor(read) for name, read in _readers(checkpoint, held, dtype)}


def _readers(
    checkpoint: Checkpoint, held: CheckpointFormat | None, dtype: torch.dtype
) -> Iterator[tuple[str, Callable[[], Tensor]]]:
    for name in checkpoint.names:
        matrix, _, suffix = name.rpartition(".")
        experts = name.removesuffix("_scales").removesuffix("_blocks")
        if held is not None and held.holds(checkpoint, experts):
            yield experts, partial(_mxfp4, checkpoint, experts, dtype)
        elif held is not None and suffix != "bias" and held.holds(checkpoint, matrix):
            yield f"{matrix}.weight", partial(_matrix, checkpoint, held, matrix, dtype)
        else:
            yield name, partial(_plain, checkpoint, name)


def _plain(checkpoint: Checkpoint, name: str) -> Tensor:
    dtypes = FLOATS if name.endswith((".weight", ".bias")) else _PLAIN
    return checkpoint.read(name, (checkpoint.shape(name),), dtypes)


def _matrix(
    checkpoint: Checkpoint, held: CheckpointFormat, name: str, dtype: torch.dtype
) -> Tensor:
    return held.read(checkpoint, name, held.shape(checkpoint, name)).dequantized().to(dtype)


def _mxfp4(checkpoint: Checkpoint, name: str, dtype: torch.dtype) -> Tensor:
    """Return [experts, columns, rows], which gpt-oss has as [experts, rows, groups, 16] bytes.

    Each byte is two columns, the lower four bits first. A group of 32 has one power of two (OCP
    Microscaling Formats 1.0).
    """
    experts, rows, groups, width = checkpoint.shape(f"{name}_blocks", 4)
    matrices = torch.empty(experts, groups * width * 2, rows, dtype=dtype)
    values = torch.tensor([*_FP4, *(-value for value in _FP4)])
    each = torch.arange(256)
    # A power of two alone may be too small for float16; in the others all products are exact.
    exact = torch.float32 if dtype is torch.float16 else dtype
    pairs = torch.stack((values[each & 15], values[each >> 4]), dim=-1).to(exact)
    grid = (0, rows), (0, groups)
    for expert, matrix in enumerate(matrices):
        one = expert, expert + 1
        blocks = Slice((experts, rows, groups, width), (one, *grid, (0, width)))
        codes = checkpoint.read_part(f"{name}_blocks", blocks, _BYTES).int()
        scales = Slice((experts, rows, groups), (one, *grid))
        powers = checkpoint.read_part(f"{name}_scales", scales, _BYTES)[0].int() - 127
        floats = pairs.index_select(0, codes.flatten()).view(rows, groups, width * 2)
        floats *= torch.ldexp(torch.ones(rows, groups), powers).to(exact).unsqueeze(-1)
        matrix.copy_(floats.flatten(1).t())
    return matrices
