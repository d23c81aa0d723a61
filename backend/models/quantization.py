"""Weights in four and eight bits: what checkpoints call them, and linear maps that compute in them.

A weight is ``(code - zero) * scale``, with a scale for each row and group of columns. Published
layouts become one form at load, ``QuantizedWeight``; ``quantized_linear`` makes of it what the
device is best at.
"""

import ctypes
import logging
import math
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Self

import torch
from torch import Tensor
from torch.nn import functional

from backend.kernels.available import unavailable_reason
from backend.models.checkpoint import FLOATS, Tensors
from backend.models.config import ConfigKeys, ModelLoadError
from backend.models.layers import DenseLinear, Embedding, Linear

logger = logging.getLogger(__name__)

_CONFIG_KEYS = ("quantization_config", "compression_config")
FP8 = torch.float8_e4m3fn
# Of tensors that quantised matrices have and others do not.
_SUFFIXES = (".qweight", ".weight_scale", ".weight_scale_inv")
_NO_ZEROS = torch.zeros(1, dtype=torch.int64)
# AWQ packs eight columns into 32 bits in this order, from the lowest four bits on.
_AWQ_ORDER = (0, 2, 4, 6, 1, 3, 5, 7)
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


def quantized_linear(weight: QuantizedWeight, bias: Tensor | None, dtype: torch.dtype) -> Linear:
    """Return a linear map that computes where ``weight`` lies.

    On CPU every layout becomes int8 with a scale for each row: PyTorch has fast products for no
    other. On CUDA FP8 without blocks is multiplied in FP8, where the device can; all else goes
    through the kernel. Where Triton cannot compile, weights become ``dtype``.
    """
    if weight.codes.device.type != "cuda":
        is_plain = weight.codes.dtype is torch.int8 and weight.zeros is None
        if not is_plain or weight.scales.shape[1] > 1:
            weight = quantize(weight.dequantized())
        # Without VNNI the products of bytes overflow 16 bits.
        if torch.cpu._is_vnni_supported():  # noqa: SLF001 (there is no public name)
            return Int8Linear(weight, bias)
        return BFloat16Linear(weight, bias)
    is_fp8 = weight.codes.dtype is FP8
    if unavailable_reason() is not None:
        return DenseLinear(weight.dequantized().to(dtype), bias)
    if is_fp8 and weight.scales.shape[1] == 1 and _has_fp8(weight.codes):
        return Float8Linear(weight, bias)
    return KernelLinear(weight, bias)


def quantized_embedding(
    weight: QuantizedWeight, dtype: torch.dtype, head: Linear | None = None
) -> Embedding:
    """Return an embedding of int8 ``weight``, out of the memory of ``head`` where that has it."""
    hidden_size = weight.codes.shape[1]
    match head:
        case DenseLinear(weight=rows):
            return Embedding(rows, dtype, hidden_size, shared=True)
        case Int8Linear(panels=Tensor() as panels) | KernelLinear(panels=panels):
            return Embedding(panels, dtype, hidden_size, weight.scales, shared=True)
    rows = weight.codes[:, None, None]
    return Embedding(rows, dtype, hidden_size, weight.scales, isinstance(head, BFloat16Linear))


class Int8Linear:
    """Weights in int8 and activations in 16 bits, through oneDNN's product of bytes (CPU).

    An activation is two bytes, ``256 * high + low``, and each byte is a row of the product, whose
    sums are exact. So results do not depend on other rows, as they would with one scale for all of
    them, and the error of an activation is 2**-16 of its row's largest.
    """

    def __init__(self, weight: QuantizedWeight, bias: Tensor | None) -> None:
        """``weight`` is int8 with one scale for each row."""
        self._packed = torch.ops.onednn.qlinear_prepack(weight.codes, None)
        self.panels = _panels(self._packed, weight.codes)
        self._scales = weight.scales.flatten().contiguous()
        self._bias = None if bias is None else bias.float()
        self.num_bytes = weight.codes.nbytes + self._scales.nbytes

    def __call__(self, rows: Tensor) -> Tensor:
        """Map [rows, in] to [rows, out]."""
        values = rows.float()
        scales = values.abs().amax(dim=1, keepdim=True).mul_(1 / 32_512).clamp_(min=1e-30)
        # Both bytes unsigned, around 128: oneDNN packs weights for those.
        words = (values / scales).round_().add_(128 * 257).to(torch.int32)
        pairs = words.view(torch.uint8).view(*rows.shape, 4)[..., :2]
        product: Tensor = torch.ops.onednn.qlinear_pointwise(
            pairs.permute(2, 0, 1).reshape(-1, rows.shape[1]),
            1.0,
            128,
            self._packed,
            self._scales,
            _NO_ZEROS,
            None,
            1.0,
            0,
            torch.float32,
            "none",
            [],
            "",
        )
        low, high = product.chunk(2)
        result = torch.add(low, high, alpha=256).mul_(scales)
        if self._bias is not None:
            result += self._bias
        return result.to(rows.dtype)


