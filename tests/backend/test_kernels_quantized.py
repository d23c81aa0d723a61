"""Products with weights of four and eight bits equal their oracle, in Triton's interpreter."""

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

pytest.importorskip("triton", reason="Triton is not installed")

import kernel_cases as cases

from backend.kernels import quantized_matmul
from backend.kernels.quantized_matmul import pack

pytest_plugins = ["interpreter"]

KINDS = pytest.mark.parametrize("kind", ["int4", "int8", "fp8"])


@KINDS
@pytest.mark.parametrize("dtype", [torch.float32, torch.float16], ids=str)
@pytest.mark.parametrize(
    "shape",
    [
        (1, 64, 128, 128),
        (5, 80, 256, 32),
        (17, 130, 192, 64),
        (1, 40, 96, 96),
        (70, 24, 64, 128),
        (130, 72, 160, 32),
        (129, 24, 256, 128),
    ],
)
def test_products(interpreter, dtype, kind, shape):
    world = cases.World(interpreter.changing, dtype)
    tokens, rows, columns, group = shape
    cases.check_quantized_matmul(
        world, kind, tokens=tokens, rows=rows, columns=columns, group=group
    )


@given(
    tokens=st.integers(1, 20),
    shape=st.tuples(st.integers(1, 70), st.integers(1, 4)),
    group=st.sampled_from([32, 64, 128, 1024]),
    kind=st.sampled_from(["int4", "int8", "fp8"]),
)
@settings(max_examples=15, deadline=None)
def test_products_of_any_shape(interpreter, tokens, shape, group, kind):
    rows, halves = shape
    cases.check_quantized_matmul(
        cases.World(interpreter.changing),
        kind,
        tokens=tokens,
        rows=rows,
        columns=32 * halves,
        group=group,
    )


@pytest.mark.parametrize("kind", ["int4", "fp8"])
def test_many_columns_are_split_among_programs(interpreter, kind):
    world = cases.World(interpreter.changing)
    cases.check_quantized_matmul(world, kind, tokens=2, rows=32, columns=64 * 9, group=64)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16], ids=str)
def test_the_bits_of_codes_are_exact_floats(dtype):
    factor, unit, fp8_factor, fp8_unit = quantized_matmul._FLOATS[dtype]
    codes = torch.arange(256, dtype=torch.int16)
    for zero in (-127.0, 0.0, 128.0):
        offset = torch.tensor((zero + 128) * unit, dtype=dtype)
        expected = (codes.double() - 128 - zero) * unit
        assert torch.equal((codes.view(dtype) * factor - offset).double(), expected)
    nibbles = (16 * codes[:16]).view(dtype) * (factor / 16) - 8 * unit
    assert torch.equal(nibbles.double(), (codes[:16].double() - 8) * unit)
    finite = codes[(codes & 127) != 127]
    moved = (finite & 127) << (7 if dtype is torch.float16 else 4) | (finite & 128) << 8
    expected = finite.to(torch.uint8).view(torch.float8_e4m3fn).double() * fp8_unit
    assert torch.equal((moved.view(dtype) * fp8_factor).double(), expected)


def test_a_code_takes_its_bits_and_no_more():
    codes = torch.zeros(32, 128, dtype=torch.int8)
    scales = torch.ones(32, 1)
    assert pack(codes, scales, None, 128, bits=4).codes.nbytes == 32 * 128 // 2
    assert pack(codes, scales, None, 128, bits=8).codes.nbytes == 32 * 128


def test_groups_that_end_within_half_a_chunk_are_refused():
    with pytest.raises(ValueError, match="groups of 48 columns"):
        pack(torch.zeros(8, 96, dtype=torch.int8), torch.ones(8, 2), None, 48, bits=8)
