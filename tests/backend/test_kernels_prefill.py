"""Prefill attention over a paged prefix equals its oracle, in Triton's interpreter."""

from dataclasses import replace

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

pytest.importorskip("triton", reason="Triton is not installed")

import kernel_cases as cases

from backend.kernels.attention import DeviceLimits, Tiling
from backend.kernels.prefill_attention import PrefillShape, PrefillWork, Span, plan_prefill

pytest_plugins = ["interpreter"]

SHAPE = PrefillShape.of(
    torch.bfloat16, heads=32, kv_heads=8, head_dim=128, limits=DeviceLimits(132, 227 * 2**10)
)


@pytest.mark.parametrize(
    ("head_dim", "dtype"),
    [
        (64, torch.float16),
        (80, torch.float32),
        (96, torch.float16),
        (128, torch.float32),
        (192, torch.float16),
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
    tilings = {"small": Tiling(keys=keys), "large": Tiling(keys=keys, rows=64)}
    cases.check_prefill(world, [(0, 100), (64, 64), (200, 1)], **tilings)


@pytest.mark.parametrize("window", [None, 700])
def test_a_short_turn_behind_a_long_prefix_is_split(interpreter, window):
    world = cases.World(interpreter.changing, torch.float16)
    how = {"kv_heads": 1, "processors": 8, "window": window}
    # Two tiles of one sequence beside a draft and a prompt, which see few keys.
    assert cases.check_prefill(world, [(1900, 80), (0, 40), (30, 5)], **how) == 8


def test_drafts_behind_a_long_prefix_are_split(interpreter):
    world = cases.World(interpreter.changing, torch.float16)
    assert cases.check_prefill(world, [(2500, 9)], group=4, processors=8, kv_heads=1) == 4


@pytest.mark.parametrize("storage", [torch.int8, torch.float8_e4m3fn], ids=str)
def test_prefill_over_a_cache_of_eight_bits(interpreter, storage):
    world = cases.World(interpreter.changing, torch.float16)
    cases.check_prefill(world, [(1100, 9), (0, 70)], storage=storage, kv_heads=1, processors=4)


@pytest.mark.parametrize(("softcap", "with_sinks"), [(1.5, False), (None, True), (30.0, True)])
def test_prefill_with_a_softcap_and_sinks(interpreter, softcap, with_sinks):
    world = cases.World(interpreter.changing)
    how = {"softcap": softcap, "with_sinks": with_sinks, "kv_heads": 1, "processors": 4}
    # The first span is split, the second is not, and the third is a small tile.
    cases.check_prefill(world, [(1100, 40), (0, 70), (30, 5)], **how)
    cases.check_prefill(world, [(130, 20)], window=65, **how)


@settings(max_examples=5)
@given(
    spans=st.lists(st.tuples(st.integers(0, 140), st.integers(1, 90)), min_size=1, max_size=2),
    window=st.none() | st.integers(1, 160),
    group=st.integers(1, 5),
)
def test_prefill_of_ragged_batches(interpreter, spans, window, group):
    world = cases.World(interpreter.changing)
    cases.check_prefill(world, spans, window=window, group=group, kv_heads=1)


def test_idle_work_runs_every_kernel_and_writes_nothing(interpreter):
    world = cases.World(interpreter.changing)
    queries, cache = world.random(3, 4, 64), world.cache(1, 2, 64)
    shape = replace(SHAPE, group=2, kv_heads=2)
    work = PrefillWork.idle(shape, torch.device("cpu"))
    output = torch.full_like(queries, 7)
    name = "backend.kernels.prefill_attention:prefill_attention"
    interpreter(name, queries, cache, world.integers([1]), work, output=output)
    assert (output == 7).all()


def planned(*spans, shape=SHAPE):
    """Work on (prefix, new tokens) of one sequence each."""
    rows = [sum(new for _, new in spans[:index]) for index in range(len(spans))]
    return plan_prefill(
        [Span(100 * row, row, new, prefix) for row, (prefix, new) in zip(rows, spans, strict=True)],
        shape,
    )


def test_tiles_cover_every_token_once_and_long_ones_come_first():
    work = planned((5, 70), (400, 3))
    assert (work.small, work.large, work.partial_rows) == (1, 3, 0)
    assert work.items.tolist() == [
        [7000, 70, 3, 400, 0, 0, 1, 0],
        [0, 64, 6, 69, 0, 0, 1, 0],
        [0, 32, 32, 37, 0, 0, 1, 0],
        [0, 0, 32, 5, 0, 0, 1, 0],
    ]


def test_a_short_turn_behind_a_long_prefix_fills_the_device():
    work = planned((32_000, 50))
    assert 132 < 8 * work.large <= 2 * 132
    joined = work.items[work.large :].tolist()
    assert [(item[2], item[4]) for item in joined] == [(32, 0), (18, 16 * 32 * 4)]
    assert work.partial_rows == 16 * 50 * 4 * 8 <= SHAPE.workspace_rows


def test_drafts_are_one_small_tile_and_read_their_prefix_once():
    work = planned(*[(8_000, 9)] * 64)
    assert (work.small, work.large, work.partial_rows) == (64, 0, 0)
    work = planned((32_000, 9), (100, 2))
    assert (work.small, work.large) == (33, 0)


def test_a_prompt_that_fills_the_device_is_not_split():
    assert planned((0, 8192)).partial_rows == 0


@given(
    spans=st.lists(st.tuples(st.integers(0, 200_000), st.integers(1, 900)), max_size=20),
    processors=st.integers(1, 200),
    window=st.none() | st.integers(1, 5000),
)
def test_work_stays_inside_the_room_made_for_it(spans, processors, window):
    shape = replace(SHAPE, processors=processors, window=window)
    work = planned(*spans, shape=shape)
    assert work.partial_rows <= shape.workspace_rows
    assert len(work.items) <= shape.max_items(len(spans), sum(new for _, new in spans))
    items = work.items[: work.small + work.large]
    tokens = items[items[:, 5] == 0, 2].sum() if len(items) else 0
    assert tokens == sum(new for _, new in spans)
