"""Products of experts equal a product for each, in Triton's interpreter; no size is read."""

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

pytest.importorskip("triton", reason="Triton is not installed")

import compiled_kernels as kernels
import kernel_cases as cases

from backend.kernels import grouped_matmul, reference
from backend.kernels.grouped_matmul import FEW_PAIRS, MANY_PAIRS

pytest_plugins = ["interpreter"]

FLOATS = pytest.mark.parametrize("dtype", [torch.float32, torch.float16], ids=str)
BF16 = torch.bfloat16


@FLOATS
@pytest.mark.parametrize(
    "counts",
    [
        (1,),
        (0, 0, 1, 0),
        (0, 5, 0, 0, 3, 1, 0),
        (0, 0, 40),
        (40, 0, 0),
        (16, 17, 15, 33, 1),
        (0, FEW_PAIRS * 6 - 1, 1, 0, 0, 0),
        (64, 65, 0, 1),
        (0, 129, 0, 300),
    ],
    ids=str,
)
def test_groups_of_any_size(interpreter, dtype, counts):
    cases.check_grouped_matmul(cases.World(interpreter.changing, dtype), counts)


@FLOATS
@pytest.mark.parametrize("shape", [(1, 1), (64, 64), (70, 130), (200, 33)], ids=str)
@pytest.mark.parametrize("counts", [(3, 0, 2), (30, 0, 21)], ids=str)
def test_weights_of_any_size(interpreter, dtype, counts, shape):
    rows, columns = shape
    world = cases.World(interpreter.changing, dtype)
    cases.check_grouped_matmul(world, counts, rows=rows, columns=columns)


@given(counts=st.lists(st.integers(0, 70), min_size=1, max_size=9).filter(any))
@settings(max_examples=15, deadline=None)
def test_any_groups(interpreter, counts):
    cases.check_grouped_matmul(cases.World(interpreter.changing), counts, rows=8, columns=8)


def test_no_pairs_are_no_launch(interpreter):
    pairs, weights = torch.empty(0, 8), torch.ones(3, 4, 8)
    ends = torch.zeros(3, dtype=torch.int32)
    name = "backend.kernels.grouped_matmul:grouped_matmul"
    assert interpreter(name, pairs, weights, ends).shape == (0, 4)


def grid_of(monkeypatch, num_pairs, experts):
    """Return tiles of pairs and the size of each; ``ends`` has no memory that could be read."""
    found = []
    with monkeypatch.context() as patch:
        patch.setattr(
            grouped_matmul,
            "launch",
            lambda _, grid, *arguments, **meta: found.append((grid, meta["BLOCK_PAIRS"])),
        )
        grouped_matmul.grouped_matmul(
            kernels.tensor(num_pairs, 64, dtype=BF16),
            kernels.tensor(experts, 64, 64, dtype=BF16),
            kernels.tensor(experts),
        )
    (((_, tiles), size),) = found
    return tiles, size


@pytest.mark.parametrize(
    ("num_pairs", "experts"),
    [(1, 1), (8, 128), (9, 8), (2048, 128), (5000, 7), (MANY_PAIRS * 3, 2)],
    ids=str,
)
def test_a_launch_depends_on_shapes_alone_and_has_tiles_for_all_groups(
    monkeypatch, num_pairs, experts
):
    """A CUDA graph may be replayed with other groups, so the worst of them decides."""
    tiles, size = grid_of(monkeypatch, num_pairs, experts)
    generator = torch.Generator().manual_seed(num_pairs)
    used = []
    for _ in range(50):
        share = torch.rand(experts, generator=generator).pow(8) + 1e-9
        picked = torch.multinomial(share, num_pairs, replacement=True, generator=generator)
        counts = picked.bincount(minlength=experts)
        used.append(int((-(-counts // size)).sum()))
    # One pair for all but one expert makes the most tiles.
    alone = min(experts, num_pairs) - 1
    used.append(alone + -(-(num_pairs - alone) // size))
    assert max(used) == tiles


def test_groups_are_found_on_the_device(interpreter):
    """The same launch with other ends gives other products."""
    pairs, weights = torch.randn(6, 16), torch.randn(3, 4, 16)
    name = "backend.kernels.grouped_matmul:grouped_matmul"
    for ends in ([0, 6, 6], [2, 2, 6], [1, 4, 6]):
        given_ends = torch.tensor(ends, dtype=torch.int32)
        result = interpreter(name, pairs, weights, given_ends)
        cases.assert_close(result, reference.grouped_matmul(pairs, weights, given_ends))
