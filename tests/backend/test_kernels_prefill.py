"""Prefill attention over a paged prefix equals its oracle, in Triton's interpreter."""

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

pytest.importorskip("triton", reason="Triton is not installed")

import kernel_cases as cases

from backend.kernels.decode_attention import Tiling
from backend.kernels.prefill_attention import Span, query_tiles

pytest_plugins = ["interpreter"]


HALF_TOO = pytest.mark.parametrize("dtype", [torch.float32, torch.float16], ids=str)
HEAD_DIMS = pytest.mark.parametrize("head_dim", [64, 80, 96, 128, 256])


@HALF_TOO
@HEAD_DIMS
def test_prefill_of_every_head_size(interpreter, dtype, head_dim):
    world = cases.World(interpreter.changing, dtype)
    cases.check_prefill(world, [(0, 40), (70, 9)], head_dim=head_dim, kv_heads=1)


@pytest.mark.parametrize("group", [1, 3, 4, 7, 16])
def test_prefill_of_every_group_size(interpreter, group):
    world = cases.World(interpreter.changing)
    cases.check_prefill(world, [(0, 50), (33, 20)], group=group, kv_heads=1)


@pytest.mark.parametrize("window", [1, 7, 64, 65, 500])
def test_prefill_behind_a_sliding_window(interpreter, window):
    cases.check_prefill(cases.World(interpreter.changing), [(0, 70), (130, 20)], window=window)


@pytest.mark.parametrize("keys", [16, 32, 128])
def test_the_key_tile_of_prefill_is_free_of_the_block_size(interpreter, keys):
    world = cases.World(interpreter.changing)
    cases.check_prefill(world, [(0, 100), (64, 64), (200, 1)], tiling=Tiling(keys=keys))


@settings(max_examples=8)
@given(
    spans=st.lists(st.tuples(st.integers(0, 140), st.integers(1, 90)), min_size=1, max_size=3),
    window=st.none() | st.integers(1, 160),
    group=st.integers(1, 5),
)
def test_prefill_of_ragged_batches(interpreter, spans, window, group):
    world = cases.World(interpreter.changing)
    cases.check_prefill(world, spans, window=window, group=group, kv_heads=1)


def test_tiles_cover_every_token_once_and_long_ones_come_first():
    tiles = query_tiles([Span(0, 0, 70, 5), Span(2, 70, 3, 400)], 32)
    assert tiles == [(2, 70, 3, 400), (0, 64, 6, 69), (0, 32, 32, 37), (0, 0, 32, 5)]
