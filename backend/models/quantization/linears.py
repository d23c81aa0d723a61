"""Linear maps that compute in four and eight bits, and which of them a device is best at."""

import ctypes
import math
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional

from backend.kernels.available import unavailable_reason
from backend.models.layers import DenseLinear, Embedding, Linear
from backend.models.quantization.weight import FP8, FP8_CAPABILITY, QuantizedWeight, quantize

_NO_ZEROS = torch.zeros(1, dtype=torch.int64)


def quantized_linear(weight: QuantizedWeight, bias: Tensor | None, dtype: torch.dtype) -> Linear:
    """Return a linear map that computes where ``weight`` lies.

    On CPU every layout becomes int8 with a scale for each row: PyTorch has fast products for no
    other. On CUDA FP8 without blocks is multiplied in FP8, where the device can and ``dtype``
    has 16 bits; all else goes through the kernel. Where Triton cannot compile, weights become
    ``dtype``.
    """
    if weight.codes.device.type != "cuda":
        is_plain = weight.codes.dtype is torch.int8 and weight.zeros is None
        if not is_plain or weight.scales.shape[1] > 1:
            weight = quantize(weight.dequantized())
        # Without VNNI the products of bytes overflow 16 bits.
        if torch.cpu._is_vnni_supported():  # noqa: SLF001 (there is no public name)
            return Int8Linear(weight, bias)
        return BFloat16Linear(weight, bias)
    if unavailable_reason() is not None:
        return DenseLinear(weight.dequantized().to(dtype), bias)
    is_fp8 = weight.codes.dtype is FP8 and weight.scales.shape[1] == 1 and dtype.itemsize == 2
    is_fp8 &= all(size % 16 == 0 for size in weight.codes.shape)
    if is_fp8 and torch.cuda.get_device_capability(weight.codes.device) >= FP8_CAPABILITY:
        # Few rows too: the kernel would want them in another layout, a second copy.
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
    """Weights and activations in FP8, each row of both with a scale of its own (CUDA).

    Two launches. From 2.13 on, PyTorch has products with results of 16 bits for all these GPUs: by
    cuBLAS for 9.x, else by CUTLASS, which kept to no stream before 2.12.
    """

    def __init__(self, weight: QuantizedWeight, bias: Tensor | None) -> None:
        """``weight`` is FP8 with one scale for each row."""
        # Triton is not everywhere.
        from backend.kernels.elementwise import quantize_rows  # noqa: PLC0415

        self._quantize, self._in_torch = quantize_rows, False
        self.weight, self.bias = weight, bias
        self._scales = weight.scales.t().contiguous()
        self.num_bytes = weight.codes.nbytes + weight.scales.nbytes

    def compute_in_torch(self) -> None:
        """Multiply with dequantised weights from now on, for devices on which the product errs."""
        self._in_torch = True

    def __call__(self, rows: Tensor) -> Tensor:
        """Map [rows, in] to [rows, out]."""
        if self._in_torch:
            return functional.linear(rows, self.weight.dequantized().to(rows.dtype), self.bias)
        codes, scales = self._quantize(rows)
        product: Tensor = torch._scaled_mm(  # noqa: SLF001 (there is no public name)
            codes, self.weight.codes.t(), scales, self._scales, self.bias, out_dtype=rows.dtype
        )
        return product


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
