"""FlashInfer in place of our prefill kernel: when it is taken, and how it is called (a fake)."""

from types import SimpleNamespace
from typing import ClassVar

import numpy as np
import pytest
import torch

from backend.executor.attention.backend import HostRows, StepTensors
from backend.executor.attention.flashinfer import FlashInfer, load_flashinfer
from backend.models.config import ModelShape

CUDA, CPU = torch.device("cuda"), torch.device("cpu")
HEADS, KV_HEADS, HEAD_DIM = 4, 2, 64
WIDTH = 8


def model(head_dim=HEAD_DIM):
    return ModelShape(
        vocab_size=2,
        num_layers=2,
        num_heads=HEADS,
        num_kv_heads=KV_HEADS,
        head_dim=head_dim,
        max_positions=WIDTH * 16,
        windows=(None, 8),
        checkpoint_dtype="bfloat16",
    )


SHAPE = model()
SIZES = (HEADS, KV_HEADS, HEAD_DIM, 16)


def found(name):
    return object()


@pytest.mark.parametrize(
    ("shape", "dtype", "device"),
    [
        (SHAPE, torch.bfloat16, CPU),
        (SHAPE, torch.float32, CUDA),
        (model(head_dim=96), torch.bfloat16, CUDA),
    ],
)
def test_it_is_taken_for_what_it_knows_alone(shape, dtype, device):
    def load(name):
        raise AssertionError("it was imported")

    assert load_flashinfer(shape, dtype, device, found, load) is None


def test_it_is_not_taken_where_it_is_not_installed():
    assert load_flashinfer(SHAPE, torch.bfloat16, CUDA, lambda _: None) is None


@pytest.mark.parametrize("error", [ImportError("libcuda.so.1"), OSError("no ptxas")], ids=repr)
def test_one_that_cannot_be_imported_is_named_in_the_log(error, caplog):
    def load(name):
        raise error

    assert load_flashinfer(SHAPE, torch.bfloat16, CUDA, found, load) is None
    assert f"our own kernel attends instead: {error}" in caplog.text


def step(*spans):
    """Rows of one single token and ``spans``, (prefix, new tokens) each, in slots from 1 on."""
    rows = HostRows(
        slots=np.arange(1 + len(spans), dtype=np.int32),
        starts=np.array([5, *(prefix for prefix, _ in spans)], np.int32),
        counts=np.array([1, *(count for _, count in spans)], np.int32),
        num_singles=1,
        num_padded=1,
        is_fixed=False,
        tables=np.zeros((4, WIDTH), np.int32),
    )
    nothing = torch.zeros(0, dtype=torch.int32)
    tables = torch.arange(4 * WIDTH, dtype=torch.int32)
    return rows, StepTensors(nothing, nothing, nothing, nothing, tables, [], np.zeros(0, np.int32))


def test_it_plans_once_for_each_step_and_window():
    plans, runs = [], []

    class Wrapper:
        def __init__(self, workspace, layout):
            assert layout == "HND"

        def plan(self, starts, table_starts, blocks, last, *shape, **options):
            lists = [each.tolist() for each in (starts, table_starts, blocks, last)]
            plans.append((lists, shape, options["window_left"]))

        def run(self, queries, paged):
            runs.append((len(queries), tuple(paged.shape)))
            return queries + 1

    library = SimpleNamespace(BatchPrefillWithPagedKVCacheWrapper=Wrapper)
    prefill = FlashInfer(library, SHAPE, torch.float32, CPU)
    prefill.plan(*step((0, 20), (16, 4)))
    queries = torch.randn(24, HEADS, HEAD_DIM)
    cache = torch.zeros(6, 2 * KV_HEADS, 16, HEAD_DIM)
    output = torch.zeros_like(queries)
    for window in (None, None, 8):
        prefill.attend_spans(queries, cache, window, output)
    first = ([[0, 20, 24], [0, 2, 4], [8, 9, 16, 17], [4, 4]], SIZES, -1)
    assert plans == [first, (*first[:2], 7)]
    assert runs == [(24, (6, 2, KV_HEADS, 16, HEAD_DIM))] * 3
    torch.testing.assert_close(output, queries + 1)


