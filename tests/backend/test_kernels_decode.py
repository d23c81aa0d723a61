"""Decode attention over paged keys equals its oracle, in Triton's interpreter."""

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

pytest.importorskip("triton", reason="Triton is not installed")

import kernel_cases as cases

from backend.kernels.decode_attention import Tiling, num_splits

pytest_plugins = ["interpreter"]


@pytest.mark.parametrize(
    ("head_dim", "dtype", "splits"),
    [
        (64, torch.float16, 1),
        (80, torch.float32, 2),
        (96, torch.float16, 2),
        (128, torch.float32, 1),
        (256, torch.float16, 4),
    ],
    ids=str,
)
def test_decode_of_every_head_size(interpreter, head_dim, dtype, splits):
    world = cases.World(interpreter.changing, dtype)
    cases.check_decode(world, [33, 130], head_dim=head_dim, splits=splits, kv_heads=1)


@pytest.mark.parametrize("group", [1, 3, 16])
def test_decode_of_every_group_size(interpreter, group):
    world = cases.World(interpreter.changing)
    cases.check_decode(world, [5, 70], group=group, kv_heads=1, splits=2)


@pytest.mark.parametrize(("window", "splits"), [(1, 1), (65, 2), (500, 2)])
def test_decode_behind_a_sliding_window(interpreter, window, splits):
    world = cases.World(interpreter.changing)
    cases.check_decode(world, [3, 65, 200], splits=splits, window=window, kv_heads=1)


@pytest.mark.parametrize("keys", [16, 128])
def test_the_key_tile_of_decode_is_free_of_the_block_size(interpreter, keys):
    world = cases.World(interpreter.changing)
    cases.check_decode(world, [1, 100, 129], tiling=Tiling(keys=keys), splits=2)


def test_a_sequence_without_keys_pads_a_batch_with_zeros(interpreter):
    for splits in (1, 2):
        cases.check_decode(cases.World(interpreter.changing), [0, 20, 0], splits=splits)


def test_more_splits_than_keys(interpreter):
    cases.check_decode(cases.World(interpreter.changing), [1, 70], splits=16, kv_heads=1)


@settings(max_examples=5)
@given(
    lengths=st.lists(st.integers(1, 150), min_size=1, max_size=2),
    splits=st.sampled_from([1, 2, 8]),
    window=st.none() | st.integers(1, 160),
    group=st.integers(1, 5),
)
def test_decode_of_ragged_batches(interpreter, lengths, splits, window, group):
    world = cases.World(interpreter.changing)
    cases.check_decode(world, lengths, splits=splits, window=window, group=group, kv_heads=1)


@pytest.mark.parametrize(
    ("sequences", "kv_heads", "max_keys", "expected"),
    [
        (1, 8, 100_000, 64),  # alone: as many as there may be
        (1, 8, 1_000, 4),  # no split of less than 256 keys
        (256, 8, 100_000, 1),  # the batch fills the device
        (16, 8, 8_192, 8),
        (1, 1, 1, 1),
    ],
)
def test_splits_fill_the_device_and_no_more(sequences, kv_heads, max_keys, expected):
    assert num_splits(sequences, kv_heads, max_keys, processors=132) == expected
