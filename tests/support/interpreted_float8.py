"""Products in FP8 in the interpreter's process, with the conversion that a GPU has."""

from contextlib import contextmanager
from unittest.mock import patch

import torch
from kernel_cases import to_fp8
from torch.utils._python_dispatch import TorchDispatchMode
from triton import language as tl
from triton.runtime import interpreter

from backend.kernels import elementwise
from backend.models.quantization.linears import Float8Linear


@contextmanager
def sound_conversion():
    """Convert to FP8 by torch: the interpreter loses carries and NaN."""
    convert = interpreter._convert_float

    def call(values, source, target, rounding):
        if target is not tl.float8e4nv:
            return convert(values, source, target, rounding)
        return torch.from_numpy(values.copy()).to(torch.float8_e4m3fn).view(torch.uint8).numpy()

    with patch.object(interpreter, "_convert_float", call):
        yield


def quantize_rows(rows):
    with sound_conversion():
        return elementwise.quantize_rows(rows)


class _Launches(TorchDispatchMode):
    """The names of what would be launched on a GPU: each operation but views and empty memory."""

    def __init__(self):
        super().__init__()
        self.names = []
        self.launch = elementwise.launch

    def __torch_dispatch__(self, operation, types, arguments=(), options=None):
        name = operation.overloadpacket.__name__
        if not operation.is_view and not name.startswith("empty"):
            self.names.append(name)
        if name == "_scaled_mm":
            _expect_as_cuda(arguments)
        return operation(*arguments, **options or {})

    def by_kernel(self, kernel, *arguments, **meta):
        self.names.append(kernel.fn.__name__)
        with torch.utils._python_dispatch._disable_current_modes():
            self.launch(kernel, *arguments, **meta)


def _expect_as_cuda(arguments):
    """Raise unless CUDA multiplies these too: CPU takes more."""
    rows, weight, row_scales, weight_scales, bias, _, out_dtype = arguments
    (count, size), outputs = rows.shape, weight.shape[1]
    assert size % 16 == outputs % 16 == 0
    assert rows.is_contiguous()
    assert weight.t().is_contiguous()
    for scales, shape in ((row_scales, (count, 1)), (weight_scales, (1, outputs))):
        assert scales.dtype is torch.float32
        assert scales.shape == shape
        assert scales.is_contiguous()
    assert out_dtype in {torch.float16, torch.bfloat16}
    assert bias is None or bias.dtype is out_dtype


def float8_linear(weight, bias, rows):
    """Return the product, what was launched, and the dequantised weight."""
    held = to_fp8(weight)
    linear, launches = Float8Linear(held, bias), _Launches()
    with sound_conversion(), patch.object(elementwise, "launch", launches.by_kernel), launches:
        result = linear(rows)
    return result, launches.names, held.dequantized()