def _panels(packed: Tensor, codes: Tensor) -> Tensor | None:
    """Return what oneDNN ``packed`` as [rows / 64, columns / 4, 64, 4], None: it lies otherwise.

    That is how products of bytes are fed on all CPUs with VNNI. It is nowhere promised, so all
    codes are compared.
    """
    num_panels, columns = math.ceil(len(codes) / 64), math.ceil(codes.shape[1] / 64) * 64
    size = num_panels * columns * 64
    if torch.ops.mkldnn._nbytes(packed) < size:  # noqa: SLF001 (there is no public name)
        return None
    memory = (ctypes.c_int8 * size).from_address(torch.ops.mkldnn.data_ptr(packed))
    memory.owner = packed  # type: ignore[attr-defined]  # it lives as long as what reads it
    panels = torch.frombuffer(memory, dtype=torch.int8).view(num_panels, -1, 64, 4)
    for start in range(num_panels):
        rows = codes[start * 64 : (start + 1) * 64]
        found = panels[start].transpose(0, 1).flatten(1)
        if not torch.equal(found[: len(rows), : codes.shape[1]], rows):
            return None
    return panels


class BFloat16Linear:
    """Weights in int8 and activations in bfloat16, for CPUs without products of bytes."""

    def __init__(self, weight: QuantizedWeight, bias: Tensor | None) -> None:
        """``weight`` is int8 with one scale for each row."""
        self._codes = weight.codes
        self._scales = weight.scales.flatten().bfloat16()
        self._bias = bias
        self.num_bytes = weight.codes.nbytes + self._scales.nbytes

    def __call__(self, rows: Tensor) -> Tensor:
        """Map [rows, in] to [rows, out]."""
        product: Tensor = torch._weight_int8pack_mm(  # noqa: SLF001 (there is no public name)
            rows.bfloat16(), self._codes, self._scales
        )
        result = product.to(rows.dtype)
        return result if self._bias is None else result + self._bias


class Float8Linear:
    """Weights and activations in FP8, each row of both with a scale of its own (CUDA)."""

    def __init__(self, weight: QuantizedWeight, bias: Tensor | None) -> None:
        """``weight`` is FP8 with one scale for each row."""
        self._by_input = weight.codes.t()
        self._scales = weight.scales.t().contiguous()
        self._one = torch.ones((), device=weight.scales.device)
        self._bias = bias
        self.num_bytes = weight.codes.nbytes + weight.scales.nbytes

    def __call__(self, rows: Tensor) -> Tensor:
        """Map [rows, in] to [rows, out]."""
        scales = rows.abs().amax(dim=1, keepdim=True).float().clamp_(min=1e-12) / 448
        codes = (rows / scales).clamp_(-448, 448).to(FP8)
        # Scaled afterwards: products with a scale for each row need more than 8.9.
        product = torch._scaled_mm(  # noqa: SLF001 (there is no public name)
            codes, self._by_input, self._one, self._one, out_dtype=torch.float32
        )
        result = product.mul_(scales).mul_(self._scales).to(rows.dtype)
        return result if self._bias is None else result + self._bias


