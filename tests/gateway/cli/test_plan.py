"""What is to run, by what is installed."""

import sys

import pytest

from gateway.cli.process.plan import make_plan
from gateway.cli.terminal import CommandError, FailedError
from gateway.settings import SERVERS


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
    assert f"semantic lookup is off: {library} not installed; pip install" in caplog.text


@pytest.mark.parametrize(
    ("setting", "url", "library"),
    [
        ("store", "redis://someone:secret@redis", "redis"),
        ("vectors", "http://qdrant:6333", "qdrant_client"),
    ],
)
def test_settings_that_need_an_extra_name_it(tmp_path, monkeypatch, setting, url, library):
    monkeypatch.setenv(f"REFRAIN_{setting.upper()}", url)
    assert plan(tmp_path)
    monkeypatch.setitem(sys.modules, library, None)
    with pytest.raises(CommandError) as refused:
        plan(tmp_path)
    extra = library.removesuffix("_client")
    needs = f"needs the extra {extra}: pip install 'refrain-gateway[{extra}]'"
    assert str(refused.value) == f"{setting}: {url.partition('://')[0]}://… {needs}"


@pytest.mark.parametrize("setting", ["store", "vectors"])
def test_a_scheme_and_its_extra_are_one_row(tmp_path, monkeypatch, setting):
    monkeypatch.setenv(f"REFRAIN_{setting.upper()}", "new://host")
    with pytest.raises(CommandError, match=f"REFRAIN_{setting.upper()}: expected"):
        plan(tmp_path)
    monkeypatch.setitem(SERVERS[setting], "new", ("no_such_library", "new"))
    with pytest.raises(CommandError, match=f"^{setting}: new://… needs the extra new: pip install"):
        plan(tmp_path)


def test_the_demo_needs_torch(tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "torch", None)
    with pytest.raises(FailedError, match=r"needs torch: pip install 'refrain-gateway\[cpu\]'"):
        make_plan({"data_dir": str(tmp_path), "port": 0}, is_demo=True)


def test_a_reload_without_the_file_that_was_read_is_refused(tmp_path, monkeypatch):
    """Not all defaults, as at a start without such a file: gateway keys would be off."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "keys").touch()
    file = tmp_path / "refrain.yaml"
    file.write_text("upstream: http://127.0.0.1:9/v1\ngateway_keys: keys\ndata_dir: data\n")
    first = make_plan({"port": 0}, is_demo=False)
    assert first.config == "refrain.yaml"
    again = {"port": 0, "upstream": ["http://127.0.0.1:9/v1"], "config": first.config}
    assert make_plan(again, is_demo=False, in_force=first.worker_settings).config == first.config
    file.unlink()
    with pytest.raises(CommandError, match=r"refrain\.yaml: cannot be read: No such file"):
        make_plan(again, is_demo=False, in_force=first.worker_settings)


def test_the_embeddings_service_logs_as_the_gateway_does(tmp_path, monkeypatch):
    monkeypatch.setenv("REFRAIN_LOG_LEVEL", "warning")
    argv = " ".join(plan(tmp_path).embeddings)
    assert "--log-level warning --log-format auto" in argv


def test_a_path_that_is_no_text_is_refused_by_its_setting(tmp_path, monkeypatch):
    monkeypatch.setenv("REFRAIN_GATEWAY_KEYS", "k\udce9ys")
    with pytest.raises(CommandError) as refused:
        plan(tmp_path)
    assert str(refused.value) == r"gateway_keys: expected a path in UTF-8, got 'k\udce9ys'"
