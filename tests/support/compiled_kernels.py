"""Kernels compiled ahead for a GPU that need not be there, from the launches of our own code.

The wrappers are called with tensors without memory, and what they launch is recorded; so types,
block sizes, warps and stages are those that run.
"""

import re
import subprocess
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import cached_property, partial
from pathlib import Path
from typing import Any
from uuid import uuid4

import torch
import triton
from triton.backends.compiler import GPUTarget
from triton.compiler import ASTSource

from backend.kernels import (
    attention,
    decode_attention,
    grouped_matmul,
    kv_write,
    prefill_attention,
    quantized_matmul,
    sampling,
)
from backend.kernels import (
    elementwise as elementwise_kernels,
)

BINARIES = Path(triton.__file__).parent / "backends" / "nvidia" / "bin"
SHARED_MEMORY = {
    80: 163 * 2**10,
    86: 99 * 2**10,
    89: 99 * 2**10,
    90: 227 * 2**10,
    100: 227 * 2**10,
}
"""Bytes that a block of threads may have, by architecture."""
PROCESSORS = {
    80: attention.DeviceLimits(108, SHARED_MEMORY[80], 164 * 2**10, 2048),
    86: attention.DeviceLimits(84, SHARED_MEMORY[86], 100 * 2**10, 1536),
    89: attention.DeviceLimits(128, SHARED_MEMORY[89], 100 * 2**10, 1536),
    90: attention.DeviceLimits(132, SHARED_MEMORY[90], 228 * 2**10, 2048),
    100: attention.DeviceLimits(148, SHARED_MEMORY[100], 228 * 2**10, 2048),
}
"""NVIDIA's figures: CUDA C++ Programming Guide, compute capabilities."""
# An instruction of SASS: its address, name and operands.
_INSTRUCTION = re.compile(r"/\*([0-9a-f]{4,})\*/\s+(?:@!?U?P\w+\s+)?([A-Z][\w.]*)([^;]*);")
# Loops that only wait have fewer instructions.
_LEAST_LOOP = 50

_MODULES = (
    decode_attention,
    grouped_matmul,
    kv_write,
    elementwise_kernels,
    prefill_attention,
    quantized_matmul,
    sampling,
)
_TYPES = {
    torch.bfloat16: "*bf16",
    torch.float16: "*fp16",
    torch.float32: "*fp32",
    torch.int32: "*i32",
    torch.int64: "*i64",
    torch.int8: "*i8",
    torch.uint8: "*u8",
    torch.float8_e4m3fn: "*fp8e4nv",
}
_OPTIONS = {"num_warps", "num_stages", "maxnreg"}


@dataclass(frozen=True)
class Launch:
    kernel: Any
    arguments: tuple[Any, ...]
    meta: dict[str, Any]


@dataclass(frozen=True)
class Compiled:
    """``stack`` is what spilled registers take, in bytes a thread; ``binary`` is a cubin."""

    name: str
    registers: int
    stack: int
    shared: int
    num_warps: int
    ptx: str
    binary: Path

    @cached_property
    def loops(self) -> list[list[str]]:
        """The SASS instructions of every loop that holds no other and does not only wait."""
        return _inner_loops(_dump(self.binary, "--dump-sass"))  # it takes seconds

    @property
    def loop_instructions(self) -> int:
        """Return how many instructions of the GPU the longest loop with matrix products has."""
        return max(len(loop) for loop in self.loops if any("MMA" in name for name in loop))

    def inner_loops(self) -> list[str]:
        """Return the PTX of every loop that holds no other."""
        lines = self.ptx.splitlines()
        labels = {
            line.split(":")[0]: place for place, line in enumerate(lines) if line.startswith("$L")
        }
        jumps = [
            (labels[match[1]], place)
            for place, line in enumerate(lines)
            if (match := re.search(r"@\S+\s+bra\s+(\S+);", line)) and labels[match[1]] < place
        ]
        return [
            "\n".join(lines[first : last + 1])
            for first, last in jumps
            if not any(first < other[0] and other[1] < last for other in jumps)
        ]

    @property
    def spills(self) -> int:
        """Return how often the loops read or write spilled registers."""
        if not self.stack:
            return 0
        return sum(name[:3] in {"LDL", "STL"} for loop in self.loops for name in loop)

    @property
    def tiles_in_flight(self) -> int:
        """Return how many copies each loop with asynchronous copies leaves under way, at least."""
        waits = [
            [int(count) for count in re.findall(r"cp\.async\.wait_group\s+(\w+);", loop)]
            for loop in self.inner_loops()
        ]
        return min((max(counts) for counts in waits if counts), default=0)