class KernelLinear:
    """Weights of any layout, dequantised in registers by a kernel of ours (Triton)."""

    def __init__(self, weight: QuantizedWeight, bias: Tensor | None) -> None:
        """Reorder the codes as the kernel reads them."""
        # Triton is not everywhere.
        from backend.kernels.quantized_matmul import pack, quantized_matmul  # noqa: PLC0415

        self._multiply = quantized_matmul
        self.packed = pack(
            weight.codes, weight.scales, weight.zeros, weight.group_size, bits=weight.bits
        )
        self.panels = self.packed.codes[None]
        self._bias = bias
        self.num_bytes = self.packed.num_bytes

    def compute_in_torch(self) -> None:
        """Multiply with dequantised weights from now on, for devices on which the kernel errs."""
        self._multiply = _dequantized_matmul

    def __call__(self, rows: Tensor) -> Tensor:
        """Map [rows, in] to [rows, out]."""
        result: Tensor = self._multiply(rows, self.packed)
        return result if self._bias is None else result + self._bias


def _dequantized_matmul(rows: Tensor, weight: Any) -> Tensor:
    return functional.linear(rows, weight.dequantized(torch.float32).to(rows.dtype))


def _has_fp8(tensor: Tensor) -> bool:
    aligned = all(size % 16 == 0 for size in tensor.shape)
    return aligned and torch.cuda.get_device_capability(tensor.device) >= FP8_CAPABILITY


