"""The self-check in the interpreter's process, with kernels that are broken on purpose."""

from contextlib import ExitStack, contextmanager, nullcontext, redirect_stdout
from importlib import import_module
from io import StringIO
from pathlib import Path
from unittest.mock import patch

import torch
from interpreted_engine import generate
from interpreted_float8 import sound_conversion
from kernel_cases import to_fp8

from backend.__main__ import main
from backend.executor.factory import make_runner
from backend.executor.input_batch import BatchLimits
from backend.executor.kv_cache import KVCache
from backend.executor.self_check import self_check
from backend.kernels.grouped_matmul import grouped_matmul
from backend.models.loading import load_network
from backend.models.quantization.linears import Float8Linear, KernelLinear

CPU = torch.device("cpu")

# Where a kernel is called, and which argument of the call it writes; None: what it returns.
KERNELS = {
    "decode": ("backend.executor.attention.triton:decode_attention", None),
    "prefill": ("backend.executor.attention.triton:prefill_attention", None),
    "write": ("backend.kernels.kv_write:launch", 6),
    "rms_norm": ("backend.executor.kernel_operations:rms_norm", None),
    "silu_mul": ("backend.executor.kernel_operations:silu_mul", None),
    "sampling": ("backend.kernels.sampling:launch", "int64"),
    "int8": ("backend.kernels.quantized_matmul:launch", 2),
    "fp8": ("torch:_scaled_mm", None),
    "experts": ("backend.kernels.grouped_matmul:launch", 5),
}


@contextmanager
def broken(name, how):
    """Break a kernel: ``how`` is wrong, nan, or raises."""
    place, written = KERNELS[name]
    module, _, function = place.partition(":")
    original = getattr(import_module(module), function)

    def call(*arguments, **options):
        if how == "raises":
            raise RuntimeError("no such instruction\nin line 7")
        result = original(*arguments, **options)
        if written == "int64":
            next(each for each in arguments if getattr(each, "dtype", 0) is torch.int64).zero_()
        elif how == "nan":
            (result if written is None else arguments[written]).fill_(float("nan"))
        else:
            (result if written is None else arguments[written]).mul_(1.05)
        return result

    with patch(f"{module}.{function}", call):
        yield


def check(directory, kv_dtype=None, **options):
    """Return the findings as tuples, the groups that stay, and the detail."""
    network = load_network(Path(directory), device=CPU, dtype="float32", **options)
    return _told(self_check(network, CPU, kv_dtype or network.dtype, 2048)), network


def _told(proved):
    return (
        [(each.kernel, each.passes) for each in proved.findings],
        {each.name for each in proved.kernels},
        proved.detail,
    ), proved.kernels


def findings(directory, kv_dtype=None):
    """Check, and return what was told and whether the process's random numbers moved."""
    before = torch.get_rng_state()
    (told, _), _ = check(directory, kv_dtype)
    return told, torch.equal(before, torch.get_rng_state())


def shape_findings(directory, context=2048):
    """Check a model; return kernels, shapes and verdicts."""
    network = load_network(Path(directory), device=CPU, dtype="float32")
    proved = self_check(network, CPU, network.dtype, context)
    return [(each.kernel, each.shape, each.passes) for each in proved.findings]


def check_and_generate(directory, prompts, new_tokens, sampling=None, *, breaks, how):
    """Check with a broken kernel and generate with what stays; the kernel stays broken."""
    with broken(breaks, how):
        (told, kernels), _ = check(directory)
        tokens, _ = generate(directory, prompts, new_tokens, sampling, kernels=kernels)
    return told, tokens


def check_experts_and_generate(directory, prompts, new_tokens, **options):
    """The same, of a model whose experts the kernel computes; say also if steps are static then."""
    with ExitStack() as stack:
        stack.enter_context(patch("backend.models.moe._grouped_product", lambda *_: grouped_matmul))
        if options:
            stack.enter_context(broken("experts", **options))
        (told, kernels), network = check(directory)
        limits = BatchLimits(2, 2, 16, 64)
        cache = KVCache(network.shape, 1, device=CPU, dtype=network.dtype)
        make_runner(network, cache, limits, kernels=kernels)
        tokens, _ = generate(directory, prompts, new_tokens, kernels=kernels)
    return told, tokens, network.has_static_steps


def _by_kernel(weight, bias, _dtype):
    return KernelLinear(weight, bias)


def _in_fp8(weight, bias, _dtype):
    return Float8Linear(to_fp8(weight.dequantized()), bias)


def _worth(linear):
    """Return the weights with which ``linear`` computes."""
    if isinstance(linear, KernelLinear):
        return linear.packed.dequantized(torch.float32)
    return linear.weight.dequantized()


def check_quantised(directory, *, kind, breaks):
    """Check a model in int8 or fp8; return what was told, and the error of its products then."""
    with ExitStack() as stack:
        make = _in_fp8 if kind == "fp8" else _by_kernel
        stack.enter_context(sound_conversion())
        stack.enter_context(patch("backend.models.weights.quantized_linear", make))
        if breaks:
            stack.enter_context(broken(kind, "wrong"))
        (told, kernels), network = check(directory, quantization="int8")
        cache = KVCache(network.shape, 1, device=CPU, dtype=network.dtype)
        make_runner(network, cache, BatchLimits(2, 2, 16, 64), kernels=kernels)
        errors = []
        for linear in network.weights.linears:
            weight = _worth(linear)
            rows = torch.randn(2, weight.shape[1])
            expected = rows @ weight.t()
            errors.append((linear(rows) - expected).norm() / expected.norm())
    return told, float(max(errors))


def run_command(arguments, breaks=None):
    """Run `refrain backend check`; return its exit code and what it printed."""
    printed = StringIO()
    spoiled = broken(breaks, "wrong") if breaks else nullcontext()
    with spoiled, redirect_stdout(printed):
        code = main(["check", *arguments])
    return code, printed.getvalue()
