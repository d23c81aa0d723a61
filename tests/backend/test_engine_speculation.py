"""Answers with drafts are those without: against transformers, seeded, overlapped and preempted."""

import pytest
import torch
from engine_answers import PROMPTS, answers, checked_engines, drafted
from model_configs import load_config

from backend.executor.kv_cache import block_bytes
from backend.scheduler import drafts
from backend.scheduler.drafts import Drafter
from backend.scheduler.request import SamplingParams

pytest_plugins = ["tiny_checkpoints"]

NEW_TOKENS = 60


@pytest.fixture
def engine_for(checkpoint, monkeypatch):
    """Start an engine that drafts wherever it can."""
    monkeypatch.setattr(Drafter, "_pays", lambda *_, **_kw: True)
    monkeypatch.setattr(drafts, "_ENOUGH_RIGHT", 0.0)
    monkeypatch.setattr(drafts, "_FEW_ROWS", drafts.MOST_ROWS)
    with checked_engines() as start:
        yield lambda family="qwen3", **options: start(checkpoint(family)[0], **options)


@pytest.mark.parametrize("family", ["llama", "qwen3", "mistral", "qwen3_moe"])
@pytest.mark.parametrize("overlap", [False, True])
async def test_greedy_answers_are_those_of_transformers(checkpoint, engine_for, family, overlap):
    model, engine = checkpoint(family)[1], engine_for(family, overlap=overlap)
    greedy = SamplingParams(temperature=0.0, max_tokens=NEW_TOKENS, ignore_eos=True)
    together = await answers(engine, greedy)
    for prompt, (tokens, _, _) in zip(PROMPTS, together, strict=True):
        with torch.inference_mode():
            expected = model.generate(
                torch.tensor([prompt]),
                attention_mask=torch.ones(1, len(prompt), dtype=torch.long),
                max_new_tokens=NEW_TOKENS,
                do_sample=False,
            )
        assert tokens == expected[0, len(prompt) :].tolist()
    num_drafts, num_accepted = drafted(engine)
    assert num_drafts > 0
    assert num_accepted > 0 or family != "qwen3"  # not every model repeats itself


@pytest.mark.parametrize(
    "sampling",
    [
        SamplingParams(temperature=0.4, seed=5, max_tokens=NEW_TOKENS, ignore_eos=True),
        SamplingParams(temperature=0.6, top_p=0.8, top_k=9, seed=6, max_tokens=NEW_TOKENS),
        SamplingParams(temperature=0.0, max_tokens=NEW_TOKENS, stop_token_ids=frozenset(range(99))),
        SamplingParams(temperature=0.3, seed=1, max_tokens=30, min_tokens=20, logprobs=2),
        SamplingParams(temperature=0.2, seed=2, max_tokens=30, logit_bias=((8, 5.0),)),
        SamplingParams(temperature=0.2, seed=3, max_tokens=30, frequency_penalty=0.5),
    ],
)
async def test_other_answers_are_those_without_drafts(engine_for, sampling):
    with_drafts, without = engine_for(), engine_for(speculation="off")
    expected = await answers(without, sampling)
    results = await answers(with_drafts, sampling)
    for (tokens, logprobs, reason), (same, near, why) in zip(results, expected, strict=True):
        assert (tokens, reason) == (same, why)
        assert [token for token, _ in logprobs] == [token for token, _ in near]
        assert [each for _, each in logprobs] == pytest.approx([each for _, each in near], abs=1e-3)
    assert drafted(without) == (0, 0)
    assert (drafted(with_drafts)[0] > 0) is sampling.allows_drafts


@pytest.mark.parametrize("overlap", [False, True])
async def test_preempted_sequences_go_on_with_drafts(checkpoint, engine_for, overlap):
    per_block = block_bytes(load_config(checkpoint("qwen3")[0]), torch.float32)
    greedy = SamplingParams(temperature=0.0, max_tokens=NEW_TOKENS, ignore_eos=True)
    expected = await answers(engine_for(speculation="off"), greedy)
    engine = engine_for(max_num_seqs=6, kv_bytes=13 * per_block, overlap=overlap)
    assert await answers(engine, greedy) == expected
    assert engine.stats().preemptions > 0
    assert drafted(engine)[1] > 0
