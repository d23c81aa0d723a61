"""Products with weights of four and eight bits equal their oracle, in Triton's interpreter."""

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

pytest.importorskip("triton", reason="Triton is not installed")

import kernel_cases as cases

from backend.kernels.quantized_matmul import pack

pytest_plugins = ["interpreter"]

KINDS = pytest.mark.parametrize("kind", ["int4", "int8", "fp8"])


@KINDS
@pytest.mark.parametrize("dtype", [torch.float32, torch.float16], ids=str)
@pytest.mark.parametrize(
    "shape",
    [(1, 64, 128, 128), (5, 80, 256, 32), (17, 130, 192, 64), (1, 40, 96, 96), (70, 24, 64, 128)],
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


def test_a_code_takes_its_bits_and_no_more():
    codes = torch.zeros(32, 128, dtype=torch.int8)
    scales = torch.ones(32, 1)
    assert pack(codes, scales, None, 128, bits=4).codes.nbytes == 32 * 128 // 2
    assert pack(codes, scales, None, 128, bits=8).codes.nbytes == 32 * 128


def test_groups_that_end_within_half_a_chunk_are_refused():
    with pytest.raises(ValueError, match="groups of 48 columns"):
        pack(torch.zeros(8, 96, dtype=torch.int8), torch.ones(8, 2), None, 48, bits=8)
