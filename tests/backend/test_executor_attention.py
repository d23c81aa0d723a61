"""Attention over blocks equals attention over each sequence's own keys and values.

Sequences join, leave, are preempted and grow over block borders in random steps; whether their KV
is copied or gathered must not show, and eight bits show little.
"""

import random

import pytest
import torch

from backend.executor.attention.backend import HostRows
from backend.executor.attention.torch import TorchAttention
from backend.executor.attention.torch_copies import COPY_BYTES
from backend.executor.input_batch import BatchLimits, InputBatchBuilder
from backend.executor.kv_cache import KVCache, block_bytes
from backend.models.attention import AttentionLayer
from backend.models.config import ModelShape
from backend.scheduler.batch import batch_of
from backend.scheduler.block_pool import blocks_for
from backend.scheduler.sequence import ScheduledSequence, Sequence

HEADS, KV_HEADS, HEAD_DIM, LAYERS = 4, 2, 8, 2
MAX_LEN = 160
NUM_BLOCKS = 100
NUM_SLOTS = 8
ONE_SEQUENCE = LAYERS * 2 * KV_HEADS * HEAD_DIM * MAX_LEN * 4
SHAPE = ModelShape(
    vocab_size=2,
    num_layers=LAYERS,
    num_heads=HEADS,
    num_kv_heads=KV_HEADS,
    head_dim=HEAD_DIM,
    max_positions=MAX_LEN,
    windows=(None,) * LAYERS,
    checkpoint_dtype="float32",
)


class Noting(TorchAttention):
    """Keeps the rows of the step that it was last planned for."""

    rows: HostRows

    def plan(self, rows, tensors):
        self.rows = rows
        super().plan(rows, tensors)


class World:
    """Sequences, a pool without owners' bookkeeping, and what each sequence has cached."""

    def __init__(self, seed, copy_bytes, dtype=torch.float32):
        self.random = random.Random(seed)
        self.generator = torch.Generator().manual_seed(seed)
        cpu = torch.device("cpu")
        cache = KVCache(SHAPE, NUM_BLOCKS, device=cpu, dtype=dtype)
        # Other values in blocks that nobody wrote: what is masked may not count.
        for layer in cache.layers:
            layer.blocks.fill_(100)
            if layer.scales is not None:
                layer.scales.fill_(10)
        self.attention = Noting(cache, SHAPE, MAX_LEN, dtype=torch.float32, copy_bytes=copy_bytes)
        limits = BatchLimits(NUM_SLOTS, NUM_SLOTS, 8 * MAX_LEN, MAX_LEN)
        self.builder = InputBatchBuilder(limits, self.attention, cpu)
        self.free = list(range(1, NUM_BLOCKS + 1))
        self.random.shuffle(self.free)
        self.slots = list(range(NUM_SLOTS))
        self.kept = {}  # sequence -> for each layer [tokens, 2 * kv_heads, head_dim]
        self.computed = {}
        self.count = 0

    def join(self):
        self.count += 1
        length = self.random.choice([1, 2, 15, 16, 17, 40, 90])
        sequence = Sequence(self.count, [0] * length, max_length=MAX_LEN)
        self.admit(sequence)

    def admit(self, sequence):
        sequence.slot = self.slots.pop()
        sequence.num_sent_blocks = 0
        self.kept[sequence] = [torch.zeros(0, 2 * KV_HEADS, HEAD_DIM) for _ in range(LAYERS)]
        self.computed[sequence] = 0

    def leave(self, sequence):
        self.free += sequence.block_table
        self.random.shuffle(self.free)
        sequence.block_table = []
        self.slots.append(sequence.slot)
        del self.kept[sequence], self.computed[sequence]

    def preempt(self, sequence):
        self.leave(sequence)
        self.admit(sequence)

    def step(self):
        """Schedule most of the sequences: all of their pending tokens, or a chunk."""
        scheduled = []
        for sequence in self.kept:
            if len(sequence.tokens) >= MAX_LEN or self.random.random() < 0.1:
                continue
            start = self.computed[sequence]
            pending = len(sequence.tokens) - start
            count = pending if self.random.random() < 0.8 else self.random.randint(1, pending)
            missing = blocks_for(start + count) - len(sequence.block_table)
            if missing > len(self.free):
                continue
            sequence.block_table += [self.free.pop() for _ in range(missing)]
            scheduled.append(ScheduledSequence(sequence, start, count, samples=count == pending))
        self.random.shuffle(scheduled)
        return tuple(scheduled)

    def run(self, step, window):
        """Compute the step with random tensors; return what came and what should have."""
        batch = self.builder.build(batch_of(step))
        rows = self.attention.rows
        by_slot = {each.sequence.slot: each.sequence for each in step}
        place, at = {}, 0
        for slot, count in zip(rows.slots.tolist(), rows.counts.tolist(), strict=True):
            place[by_slot[slot]] = (at, at + count)
            at += count
        assert at == len(batch.positions)
        found, wanted = [], []
        for index in range(LAYERS):
            qkv = torch.randn(at, HEADS + 2 * KV_HEADS, HEAD_DIM, generator=self.generator)
            queries, new = qkv[:, :HEADS], qkv[:, HEADS:]
            found.append(self.attention.forward(AttentionLayer(index, window), qkv.clone(), None))
            expected = torch.zeros_like(found[-1])
            for sequence, (start, stop) in place.items():
                kept = self.kept[sequence]
                kept[index] = torch.cat([kept[index], new[start:stop]])
                expected[start:stop] = attend(queries[start:stop], kept[index], window)
            wanted.append(expected)
        for each in step:
            self.computed[each.sequence] += each.num_tokens
            if each.samples:
                each.sequence.tokens.append(0)
        return found, wanted


