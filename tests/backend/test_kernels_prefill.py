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


@pytest.mark.parametrize(
    ("head_dim", "dtype"),
    [
        (64, torch.float16),
        (80, torch.float32),
        (96, torch.float16),
        (128, torch.float32),
        (256, torch.float16),
    ],
    ids=str,
)
def test_prefill_of_every_head_size(interpreter, head_dim, dtype):
    world = cases.World(interpreter.changing, dtype)
    cases.check_prefill(world, [(0, 40), (70, 9)], head_dim=head_dim, kv_heads=1)


@pytest.mark.parametrize("group", [1, 3, 16])
def test_prefill_of_every_group_size(interpreter, group):
    world = cases.World(interpreter.changing)
    cases.check_prefill(world, [(0, 50), (33, 20)], group=group, kv_heads=1)


@pytest.mark.parametrize("window", [1, 65, 500])
def test_prefill_behind_a_sliding_window(interpreter, window):
    cases.check_prefill(cases.World(interpreter.changing), [(0, 70), (130, 20)], window=window)


@pytest.mark.parametrize("keys", [16, 128])
def test_the_key_tile_of_prefill_is_free_of_the_block_size(interpreter, keys):
    world = cases.World(interpreter.changing)
    cases.check_prefill(world, [(0, 100), (64, 64), (200, 1)], tiling=Tiling(keys=keys))


@settings(max_examples=5)
@given(
    spans=st.lists(st.tuples(st.integers(0, 140), st.integers(1, 90)), min_size=1, max_size=2),
    window=st.none() | st.integers(1, 160),
    group=st.integers(1, 5),
)
def test_prefill_of_ragged_batches(interpreter, spans, window, group):
    world = cases.World(interpreter.changing)
    cases.check_prefill(world, spans, window=window, group=group, kv_heads=1)


def test_tiles_cover_every_token_once_and_long_ones_come_first():
    tiles = query_tiles([Span(0, 0, 70, 5), Span(2, 70, 3, 400)], 32)
    assert tiles == [(2, 70, 3, 400), (0, 64, 6, 69), (0, 32, 32, 37), (0, 0, 32, 5)]
