"""Warm-up compiles all: no batch after it may launch a kernel that Triton has yet to compile."""

import os
import random
from dataclasses import dataclass, field
from unittest.mock import patch

import pytest
import torch

pytest.importorskip("triton", reason="Triton is not installed")

import interpreted_check
from compilations import Compilations
from interpreted_engine import Rerun

from backend.executor import factory
from backend.executor.factory import ALL_KERNELS, make_runner
from backend.executor.input_batch import BatchLimits
from backend.executor.kv_cache import FP8, KVCache
from backend.executor.sampler import batch as sampling_batch
from backend.executor.sampler.sampler import GrammarMask
from backend.kernels.grouped_matmul import grouped_matmul
from backend.models.loading import load_network
from backend.scheduler.batch import AppendedBlocks, NewSequence, Row, StepBatch
from backend.scheduler.block_pool import blocks_for
from backend.scheduler.drafts import MOST_DRAFTS
from backend.scheduler.request import SamplingParams

pytest_plugins = ["tiny_checkpoints"]

CPU = torch.device("cpu")
VOCAB = 320
MOST_ROWS, MOST_TOKENS, CONTEXT, BLOCKS = 256, 1024, 1024, 64
SAMPLINGS = (
    SamplingParams(temperature=0.0),
    SamplingParams(),
    SamplingParams(top_k=20),
    SamplingParams(top_p=0.9, min_p=0.01),
    SamplingParams(logprobs=3),
    SamplingParams(temperature=0.0, prompt_logprobs=2),
    SamplingParams(presence_penalty=0.5),
    SamplingParams(logit_bias=((3, -100.0), (7, 2.0))),
    SamplingParams(min_tokens=5),
)


@dataclass
class Steps:
    """Random steps: single tokens, chunks of prompts and drafts, sampled in every way."""

    rng: random.Random
    most_rows: int = MOST_ROWS
    _decoding: dict[int, int] = field(default_factory=dict)
    """Where each slot of the step before goes on, if all of them decode."""

    def next(self) -> StepBatch:
        """Return the rows of the step before one token further, or others."""
        if self._decoding and self.rng.random() < 0.3:
            rows = [Row(slot, start, 1, samples=True) for slot, start in self._decoding.items()]
            self._decoding = {slot: start + 1 for slot, start in self._decoding.items()}
            return StepBatch((), (), tuple(rows))
        rng = self.rng
        count = rng.choice([rng.randint(1, 8), rng.randint(1, self.most_rows)])
        slots = rng.sample(range(self.most_rows), count)
        spans = rng.choice([0, 0, rng.randint(0, count)])
        left = MOST_TOKENS - count
        # Few ways to sample at a time: else no batch would be without a penalty.
        samplings = rng.sample(SAMPLINGS, rng.choice([1, 1, 2, 5]))
        new, appended, rows = [], [], []
        for place, slot in enumerate(slots):
            longest = min(rng.choice([MOST_DRAFTS, 64, 500]), left) if place < spans else 0
            tokens = 1 + rng.randint(0, longest)
            left -= tokens - 1
            start = rng.choice([0, rng.randrange(500)])
            drafted = (0,) * tokens if 1 < tokens <= MOST_DRAFTS + 1 and rng.random() < 0.5 else ()
            sampling = rng.choice(samplings)
            known = (1,) * (start + tokens)
            # What follows a token of a prompt is known, and may be asked for.
            prompt = max(len(known) - rng.choice([0, 3]), 1)
            new.append(NewSequence(slot, known, prompt, sampling, slot, frozenset({2})))
            table = (rng.randint(1, BLOCKS),) * blocks_for(CONTEXT)
            appended.append(AppendedBlocks(slot, 0, table))
            samples = bool(drafted) or tokens == 1 or rng.random() < 0.7
            rows.append(Row(slot, start, tokens, samples, drafted))
        self._decoding = {}
        if all(row.num_tokens == 1 and not row.drafted for row in rows):
            self._decoding = {row.slot: row.start + 1 for row in rows}
        return StepBatch(tuple(new), tuple(appended), tuple(rows))

    def mask(self, step: StepBatch) -> GrammarMask | None:
        """Return a grammar's mask for some rows, or none."""
        places = [place for place, row in enumerate(step.rows) if row.samples and not row.drafted]
        if not places or self.rng.random() < 0.7:
            return None
        some = sorted(self.rng.sample(places, self.rng.randint(1, len(places))))
        return GrammarMask(tuple(some), torch.full((len(some), -(-VOCAB // 32)), -1).int())


def compiled(directory, count, *, graphs=False, most_rows=MOST_ROWS, kv_dtype=None, **options):
    """Return the keys of warm-up, and those that ``count`` random steps add.

    The runner is that of a GPU: with kernels, padding, and tokens that stay on the device.
    """
    network = load_network(directory, device=CPU, dtype="bfloat16", **options)
    cache = KVCache(network.shape, BLOCKS, device=CPU, dtype=kv_dtype or network.dtype)
    limits = BatchLimits(most_rows, most_rows, MOST_TOKENS, CONTEXT)
    compilations, steps = Compilations(), Steps(random.Random(0), most_rows)
    with patch.object(factory, "CudaRecorder", Rerun), compilations.recording():
        runner = make_runner(network, cache, limits, kernels=ALL_KERNELS, graphs=graphs, pads=True)
        runner._inputs._last_on_host = None
        runner.warm_up()
        before = set(compilations.keys)
        for _ in range(count):
            step = steps.next()
            runner.collect(runner.sample(runner.launch(step), steps.mask(step)))
    print(f"{len(before)} compilations in warm-up, {len(compilations.keys - before)} in {count}")
    return before, compilations.keys - before


@pytest.mark.parametrize("graphs", [False, True])
def test_no_batch_compiles(checkpoint, graphs):
    before, after = compiled(checkpoint("qwen3")[0], 300, graphs=graphs)
    assert before
    assert not after


def test_none_of_many_batches_compiles(checkpoint):
    """``WARM_UP_BATCHES=10000`` takes two minutes."""
    count = int(os.environ.get("WARM_UP_BATCHES", "1000"))
    before, after = compiled(checkpoint("qwen3")[0], count)
    assert before
    assert not after


@pytest.mark.parametrize(
    ("family", "options"),
    [
        ("qwen2_windows", {"kv_dtype": FP8}),
        ("mixtral", {}),
        ("gpt_neox", {}),
        ("llama", {"quantization": "int8"}),
        ("llama", {"quantization": "int8", "most_rows": 8}),
        ("llama", {"most_rows": 700}),
    ],
    ids=str,
)
def test_no_batch_of_other_models_compiles(checkpoint, family, options):
    with (
        patch("backend.models.weights.quantized_linear", interpreted_check._by_kernel),
        patch("backend.models.moe._grouped_product", lambda *_: grouped_matmul),
    ):
        before, after = compiled(checkpoint(family)[0], 100, **options)
    assert any("_grouped_matmul" in key for key in before) is (family == "mixtral")
    assert before
    assert not after


def test_columns_that_are_not_aligned_would_be_found(checkpoint, monkeypatch):
    monkeypatch.setattr(sampling_batch, "_ALIGNED_FLOATS", 1)
    _, after = compiled(checkpoint("llama")[0], 50)
    assert {key.split()[0] for key in after} == {"_sample"}
