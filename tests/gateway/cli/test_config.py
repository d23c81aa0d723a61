"""`refrain config`: the verdict of `refrain serve`, each setting with its origin, the schema."""

import re

import orjson
import pytest
from jsonschema import Draft202012Validator
from jsonschema.exceptions import ValidationError

from gateway.cli.main import main
from gateway.cli.operator.config import json_schema
from gateway.settings import Settings, load_settings
from policies.format.yaml_document import read_document

UPSTREAM = "upstream: http://127.0.0.1:9/v1\n"


@pytest.fixture
def config(tmp_path, monkeypatch, capsys):
    """Run `refrain config` in a folder with a file of settings; return code, output, errors."""
    monkeypatch.chdir(tmp_path)

    def run(settings, *arguments):
        if settings is not None:
            (tmp_path / "refrain.yaml").write_text(settings)
        code = main(["config", *map(str, arguments)])
        told = capsys.readouterr()
        return code, told.out, told.err

    return run


def test_valid_settings_are_told_and_nothing_is_made(config, tmp_path):
    code, out, err = config(UPSTREAM + "read_timeout: 30s\n", "check", "--port", "99")
    assert (code, err) == (0, "")
    assert out == "refrain.yaml: valid; 3 settings given, the others have their defaults\n"
    assert [file.name for file in tmp_path.iterdir()] == ["refrain.yaml"]


@pytest.mark.parametrize(
    ("upstream", "limits", "told"),
    [
        ("models: [qwen3, other, 'gpt*']", "budget=1USD/day", "of other, qwen3: requests"),
        ("models: [qwen3, other]", "budget=1USD/day models=qwen*", "of qwen3: requests"),
        ("models: ['*']", "budget=1USD/day models=qwen3,gpt-4o", "of qwen3: requests"),
        ("models: [gpt-4o]", "budget=1USD/day", None),
        ("models: [qwen3], preset: vllm", "budget=1USD/day", None),
        ("models: [qwen3]", "soft_budget=1USD/day", None),
    ],
)
def test_a_budget_in_dollars_that_no_price_can_meet_is_a_warning(
    config, tmp_path, upstream, limits, told
):
    (tmp_path / "keys").write_text(f"ann {'0' * 64} {limits}\nbob {'1' * 64}\n")
    settings = f"gateway_keys: keys\nupstreams: [{{url: 'http://127.0.0.1:9/v1', {upstream}}}]\n"
    code, _, err = config(settings, "check")
    assert code == 0
    if told is None:
        assert err == ""
    else:
        assert err.startswith(
            "refrain: warning: keys: ann has a budget in dollars, and no price is known "
        )
        assert told in err


def test_no_file_is_needed(config):
    code, out, _ = config(None, "check", "--upstream", "http://127.0.0.1:9/v1")
    assert code == 0
    assert out.startswith("valid, without a file of settings; 1 setting given")


@pytest.mark.parametrize(
    ("settings", "arguments", "told"),
    [
        ("prot: 1\n", [], "refrain.yaml:1: prot: expected a known key (such as port)"),
        (UPSTREAM + "port: high\n", [], "refrain.yaml:2: port: expected a whole number"),
        ("", [], "no upstream: give --upstream URL"),
        (UPSTREAM, ["--port", "99999"], "--port: expected a number less than or equal to 65535"),
        (UPSTREAM, ["--policy", "no.yaml"], "policy: no.yaml: cannot be read: No such file"),
        (UPSTREAM + "gateway_keys: no\n", [], "gateway_keys: no: cannot be read: No such file"),
        (UPSTREAM + "prices: no.csv\n", [], "prices: no.csv: cannot be read: No such file"),
        (
            UPSTREAM + "store: rediss://h/0?ssl_ca_certs=no.pem\n",
            [],
            "store: ssl_ca_certs: no.pem cannot be read",
        ),
        (UPSTREAM + "decision_log: no/log\n", [], "decision_log: no is no folder"),
        (UPSTREAM + "data_dir: refrain.yaml\n", [], "the data directory refrain.yaml is a file"),
        (
            "upstreams: [{url: http://127.0.0.1:9/v1, name: a, discover: {file: no}}]\n",
            [],
            "upstream a: discover: no: cannot be read",
        ),
        (None, ["--config", "none.yaml"], "none.yaml: cannot be read: No such file"),
    ],
)
def test_a_fault_is_one_line_with_its_key(config, settings, arguments, told):
    code, out, err = config(settings, "check", *arguments)
    assert (code, out) == (2, "")
    assert [line.startswith(f"refrain: {told}") for line in err.splitlines()] == [True]


def test_a_wrong_variable_and_a_wrong_secret_are_named(config, monkeypatch):
    monkeypatch.setenv("REFRAIN_WORKERS", "many")
    assert "refrain: REFRAIN_WORKERS: expected a whole number" in config(UPSTREAM, "check")[2]
    monkeypatch.delenv("REFRAIN_WORKERS")
    monkeypatch.setenv("REFRAIN_SECRET", "guess-me")
    code, _, err = config(UPSTREAM, "check")
    assert code == 2
    assert "refrain: REFRAIN_SECRET: expected 64 hexadecimal digits" in err
    assert "guess-me" not in err


def test_all_faults_are_told_at_once(config, tmp_path):
    (tmp_path / "policy.yaml").write_text("version: 1\ndefault: {exact: maybe, semnatic: off}\n")
    settings = UPSTREAM + "policy: policy.yaml\nprices: no.csv\ndecision_log: no/log\n"
    code, _, err = config(settings, "check")
    assert code == 2
    lines = err.splitlines()
    assert sum("policy.yaml:2: " in line for line in lines) >= 2
    assert any("prices: no.csv" in line for line in lines)
    assert any("decision_log: no" in line for line in lines)