class Decode:
    """FlashInfer's wrapper of decoding; the class keeps every plan and what graphs were given."""

    plans: ClassVar = []
    fixed: ClassVar = []

    def __init__(self, workspace, layout, **buffers):
        self.buffers = {name: value for name, value in buffers.items() if name != "use_cuda_graph"}
        if buffers:
            self.fixed.append([len(buffer) for buffer in self.buffers.values()])

    def plan(self, starts, blocks, last, *sizes, window_left, q_data_type):
        lists = [each.tolist() for each in (starts, blocks, last)]
        self.plans.append((lists, sizes, window_left, bool(self.buffers)))

    def run(self, queries, paged):
        return queries + 1


@pytest.fixture
def decode():
    Decode.plans, Decode.fixed = [], []
    library = SimpleNamespace(BatchDecodeWithPagedKVCacheWrapper=Decode)
    return FlashInfer(library, SHAPE, torch.float32, CPU)


def singles(starts, padded=None):
    starts = np.array(starts, np.int32)
    rows = HostRows(
        slots=np.arange(len(starts), dtype=np.int32),
        starts=starts,
        counts=np.ones(len(starts), np.int32),
        num_singles=len(starts),
        num_padded=padded or len(starts),
        is_fixed=padded is not None,
        tables=np.zeros((4, WIDTH), np.int32),
    )
    nothing = torch.zeros(0, dtype=torch.int32)
    tables = torch.arange(1, 1 + 4 * WIDTH, dtype=torch.int32)
    return rows, StepTensors(nothing, nothing, nothing, nothing, tables, [], np.zeros(0, np.int32))


def test_single_tokens_are_planned_once_for_each_step_and_window(decode):
    decode.plan(*singles([5, 31]))
    queries = torch.randn(2, HEADS, HEAD_DIM)
    cache = torch.zeros(6, 2 * KV_HEADS, 16, HEAD_DIM)
    output = torch.zeros_like(queries)
    for window in (None, 8, None, 8):
        decode.attend_singles(queries, cache, window, output)
    pages = [[0, 1, 3], [1, 9, 10], [6, 16]]
    assert Decode.plans == [(pages, SIZES, -1, False), (pages, SIZES, 7, False)]
    assert not Decode.fixed
    torch.testing.assert_close(output, queries + 1)


def test_a_graph_keeps_its_buffers_and_is_planned_before_each_replay(decode):
    decode.plan(*singles([5, 31], padded=4))
    decode.capture()
    # Rows of nobody read one token of the padding block.
    pages = [[0, 1, 3, 4, 5], [1, 9, 10, 0, 0], [6, 16, 1, 1]]
    assert sorted(Decode.plans, key=str) == sorted(
        [(pages, SIZES, -1, True), (pages, SIZES, 7, True)], key=str
    )
    assert Decode.fixed == [[5, 4 * WIDTH, 4]] * 2
    Decode.plans.clear()
    decode.attend_singles(
        *[torch.zeros(4, HEADS, HEAD_DIM), torch.zeros(1, 4, 16, 64)],
        None,
        torch.zeros(4, HEADS, HEAD_DIM),
    )
    assert not Decode.plans
    decode.plan(*singles([6, 32], padded=4))
    decode.replay()
    assert {plan[0][1][2] for plan in Decode.plans} == {10}
    assert len(Decode.plans) == 2
    assert Decode.fixed == [[5, 4 * WIDTH, 4]] * 2


def test_a_plan_waits_until_the_one_before_has_left_pinned_memory(monkeypatch):
    heard = []

    class Event:
        def synchronize(self):
            heard.append("copied")

        def record(self):
            heard.append("recorded")

    class Wrapper:
        def __init__(self, workspace, layout):
            pass

        def plan(self, *arguments, **options):
            heard.append(f"planned {options['window_left']}")

        def run(self, queries, paged):
            return queries

    monkeypatch.setattr(torch.cuda, "Event", Event)
    monkeypatch.setattr(torch, "empty", lambda *_, **__: None)
    library = SimpleNamespace(BatchPrefillWithPagedKVCacheWrapper=Wrapper)
    prefill = FlashInfer(library, SHAPE, torch.float32, CUDA)
    monkeypatch.undo()
    cache = torch.zeros(6, 2 * KV_HEADS, 16, HEAD_DIM)
    for count in (20, 3):
        prefill.plan(*step((0, count)))
        queries = torch.zeros(count, HEADS, HEAD_DIM)
        for window in (None, 8, None, 8):
            prefill.attend_spans(queries, cache, window, torch.zeros_like(queries))
    each = ["copied", "planned -1", "recorded", "copied", "planned 7", "recorded"]
    assert heard == each + each
