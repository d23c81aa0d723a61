"""Attention over blocks equals attention over each sequence's own keys and values.

Sequences join, leave, are preempted and grow over block borders in random steps; whether their KV
is mirrored or gathered must not show.
"""

import random

import pytest
import torch

from backend.executor.input_batch import InputBatchBuilder
from backend.executor.kv_mirror import MIRROR_BYTES
from backend.models.attention import PagedAttention
from backend.scheduler.block_pool import BLOCK_SIZE, blocks_for
from backend.scheduler.sequence import ScheduledSequence, Sequence

HEADS, KV_HEADS, HEAD_DIM, LAYERS = 4, 2, 8, 2
MAX_LEN = 160
NUM_BLOCKS = 100
ONE_SEQUENCE = LAYERS * 2 * KV_HEADS * HEAD_DIM * MAX_LEN * 4


class World:
    """Sequences, a pool without owners' bookkeeping, and what each sequence has cached."""

    def __init__(self, seed, mirror_bytes):
        self.random = random.Random(seed)
        self.generator = torch.Generator().manual_seed(seed)
        # Other values in blocks that nobody wrote: what is masked may not count.
        shape = (NUM_BLOCKS + 1, 2 * KV_HEADS, BLOCK_SIZE, HEAD_DIM)
        self.caches = [torch.full(shape, 1e3) for _ in range(LAYERS)]
        self.builder = InputBatchBuilder(self.caches, MAX_LEN, mirror_bytes=mirror_bytes)
        self.free = list(range(1, NUM_BLOCKS + 1))
        self.random.shuffle(self.free)
        self.kept = {}  # sequence -> for each layer [tokens, 2 * kv_heads, head_dim]
        self.computed = {}
        self.count = 0

    def join(self):
        self.count += 1
        length = self.random.choice([1, 2, 15, 16, 17, 40, 90])
        sequence = Sequence(self.count, [0] * length, max_length=MAX_LEN)
        self.kept[sequence] = [torch.zeros(0, 2 * KV_HEADS, HEAD_DIM) for _ in range(LAYERS)]
        self.computed[sequence] = 0

    def leave(self, sequence):
        self.free += sequence.block_table
        self.random.shuffle(self.free)
        del self.kept[sequence], self.computed[sequence]

    def preempt(self, sequence):
        self.free += sequence.block_table
        sequence.block_table = []
        self.computed[sequence] = 0
        self.kept[sequence] = [kept[:0] for kept in self.kept[sequence]]

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
        batch = self.builder.build(step)
        attention = PagedAttention(batch.plan, self.caches)
        rows = {}
        at = 0
        positions = batch.positions.tolist()
        # Tokens are in the builder's order; positions and tables tell whose they are.
        ordered = sorted(step, key=lambda each: each.num_tokens > 1)
        for group in batch.plan.decode:
            at = max(at, group.stop)
        singles = {
            each.sequence.block_table[each.start // BLOCK_SIZE]: each
            for each in ordered
            if each.num_tokens == 1
        }
        per_block = 2 * KV_HEADS * BLOCK_SIZE
        first_rows = batch.plan.write_rows.view(-1, 2 * KV_HEADS)[:, 0]
        for row in range(at):
            rows[row] = singles[int(first_rows[row]) // per_block]
        place = {each.sequence: (row, row + 1) for row, each in rows.items()}
        for each in (each for each in step if each.num_tokens > 1):
            place[each.sequence] = (at, at + each.num_tokens)
            at += each.num_tokens
        assert at == len(positions)
        found, wanted = [], []
        for layer in range(LAYERS):
            qkv = torch.randn(at, HEADS + 2 * KV_HEADS, HEAD_DIM, generator=self.generator)
            queries, new = qkv[:, :HEADS], qkv[:, HEADS:]
            found.append(attention(layer, queries, new, window))
            expected = torch.zeros_like(found[-1])
            for sequence, (start, stop) in place.items():
                kept = self.kept[sequence]
                kept[layer] = torch.cat([kept[layer], new[start:stop]])
                expected[start:stop] = attend(queries[start:stop], kept[layer], window)
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
@pytest.mark.parametrize("mirror_bytes", [0, 3 * ONE_SEQUENCE, MIRROR_BYTES])
@torch.inference_mode()
def test_blocks_do_not_show(mirror_bytes, window, monkeypatch):
    # So that the few and small ones here are cut into groups too.
    monkeypatch.setattr("backend.executor.kv_mirror._LEAST_WASTE", 4096)
    world = World(mirror_bytes, mirror_bytes)
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
            torch.testing.assert_close(found, wanted, atol=1e-4, rtol=1e-4)


@torch.inference_mode()
def test_a_sequence_that_decodes_is_copied_once():
    world = World(0, MIRROR_BYTES)
    world.join()
    (sequence,) = world.kept
    copies = set()
    for _ in range(60):
        step = (ScheduledSequence(sequence, world.computed[sequence], 1, samples=True),)
        missing = blocks_for(world.computed[sequence] + 1) - len(sequence.block_table)
        sequence.block_table += [world.free.pop() for _ in range(missing)]
        batch = world.builder.build(step)
        copies.add(batch.plan.decode[0].keys_values.layers[0].rows.data_ptr())
        world.computed[sequence] += 1
        sequence.tokens.append(0)
    assert len(copies) == 1
