"""A draft model's guesses change no text, whatever it is, and one that is the model is right."""

import copy
import json
import shutil

import pytest
import torch
from engine_answers import answers, checked_engines, drafted
from model_configs import load_config

from backend.engine.loading import load_engine
from backend.executor.kv_cache import block_bytes
from backend.models.config import ModelLoadError
from backend.scheduler import drafts
from backend.scheduler.drafts import Drafter, DraftSource, _Choice
from backend.scheduler.request import GenerationRequest, SamplingParams

pytest_plugins = ["tiny_checkpoints"]

GREEDY = SamplingParams(temperature=0.0, max_tokens=40, ignore_eos=True)
SAMPLED = SamplingParams(temperature=1.0, top_p=0.9, seed=5, max_tokens=40, ignore_eos=True)


@pytest.fixture
def engine_for(checkpoint, monkeypatch):
    """Start an engine whose draft model guesses wherever it may."""

    def guess(drafter, sequence, rate, num_rows):
        room = drafter.model.room(sequence)
        return _Choice(DraftSource.DRAFT_MODEL, room, 1.0) if room else None

    monkeypatch.setattr(Drafter, "_pays", lambda *_, **_kw: True)
    monkeypatch.setattr(Drafter, "_guess", guess)
    monkeypatch.setattr(drafts, "_FEW_ROWS", drafts.MOST_ROWS)
    with checked_engines() as start:

        def drafting(draft=None, **options):
            if draft is not None:
                options["speculative_model"] = str(checkpoint(draft)[0])
            options = {"speculation": "off", "kv_bytes": 2**24} | options
            return start(checkpoint("qwen3")[0], **options)

        yield drafting


@pytest.mark.parametrize(
    "sampling",
    [
        GREEDY,
        SAMPLED,
        SamplingParams(temperature=0.6, top_k=9, seed=6, max_tokens=40, logit_bias=((8, 2.0),)),
        SamplingParams(temperature=0.8, min_p=0.01, seed=1, max_tokens=30, min_tokens=20),
        SamplingParams(temperature=0.7, seed=2, max_tokens=30, logprobs=2, ignore_eos=True),
    ],
)
async def test_a_draft_that_is_the_model_is_always_right(engine_for, sampling):
    expected = await answers(engine_for(), sampling)
    engine = engine_for("qwen3")
    found = await answers(engine, sampling)
    assert [tokens for tokens, *_ in found] == [tokens for tokens, *_ in expected]
    proposed, accepted = drafted(engine)
    # What was guessed behind an end is refused by nobody, and used by nobody.
    assert proposed == accepted > 50


@pytest.mark.parametrize("overlap", [False, True])
@pytest.mark.parametrize("sampling", [GREEDY, SAMPLED])
async def test_a_draft_that_is_often_wrong_changes_no_text(
    checkpoint, engine_for, tmp_path, sampling, overlap
):
    """With too few blocks, short chunks of prompts, and prompts in the prefix cache."""
    expected = await answers(engine_for(), sampling)
    source, model = checkpoint("qwen3")
    shutil.copytree(source, tmp_path, dirs_exist_ok=True)
    model = copy.deepcopy(model)
    torch.manual_seed(1)
    for weight in model.parameters():
        weight.data += 0.03 * torch.randn_like(weight)
    model.save_pretrained(tmp_path)
    engine = engine_for(
        speculative_model=str(tmp_path),
        overlap=overlap,
        max_num_seqs=6,
        max_tokens_per_step=24,
        kv_bytes=13 * 2 * block_bytes(load_config(source), torch.float32),
    )
    assert engine._core.limits.num_blocks == 13
    for _ in range(2):
        assert await answers(engine, sampling) == expected
    assert engine.stats().preemptions > 0
    assert engine.stats().prefix_hits > 0
    proposed, accepted = drafted(engine)
    assert proposed > accepted > 0
    counts = engine.stats().recording.counts
    assert counts["drafts_proposed", ("draft_model",)] == proposed
    assert counts["drafts_accepted", ("draft_model",)] == accepted


async def test_choices_of_one_request_are_those_without_guesses(engine_for):
    async def choices(engine):
        request = GenerationRequest("r", tuple(range(40, 75)), SAMPLED, n=3)
        texts = ["", "", ""]
        async for delta in engine.generate(request):
            texts[delta.index] += delta.text
        return texts

    engine = engine_for("qwen3")
    assert await choices(engine) == await choices(engine_for())
    proposed, accepted = drafted(engine)
    assert proposed == accepted > 0


async def test_penalised_sequences_get_no_guesses(engine_for):
    sampling = SamplingParams(temperature=0.2, seed=3, max_tokens=20, frequency_penalty=0.5)
    engine = engine_for("qwen3")
    assert await answers(engine, sampling) == await answers(engine_for(), sampling)
    assert drafted(engine) == (0, 0)


async def test_beyond_a_shorter_context_of_the_draft_nothing_is_guessed(
    engine_for, edited_checkpoint
):
    draft = edited_checkpoint(max_position_embeddings=50)
    engine = engine_for(speculative_model=str(draft))
    assert engine.max_model_len > 60
    assert await answers(engine, GREEDY) == await answers(engine_for(), GREEDY)
    assert drafted(engine)[0] > 0


@pytest.mark.parametrize(
    ("error", "is_left"), [(RuntimeError("broken"), False), (MemoryError(), True)]
)
async def test_a_draft_model_that_fails_costs_no_request(engine_for, error, is_left):
    expected = await answers(engine_for(), GREEDY)
    engine = engine_for("qwen3")

    def fail(*_):
        raise error

    engine._core._draft.propose = fail
    assert await answers(engine, GREEDY) == expected
    assert (engine._core.scheduler._drafter.model is not None) is is_left
    assert drafted(engine) == (0, 0)


async def test_outputs_that_are_not_finite_are_refused_guesses(engine_for):
    expected = await answers(engine_for(), GREEDY)
    engine = engine_for("qwen3")
    engine._core._draft._runner._model._weights.final_norm.weight.fill_(torch.nan)
    assert await answers(engine, GREEDY) == expected
    assert drafted(engine)[0] > 0


def test_a_draft_model_with_other_tokens_is_refused(checkpoint, tmp_path):
    target = checkpoint("qwen3")[0]
    swapped = shutil.copytree(target, tmp_path / "swapped")
    file = swapped / "tokenizer.json"
    vocabulary = json.loads(file.read_text())
    known = vocabulary["model"]["vocab"]
    known["Ġx"] = known.pop("Ġ317")
    file.write_text(json.dumps(vocabulary))
    with pytest.raises(ModelLoadError, match=r"1 of 320 tokens differ.* the first is 317: b' x'"):
        load_engine(str(target), device="cpu", speculative_model=str(swapped))


def test_a_draft_model_with_another_vocabulary_is_refused(checkpoint, tmp_path):
    target, model = checkpoint("llama")
    model = type(model)(type(model.config)(**(model.config.to_dict() | {"vocab_size": 256})))
    shutil.copytree(target, tmp_path, dirs_exist_ok=True)
    model.save_pretrained(tmp_path)
    with pytest.raises(ModelLoadError, match="has 256 tokens, that of the model 320"):
        load_engine(str(target), device="cpu", speculative_model=str(tmp_path))


def test_a_draft_model_that_transformers_computes_is_refused(checkpoint):
    target, draft = checkpoint("qwen3")[0], checkpoint("gpt_neox")[0]
    with pytest.raises(ModelLoadError, match="computed by transformers' code; a draft model is"):
        load_engine(str(target), device="cpu", speculative_model=str(draft))
