"""Decode attention over paged keys equals its oracle, in Triton's interpreter."""

from types import SimpleNamespace

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

pytest.importorskip("triton", reason="Triton is not installed")

import kernel_cases as cases

from backend.kernels import decode_attention
from backend.kernels.attention import DeviceLimits, Tiling
from backend.kernels.decode_attention import num_splits

pytest_plugins = ["interpreter"]


@pytest.mark.parametrize(
    ("head_dim", "dtype", "splits"),
    [
        (64, torch.float16, 1),
        (80, torch.float32, 2),
        (96, torch.float16, 2),
        (128, torch.float32, 1),
        (192, torch.float16, 2),
        (256, torch.float16, 4),
    ],
    ids=str,
)
def test_decode_of_every_head_size(interpreter, head_dim, dtype, splits):
    world = cases.World(interpreter.changing, dtype)
    how = {"head_dim": head_dim, "splits": splits, "kv_heads": 1}
    cases.check_decode(world, [33, 130], split_keys=64, **how)


@pytest.mark.parametrize("group", [1, 3, 16])
def test_decode_of_every_group_size(interpreter, group):
    world = cases.World(interpreter.changing)
    cases.check_decode(world, [5, 70], group=group, kv_heads=1, splits=2, split_keys=64)


@pytest.mark.parametrize(("window", "splits"), [(1, 1), (65, 2), (500, 2)])
def test_decode_behind_a_sliding_window(interpreter, window, splits):
    world = cases.World(interpreter.changing)
    how = {"splits": splits, "split_keys": 64, "window": window, "kv_heads": 1}
    cases.check_decode(world, [3, 65, 200], **how)


@pytest.mark.parametrize("keys", [16, 128])
def test_the_key_tile_of_decode_is_free_of_the_block_size(interpreter, keys):
    world = cases.World(interpreter.changing)
    how = {"tiling": Tiling(keys=keys), "splits": 2, "split_keys": keys}
    cases.check_decode(world, [1, 100, 129], **how)


def test_a_sequence_without_keys_pads_a_batch_with_zeros(interpreter):
    for splits in (1, 2):
        cases.check_decode(cases.World(interpreter.changing), [0, 20, 0], splits=splits)


@pytest.mark.parametrize("processors", [1, 100])
def test_one_long_sequence_among_short_ones(interpreter, processors):
    world = cases.World(interpreter.changing)
    limits = DeviceLimits(processors, 99 * 2**10)
    lengths = [20, 2000, 0, 1]
    cases.check_decode(world, lengths, splits=8, split_keys=64, kv_heads=1, limits=limits)


def test_what_a_sequence_gets_depends_on_its_own_length_alone(interpreter):
    world = cases.World(interpreter.changing)
    how = {"splits": 4, "split_keys": 64, "kv_heads": 1}
    alone = cases.check_decode(world, [700], **how)
    # The same first sequence of the same blocks: those beside it only come behind it.
    beside = cases.check_decode(world, [700], **how, limits=DeviceLimits(100, 0))
    assert torch.equal(alone, beside)
    tables, blocks = world.tables([700, 30, 1500, 0])
    cache = world.cache(blocks, 1, 64)
    queries = world.random(4, 2, 64)
    name = "backend.kernels.decode_attention:decode_attention"
    how = {"splits": 4, "split_keys": 64}
    results = []
    for count in (1, 2, 4):
        some = cases.BlockTables(tables.blocks, tables.starts[:count])
        lengths = world.integers([700, 30, 1500, 0][:count])
        results.append(interpreter(name, queries[:count], cache, some, lengths, **how)[0])
    assert torch.equal(results[0], results[1])
    assert torch.equal(results[0], results[2])


@pytest.mark.parametrize("storage", [torch.int8, torch.float8_e4m3fn], ids=str)
def test_decode_over_a_cache_of_eight_bits(interpreter, storage):
    world = cases.World(interpreter.changing, torch.float16)
    cases.check_decode(world, [33, 130], splits=2, split_keys=64, storage=storage)