@dataclass(frozen=True, slots=True)
class CheckpointFormat:
    """How a checkpoint holds the matrices that it quantised.

    ``group_size`` None: one group for each row. ``block`` are the rows and columns that share a
    scale of FP8. GPTQ's first version stores zero points less 1: ``zero_offset``. With
    ``needs_order`` the order of columns must be told.
    """

    name: str
    bits: int = 8
    group_size: int | None = None
    block: tuple[int, int] | None = None
    zero_offset: bool = False
    needs_order: bool = False

    def holds(self, checkpoint: Tensors, name: str) -> bool:
        """Return whether the matrix ``name`` is quantised."""
        return any(checkpoint.has(name + suffix) for suffix in _SUFFIXES)

    def code_bytes(self, device: torch.device, dtype: torch.dtype) -> float:
        """Return what a code takes on ``device``, see ``quantized_linear``."""
        if device.type != "cuda":
            return 1
        return self.bits / 8 if unavailable_reason() is None else dtype.itemsize

    def read(self, checkpoint: Tensors, name: str, shape: tuple[int, int]) -> QuantizedWeight:
        """Read the matrix ``name``, which has ``shape`` when unpacked. Raises ModelLoadError."""
        match self.name:
            case "gptq":
                return self._read_gptq(checkpoint, name, shape)
            case "awq":
                return self._read_awq(checkpoint, name, shape)
            case _:
                return self._read_scaled(checkpoint, name, shape)

    def _read_scaled(
        self, checkpoint: Tensors, name: str, shape: tuple[int, int]
    ) -> QuantizedWeight:
        codes = checkpoint.read(f"{name}.weight", (shape,), frozenset({FP8, torch.int8}))
        rows, columns = shape
        if self.block is None:
            shapes = ((rows, 1), (rows,), (1,), ())
            # transformers gives the scale of a whole tensor the name of its blocks' scales.
            inverse = f"{name}.weight_scale_inv"
            is_inverse = self.name == "fp8" and checkpoint.has(inverse)
            found = checkpoint.read(
                inverse if is_inverse else f"{name}.weight_scale", shapes, FLOATS
            )
            scales = found.float().reshape(-1, 1).expand(rows, 1).contiguous()
            return QuantizedWeight(codes, scales, None, columns)
        height, width = self.block
        suffix = "weight_scale_inv" if self.name == "fp8" else "weight_scale"
        grid = (math.ceil(rows / height), math.ceil(columns / width))
        blocks = checkpoint.read(f"{name}.{suffix}", (grid,), FLOATS).float()
        scales = blocks.repeat_interleave(height, dim=0)[:rows].contiguous()
        return QuantizedWeight(codes, scales, None, min(width, columns))

    def _read_gptq(self, checkpoint: Tensors, name: str, shape: tuple[int, int]) -> QuantizedWeight:
        rows, columns = shape
        size = self._group_size(checkpoint, name, shape)
        each = 32 // self.bits
        integers = frozenset({torch.int32})
        packed = checkpoint.read(f"{name}.qweight", ((columns // each, rows),), integers)
        # Each word holds ``each`` columns of a row.
        codes = _unpacked(packed, self.bits).permute(0, 2, 1).reshape(columns, rows).t()
        groups = columns // size
        words = checkpoint.read(f"{name}.qzeros", ((groups, rows // each),), integers)
        if self.zero_offset:
            # The format takes one from each zero point of a word at once, borrows included.
            words = words + sum(1 << (self.bits * place) for place in range(each))
        zeros = _unpacked(words, self.bits).reshape(groups, rows)
        if self.needs_order and not checkpoint.has(f"{name}.g_idx"):
            raise ModelLoadError(
                f"{checkpoint.source}: tensor {name}.g_idx is missing, and desc_act is true"
            )
        if checkpoint.has(f"{name}.g_idx"):
            order = checkpoint.read(f"{name}.g_idx", ((columns,),), integers)
            if not torch.equal(order, torch.arange(columns, dtype=torch.int32) // size):
                raise ModelLoadError(
                    f"{checkpoint.source}: tensor {name}.g_idx: columns in order of activation "
                    "(desc_act) are not supported"
                )
        return self._grouped(checkpoint, name, codes, zeros.t(), size)

    def _read_awq(self, checkpoint: Tensors, name: str, shape: tuple[int, int]) -> QuantizedWeight:
        rows, columns = shape
        size = self._group_size(checkpoint, name, shape)
        integers = frozenset({torch.int32})

        def unpacked(suffix: str, length: int) -> Tensor:
            words = checkpoint.read(f"{name}.{suffix}", ((length, rows // 8),), integers)
            places = torch.tensor(_AWQ_ORDER).argsort()
            return _unpacked(words, 4).index_select(2, places).reshape(length, rows).t()

        codes, zeros = unpacked("qweight", columns), unpacked("qzeros", columns // size)
        return self._grouped(checkpoint, name, codes, zeros, size)

    def _grouped(
        self, checkpoint: Tensors, name: str, codes: Tensor, zeros: Tensor, size: int
    ) -> QuantizedWeight:
        """Shift unsigned ``codes`` and ``zeros`` by half of their range."""
        rows, columns = codes.shape
        scales = checkpoint.read(f"{name}.scales", ((columns // size, rows),), FLOATS)
        half = 1 << (self.bits - 1)
        shifted = (zeros - half).float().contiguous()
        return QuantizedWeight(
            (codes - half).to(torch.int8).contiguous(),
            scales.float().t().contiguous(),
            shifted if bool(shifted.any()) else None,
            size,
            self.bits,
        )

    def _group_size(self, checkpoint: Tensors, name: str, shape: tuple[int, int]) -> int:
        rows, columns = shape
        size = self.group_size or columns
        if rows % (32 // self.bits):
            raise ModelLoadError(
                f"{checkpoint.source}: tensor {name}: {rows} rows do not fill words of 32 bits"
            )
        if columns % size or columns % 8:
            raise ModelLoadError(
                f"{checkpoint.source}: tensor {name}: {columns} columns are not groups of {size}"
            )
        return size


def _unpacked(words: Tensor, bits: int) -> Tensor:
    """Return int32 [..., 32 / bits], unsigned, from the lowest bits on."""
    shifts = torch.arange(0, 32, bits, dtype=torch.int32)
    return (words.unsqueeze(-1) >> shifts) & ((1 << bits) - 1)


def is_quantized(values: Mapping[str, Any]) -> bool:
    """Return whether ``config.json`` says anything of quantised weights."""
    return any(values.get(key) is not None for key in _CONFIG_KEYS)


def has_quantized(names: Collection[str]) -> bool:
    """Return whether tensors of these names are quantised."""
    return any(name.endswith(_SUFFIXES) for name in names)


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
        case method:
            raise keys.refusal(
                "quant_method",
                f"{method!r} is not supported; compressed-tensors, fp8, gptq and awq are",
            )


def _compressed_tensors(keys: ConfigKeys) -> CheckpointFormat:
    if (layout := keys.get("format", str, "")) not in {"float-quantized", "int-quantized"}:
        raise keys.refusal(
            "format", f"{layout!r} is not supported; float-quantized and int-quantized are"
        )
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
    _one_of(each, "num_bits", (8,))
    if not each.get("symmetric", bool, default=True):
        raise each.refusal("symmetric", "false is not supported")
    strategy = each.get("strategy", str, "tensor")
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