def tensor(*shape: int, dtype: torch.dtype = torch.int32) -> torch.Tensor:
    """A tensor without memory."""
    return torch.empty(*shape, dtype=dtype, device="meta")


def launches(call: Callable[[], object], monkeypatch: Any) -> list[Launch]:
    """Return what ``call`` launches."""
    found: list[Launch] = []

    def record(kernel: Any, grid: tuple[int, ...], *arguments: Any, **meta: Any) -> None:
        assert 0 not in grid
        found.append(Launch(kernel, arguments, meta))

    with monkeypatch.context() as patch:
        for module in _MODULES:
            patch.setattr(module, "launch", record)
        call()
    return found


def compile_for(architecture: int, launch: Launch, folder: Path) -> Compiled:
    """Compile as Triton would when launched: it looks at the arguments' types and alignment."""
    names = list(launch.kernel.arg_names)
    constants = {name: value for name, value in launch.meta.items() if name not in _OPTIONS}
    declared = {each.name for each in launch.kernel.params if each.is_constexpr}
    assert declared == set(constants), (launch.kernel.__name__, declared ^ set(constants))
    types = {}
    attributes = {}
    for place, (name, value) in enumerate(zip(names, launch.arguments, strict=False)):
        general = launch.kernel.params[place].do_not_specialize
        if isinstance(value, torch.Tensor):
            types[name] = _TYPES[value.dtype]
        elif isinstance(value, float):
            types[name] = "fp32"
            continue
        elif value is None or (value == 1 and not general):
            constants[name] = value
            continue
        else:
            types[name] = "i32" if value < 2**31 else "i64"
        if isinstance(value, torch.Tensor) or (value % 16 == 0 and not general):
            attributes[(place,)] = [["tt.divisibility", 16]]
    signature = {name: types.get(name, "constexpr") for name in names}
    compiled = triton.compile(
        ASTSource(launch.kernel, signature, constants, attributes),
        target=GPUTarget("cuda", architecture, 32),
        options={name: launch.meta[name] for name in _OPTIONS & launch.meta.keys()},
    )
    binary = folder / f"{uuid4().hex}.cubin"
    binary.write_bytes(compiled.asm["cubin"])
    told = _dump(binary, "--dump-resource-usage")
    used = {name: int(value) for name, value in re.findall(r"\b(REG|STACK):(\d+)", told)}
    return Compiled(
        launch.kernel.__name__,
        used["REG"],
        used["STACK"],
        compiled.metadata.shared,
        launch.meta.get("num_warps", 4),
        compiled.asm["ptx"],
        binary,
    )


def _dump(binary: Path, what: str) -> str:
    command = [BINARIES / "cuobjdump", what, binary]
    return subprocess.run(command, capture_output=True, text=True, check=True).stdout


def _inner_loops(sass: str) -> list[list[str]]:
    found = [(int(at, 16), name, rest) for at, name, rest in _INSTRUCTION.findall(sass)]
    places = {at: place for place, (at, _, _) in enumerate(found)}
    loops = [
        (places[int(match[1], 16)], place)
        for place, (at, name, rest) in enumerate(found)
        if name.startswith("BRA")
        and (match := re.search(r"0x([0-9a-f]+)", rest))
        and int(match[1], 16) < at
    ]
    return [
        [name for _, name, _ in found[first : last + 1]]
        for first, last in loops
        if last - first >= _LEAST_LOOP
        and not any(first <= a and b <= last and (a, b) != (first, last) for a, b in loops)
    ]


def decode(
    dtype: torch.dtype,
    head_dim: int,
    architecture: int,
    *,
    heads: int = 32,
    splits: int = 32,
    storage: torch.dtype | None = None,
    **options: Any,
):
    """Decode attention over 8 KV heads, as a call; ``storage`` is the type of the cache."""
    qkv, cache = _projection(dtype, heads, head_dim), _cache(storage or dtype, head_dim)
    return partial(
        decode_attention.decode_attention,
        qkv[:, :heads],
        cache,
        attention.BlockTables(tensor(100), tensor(33)),
        tensor(33),
        splits=splits,
        scales=tensor(16, dtype=torch.float32) if storage else None,
        limits=PROCESSORS[architecture],
        **options,
    )


