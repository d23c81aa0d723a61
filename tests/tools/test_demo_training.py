"""The demo model's training script: what it writes, that it repeats itself, that it resumes."""

import shutil
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file
from tokenizers import Tokenizer
from transformers import AutoModelForCausalLM, AutoTokenizer

from tools.demo_model import train
from tools.demo_model.corpus import Example, Message
from tools.demo_model.knowledge import load_knowledge
from tools.demo_model.muon import Muon, orthogonalise
from tools.demo_model.tokenizer import (
    END_ID,
    IGNORED,
    ROLE_IDS,
    SPECIAL_TOKENS,
    TEXT_END_ID,
    Encoder,
    train_tokenizer,
)

MODEL = Path(__file__).parents[2] / "backend" / "demo" / "model"
ARGUMENTS = ["--device", "cpu", "--examples", "16", "--batch-tokens", "512", "--threads", "1"]


@pytest.fixture(scope="module", autouse=True)
def _of_a_few_topics():
    """What is written and repeated is the same with a tenth of the texts."""
    whole = load_knowledge()
    ids = {topic.id for topic in whole.faq[:20]}
    follow_ups = tuple(each for each in whole.follow_ups if {each.before, each.after} <= ids)
    few = replace(whole, faq=whole.faq[:20], follow_ups=follow_ups)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(train, "load_knowledge", lambda: few)
        yield


def run(out, *more):
    assert train.main(["--out", str(out), *ARGUMENTS, *more]) == 0
    return (out / "model.safetensors").read_bytes()


@pytest.fixture(scope="module")
def trained(tmp_path_factory):
    out = tmp_path_factory.mktemp("demo")
    return out, run(out)


@pytest.fixture(scope="module")
def tokenizer():
    return train_tokenizer(["How do I reset my password?"] * 3, vocab_size=300)


def test_training_writes_a_directory_that_transformers_loads(trained):
    out, _ = trained
    model = AutoModelForCausalLM.from_pretrained(out)
    assert model.config.architectures == ["LlamaForCausalLM"]
    assert model.dtype == torch.bfloat16
    assert AutoTokenizer.from_pretrained(out).eos_token_id == model.config.eos_token_id == END_ID
    assert not (out / "checkpoint.pt").exists()


def test_the_same_seed_gives_the_same_weights_interrupted_or_not(trained, tmp_path, monkeypatch):
    _, weights = trained
    kept = tmp_path / "kept.pt"
    monkeypatch.setattr(train, "CHECKPOINT_SECONDS", -1)  # save after every step
    original = train._save_checkpoint

    def keep_the_first(path, *rest):
        original(path, *rest)
        if not kept.exists():
            shutil.copy(path, kept)

    monkeypatch.setattr(train, "_save_checkpoint", keep_the_first)
    assert run(tmp_path / "again") == weights
    resumed = tmp_path / "resumed"
    resumed.mkdir()
    shutil.copy(kept, resumed / "checkpoint.pt")
    assert run(resumed, "--resume") == weights


def test_a_checkpoint_of_another_recipe_is_refused(tmp_path):
    state = {"recipe": {"seed": 5, "batch_tokens": 512}, "step": 1}
    torch.save(state, tmp_path / "checkpoint.pt")
    with pytest.raises(ValueError, match="belongs to a run with"):
        train._resume(
            tmp_path / "checkpoint.pt", torch.nn.Linear(1, 1), [], {"seed": 0, "batch_tokens": 512}
        )


def test_special_tokens_have_the_ids_that_the_code_relies_on(tokenizer):
    ids = [tokenizer.token_to_id(token) for token in SPECIAL_TOKENS]
    assert ids == [TEXT_END_ID, END_ID, *ROLE_IDS.values()]


def test_a_cut_answer_does_not_teach_to_stop(tokenizer: Tokenizer):
    question = Message("user", "reset")
    whole = Message("assistant", "password", learn=True)
    cut = Message("assistant", "password", learn=True, cut=True)
    ids, labels = Encoder(tokenizer).encode(Example((question, whole)))
    assert ids[-1] == labels[-1] == END_ID
    assert Encoder(tokenizer).encode(Example((question, cut))) == (ids[:-1], labels[:-1])
    learnt = [label for label in labels if label != IGNORED]
    assert tokenizer.decode(learnt, skip_special_tokens=True) == "password"


@pytest.mark.parametrize("shape", [(8, 8), (16, 8), (8, 16)])
def test_orthogonalise_brings_singular_values_near_one(shape):
    matrix = torch.randn(shape, generator=torch.Generator().manual_seed(0)) * 30
    result = orthogonalise(matrix)
    assert result.shape == matrix.shape
    values = torch.linalg.svdvals(result)
    assert values.min() > 0.3
    assert values.max() < 1.4


def test_muon_descends():
    torch.manual_seed(0)
    target = torch.randn(6, 4)
    weight = torch.nn.Parameter(torch.zeros(6, 4))
    optimizer = Muon([weight], lr=0.05)
    first = ((weight - target) ** 2).sum()
    for _ in range(60):
        optimizer.zero_grad()
        ((weight - target) ** 2).sum().backward()
        optimizer.step()
    assert ((weight - target) ** 2).sum() < first / 10


def test_rounded_rows_have_few_values_and_stay_near():
    matrix = torch.cat(
        [torch.randn(8, 256, generator=torch.Generator().manual_seed(1)), torch.zeros(1, 256)]
    )
    fewer = train.rounded(matrix)
    assert torch.equal(train.rounded(fewer), fewer)
    assert torch.equal(fewer.to(torch.bfloat16).float(), fewer)
    assert all(len(row.unique()) <= 2 * train.ROUNDED_STEPS + 1 for row in fewer)
    assert (fewer - matrix).norm() < 0.05 * matrix.norm()


def test_the_shipped_weights_are_rounded():
    for name, weight in load_file(MODEL / "model.safetensors").items():
        assert weight.ndim != 2 or torch.equal(train.rounded(weight.float()), weight.float()), name
