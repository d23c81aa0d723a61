"""Where settings come from, which source wins, and how a wrong one is told."""

from pathlib import Path

import pytest

from gateway.settings import SettingsError, load_settings

URL = "http://127.0.0.1:1/v1"


def test_flags_win_over_environment_over_file_over_defaults(tmp_path: Path):
    file = tmp_path / "refrain.yaml"
    file.write_text(f"upstream: {URL}\nport: 1\nworkers: 2\nhost: 10.0.0.1\n")
    settings = load_settings(
        {"port": 3}, {"REFRAIN_PORT": "2", "REFRAIN_WORKERS": "4", "OTHER": "x"}, file
    )

    assert (settings.port, settings.workers, settings.host) == (3, 4, "10.0.0.1")
    assert settings.upstream == (URL,)
    assert load_settings({}, {}, None).port == 8080


def test_several_upstreams_from_the_environment():
    settings = load_settings({}, {"REFRAIN_UPSTREAM": "http://a/v1 http://b/v1/"}, None)
    assert settings.upstream == ("http://a/v1", "http://b/v1")


@pytest.mark.parametrize(
    ("text", "told"),
    [
        ("prot: 1\n", ":1: prot: expected a known key (such as port), got unknown key 'prot'"),
        ("port: many\n", ":1: port: expected a valid integer, got 'many'"),
        ("port: 70000\n", "port: expected a number less than or equal to 65535, got 70000"),
        ("log_level: loud\n", "expected one of debug, info, warning, error, got 'loud'"),
        ("upstream: [ftp://a/v1]\n", "expected a URL such as"),
        ("upstream: [http://a]\n", "ends in /v1"),
        ("upstream: http://a/v1?key=k\n", "expected no query in the URL of a: it ends in /v1"),
        ("upstream: ['http://a/v1#b']\n", "expected no query in the URL of a"),
        ("upstream: ['http://a:99999/v1']\n", "expected a URL such as"),
        ("upstream: ['http://[a/v1']\n", "expected a URL such as"),
        ("upstreams: [{url: 'http://a b/v1'}]\n", "expected a URL such as"),
        ("- a\n", "expected a mapping"),
        ("a: [\n", ":1: expected"),
        ("port: 1\nhost: a\nport: 2\n", ":3: port: expected"),
        ("upstream: [http://me:secret@a/v1]\n", "expected no user name or password"),
        ("vectors: http://me:secret@a\n", "REFRAIN_QDRANT_API_KEY"),
        ("vectors: qdrant\n", "expected faiss or a URL"),
        ("qdrant_api_key: k\n", "unknown key"),
    ],
)
def test_a_wrong_file_is_told_with_file_and_key(tmp_path: Path, text: str, told: str):
    file = tmp_path / "refrain.yaml"
    file.write_text(text)
    with pytest.raises(SettingsError) as error:
        load_settings({}, {}, file)
    assert str(file) in str(error.value)
    assert told in str(error.value)


def test_what_is_wrong_in_a_file_is_told_in_order_of_line(tmp_path: Path):
    file = tmp_path / "refrain.yaml"
    file.write_text("prot: 1\nstore_bytes: 5\nport: many\n")
    with pytest.raises(SettingsError) as error:
        load_settings({}, {}, file)
    lines = str(error.value).splitlines()
    assert [line.removeprefix(f"{file}:")[0] for line in lines] == ["1", "2", "3"]


def test_a_store_that_is_no_text_is_not_quoted(tmp_path: Path):
    file = tmp_path / "refrain.yaml"
    file.write_text("store: 4711\n")
    with pytest.raises(SettingsError, match=r"store: expected a valid string$") as error:
        load_settings({}, {}, file)
    assert "4711" not in str(error.value)


def test_a_missing_file_is_told(tmp_path: Path):
    with pytest.raises(SettingsError, match="cannot be read"):
        load_settings({}, {}, tmp_path / "none.yaml")


def test_a_wrong_variable_is_told_by_its_name():
    with pytest.raises(SettingsError, match=r"^REFRAIN_PORT: expected a valid integer, got 'tcp:"):
        load_settings({}, {"REFRAIN_PORT": "tcp://10.0.0.1:80"}, None)