def prefill(
    dtype: torch.dtype,
    head_dim: int,
    architecture: int,
    *,
    heads: int = 32,
    storage: torch.dtype | None = None,
    tilings: dict[str, attention.Tiling] | None = None,
    **options: Any,
):
    """Prefill attention over 8 KV heads in small and in large tiles, and the join, as a call."""
    qkv, cache = _projection(dtype, heads, head_dim), _cache(storage or dtype, head_dim)
    limits = PROCESSORS[architecture]
    shape = prefill_attention.PrefillShape.of(
        dtype,
        heads=heads,
        kv_heads=8,
        head_dim=head_dim,
        limits=limits,
        quantized=storage is not None,
    )
    work = prefill_attention.PrefillWork(
        tensor(7, 8), 3, 3, 8 * 128, replace(shape, **tilings or {})
    )
    return partial(
        prefill_attention.prefill_attention,
        qkv[:, :heads],
        cache,
        tensor(100),
        work,
        scales=tensor(16, dtype=torch.float32) if storage else None,
        **options,
    )


def elementwise(dtype: torch.dtype, storage: torch.dtype | None = None) -> None:
    """Launch all others, in the sizes of an 8B model whose heads are normed."""
    rows, weight = tensor(33, 4096, dtype=dtype), tensor(4096, dtype=dtype)
    elementwise_kernels.rms_norm(rows, weight, 1e-5)
    elementwise_kernels.add_rms_norm(rows, rows, weight, 1e-5)
    elementwise_kernels.silu_mul(tensor(33, 2 * 14336, dtype=dtype))
    qkv, cache = _projection(dtype, 32, 128), _cache(storage or dtype, 128)
    scales = tensor(16, dtype=torch.float32) if storage else None
    turns = tensor(33, 64, 2, dtype=torch.float32)
    for head_weights in (None, tensor(40, 128, dtype=dtype)):
        kv_write.rotate_and_write(
            qkv, turns, tensor(33), cache, head_weights=head_weights, eps=1e-5, scales=scales
        )
    kv_write.write_kv(tensor(33, 16, 128, dtype=dtype), cache, tensor(33), scales)


def quantize_rows(dtype: torch.dtype, size: int) -> None:
    """Launch the quantisation of rows to FP8."""
    elementwise_kernels.quantize_rows(tensor(33, size, dtype=dtype))


def sample(dtype: torch.dtype, vocab: int) -> None:
    """Launch the sampler."""
    column = tensor(33, 1, dtype=torch.float32)
    rows = sampling.SamplingRows(column, column, column, column, tensor(33, 2))
    sampling.sample_tokens(tensor(33, vocab, dtype=dtype), rows)


def quantized(
    kind: str,
    tokens: int,
    *,
    size: int = 4096,
    group: int = 128,
    dtype: torch.dtype = torch.bfloat16,
) -> torch.Tensor:
    """Launch a product of ``tokens`` rows with a weight of ``kind`` [size, size]."""
    codes = tensor(size, size, dtype=torch.float8_e4m3fn if kind == "fp8" else torch.int8)
    scales = tensor(size, size // group, dtype=torch.float32)
    zeros = scales if kind == "int4" else None
    bits = 4 if kind == "int4" else 8
    weight = quantized_matmul.pack(codes, scales, zeros, group, bits=bits)
    return quantized_matmul.quantized_matmul(tensor(tokens, size, dtype=dtype), weight)


def grouped(dtype: torch.dtype, pairs: int, experts: int, rows: int, columns: int) -> torch.Tensor:
    """Launch a product of ``pairs`` with the weights [rows, columns] of their experts."""
    weights = tensor(experts, rows, columns, dtype=dtype)
    return grouped_matmul.grouped_matmul(
        tensor(pairs, columns, dtype=dtype), weights, tensor(experts)
    )


def _projection(dtype: torch.dtype, heads: int, head_dim: int) -> torch.Tensor:
    return tensor(33, heads + 16, head_dim, dtype=dtype)


def _cache(dtype: torch.dtype, head_dim: int) -> torch.Tensor:
    return tensor(100, 16, 16, head_dim, dtype=dtype)