def test_each_setting_is_shown_with_its_origin(config, monkeypatch):
    monkeypatch.setenv("REFRAIN_WORKERS", "2")
    monkeypatch.setenv("REFRAIN_ADMIN_TOKEN", "guess-me")
    settings = UPSTREAM + "store_bytes: 2G\nport: 1\nworkers: 3\n"
    code, out, err = config(settings, "show", "--port", "99", "--json")
    assert (code, err) == (0, "")
    shown = orjson.loads(out)
    assert [*shown] == [*Settings.model_fields, "admin_token"]
    assert shown["port"] == {"value": 99, "from": "--port"}
    assert shown["workers"] == {"value": 2, "from": "REFRAIN_WORKERS"}
    assert shown["store_bytes"] == {"value": "2GiB", "from": "refrain.yaml:2"}
    assert shown["queue_size"] == {"value": 256, "from": "default"}
    assert shown["admin_token"] == {"value": "***", "from": "REFRAIN_ADMIN_TOKEN"}
    assert "guess-me" not in out
    _, out, _ = config(settings, "show", "--port", "99")
    rows = {line.split()[0]: line.split()[1:] for line in out.splitlines()}
    assert rows["port"] == ["99", "--port"]
    assert rows["ui"] == ["true", "default"]
    assert rows["vectors_timeout"] == ["50ms", "default"]
    assert rows["policy"] == ["none", "default"]


@pytest.mark.parametrize(
    ("store", "shown"),
    [
        ("redis://:guess-me@h:1/0", "redis://:***@h:1/0"),
        ("redis://ann:guess-me@h:1/0", "redis://ann:***@h:1/0"),
        ("redis://guess-me@h:1/0", "redis://***@h:1/0"),
        ("redis://h:1/0", "redis://h:1/0"),
        ("disk", "disk"),
    ],
)
def test_passwords_are_masked(config, store, shown):
    _, out, _ = config(UPSTREAM + f"store: {store}\n", "show")
    assert re.search(rf"^store +{re.escape(shown)} +refrain.yaml:2$", out, re.MULTILINE)
    assert "guess-me" not in out


def test_queries_headers_and_keys_of_upstreams_are_masked(config, monkeypatch):
    monkeypatch.setenv("A_KEY", "guess-me")
    settings = """\
upstreams:
- {url: "http://127.0.0.1:9/v1?team=guess-me", headers: {X-Team: guess-me}, api_key_env: A_KEY}
- {url: "http://127.0.0.1:8/v1", api_key_env: guess_me}
"""
    _, out, _ = config(settings, "show", "--json")
    first, second = orjson.loads(out)["upstreams"]["value"]
    assert first["query"] == {"team": "***"}
    assert first["headers"] == {"X-Team": "***"}
    assert first["api_key_env"] == "A_KEY"
    assert "api_key_env" not in second
    assert "guess" not in out
    _, out, _ = config("", "show", "--upstream", "http://127.0.0.1:9/v1?team=guess-me")
    assert "http://127.0.0.1:9/v1?team=***" in out


def test_wrong_settings_are_not_shown(config):
    code, out, err = config("prot: 1\n", "show")
    assert (code, out) == (2, "")
    assert "refrain.yaml:1: prot" in err


ACCEPTED = [
    "upstream: http://127.0.0.1:9/v1",
    "upstream: [http://127.0.0.1:9/v1, http://127.0.0.1:8/v1]",
    "{store_bytes: 2G, memory_bytes: 100, read_timeout: 30s, first_token_timeout: 2, ui: false}",
    "{upstream_accepts: none, log_format: json, port: 0}",
    "upstreams: [{preset: openai, headers: {X-Team: a, X-Key: {env: A_KEY}}, query: {v: 1}}]",
    "upstreams: [{url: http://127.0.0.1:9/v1, read_timeout: 10m, discover: {file: replicas}}]",
]
REFUSED = [
    "prot: 1",
    "port: 99999",
    "log_format: xml",
    "upstreams: [{name: a}]",
    "upstreams: [{url: http://127.0.0.1:9/v1, weights: 2}]",
    "store_bytes: true",
]


@pytest.mark.parametrize("text", ACCEPTED)
def test_the_schema_takes_what_the_gateway_takes(text, tmp_path):
    (tmp_path / "refrain.yaml").write_text(text)
    load_settings({}, {}, tmp_path / "refrain.yaml")
    Draft202012Validator(json_schema()).validate(read_document(text, "test").data)


@pytest.mark.parametrize("text", REFUSED)
def test_the_schema_refuses_what_the_gateway_refuses(text):
    with pytest.raises(ValidationError):
        Draft202012Validator(json_schema()).validate(read_document(text, "test").data)


def test_the_schema_is_printed_and_is_one(config):
    code, out, _ = config(None, "schema")
    assert code == 0
    schema = orjson.loads(out)
    Draft202012Validator.check_schema(schema)
    assert set(schema["properties"]) == set(Settings.model_fields)


def test_values_with_units_are_read_as_they_are_shown():
    settings = Settings(memory_bytes=1000, read_timeout=0.1 + 0.2)
    assert Settings.model_validate_json(settings.model_dump_json()) == settings
    shown = settings.model_dump(mode="json")
    assert (shown["memory_bytes"], shown["client_timeout"]) == ("1000B", "5m")


def test_the_schema_takes_numbers_and_units():
    validator = Draft202012Validator(json_schema())
    for given in (30, 0.5, "30s", "500ms", "10 m", "2.5"):
        validator.validate({"read_timeout": given})
    for given in (2**30, "1GiB", "512 MB", "2097152"):
        validator.validate({"store_bytes": given})
    assert not validator.is_valid({"read_timeout": "soon"})
    assert not validator.is_valid({"store_bytes": "1ib"})
