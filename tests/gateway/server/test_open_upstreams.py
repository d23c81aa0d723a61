"""The long form of upstreams: what it may say, how a wrong one is told, where keys come from."""

import asyncio
from pathlib import Path
from typing import Any

import pytest

from gateway.cache.ports import StoreStats
from gateway.server.open.secrets import SecretSettingError, warn_of_shared_credentials
from gateway.server.open.upstreams import Upstreams, open_upstreams
from gateway.settings import Settings, SettingsError, load_settings
from gateway.telemetry.metrics import Metrics
from running_gateway import StartGateway

URL = "http://10.0.0.1:8000/v1"
FAR = ("https://a.example/v1", "https://b.example/v1")
CLIENTS = "the clients' credentials go"


def opened(environment: dict[str, str], *, own_keys: bool = True, **settings: Any) -> Upstreams:
    metrics = Metrics(lambda: StoreStats(0, 0, 0))
    return open_upstreams(
        Settings(**settings), environment, own_keys=own_keys, required=False, metrics=metrics
    )


def test_the_long_form_is_read_from_a_file(tmp_path: Path):
    file = tmp_path / "refrain.yaml"
    file.write_text(
        f"upstreams:\n  - url: {URL}/\n    models: ['qwen*']\n    tier: 2\n"
        "  - url: https://api.example.com/v1\n    name: far\n    api_key_env: FAR_KEY\n"
    )
    settings = load_settings({}, {}, file)
    near, far = settings.all_upstreams
    assert (near.url, near.label, near.models, near.tier) == (URL, "10.0.0.1:8000", ("qwen*",), 2)
    assert (far.label, far.models, far.api_key_env) == ("far", ("*",), "FAR_KEY")
    assert settings.upstream_identity == URL


@pytest.mark.parametrize(
    ("text", "told"),
    [
        ("- url: ftp://a", ":2: upstreams[0].url: expected a URL such as"),
        ("- name: a", ":2: upstreams[0].url: "),
        ("- url: http://a/v1\n    tier: first", ":3: upstreams[0].tier: expected a whole number"),
        ("- url: http://a/v1\n    tiers: 1", ":3: upstreams[0].tiers: expected a known key (such"),
        ("- url: http://a/v1\n    name: a b", ":3: upstreams[0].name: expected a word of letters"),
        ("- url: http://a/v1\n    probe: never", ":3: upstreams[0].probe: expected auto, off or"),
        ("- url: http://a/v1\n    max_concurrency: 0", ":3: upstreams[0].max_concurrency: "),
        ("- url: http://a/v1\n  - url: http://a/v1", ":1: upstreams: expected a separate name"),
        (
            "- url: http://a/v1\n    accepts: [usage]",
            ":3: upstreams[0].accepts[0]: expected 'stream-usage' or 'hints', got 'usage'",
        ),
        ("- url: http://a/v1\n    api_key_file: k\n    api_key_env: K", "not both"),
    ],
)
def test_a_wrong_upstream_is_told_with_file_line_and_key(tmp_path: Path, text: str, told: str):
    file = tmp_path / "refrain.yaml"
    file.write_text(f"upstreams:\n  {text}\n")
    with pytest.raises(SettingsError) as error:
        load_settings({}, {}, file)
    assert f"{file}{told}" in str(error.value) or told == "not both"
    assert told in str(error.value)


def test_a_key_in_the_place_of_a_variables_name_is_not_told(tmp_path: Path):
    file = tmp_path / "refrain.yaml"
    file.write_text("upstreams:\n  - url: http://a/v1\n    api_key_env: sk-very-secret\n")
    with pytest.raises(SettingsError, match="expected the name of an environment variable") as told:
        load_settings({}, {}, file)
    assert "very-secret" not in str(told.value)


@pytest.mark.parametrize(
    ("given", "accepts"),
    [("none", set()), ("hints", {"hints"}), ("stream-usage hints", {"stream-usage", "hints"})],
)
def test_what_one_upstream_accepts_may_stand_in_a_variable(given: str, accepts: set[str]):
    settings = load_settings({"upstream": [URL]}, {"REFRAIN_UPSTREAM_ACCEPTS": given}, None)
    assert set(settings.upstream_accepts) == accepts


def test_a_wrong_addition_in_a_variable_is_told():
    with pytest.raises(SettingsError, match="REFRAIN_UPSTREAM_ACCEPTS: expected 'stream-usage'"):
        load_settings({"upstream": [URL]}, {"REFRAIN_UPSTREAM_ACCEPTS": "usage"}, None)


def test_one_form_only(tmp_path: Path):
    file = tmp_path / "refrain.yaml"
    file.write_text(f"upstreams:\n  - url: {URL}\n")
    with pytest.raises(SettingsError, match="expected upstream or upstreams, not both"):
        load_settings({"upstream": [URL]}, {}, file)


def test_the_long_form_has_no_place_in_a_variable():
    with pytest.raises(SettingsError, match=r"^REFRAIN_UPSTREAMS: expected a list of mappings, in"):
        load_settings({}, {"REFRAIN_UPSTREAMS": URL}, None)


