"""KV write, norms, rotation and activation equal their oracles, in Triton's interpreter."""

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

pytest.importorskip("triton", reason="Triton is not installed")

import kernel_cases as cases

from backend.kernels import reference

pytest_plugins = ["interpreter"]

HALF_TOO = pytest.mark.parametrize("dtype", [torch.float32, torch.float16], ids=str)


@HALF_TOO
@pytest.mark.parametrize(("tokens", "kv_heads", "head_dim"), [(1, 1, 64), (37, 3, 80), (5, 2, 96)])
def test_new_keys_and_values_go_to_their_slots(interpreter, dtype, tokens, kv_heads, head_dim):
    cases.check_kv_write(cases.World(interpreter.changing, dtype), tokens, kv_heads, head_dim)


@HALF_TOO
@pytest.mark.parametrize(("rows", "size"), [(1, 64), (7, 96), (3, 1030)])
def test_rms_norm(interpreter, dtype, rows, size):
    cases.check_rms_norm(cases.World(interpreter.changing, dtype), rows, size)


@HALF_TOO
@pytest.mark.parametrize(("rows", "size"), [(1, 64), (7, 96), (3, 1030)])
def test_rms_norm_with_the_addition_before_it(interpreter, dtype, rows, size):
    cases.check_add_rms_norm(cases.World(interpreter.changing, dtype), rows, size)


@HALF_TOO
@pytest.mark.parametrize(("rows", "size"), [(1, 8), (5, 96), (2, 2100)])
def test_silu_times_up(interpreter, dtype, rows, size):
    cases.check_silu_mul(cases.World(interpreter.changing, dtype), rows, size)


@HALF_TOO
@pytest.mark.parametrize("norm", [False, True])
@pytest.mark.parametrize(
    "shape",
    [(4, 2, 64, 64), (7, 1, 80, 80), (3, 3, 96, 48), (9, 3, 128, 128)],
    ids=str,
)
def test_rotation_norm_and_write_in_one(interpreter, dtype, norm, shape):
    heads, kv_heads, head_dim, rotated = shape
    cases.check_rotary(
        cases.World(interpreter.changing, dtype),
        tokens=5,
        heads=heads,
        kv_heads=kv_heads,
        head_dim=head_dim,
        rotated=rotated,
        norm=norm,
    )


def test_keys_stay_beside_the_queries_where_prefill_reads_them(interpreter):
    cases.check_rotary(
        cases.World(interpreter.changing),
        tokens=3,
        heads=4,
        kv_heads=2,
        head_dim=64,
        rotated=64,
        norm=True,
        keep_keys=True,
    )


@HALF_TOO
@pytest.mark.parametrize(("rows", "size"), [(1, 16), (5, 1030), (2, 14336)])
def test_rows_become_fp8(interpreter, dtype, rows, size):
    world = cases.World(interpreter.changing, dtype)
    cases.check_quantize_rows(world, rows, size, "interpreted_float8:quantize_rows")


def test_what_is_not_finite_shows_in_the_codes_of_its_row_alone(interpreter):
    rows = torch.ones(5, 48)
    rows[0] = 0
    rows[1, 40], rows[2, 3], rows[3] = torch.nan, -torch.inf, torch.nan
    codes, scales = interpreter("interpreted_float8:quantize_rows", rows)
    assert codes.float().isnan().sum(dim=1).tolist() == [0, 1, 1, 48, 0]
    assert codes[0].float().eq(0).all()
    torch.testing.assert_close(codes[4].float() * scales[4], rows[4])


@settings(max_examples=5)
@given(rows=st.integers(1, 3), size=st.integers(1, 200))
def test_norms_of_any_size(interpreter, rows, size):
    world = cases.World(interpreter.changing)
    cases.check_rms_norm(world, rows, size)
    cases.check_add_rms_norm(world, rows, size)
    cases.check_silu_mul(world, rows, size)


def test_bfloat16_is_refused_in_the_interpreter(interpreter):
    world = cases.World(interpreter.changing, torch.bfloat16)
    with pytest.raises(RuntimeError, match=r"KernelLaunchError: .*garbage in bfloat16"):
        cases.check_rms_norm(world, 2, 64)
    with pytest.raises(RuntimeError, match=r"KernelLaunchError: .*garbage in bfloat16"):
        cases.check_kv_write(world, 2, 1, 64)


def test_cpu_tensors_are_refused_without_the_interpreter():
    with pytest.raises(Exception, match="kernels take tensors on a CUDA device") as caught:
        cases.check_rms_norm(cases.World(cases.call_here), 2, 64)
    assert type(caught.value).__name__ == "KernelLaunchError"


def test_keys_and_values_are_written_in_eight_bits(interpreter):
    # Not in float8: the interpreter loses the carry when a mantissa is rounded up.
    world = cases.World(interpreter.changing, torch.float16)
    cases.check_kv_write(world, 21, 2, 80, torch.int8)
    shape = {"heads": 4, "kv_heads": 2, "head_dim": 64, "rotated": 64}
    cases.check_rotary(world, tokens=9, norm=True, storage=torch.int8, **shape)


@pytest.mark.parametrize(
    ("storage", "bound"), [(torch.int8, 0.015), (torch.float8_e4m3fn, 0.04)], ids=str
)
def test_eight_bits_change_attention_by_little(storage, bound):
    """Random keys and values of one size, a scale for each head: a few hundredths at most."""
    world = cases.World(cases.call_here)
    tables, blocks = world.tables([1000, 40])
    exact = world.cache(blocks, 2, 64)
    cache, scales = cases.stored(exact, storage)
    queries, lengths = world.random(2, 8, 64), world.integers([1000, 40])
    expected = reference.decode_attention(queries, exact, tables, lengths)
    result = reference.decode_attention(queries, cache, tables, lengths, scales=scales)
    error = (result - expected).norm() / expected.norm()
    assert 0 < error <= bound
