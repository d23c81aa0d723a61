"""Steps as the device gets them: order, padding, block tables and last tokens that stay there."""

import numpy as np
import pytest
import torch

from backend.executor.input_batch import BatchLimits, InputBatchBuilder
from backend.scheduler.batch import AppendedBlocks, NewSequence, Row, StepBatch
from backend.scheduler.request import SamplingParams

LIMITS = BatchLimits(num_slots=8, max_num_seqs=4, max_tokens_per_step=64, max_model_len=256)
WIDTH = 16
CPU = torch.device("cpu")


class Attention:
    """Keeps what it is planned for."""

    def start(self, slots):
        self.started = slots

    def arrange(self, rows, singles, tables):
        return singles[::-1]

    def layout(self, rows):
        return [np.array([7, 8], np.int32)]

    def plan(self, rows, tensors):
        self.rows, self.tensors = rows, tensors


@pytest.fixture
def attention():
    return Attention()


@pytest.fixture
def builder(attention):
    return InputBatchBuilder(LIMITS, attention, CPU)


def new(slot, tokens, **sampling):
    params = SamplingParams(temperature=0.0, **sampling)
    return NewSequence(slot, tuple(tokens), len(tokens), params, 0, frozenset())


def step(rows, new=(), blocks=()):
    appended = tuple(AppendedBlocks(slot, start, ids) for slot, start, ids in blocks)
    return StepBatch(tuple(new), appended, tuple(rows))


def test_single_tokens_come_first_and_spans_behind_them(builder, attention):
    started = [new(2, range(100, 140)), new(5, range(18))]
    blocks = [(2, 0, (7, 5, 9)), (5, 0, (3, 2))]
    rows = [Row(2, 14, 4, samples=False), Row(5, 17, 1, samples=True)]
    batch = builder.build(step(rows, started, blocks))
    assert attention.started == [2, 5]
    assert batch.tokens.tolist() == [17, 114, 115, 116, 117]
    assert batch.positions.tolist() == [17, 14, 15, 16, 17]
    tensors = attention.tensors
    # Place = block * 16 + offset: the span crosses from block 7 to block 5.
    assert tensors.slot_mapping.tolist() == [33, 126, 127, 80, 81]
    assert tensors.lengths.tolist() == [18]
    assert tensors.table_starts.tolist() == [5 * WIDTH]
    assert tensors.tables[5 * WIDTH : 5 * WIDTH + 3].tolist() == [3, 2, 0]
    assert tensors.tables[2 * WIDTH : 2 * WIDTH + 3].tolist() == [7, 5, 9]
    assert [part.tolist() for part in tensors.parts] == [[7, 8]]
    assert batch.logit_rows.tolist() == [0]
    assert [(each.place, each.slot, each.first) for each in batch.sampled] == [(1, 5, 0)]
    assert (batch.slots.tolist(), batch.numbers.tolist()) == ([5], [18])


def test_the_backend_orders_single_tokens_and_each_row_keeps_its_place(builder, attention):
    rows = [Row(slot, 3, 1, samples=True) for slot in (1, 4)]
    started = [new(1, range(10, 14)), new(4, range(20, 24))]
    batch = builder.build(step(rows, started, [(1, 0, (6,)), (4, 0, (8,))]))
    assert batch.tokens.tolist() == [23, 13]
    assert [(each.place, each.slot) for each in batch.sampled] == [(1, 4), (0, 1)]
    assert batch.logit_rows is None


def test_padding_has_no_keys_and_writes_to_the_padding_block(builder, attention):
    rows = [Row(0, 4, 1, samples=True)]
    batch = builder.build(step(rows, [new(0, range(5))], [(0, 0, (4,))]), padded=4)
    assert batch.tokens.tolist() == [4, 0, 0, 0]
    assert attention.tensors.lengths.tolist() == [5, 0, 0, 0]
    assert attention.tensors.slot_mapping.tolist()[1:] == [0, 0, 0]
    assert batch.logit_rows is None


def test_padded_batches_of_one_size_lie_where_the_graph_found_them(builder, attention):
    started = [new(0, range(5)), new(1, range(200)), new(2, range(5))]
    blocks = [(0, 0, (4,)), (1, 0, tuple(range(1, 14))), (2, 0, (20,))]
    addresses = set()
    for rows in ([(0, 4)], [(1, 199), (0, 5)], [(2, 4), (0, 6), (1, 200)]):
        batch = builder.build(
            step([Row(slot, start, 1, samples=True) for slot, start in rows], started, blocks),
            padded=4,
        )
        started, blocks = [], []
        tensors = attention.tensors
        fixed = (batch.tokens, batch.positions, tensors.slot_mapping, tensors.lengths)
        fixed += (tensors.table_starts, tensors.tables)
        addresses.add(tuple(each.data_ptr() for each in fixed))
        assert all(each.data_ptr() % 16 == 0 for each in fixed)
    assert len(addresses) == 1


def test_a_chosen_token_is_on_the_device_before_the_host_knows_it(builder):
    started = [new(0, range(5)), new(1, range(9))]
    blocks = [(0, 0, (4,)), (1, 0, (6,))]
    rows = [Row(0, 0, 5, samples=True), Row(1, 0, 9, samples=True)]
    batch = builder.build(step(rows, started, blocks))
    builder.keep(batch.slots, torch.tensor([70, 80]))
    rows = [Row(1, 9, 1, samples=True), Row(0, 5, 1, samples=True)]
    assert builder.build(step(rows)).tokens.tolist() == [70, 80]
    builder.set_last_token(0, 71)
    assert builder.build(step(rows[1:])).tokens.tolist() == [71]


def test_drafts_are_rows_to_sample_from(builder):
    started = step([Row(0, 0, 5, samples=True)], [new(0, range(5))], [(0, 0, (4,))])
    builder.build(started)
    row = Row(0, 5, 3, samples=True, drafted=(70, 71, 72))
    batch = builder.build(
        step([row, Row(1, 0, 2, samples=False)], [new(1, (8, 9))], [(1, 0, (5,))])
    )
    assert batch.tokens.tolist() == [70, 71, 72, 8, 9]
    assert batch.logit_rows.tolist() == [0, 1, 2]
    assert batch.sampled[0].drafts == (71, 72)
    assert (batch.slots.tolist(), batch.numbers.tolist()) == ([0] * 3, [6, 7, 8])


def test_rows_whose_next_token_the_prompt_knows_are_scored(builder):
    started = step(
        [Row(0, 0, 3, samples=False)],
        [new(0, (5, 6, 7, 8), prompt_logprobs=2)],
        [(0, 0, (4,))],
    )
    batch = builder.build(started)
    (span,) = batch.scored
    assert (span.slot, span.start, span.following.tolist(), span.wanted) == (0, 1, [6, 7, 8], 2)
    assert batch.logit_rows.tolist() == [0, 1, 2]
    # The last token of the prompt has no next one that is known.
    assert builder.build(step([Row(0, 3, 1, samples=True)])).scored == ()


def test_a_part_that_finds_no_room_travels_alone(builder, attention):
    many = np.arange(10_000, dtype=np.int32)
    attention.layout = lambda rows: [many, np.array([1], np.int32)]
    rows = [Row(0, 0, 2, samples=True)]
    builder.build(step(rows, [new(0, (1, 2))], [(0, 0, (4,))]))
    assert [len(part) for part in attention.tensors.parts] == [10_000, 1]
    assert attention.tensors.parts[0].tolist() == many.tolist()
