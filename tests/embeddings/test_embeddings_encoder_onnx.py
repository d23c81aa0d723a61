"""The encoder on ONNX Runtime: equal to sentence-transformers, and chosen where it is."""

import json
import logging
import shutil
import sys
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest
from examples import some
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from embeddings.encoder import encoder as encoder_module
from embeddings.encoder.encoder import EncoderSettings, load_encoder
from embeddings.encoder.model_files import DEFAULT_MODEL, ModelError, locate
from embeddings.encoder.onnx import OnnxSentenceModel, _alike
from embeddings.encoder.plain_bert import NotPlainError, plain_bert
from embeddings.messages import Reason

VARIED = [
    "How do I reset my password?",
    "a",
    "?!",
    "Ünïcödé, naïve café, ŁÓDŹ and a ß",
    "密码怎么重置 in English",
    "\U0001f389 party \U0001f600",
    "SELECT * FROM users WHERE id = 42; -- drop",
    "line one\nline two\ttab\x00null\u200b",
    "[MASK] of [SEP] and [CLS]",
    "antidisestablishmentarianism " * 5,
    "word " * 254,
    "1,234.56 EUR on 2024-02-29 at 23:59",
    "  leading and trailing  ",
]


def test_varied_texts_have_the_vectors_of_sentence_transformers(encoder, reference):
    assert isinstance(encoder._model, OnnxSentenceModel)
    for made, expected in zip(encoder.encode(VARIED), reference.encode(VARIED), strict=True):
        assert float(made @ expected) >= 0.9999
        np.testing.assert_allclose(made, expected, atol=1e-4)


@given(st.lists(st.text(max_size=300), min_size=4, max_size=16))
@settings(max_examples=some(8), deadline=None, suppress_health_check=[HealthCheck.too_slow])
def test_any_text_is_refused_alike_or_has_the_same_vector(encoder, reference, texts):
    for made, expected in zip(encoder.encode(texts), reference.encode(texts), strict=True):
        if isinstance(made, Reason) or isinstance(expected, Reason):
            assert made is expected
        else:
            assert float(made @ expected) >= 0.9999


def test_passes_in_several_threads_at_a_time_have_the_same_vectors():
    several = load_encoder(EncoderSettings(DEFAULT_MODEL, "cpu", threads=1, lanes=3))
    assert several.lanes == 3
    alone = several.encode(VARIED)
    with ThreadPoolExecutor(3) as threads:
        for vectors in threads.map(several.encode, [VARIED] * 9):
            np.testing.assert_array_equal(vectors, alone)


def test_both_runtimes_have_one_digest_so_an_index_stays(encoder, monkeypatch):
    def not_plain(directory):
        raise NotPlainError("for the test")

    monkeypatch.setattr(encoder_module, "plain_bert", not_plain)
    other = load_encoder(EncoderSettings(DEFAULT_MODEL, "cpu", threads=1, lanes=2))
    assert other.lanes == 1  # one pass at a time, on two threads
    assert not isinstance(other._model, OnnxSentenceModel)
    assert other.digest == encoder.digest
    assert (other.dimensions, other.max_tokens) == (encoder.dimensions, encoder.max_tokens)


@pytest.fixture
def copied(tmp_path):
    source = locate(DEFAULT_MODEL).directory
    shutil.copytree(source, tmp_path / "m", ignore=shutil.ignore_patterns("*.safetensors"))
    (tmp_path / "m" / "model.safetensors").symlink_to(source / "model.safetensors")
    return tmp_path / "m"


def change(file, **changed):
    settings = json.loads(file.read_text()) if file.exists() else {}
    file.write_text(json.dumps({**settings, **changed}))


def test_the_default_model_is_plain(copied):
    found = plain_bert(copied)
    assert (found.shape.layers, found.shape.heads, found.max_tokens) == (6, 12, 256)


