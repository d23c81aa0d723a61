"""The layouts in which checkpoints hold quantised matrices: compressed-tensors, fp8, gptq, awq."""

import math
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from backend.kernels.available import unavailable_reason
from backend.models.checkpoint import FLOATS, Checkpoint, Slice, Span, Tensors
from backend.models.config import ConfigKeys, ModelLoadError
from backend.models.quantization.weight import FP8, QuantizedWeight

_CONFIG_KEYS = ("quantization_config", "compression_config")
# Of tensors that quantised matrices have and others do not.
_SUFFIXES = (".qweight", ".weight_packed", ".weight_scale", ".weight_scale_inv", "_blocks")
# AWQ packs eight columns into 32 bits in this order, from the lowest four bits on.
_AWQ_ORDER = (0, 2, 4, 6, 1, 3, 5, 7)
_WORDS = frozenset({torch.int32})


@dataclass(frozen=True, slots=True)
class CheckpointFormat:
    """How a checkpoint holds the matrices that it quantised.

    ``group_size`` None: one group for each row. ``block`` are the rows and columns that share a
    scale of FP8. GPTQ's first version stores zero points less 1: ``zero_offset``. With
    ``needs_order`` the order of columns must be told, with ``needs_zeros`` the zero points.
    """

    name: str
    bits: int = 8
    group_size: int | None = None
    block: tuple[int, int] | None = None
    zero_offset: bool = False
    needs_order: bool = False
    needs_zeros: bool = False

    def holds(self, checkpoint: Tensors, name: str) -> bool:
        """Return whether the matrix ``name`` is quantised."""
        return any(checkpoint.has(name + suffix) for suffix in _SUFFIXES)

    def shape(self, checkpoint: Checkpoint, name: str) -> tuple[int, int]:
        """Return the rows and columns of the matrix ``name`` when unpacked."""
        each = 32 // self.bits
        match self.name:
            case "gptq":
                words, rows = checkpoint.shape(f"{name}.qweight", 2)
                return rows, words * each
            case "awq":
                columns, words = checkpoint.shape(f"{name}.qweight", 2)
                return words * each, columns
            case "pack-quantized":
                rows, words = checkpoint.shape(f"{name}.weight_packed", 2)
                return rows, words * each
            case _:
                rows, columns = checkpoint.shape(f"{name}.weight", 2)
                return rows, columns

    def code_bytes(self, device: torch.device, dtype: torch.dtype) -> float:
        """Return what a code takes on ``device``, see ``quantized_linear``."""
        if device.type != "cuda":
            return 1
        return self.bits / 8 if unavailable_reason() is None else dtype.itemsize

    def read(
        self,
        checkpoint: Tensors,
        name: str,
        shape: tuple[int, int],
        at: tuple[Span, Span] | None = None,
    ) -> QuantizedWeight:
        """Read the matrix ``name``, which has ``shape`` when unpacked, or its rows and columns.

        The scales and zeros of the part ``at`` come with it. Raises ModelLoadError, also where
        the part begins or ends within a group, a block or a word.
        """
        part = Slice(shape, at or ((0, shape[0]), (0, shape[1])))
        match self.name:
            case "gptq":
                return self._read_gptq(checkpoint, name, part)
            case "awq":
                return self._read_awq(checkpoint, name, part)
            case "pack-quantized":
                return self._read_packed(checkpoint, name, part)
            case _:
                return self._read_scaled(checkpoint, name, part)

    def _read_scaled(self, checkpoint: Tensors, name: str, part: Slice) -> QuantizedWeight:
        codes = checkpoint.read_part(f"{name}.weight", part, frozenset({FP8, torch.int8}))
        (rows, columns), ((first, stop), (left, right)) = part
        if self.block is None:
            shapes = ((rows, 1), (rows,), (1,), ())
            # transformers gives the scale of a whole tensor the name of its blocks' scales.
            inverse = f"{name}.weight_scale_inv"
            is_inverse = self.name == "fp8" and checkpoint.has(inverse)
            scale = inverse if is_inverse else f"{name}.weight_scale"
            found = checkpoint.read(scale, shapes, FLOATS)
            scales = found.float().reshape(-1, 1).expand(rows, 1)[first:stop].contiguous()
            return QuantizedWeight(codes, scales, None, right - left)
        height, width = self.block
        suffix = "weight_scale_inv" if self.name == "fp8" else "weight_scale"
        grid = (math.ceil(rows / height), math.ceil(columns / width))
        at = (
            (first // height, math.ceil(stop / height)),
            _groups(checkpoint, name, (left, right), width, columns),
        )
        blocks = checkpoint.read_part(f"{name}.{suffix}", Slice(grid, at), FLOATS).float()
        # Rows need no whole blocks, since each gets its own scales.
        above = first - at[0][0] * height
        scales = blocks.repeat_interleave(height, dim=0)[above : above + stop - first].contiguous()
        return QuantizedWeight(codes, scales, None, min(width, right - left))

    def _read_packed(self, checkpoint: Tensors, name: str, part: Slice) -> QuantizedWeight:
        (rows, columns), ((first, stop), (left, right)) = part
        size = self._group_size(checkpoint, name, part)
        each = 32 // self.bits
        here = Slice((rows, columns // each), ((first, stop), (left // each, right // each)))
        packed = checkpoint.read_part(f"{name}.weight_packed", here, _WORDS)
        groups = _groups(checkpoint, name, (left, right), size, columns)
        grid = Slice((rows, columns // size), ((first, stop), groups))
        scales = checkpoint.read_part(f"{name}.weight_scale", grid, FLOATS)
        zeros = torch.zeros(scales.shape)
        if self.needs_zeros or checkpoint.has(f"{name}.weight_zero_point"):
            here = Slice((rows // each, columns // size), ((first // each, stop // each), groups))
            words = checkpoint.read_part(f"{name}.weight_zero_point", here, _WORDS)
            zeros = _unpacked(words, self.bits).transpose(1, 2).reshape(stop - first, -1)
            zeros = zeros.float() - (1 << (self.bits - 1))
        self._check_order(checkpoint, f"{name}.weight_g_idx", part, size)
        half = 1 << (self.bits - 1)
        return QuantizedWeight(
            (_unpacked(packed, self.bits).flatten(1) - half).to(torch.int8),
            scales.float(),
            zeros if bool(zeros.any()) else None,
            min(size, right - left),
            self.bits,
        )

    def _check_order(self, checkpoint: Tensors, name: str, part: Slice, size: int) -> None:
        """Refuse columns that are not in the order of their groups."""
        (_, columns), (_, (left, right)) = part
        if checkpoint.has(name):
            order = checkpoint.read_part(name, Slice((columns,), ((left, right),)), _WORDS)
            if not torch.equal(order, torch.arange(left, right, dtype=torch.int32) // size):
                raise ModelLoadError(
                    f"{checkpoint.source}: tensor {name}: columns in order of activation "
                    "(desc_act) are not supported"
                )
        elif self.needs_order:
            raise ModelLoadError(
                f"{checkpoint.source}: tensor {name} is missing, and columns are in order of "
                "activation"
            )

    def _read_gptq(self, checkpoint: Tensors, name: str, part: Slice) -> QuantizedWeight:
        (rows, columns), ((first, stop), (left, right)) = part
        size = self._group_size(checkpoint, name, part)
        each = 32 // self.bits
        here = Slice((columns // each, rows), ((left // each, right // each), (first, stop)))
        packed = checkpoint.read_part(f"{name}.qweight", here, _WORDS)
        # Each word holds ``each`` columns of a row.
        codes = _unpacked(packed, self.bits).permute(0, 2, 1).reshape(right - left, -1).t()
        groups = _groups(checkpoint, name, (left, right), size, columns)
        here = Slice((columns // size, rows // each), (groups, (first // each, stop // each)))
        words = checkpoint.read_part(f"{name}.qzeros", here, _WORDS)
        if self.zero_offset:
            # The format takes one from each zero point of a word at once, borrows included.
            words = words + sum(1 << (self.bits * place) for place in range(each))
        zeros = _unpacked(words, self.bits).reshape(-1, stop - first)
        self._check_order(checkpoint, f"{name}.g_idx", part, size)
        return self._grouped(checkpoint, name, codes, zeros.t(), part=part, size=size)

    def _read_awq(self, checkpoint: Tensors, name: str, part: Slice) -> QuantizedWeight:
        (rows, columns), ((first, stop), at) = part
        size = self._group_size(checkpoint, name, part)

        def unpacked(suffix: str, length: int, at: Span) -> Tensor:
            here = Slice((length, rows // 8), (at, (first // 8, stop // 8)))
            words = checkpoint.read_part(f"{name}.{suffix}", here, _WORDS)
            places = torch.tensor(_AWQ_ORDER).argsort()
            return _unpacked(words, 4).index_select(2, places).reshape(-1, stop - first).t()

        groups = _groups(checkpoint, name, at, size, columns)
        codes = unpacked("qweight", columns, at)
        zeros = unpacked("qzeros", columns // size, groups)
        return self._grouped(checkpoint, name, codes, zeros, part=part, size=size)

    def _grouped(
        self,
        checkpoint: Tensors,
        name: str,
        codes: Tensor,
        zeros: Tensor,
        *,
        part: Slice,
        size: int,
    ) -> QuantizedWeight:
        """Shift unsigned ``codes`` and ``zeros`` by half of their range."""
        (rows, columns), (at, across) = part
        groups = _groups(checkpoint, name, across, size, columns)
        here = Slice((columns // size, rows), (groups, at))
        scales = checkpoint.read_part(f"{name}.scales", here, FLOATS)
        half = 1 << (self.bits - 1)
        shifted = (zeros - half).float().contiguous()
        return QuantizedWeight(
            (codes - half).to(torch.int8).contiguous(),
            scales.float().t().contiguous(),
            shifted if bool(shifted.any()) else None,
            min(size, codes.shape[1]),
            self.bits,
        )

    def _group_size(self, checkpoint: Tensors, name: str, part: Slice) -> int:
        (rows, columns), (at, across) = part
        size = self.group_size or columns
        each = 32 // self.bits
        if rows % each:
            raise ModelLoadError(
                f"{checkpoint.source}: tensor {name}: {rows} rows do not fill words of 32 bits"
            )
        if columns % size or columns % 8:
            raise ModelLoadError(
                f"{checkpoint.source}: tensor {name}: {columns} columns are not groups of {size}"
            )
        for what, edges, total in (("rows", at, rows), ("columns", across, columns)):
            if any(edge % 8 for edge in edges) and edges != (0, total):
                raise ModelLoadError(
                    f"{checkpoint.source}: tensor {name}: a rank's {what}, {edges[0]} to "
                    f"{edges[1]} of {total}, do not fill words of 32 bits; take another "
                    "tensor-parallel-size"
                )
        return size


def _groups(checkpoint: Tensors, name: str, at: Span, size: int, columns: int) -> Span:
    """Return the groups of ``size`` columns that the columns ``at`` are, of ``columns`` in all.

    One group may be shared, because a row has one scale for it wherever it is cut.
    """
    left, right = at
    if size >= columns:
        return 0, 1
    if left % size or (right % size and right != columns):
        raise ModelLoadError(
            f"{checkpoint.source}: tensor {name}: a rank's columns, {left} to {right} of {columns},"
            f" begin or end within a group of {size}; take another tensor-parallel-size"
        )
    return left // size, math.ceil(right / size)


def _unpacked(words: Tensor, bits: int) -> Tensor:
    """Return int32 [..., 32 / bits], unsigned, from the lowest bits on."""
    shifts = torch.arange(0, 32, bits, dtype=torch.int32)
    return (words.unsqueeze(-1) >> shifts) & ((1 << bits) - 1)


def is_quantized(values: Mapping[str, Any]) -> bool:
    """Return whether ``config.json`` says anything of quantised weights."""
    return any(values.get(key) is not None for key in _CONFIG_KEYS)


def check_quantized(names: Collection[str], source: str) -> None:
    """Raise ModelLoadError unless tensors of these names are quantised."""
    if not any(name.endswith(_SUFFIXES) for name in names):
        raise ModelLoadError(f"{source}: quantization_config: none of the tensors are quantised")


def checkpoint_format(values: Mapping[str, Any], source: str) -> CheckpointFormat | None:
    """Return what ``config.json`` says of quantised weights, None: nothing.

    Raises ModelLoadError, which names the key, for what is not supported.
    """
    name = next((key for key in _CONFIG_KEYS if values.get(key) is not None), None)
    if name is None:
        return None
    if not isinstance(values[name], dict):
        raise ModelLoadError(f"{source}: {name}: expected an object")
    keys = ConfigKeys(values[name], f"{source}: {name}")
    match keys.get("quant_method", str, ""):
        case "compressed-tensors":
            return _compressed_tensors(keys)
        case "fp8":
            block = keys.values.get("weight_block_size")
            return CheckpointFormat("fp8", block=None if block is None else _block(keys, block))
        case "gptq":
            bits = _one_of(keys, "bits", (4, 8))
            version = keys.get("checkpoint_format", str, "gptq")
            if version not in {"gptq", "gptq_v2"}:
                raise keys.refusal("checkpoint_format", f"{version!r} is not supported")
            return CheckpointFormat(
                "gptq",
                bits=bits,
                group_size=_size_of_groups(keys),
                zero_offset=version == "gptq",
                needs_order=keys.get("desc_act", bool, default=False),
            )
        case "awq":
            if (version := keys.get("version", str, "gemm").lower()) != "gemm":
                raise keys.refusal("version", f"{version!r} is not supported, gemm is")
            bits = _one_of(keys, "bits", (4,))
            return CheckpointFormat("awq", bits=bits, group_size=_size_of_groups(keys))
        case "mxfp4":
            return CheckpointFormat("mxfp4", bits=4)
        case method:
            raise keys.refusal(
                "quant_method",
                f"{method!r} is not supported; compressed-tensors, fp8, gptq, awq and mxfp4 are",
            )


def _compressed_tensors(keys: ConfigKeys) -> CheckpointFormat:
    layouts = ("float-quantized", "int-quantized", "pack-quantized")
    if (layout := keys.get("format", str, "")) not in layouts:
        raise keys.refusal("format", f"{layout!r} is not supported; {', '.join(layouts)} are")
    transforms = keys.values.get("transform_config")
    if isinstance(transforms, dict) and transforms.get("config_groups"):
        raise keys.refusal("transform_config", "transforms of weights are not supported")
    groups = keys.values.get("config_groups")
    if not isinstance(groups, dict) or len(groups) != 1:
        raise keys.refusal("config_groups", "expected one group")
    (name, group), *_ = groups.items()
    weights = group.get("weights") if isinstance(group, dict) else None
    if not isinstance(weights, dict):
        raise keys.refusal("config_groups", f"{name}: weights is missing")
    each = ConfigKeys(weights, f"{keys.source}: config_groups: {name}: weights")
    strategy = each.get("strategy", str, "tensor")
    if layout == "pack-quantized":
        if strategy not in {"group", "channel"}:
            raise each.refusal("strategy", f"{strategy!r} is not supported; group and channel are")
        size = _size_of_groups(each) if strategy == "group" else None
        return CheckpointFormat(
            layout,
            bits=_one_of(each, "num_bits", (4, 8)),
            group_size=size,
            needs_order=weights.get("actorder") in (True, "group", "dynamic"),
            needs_zeros=not each.get("symmetric", bool, default=True),
        )
    _one_of(each, "num_bits", (8,))
    if not each.get("symmetric", bool, default=True):
        raise each.refusal("symmetric", "false is not supported")
    if strategy == "block":
        block = _block(each, weights.get("block_structure"))
        return CheckpointFormat("compressed-tensors", block=block)
    if strategy not in {"tensor", "channel"}:
        raise each.refusal(
            "strategy", f"{strategy!r} is not supported; tensor, channel and block are"
        )
    return CheckpointFormat("compressed-tensors")


def _block(keys: ConfigKeys, value: object) -> tuple[int, int]:
    match value:
        case [int(rows), int(columns)] if rows > 0 and columns > 0 and columns % 64 == 0:
            return rows, columns
        case _:
            raise keys.refusal("block", f"expected rows and columns in 64s, got {value!r}")


def _size_of_groups(keys: ConfigKeys) -> int | None:
    size = keys.get("group_size", int, 128)
    if size == -1:
        return None
    if size < 1 or size % 32:
        raise keys.refusal("group_size", f"{size} is not supported; -1 and multiples of 32 are")
    return size


def _one_of(keys: ConfigKeys, key: str, supported: tuple[int, ...]) -> int:
    value = keys.get(key, int)
    if value not in supported:
        names = " and ".join(str(each) for each in supported)
        raise keys.refusal(key, f"{value} is not supported, {names} bits are")
    return value