def attend(queries, keys_values, window):
    length, done = len(queries), len(keys_values) - len(queries)
    keys, values = keys_values.repeat_interleave(HEADS // KV_HEADS, 1).chunk(2, 1)
    scores = torch.einsum("qhd,khd->hqk", queries, keys) * HEAD_DIM**-0.5
    ages = torch.arange(done, done + length).unsqueeze(1) - torch.arange(done + length)
    hidden = ages < 0 if window is None else (ages < 0) | (ages >= window)
    weights = scores.masked_fill(hidden, -torch.inf).softmax(-1)
    return torch.einsum("hqk,khd->qhd", weights, values).flatten(1)


@pytest.mark.parametrize("window", [None, 20])
@pytest.mark.parametrize("copy_bytes", [0, 3 * ONE_SEQUENCE, COPY_BYTES])
@pytest.mark.parametrize(("dtype", "tolerance"), [(torch.float32, 1e-4), (torch.int8, 0.06)])
@torch.inference_mode()
def test_blocks_do_not_show(copy_bytes, window, dtype, tolerance, monkeypatch):
    # So that the few and small ones here are cut into groups too.
    monkeypatch.setattr("backend.executor.attention.torch_copies._LEAST_WASTE", 4096)
    world = World(copy_bytes, copy_bytes, dtype)
    for _ in range(60):
        action = world.random.random()
        if action < 0.2 and len(world.kept) < 7:
            world.join()
        elif action < 0.25 and world.kept:
            world.leave(world.random.choice(list(world.kept)))
        elif action < 0.3 and world.kept:
            world.preempt(world.random.choice(list(world.kept)))
        if step := world.step():
            found, wanted = world.run(step, window)
            torch.testing.assert_close(found, wanted, atol=tolerance, rtol=1e-4)


@torch.inference_mode()
def test_what_is_read_in_eight_bits_does_not_depend_on_the_way():
    """A copy holds what the pool holds, so whether there is room for it changes no number."""
    outputs = []
    for copy_bytes in (0, COPY_BYTES):
        world = World(3, copy_bytes, torch.int8)
        world.join()
        steps = (world.run(world.step(), None)[0] for _ in range(40) if world.kept)
        outputs.append([layer for found in steps for layer in found])
    torch.testing.assert_close(*outputs)


def test_a_block_in_eight_bits_takes_a_third_of_one_in_floats():
    assert block_bytes(SHAPE, torch.int8) * 3 < block_bytes(SHAPE, torch.float32) * 1.01


@torch.inference_mode()
def test_a_sequence_that_decodes_is_copied_once():
    world = World(0, COPY_BYTES)
    world.join()
    (sequence,) = world.kept
    copies = set()
    for _ in range(60):
        step = (ScheduledSequence(sequence, world.computed[sequence], 1, samples=True),)
        missing = blocks_for(world.computed[sequence] + 1) - len(sequence.block_table)
        sequence.block_table += [world.free.pop() for _ in range(missing)]
        world.run(step, None)
        copies.add(world.attention._decode[0].layers[0].rows.data_ptr())
    assert len(copies) == 1


@torch.inference_mode()
def test_a_copy_catches_up_with_what_steps_of_several_tokens_computed():
    """Drafts are verified in spans; what was accepted is copied, and what was refused is not."""
    world = World(2, COPY_BYTES)
    sequence = Sequence(0, [0] * 140, max_length=MAX_LEN)
    world.admit(sequence)
    sequence.block_table += [world.free.pop() for _ in range(blocks_for(140))]
    copies = set()
    start = 0
    for count, accepted in (
        (20, 20),
        (1, 1),
        (1, 1),
        (9, 4),
        (1, 1),
        (9, 9),
        (9, 1),
        (1, 1),
        (1, 1),
    ):
        row = ScheduledSequence(sequence, start, count, samples=False)
        found, wanted = world.run((row,), None)
        torch.testing.assert_close(found, wanted, atol=1e-4, rtol=1e-4)
        start += accepted
        world.computed[sequence] = start
        world.kept[sequence] = [kept[:start] for kept in world.kept[sequence]]
        if world.attention._decode:
            copies.add(world.attention._decode[0].layers[0].rows.data_ptr())
    assert len(copies) == 1


@torch.inference_mode()
def test_a_slot_that_another_sequence_takes_at_the_same_length_is_copied_anew():
    world = World(1, COPY_BYTES)
    for _ in range(2):
        sequence = Sequence(0, [0] * 20, max_length=MAX_LEN)
        world.admit(sequence)
        for start, count in ((0, 19), (19, 1)):
            missing = blocks_for(start + count) - len(sequence.block_table)
            sequence.block_table += [world.free.pop() for _ in range(missing)]
            row = ScheduledSequence(sequence, start, count, samples=False)
            found, wanted = world.run((row,), None)
            torch.testing.assert_close(found, wanted, atol=1e-4, rtol=1e-4)
        world.leave(sequence)