@pytest.mark.parametrize(
    ("file", "changed"),
    [
        ("config.json", {"model_type": "mpnet"}),
        ("config.json", {"hidden_act": "relu"}),
        ("1_Pooling/config.json", {"pooling_mode_cls_token": True}),
        ("1_Pooling/config.json", {"pooling_mode_mean_tokens": False}),
        ("sentence_bert_config.json", {"do_lower_case": True}),
        ("sentence_bert_config.json", {"max_seq_length": None}),
        ("tokenizer_config.json", {"do_lower_case": False}),
        ("tokenizer_config.json", {"strip_accents": True}),
        ("tokenizer.json", {"normalizer": None}),
        ("tokenizer.json", {"model": {"type": "BPE"}}),
        ("config_sentence_transformers.json", {"default_prompt_name": "query"}),
    ],
)
def test_what_asks_for_more_is_not_plain(copied, file, changed):
    change(copied / file, **changed)
    with pytest.raises(NotPlainError):
        plain_bert(copied)


@pytest.mark.parametrize("types", [["Transformer"], ["Transformer", "Pooling", "Dense"]])
def test_other_modules_are_not_plain(copied, types):
    modules = [{"type": f"x.{name}", "path": name} for name in types]
    (copied / "modules.json").write_text(json.dumps(modules))
    with pytest.raises(NotPlainError, match=r"modules\.json"):
        plain_bert(copied)


@pytest.mark.parametrize(
    "missing", ["modules.json", "tokenizer.json", "model.safetensors", "sentence_bert_config.json"]
)
def test_a_file_that_is_missing_or_damaged_is_not_plain(copied, missing):
    (copied / missing).unlink()
    with pytest.raises(NotPlainError):
        plain_bert(copied)
    if missing != "model.safetensors":
        (copied / missing).write_text("[1, 2")
        with pytest.raises(NotPlainError):
            plain_bert(copied)


def test_a_model_that_is_not_plain_runs_on_sentence_transformers(copied, caplog):
    change(copied / "1_Pooling" / "config.json", pooling_mode_cls_token=True)
    change(copied / "1_Pooling" / "config.json", pooling_mode_mean_tokens=False)
    with caplog.at_level(logging.INFO, "embeddings"):
        found = load_encoder(EncoderSettings(str(copied), "cpu", threads=1))
    assert "m runs on sentence-transformers: 1_Pooling/config.json" in caplog.text
    assert float(found.encode(["a question"])[0] @ found.encode(["a question"])[0]) > 0.999


@pytest.mark.parametrize("library", ["torch", "sentence_transformers"])
def test_where_that_is_not_installed_it_is_said_what_to_install(copied, monkeypatch, library):
    change(copied / "1_Pooling" / "config.json", pooling_mode_cls_token=True)
    monkeypatch.delitem(sys.modules, "embeddings.encoder.torch", raising=False)
    monkeypatch.setitem(sys.modules, library, None)
    expected = f"m needs {library}, which is not installed: pip install 'refrain-gateway"
    with pytest.raises(ModelError, match=expected):
        load_encoder(EncoderSettings(str(copied), "cpu", threads=1))


@pytest.mark.parametrize("device", ["auto", "cuda"])
def test_a_gpu_is_left_to_torch(monkeypatch, device):
    import torch

    loaded = []
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(encoder_module, "_CUDA_DEVICES", (locate(DEFAULT_MODEL).directory,))
    monkeypatch.setattr(
        "embeddings.encoder.torch.load_torch_model", lambda *made: loaded.append(made) or 1 / 0
    )
    with pytest.raises(Exception, match="division"):
        load_encoder(EncoderSettings(DEFAULT_MODEL, device, threads=1))
    assert loaded[0][1] == device


def test_a_driver_without_torch_is_of_no_use(monkeypatch):
    monkeypatch.setitem(sys.modules, "torch", None)
    monkeypatch.setattr(encoder_module, "_CUDA_DEVICES", (locate(DEFAULT_MODEL).directory,))
    loaded = load_encoder(EncoderSettings(DEFAULT_MODEL, "auto", threads=1))
    assert isinstance(loaded._model, OnnxSentenceModel)


@given(st.lists(st.integers(1, 256)))
def test_texts_of_one_pass_are_alike_and_none_is_left_out(lengths):
    groups = list(_alike(lengths))
    assert sorted(place for group in groups for place in group) == list(range(len(lengths)))
    for group in groups:
        found = [lengths[place] for place in group]
        assert max(found) <= 1.5 * min(found)