@pytest.mark.parametrize("storage", [None, torch.float8_e4m3fn], ids=str)
@pytest.mark.parametrize(("softcap", "with_sinks"), [(1.5, False), (None, True), (30.0, True)])
def test_decode_with_a_softcap_and_sinks(interpreter, softcap, with_sinks, storage):
    world = cases.World(interpreter.changing, torch.float16)
    how = {"splits": 2, "split_keys": 64, "softcap": softcap, "with_sinks": with_sinks}
    cases.check_decode(world, [3, 0, 130], window=70, storage=storage, **how)


@pytest.mark.parametrize("damaged", ["query", "key"])
@pytest.mark.parametrize("splits", [1, 2])
def test_damage_reaches_the_result_through_every_split(interpreter, damaged, splits):
    world = cases.World(interpreter.changing)
    tables, blocks = world.tables([130, 130])
    cache, queries = world.cache(blocks, 1, 64), world.random(2, 1, 64)
    if damaged == "key":
        cache[int(tables.blocks[0]), 0, 3, 5] = torch.nan
    else:
        queries[0, 0, 5] = torch.nan
    name = "backend.kernels.decode_attention:decode_attention"
    how = {"splits": splits, "split_keys": 64}
    result = interpreter(name, queries, cache, tables, world.integers([130, 130]), **how)
    assert result[0].isnan().all()
    assert result[1].isfinite().all()


def test_large_queries_over_a_cache_of_eight_bits_stay_finite(interpreter):
    world = cases.World(interpreter.changing, torch.float32)
    tables, blocks = world.tables([40])
    cache, scales = cases.stored(world.cache(blocks, 1, 64), torch.float8_e4m3fn)
    queries = (1e4 * world.random(1, 2, 64)).half()
    name = "backend.kernels.decode_attention:decode_attention"
    how = {"scales": 100 * scales}
    result = interpreter(name, queries, cache, tables, world.integers([40]), **how)
    assert torch.isfinite(result).all()


@settings(max_examples=5)
@given(
    lengths=st.lists(st.integers(0, 150), min_size=1, max_size=3),
    splits=st.sampled_from([1, 2, 8]),
    window=st.none() | st.integers(1, 160),
    group=st.integers(1, 5),
)
def test_decode_of_ragged_batches(interpreter, lengths, splits, window, group):
    world = cases.World(interpreter.changing)
    how = {"splits": splits, "split_keys": 64, "window": window, "group": group}
    cases.check_decode(world, lengths, kv_heads=1, **how)


@pytest.mark.parametrize(
    ("registers", "shared", "num_warps", "expected"),
    [
        (121, 71_680, 4, 3),  # shared memory: 4 would take 284 KiB
        (168, 38_912, 4, 3),  # registers
        (32, 1_024, 4, 16),  # threads
        (255, 232_448, 8, 1),
    ],
)
def test_programs_that_fit_on_a_multiprocessor(registers, shared, num_warps, expected):
    h100 = DeviceLimits(132, 227 * 2**10, 228 * 2**10, 2048)
    assert h100.programs(registers, shared, num_warps) == expected


def test_the_grid_of_decode_is_what_fits_at_a_time(monkeypatch):
    grids = []

    def launched(kernel, grid, *arguments, **meta):
        grids.append(grid)
        return SimpleNamespace(n_regs=121, metadata=SimpleNamespace(shared=71_680))

    monkeypatch.setattr(decode_attention, "launch", launched)
    monkeypatch.setattr(decode_attention, "_fitting", {})
    cache, queries = torch.empty(9, 16, 16, 128), torch.empty(600, 32, 128)
    tables = cases.BlockTables(torch.empty(1), torch.empty(600))
    h100 = DeviceLimits(132, 227 * 2**10, 228 * 2**10, 2048)
    for _ in range(2):
        decode_attention.decode_attention(queries, cache, tables, torch.empty(600), limits=h100)
    assert grids == [(8, 132 // 8), (8, 3 * 132 // 8)]


@pytest.mark.parametrize(
    ("kv_heads", "max_keys", "expected"),
    [
        (8, 131_072, 32),  # 256 programs fill every device
        (2, 131_072, 64),  # as many as the join takes
        (8, 4_096, 8),  # no split of less than 512 keys
        (16, 131_072, 16),
        (512, 131_072, 1),
        (1, 1, 1),
    ],
)
def test_splits_fill_the_device_and_no_more(kv_heads, max_keys, expected):
    assert num_splits(kv_heads, max_keys) == expected
