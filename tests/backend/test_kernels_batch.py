"""Steps as the kernels take them: padding, unseen tokens, sizes of graphs."""

import pytest
import torch

pytest.importorskip("triton", reason="Triton is not installed")

from backend.executor.cuda_batch import BatchLimits, KernelBatchBuilder
from backend.executor.cuda_graphs import graph_sizes, size_for
from backend.scheduler.sequence import ScheduledSequence, Sequence

LIMITS = BatchLimits(max_num_seqs=4, max_tokens_per_step=64, max_model_len=256, processors=8)


@pytest.fixture
def builder():
    builder = KernelBatchBuilder(LIMITS, num_heads=4, num_kv_heads=2)
    builder.place(torch.device("cpu"))
    return builder


def sequence(tokens, blocks):
    made = Sequence(0, list(tokens), 250)
    made.block_table = blocks
    return made


def test_single_tokens_come_first_and_spans_behind_them(builder):
    long = sequence(range(100, 140), [7, 5, 9])
    single = sequence(range(18), [3, 2])
    step = (
        ScheduledSequence(long, 14, 4, samples=False),
        ScheduledSequence(single, 17, 1, samples=True),
    )
    batch = builder.build(step, {})
    assert batch.tokens.tolist() == [17, 114, 115, 116, 117]
    assert batch.positions.tolist() == [17, 14, 15, 16, 17]
    # Slot = block * 16 + offset: the span crosses from block 7 to block 5.
    assert batch.plan.slots.tolist() == [33, 126, 127, 80, 81]
    assert batch.plan.lengths.tolist() == [18]
    assert batch.plan.tables.blocks.tolist() == [3, 2, 7, 5]
    assert batch.plan.tables.starts.tolist() == [0]
    assert batch.plan.spans.tiles.tolist() == [[2, 1, 4, 14]]
    assert batch.logit_rows.tolist() == [0]
    assert [each.sequence for each in batch.sampling] == [single]


def test_padding_has_no_keys_and_writes_to_the_padding_block(builder):
    step = (ScheduledSequence(sequence(range(5), [4]), 4, 1, samples=True),)
    batch = builder.build(step, {}, padded_size=4)
    assert batch.tokens.tolist() == [4, 0, 0, 0]
    assert batch.plan.lengths.tolist() == [5, 0, 0, 0]
    assert all(slot < 16 for slot in batch.plan.slots.tolist()[1:])
    assert batch.logit_rows is None


def test_padded_batches_of_one_size_lie_where_the_graph_found_them(builder):
    small, large = sequence(range(5), [4]), sequence(range(200), list(range(1, 14)))
    addresses = set()
    for rows in ((small,), (large, small), (small, small, large)):
        step = tuple(
            ScheduledSequence(each, len(each.tokens) - 1, 1, samples=True) for each in rows
        )
        batch = builder.build(step, {}, padded_size=4)
        plan = batch.plan
        tensors = (batch.tokens, batch.positions, plan.slots, plan.lengths)
        tensors += (plan.tables.starts, plan.tables.blocks)
        addresses.add(tuple(each.data_ptr() for each in tensors))
        assert all(each.data_ptr() % 16 == 0 for each in tensors)
        assert plan.splits == builder.splits(4, LIMITS.max_model_len)
    assert len(addresses) == 1


def test_a_token_that_only_the_device_knows_is_named_by_its_row(builder):
    known, unseen = sequence(range(5), [4]), sequence(range(9), [6])
    step = (
        ScheduledSequence(known, 4, 1, samples=True),
        ScheduledSequence(unseen, 9, 1, samples=True),
    )
    batch = builder.build(step, {unseen: 3})
    assert [each.tolist() for each in batch.unseen] == [[1], [3]]


def test_the_largest_step_has_room(builder):
    blocks = list(range(1, 17))
    rows = [sequence(range(255), blocks) for _ in range(LIMITS.max_num_seqs)]
    share = LIMITS.max_tokens_per_step // LIMITS.max_num_seqs
    step = tuple(ScheduledSequence(each, 255 - share, share, samples=True) for each in rows)
    assert len(builder.build(step, {}).tokens) == LIMITS.max_tokens_per_step


@pytest.mark.parametrize(
    ("most", "sizes"),
    [
        (1, (1,)),
        (3, (1, 2, 3)),
        (16, (1, 2, 4, 8, 16)),
        (100, (1, 2, 4, *range(8, 65, 8), 80, 96, 100)),
    ],
)
def test_sizes_of_graphs(most, sizes):
    assert graph_sizes(most) == sizes


def test_a_batch_runs_in_the_next_size():
    sizes = graph_sizes(16)
    assert [size_for(count, sizes) for count in (1, 3, 9, 16, 17)] == [1, 4, 16, 16, None]
