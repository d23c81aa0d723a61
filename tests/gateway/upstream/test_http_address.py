"""Where a request goes and what it carries there: base path, fixed query, key, fixed headers."""

from hashlib import sha256
from pathlib import Path
from typing import Any

import pytest

from gateway.server.open.secrets import secret_faults
from gateway.settings import Settings
from running_gateway import StartGateway
from scripted_upstream import ScriptedUpstream

CLIENT = {"Authorization": "Bearer gw-key"}


@pytest.fixture
def keys(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Keys of the gateway's own, and an upstream's in ``KEY``."""
    monkeypatch.setenv("KEY", "sk-upstream")
    file = tmp_path / "keys"
    file.write_text(f"shop {sha256(b'gw-key').hexdigest()}\n")
    return file


def one(url: str, **more: Any) -> dict[str, Any]:
    return {"upstream": (), "upstreams": [{"url": url, "name": "a", "probe": "off", **more}]}


@pytest.mark.parametrize(
    ("base", "sent"),
    [
        ("/v1", "/v1/chat/completions"),
        ("/proxy/v1", "/proxy/v1/chat/completions"),
        ("/v1beta/openai", "/v1beta/openai/chat/completions"),
        ("/api/v3", "/api/v3/chat/completions"),
        ("/openai/deployments/d", "/openai/deployments/d/chat/completions"),
        ("/v1?api-version=2024-10-21", "/v1/chat/completions?api-version=2024-10-21"),
        ("/openai/v1?v=a b", "/openai/v1/chat/completions?v=a%20b"),
    ],
)
async def test_the_base_path_stands_in_the_place_of_v1(
    start_gateway: StartGateway, upstream: ScriptedUpstream, base: str, sent: str
):
    for form in (one(upstream.url + base), {"upstream": (upstream.url + base,)}):
        settings = Settings(**form).model_dump()
        gateway = await start_gateway(
            upstream=settings["upstream"], upstreams=settings["upstreams"]
        )
        await gateway.ask()
        assert upstream.requests[-1].raw_path == sent


async def test_other_paths_go_below_the_base_path_too(
    start_gateway: StartGateway, upstream: ScriptedUpstream
):
    gateway = await start_gateway(**one(f"{upstream.url}/v1beta/openai?v=1"))
    await gateway.get("/v1/files/a?limit=2")
    assert upstream.requests[-1].raw_path == "/v1beta/openai/files/a?limit=2&v=1"
    await gateway.get("/v1/models")
    assert upstream.requests[-1].raw_path == "/v1beta/openai/models?v=1"


async def test_the_fixed_query_replaces_the_clients_field_of_the_same_name(
    start_gateway: StartGateway, upstream: ScriptedUpstream
):
    gateway = await start_gateway(**one(f"{upstream.url}/v1", query={"api-version": "2"}))
    body = b'{"model":"m","messages":[{"role":"user","content":"a"}]}'
    await gateway.post("/v1/chat/completions?api-version=1&x=y", body)
    assert upstream.requests[-1].raw_path == "/v1/chat/completions?x=y&api-version=2"


@pytest.mark.parametrize(
    ("auth", "field"),
    [
        ("bearer", ("Authorization", "Bearer sk-upstream")),
        ("api-key", ("api-key", "sk-upstream")),
        ("x-api-key", ("x-api-key", "sk-upstream")),
    ],
)
async def test_the_key_goes_in_the_header_that_the_upstream_reads(
    start_gateway: StartGateway,
    upstream: ScriptedUpstream,
    keys: Path,
    auth: str,
    field: tuple[str, str],
):
    own = one(f"{upstream.url}/v1", auth=auth, api_key_env="KEY")
    gateway = await start_gateway(**own, gateway_keys=keys)
    await gateway.ask(headers=CLIENT)
    await gateway.get("/v1/files", headers=CLIENT)
    for request in upstream.requests[-2:]:
        credentials = {"authorization", "api-key", "x-api-key"}
        sent = [item for item in request.headers.items() if item[0].lower() in credentials]
        assert sent == [field]


async def test_an_upstream_without_auth_gets_no_credential_at_all(
    start_gateway: StartGateway, upstream: ScriptedUpstream
):
    gateway = await start_gateway(**one(f"{upstream.url}/v1", auth="none"))
    await gateway.ask(headers={**CLIENT, "x-api-key": "other"})
    assert upstream.requests[-1].headers.keys().isdisjoint({"Authorization", "x-api-key"})


def test_the_common_key_is_not_for_an_upstream_without_auth(monkeypatch: pytest.MonkeyPatch):
    from gateway.server.open.secrets import upstream_keys

    listed = ({"url": "http://a/v1", "auth": "none"}, {"url": "http://b/v1"})
    upstreams = Settings(upstreams=listed).all_upstreams
    keys = upstream_keys(upstreams, {"REFRAIN_UPSTREAM_API_KEY": "k"}, own_keys=True)
    assert keys == {"a": None, "b": "k"}


async def test_fixed_headers_replace_the_clients_and_their_values_stay_out_of_the_log(
    start_gateway: StartGateway,
    upstream: ScriptedUpstream,
    keys: Path,
    caplog: pytest.LogCaptureFixture,
    monkeypatch: pytest.MonkeyPatch,
):
    monkeypatch.setenv("PASS", "very-secret")
    headers = {"X-Team": "search", "X-Pass": {"env": "PASS"}}
    gateway = await start_gateway(**one(f"{upstream.url}/v1", headers=headers), gateway_keys=keys)
    await gateway.ask(headers={**CLIENT, "x-team": "mine", "X-Other": "stays"})
    sent = upstream.requests[-1].headers
    assert sent.getall("X-Team") == ["search"]
    assert (sent["X-Pass"], sent["X-Other"]) == ("very-secret", "stays")
    assert "very-secret" not in caplog.text


@pytest.mark.parametrize(
    ("environment", "own_keys", "told"),
    [
        ({}, True, "upstream a: headers: X-Pass: PASS: this environment variable is not set"),
        ({"PASS": "a\r\nX-B: c"}, True, "PASS: expected printable ASCII on one line"),
        ({"PASS": "hidden"}, False, "X-Pass: PASS is given, but not gateway_keys"),
    ],
)
def test_a_header_that_may_not_be_sent_is_told(
    environment: dict[str, str], own_keys: bool, told: str
):
    settings = Settings(**one("http://a/v1", headers={"X-Pass": {"env": "PASS"}}))
    [fault] = secret_faults(settings.all_upstreams, environment, own_keys=own_keys)
    assert told in fault.text
    assert "hidden" not in fault.text


async def test_another_fixed_query_finds_no_entry_of_the_one_before(
    start_gateway: StartGateway, upstream: ScriptedUpstream
):
    for version, cached in (("1", "miss"), ("1", "hit"), ("2", "miss")):
        gateway = await start_gateway(**one(f"{upstream.url}/v1?api-version={version}"))
        assert cached in (await gateway.ask()).cache
        await gateway.settle()
        await gateway.stop()
