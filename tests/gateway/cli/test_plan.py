"""What is to run, by what is installed."""

import sys

import pytest

from gateway.cli.plan import make_plan


def plan(data_dir):
    flags = {"upstream": ["http://127.0.0.1:9/v1"], "data_dir": str(data_dir), "port": 0}
    return make_plan(flags, is_demo=False)


@pytest.mark.parametrize("library", ["torch", "sentence_transformers"])
def test_semantic_lookup_needs_no_torch(tmp_path, monkeypatch, library):
    monkeypatch.setitem(sys.modules, library, None)
    assert plan(tmp_path).embeddings


@pytest.mark.parametrize("library", ["faiss", "onnxruntime"])
def test_semantic_lookup_is_off_without_its_libraries(tmp_path, monkeypatch, caplog, library):
    monkeypatch.setitem(sys.modules, library, None)
    assert plan(tmp_path).embeddings is None
    assert f"semantic lookup is off: {library} not installed" in caplog.text
