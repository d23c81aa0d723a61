"""A model that sleeps gives its memory back, and computes the same when it woke."""

import os
from pathlib import Path

import pytest

from backend.engine.loading import load_model
from backend.executor.sleep import put_to_sleep, tensors_of
from backend.scheduler.batch import batch_of
from backend.scheduler.request import SamplingParams
from backend.scheduler.sequence import ScheduledSequence, Sequence
from backend.settings import EngineOptions

pytest_plugins = ["tiny_checkpoints"]


def load(checkpoint, family, **options):
    return load_model(EngineOptions(str(checkpoint(family)[0]), device="cpu", **options)).core


def text(runner, prompt, count=12):
    """Return the greedy continuation of ``prompt``, in slot 0."""
    sequence = Sequence(0, list(prompt), 100, sampling=SamplingParams(temperature=0.0))
    sequence.slot, sequence.block_table = 0, list(range(1, 8))
    start = 0
    for _ in range(count):
        pending = len(sequence.tokens) - start
        step = (ScheduledSequence(sequence, start, pending, samples=True),)
        value = batch_of(step)
        sequence.num_sent_blocks = len(sequence.block_table)
        (sampled,) = runner.collect(runner.sample(runner.launch(value)))
        start = len(sequence.tokens)
        sequence.tokens += sampled.tokens
    return sequence.tokens[len(prompt) :]


def resident():
    return int(Path("/proc/self/statm").read_text().split()[1]) * os.sysconf("SC_PAGESIZE")


@pytest.mark.parametrize("family", ["llama", "mixtral", "qwen2"])
def test_weights_leave_their_memory_and_come_back(checkpoint, family):
    runner = load(checkpoint, family).runner
    before = text(runner, range(3, 40))
    model = runner._model
    storages = {each.untyped_storage().data_ptr(): each for each in tensors_of(model)}
    held = sum(each.untyped_storage().nbytes() for each in storages.values())
    asleep = put_to_sleep(model, runner._cache, moves=True)
    assert sum(each.untyped_storage().nbytes() for each in storages.values()) == 0
    assert sum(content.nbytes for _, content in asleep.saved) == held > 100_000
    asleep.wake()
    assert text(runner, range(3, 40)) == before


@pytest.mark.parametrize("kv_dtype", ["auto", "int8"])
def test_the_pages_of_the_pool_go_back_and_are_zero(checkpoint, kv_dtype):
    core = load(checkpoint, "llama", kv_dtype=kv_dtype, kv_bytes=256 * 2**20)
    runner = core.runner
    for layer in runner._cache.layers:
        layer.blocks.fill_(1)
    before, with_pool = text(runner, range(3, 40)), resident()
    core.sleep()
    assert with_pool - resident() > 200 * 2**20
    for layer in runner._cache.layers:
        assert not layer.blocks.any()
    core.wake()
    assert text(runner, range(3, 40)) == before
    assert core.stats().restarts == 0
