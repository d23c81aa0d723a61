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
        ("port: many\n", ":1: port: expected a whole number, got 'many'"),
        ("port: 70000\n", "port: expected a number less than or equal to 65535, got 70000"),
        ("log_level: loud\n", "expected one of debug, info, warning, error, got 'loud'"),
        ("access_log: loud\n", "expected true or false"),
        ("log_format: xml\n", "expected one of auto, text, json, got 'xml'"),
        ("upstream: [ftp://a/v1]\n", "expected a URL such as"),
        ("upstream: [http://a]\n", "expected a base path, as in http://a/v1"),
        (
            "upstream: http://a/v1?key=k\n",
            "expected no key in the query (key): its place is api_key",
        ),
        ("upstream: ['http://a/v1#b']\n", "expected no # in the URL of a"),
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
    with pytest.raises(
        SettingsError, match=r"store: expected a text \(put it in quotes\)$"
    ) as error:
        load_settings({}, {}, file)
    assert "4711" not in str(error.value)


def test_a_missing_file_is_told(tmp_path: Path):
    with pytest.raises(SettingsError, match="cannot be read"):
        load_settings({}, {}, tmp_path / "none.yaml")


def test_a_wrong_variable_is_told_by_its_name():
    with pytest.raises(SettingsError, match=r"^REFRAIN_PORT: expected a whole number, got 'tcp:"):
        load_settings({}, {"REFRAIN_PORT": "tcp://10.0.0.1:80"}, None)


@pytest.mark.parametrize(
    ("given", "size"),
    [
        ("1GB", 10**9),
        ("1GiB", 2**30),
        ("2G", 2**31),
        ("1.5MiB", 3 << 19),
        ("2097152", 2**21),
        ("4 mb", 4 * 10**6),
        ("1048576B", 2**20),
    ],
)
def test_sizes_take_units(given: str, size: int):
    assert load_settings({}, {"REFRAIN_STORE_BYTES": given}, None).store_bytes == size


@pytest.mark.parametrize(
    ("given", "seconds"),
    [("30s", 30), ("500ms", 0.5), ("10m", 600), ("1h", 3600), ("2.5", 2.5), ("45", 45)],
)
def test_times_take_units(given: str, seconds: float):
    assert load_settings({}, {"REFRAIN_READ_TIMEOUT": given}, None).read_timeout == seconds


@pytest.mark.parametrize(
    ("variable", "given", "told"),
    [
        ("REFRAIN_STORE_BYTES", "big", "expected a size such as 512MiB, 1GB or a number of bytes"),
        ("REFRAIN_STORE_BYTES", "1ib", "expected a size such as"),
        ("REFRAIN_STORE_BYTES", "1KiB", "expected a number greater than or equal to 1048576"),
        ("REFRAIN_READ_TIMEOUT", "soon", "expected a time such as 500ms, 30s, 10m or a number of"),
        ("REFRAIN_READ_TIMEOUT", "-1s", "expected a time such as"),
    ],
)
def test_a_size_or_time_that_is_none_is_told(variable: str, given: str, told: str):
    with pytest.raises(SettingsError) as error:
        load_settings({}, {variable: given}, None)
    assert str(error.value).startswith(f"{variable}: {told}")
    assert ", got " in str(error.value)


@pytest.mark.parametrize(
    ("text", "told"),
    [
        ("- {url: http://a/v1, models: qwen}", 'models: expected a list such as ["qwen"], got'),
        ("- {url: http://a/v1, models: []}", "models: expected at least one item"),
        ("- {urll: http://a/v1}", "url: expected the key url, which is not there"),
        ("- http://a/v1", "expected a mapping of keys, such as {url: "),
        ("- {url: 5}", "url: expected a text (put it in quotes)"),
        ("- {url: http://a/v1, tier: 1.5}", "tier: expected a whole number, got 1.5"),
    ],
)
def test_the_librarys_words_are_put_in_ours(tmp_path: Path, text: str, told: str):
    file = tmp_path / "refrain.yaml"
    file.write_text(f"upstreams:\n  {text}\n")
    with pytest.raises(SettingsError) as error:
        load_settings({}, {}, file)
    assert told in str(error.value)
    assert "Field required" not in str(error.value)
    assert "valid" not in str(error.value)


@pytest.mark.parametrize(
    ("given", "read"), [("1_000_000_000", 10**9), ("1GB", 10**9), ("+5000000", 5_000_000)]
)
def test_a_plain_number_of_bytes_is_one_however_it_is_written(given, read):
    assert load_settings({}, {"REFRAIN_STORE_BYTES": given}, None).store_bytes == read


@pytest.mark.parametrize(("given", "read"), [(".5", 0.5), ("5.", 5.0), ("1e1", 10.0), ("+5", 5.0)])
def test_a_plain_number_of_seconds_is_one_however_it_is_written(given, read):
    assert load_settings({}, {"REFRAIN_READ_TIMEOUT": given}, None).read_timeout == read


@pytest.mark.parametrize("given", ["-1", "nan", "inf"])
def test_what_is_no_time_is_refused(given):
    with pytest.raises(SettingsError, match=r"REFRAIN_READ_TIMEOUT: expected a (number|time)"):
        load_settings({}, {"REFRAIN_READ_TIMEOUT": given}, None)


@pytest.mark.parametrize("given", ["http://me:secret-pw@host/v1", "sk-secret-1"])
def test_what_stands_for_an_upstream_is_not_quoted(tmp_path, given):
    file = tmp_path / "refrain.yaml"
    file.write_text(f"upstreams: ['{given}']\n")
    with pytest.raises(SettingsError) as refused:
        load_settings({}, {}, file)
    assert "secret" not in str(refused.value)
    assert "expected a mapping" in str(refused.value)


@pytest.mark.parametrize(
    "given",
    [
        "http://me:hunter2@host/v1",
        "http://host/v1 http://me:hunter2@other/v1",
        "https://host/v1?key=hunter2",
        "https://host/v1#hunter2",
    ],
)
def test_a_secret_in_the_url_of_an_upstream_is_not_quoted(tmp_path, given):
    file = tmp_path / "refrain.yaml"
    file.write_text(f"upstream: {given.split()}\n")
    for flags, environment, source in (
        ({"upstream": given.split()}, {}, None),
        ({}, {"REFRAIN_UPSTREAM": given}, None),
        ({}, {}, file),
    ):
        with pytest.raises(SettingsError, match="expected no ") as refused:
            load_settings(flags, environment, source)
        assert "hunter2" not in str(refused.value)


def test_none_is_no_upstream():
    with pytest.raises(SettingsError, match="REFRAIN_UPSTREAM: expected a URL such as"):
        load_settings({}, {"REFRAIN_UPSTREAM": "none"}, None)