def test_one_url_alone_is_a_pool_of_one():
    alone = opened({}, upstream=(URL,))
    assert alone.upstream.name == URL
    state = {"state": "up", "why": None, "in_flight": 0}
    assert alone.details() == {"upstreams": {URL.split("/")[2]: state}}
    assert not alone.overloaded("m", None)


@pytest.mark.parametrize("name", [None, "house"])
def test_one_more_replica_changes_no_key(name: str | None):
    before = opened({}, upstream=(URL,), upstream_name=name)
    after = opened({}, upstream=(URL, "http://10.0.0.2:8000/v1"), upstream_name=name)
    assert before.upstream.name == after.upstream.name == (name or URL)


def test_replicas_of_one_host_are_called_by_their_urls():
    several = opened({}, upstream=("http://a/x/v1", "http://a/y/v1", "http://a/x/v1"))
    assert list(several.each) == ["http://a/x/v1", "http://a/y/v1"]


def test_a_workers_share_of_the_limits():
    one = {"url": URL, "max_concurrency": 9, "requests_per_minute": 1}
    [upstream] = opened({}, upstreams=(one,), workers=4).pool.table.upstreams.values()
    assert (upstream.member.max_concurrency, upstream.member.requests_per_minute) == (2, 1)


@pytest.mark.parametrize(
    ("environment", "own_keys", "told"),
    [
        ({}, True, "upstream a: api_key_env: the environment variable KEY is not set"),
        ({"KEY": "two words"}, True, "upstream a: KEY: expected a key: one word of ASCII"),
        ({"KEY": "k"}, False, "upstream a: KEY is given, but not gateway_keys"),
    ],
)
def test_a_key_that_may_not_be_used_is_told(environment, own_keys, told):
    one = {"url": URL, "name": "a", "api_key_env": "KEY"}
    with pytest.raises(SecretSettingError) as error:
        opened(environment, own_keys=own_keys, upstreams=(one,))
    assert told in str(error.value)


def test_a_key_file_that_is_not_there_is_told(tmp_path: Path):
    one = {"url": URL, "name": "a", "api_key_file": tmp_path / "none"}
    with pytest.raises(SecretSettingError, match=r"upstream a: .*none: No such file"):
        opened({}, upstreams=(one,))


@pytest.mark.parametrize(
    ("urls", "environment", "own_keys", "told"),
    [
        (FAR, {}, False, CLIENTS),
        (("http://10.0.0.1/v1", "https://b.example/v1"), {}, False, CLIENTS),
        (FAR, {"REFRAIN_UPSTREAM_API_KEY": "secret-key"}, True, "REFRAIN_UPSTREAM_API_KEY goes"),
        (FAR, {}, True, None),
        (("http://gpu-1:8000/v1", "http://10.0.0.1/v1", "http://[::1]/v1"), {}, False, None),
        (("http://a.svc.cluster.local/v1", "http://b.internal/v1"), {}, False, None),
        (("https://a.example:1/v1", "https://a.example:2/v1"), {}, False, None),
        (("https://a.example/v1",), {}, False, None),
    ],
)
def test_who_shares_credentials_with_other_hosts_is_warned_of_in_one_line(
    urls: tuple[str, ...],
    environment: dict[str, str],
    own_keys: bool,
    told: str | None,
    caplog: pytest.LogCaptureFixture,
):
    listed = [{"url": url, "name": f"up-{number}"} for number, url in enumerate(urls)]
    upstreams = Settings(upstreams=listed).all_upstreams
    warn_of_shared_credentials(upstreams, environment, own_keys=own_keys)
    lines = [record.getMessage() for record in caplog.records if record.levelname == "WARNING"]
    if told is None:
        assert lines == []
    else:
        [line] = lines
        assert line.startswith(f"{told} to upstreams of several hosts: up-0, up-1; ")
        assert "secret-key" not in line


def test_who_has_a_key_of_its_own_shares_nothing(caplog: pytest.LogCaptureFixture):
    near = {"url": "https://a.example/v1", "name": "near"}
    far = {"url": "https://b.example/v1", "name": "far", "api_key_env": "FAR_KEY"}
    environment = {"FAR_KEY": "secret", "REFRAIN_UPSTREAM_API_KEY": "common"}
    upstreams = Settings(upstreams=(near, far)).all_upstreams
    warn_of_shared_credentials(upstreams, environment, own_keys=True)
    assert not caplog.records


async def test_an_upstream_that_says_nothing_is_asked_once_whether_it_is_ready(
    start_gateway: StartGateway, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr("gateway.server.open.upstreams.PROBE_SECONDS", 0.05)
    asked = asyncio.Queue[None]()

    async def say_nothing(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        asked.put_nowait(None)
        await reader.read()  # to its end: the gateway gives up
        writer.close()
        await writer.wait_closed()

    async with await asyncio.start_server(say_nothing, "127.0.0.1", 0) as silent:
        port = silent.sockets[0].getsockname()[1]
        gateway = await start_gateway(upstream=(f"http://127.0.0.1:{port}/v1",))
        assert [(await gateway.get("/readyz")).status for _ in range(3)] == [200] * 3
    assert asked.qsize() == 1
