"""Requests that name no model in their body: Azure's paths, and a default."""

from hashlib import sha256
from pathlib import Path

import orjson
import pytest

from running_gateway import StartGateway
from scripted_upstream import ScriptedUpstream

CHAT = b'{ "messages": [{"role": "user", "content": "Hi"}]}'
DEPLOYMENT = "/openai/deployments/gpt-4o/chat/completions"


async def test_a_deployment_in_the_path_is_the_model_of_a_request_without_one(
    start_gateway: StartGateway, upstream: ScriptedUpstream
):
    gateway = await start_gateway()
    assert "miss" in (await gateway.post(f"{DEPLOYMENT}?api-version=1", CHAT)).cache
    assert upstream.raw == [CHAT[:-1] + b',"model":"gpt-4o"}']
    assert upstream.requests[-1].raw_path == "/v1/chat/completions?api-version=1"
    assert "hit" in (await gateway.post(f"{DEPLOYMENT}?api-version=1", CHAT)).cache
    other = DEPLOYMENT.replace("gpt-4o", "gpt-5")
    assert "miss" in (await gateway.post(f"{other}?api-version=1", CHAT)).cache


async def test_a_deployments_answer_is_that_of_the_endpoint(
    start_gateway: StartGateway, upstream: ScriptedUpstream
):
    gateway = await start_gateway()
    named = orjson.dumps({"model": "gpt-4o", **orjson.loads(CHAT)})
    assert "miss" in (await gateway.post("/v1/chat/completions", named)).cache
    assert "hit" in (await gateway.post(DEPLOYMENT, CHAT)).cache
    assert "hit" in (await gateway.post(DEPLOYMENT, named)).cache
    assert upstream.calls == 1


async def test_the_model_of_the_body_counts(
    start_gateway: StartGateway, upstream: ScriptedUpstream
):
    gateway = await start_gateway()
    await gateway.post(DEPLOYMENT, b'{"model":"mine",' + CHAT[1:])
    assert upstream.bodies[-1]["model"] == "mine"
    await gateway.post(DEPLOYMENT, b'{"model":null,' + CHAT[1:])
    assert upstream.raw[-1] == b'{"model":"gpt-4o",' + CHAT[1:]


@pytest.mark.parametrize(
    ("path", "body"),
    [
        ("completions", {"prompt": "Hi"}),
        ("embeddings", {"input": "Hi"}),
    ],
)
async def test_other_endpoints_of_a_deployment(
    start_gateway: StartGateway, upstream: ScriptedUpstream, path: str, body: dict[str, str]
):
    gateway = await start_gateway()
    await gateway.post(f"/openai/deployments/d/{path}", orjson.dumps(body))
    assert upstream.requests[-1].path == f"/v1/{path}"
    assert upstream.bodies == [{**body, "model": "d"}]


@pytest.mark.parametrize(
    ("path", "status"),
    [
        ("/openai/deployments/d%0A/chat/completions", 404),
        (f"/openai/deployments/{'d' * 300}/chat/completions", 404),
        ("/openai/deployments//chat/completions", 404),
        ("/openai/deployments/d/unheard/of", 404),
        ("/openai/deployments/a/b/chat/completions", 404),
    ],
)
async def test_a_path_that_is_none_of_azures_is_unknown(
    start_gateway: StartGateway, upstream: ScriptedUpstream, path: str, status: int
):
    reply = await (await start_gateway()).post(path, CHAT)
    assert (reply.status, reply.json["error"]["code"]) == (status, "unknown_url")
    assert upstream.calls == 0


async def test_a_deployment_needs_a_key_of_the_gateway_too(
    start_gateway: StartGateway, upstream: ScriptedUpstream, tmp_path: Path
):
    keys = tmp_path / "keys"
    keys.write_text(f"shop {sha256(b'gw-key').hexdigest()}\n")
    gateway = await start_gateway(gateway_keys=keys)
    assert (await gateway.post(DEPLOYMENT, CHAT)).status == 401
    assert (await gateway.post(DEPLOYMENT, CHAT, headers={"api-key": "gw-key"})).status == 200
    assert "api-key" not in upstream.requests[-1].headers


async def test_the_default_model_is_that_of_requests_without_one(
    start_gateway: StartGateway, upstream: ScriptedUpstream
):
    gateway = await start_gateway(default_model="house")
    for cached in ("miss", "hit"):
        assert cached in (await gateway.post("/v1/chat/completions", CHAT)).cache
    assert upstream.raw == [CHAT[:-1] + b',"model":"house"}']
    await gateway.ask(model="mine")
    assert upstream.bodies[-1]["model"] == "mine"
    await gateway.post("/v1/responses", b'{"prompt":{"id":"pmpt_1"}}')
    assert "model" not in upstream.bodies[-1]


async def test_without_a_default_a_request_without_a_model_is_only_forwarded(
    start_gateway: StartGateway, upstream: ScriptedUpstream
):
    gateway = await start_gateway()
    assert "bypass" in (await gateway.post("/v1/chat/completions", CHAT)).cache
    assert upstream.raw == [CHAT]


@pytest.mark.parametrize("given", [{}, {"default_model": "house"}])
async def test_a_key_for_some_models_gets_no_other_one_without_naming_it(
    start_gateway: StartGateway,
    upstream: ScriptedUpstream,
    tmp_path: Path,
    given: dict[str, str],
):
    keys = tmp_path / "keys"
    keys.write_text(f"shop {sha256(b'gw-key').hexdigest()} models=mine\n")
    gateway = await start_gateway(gateway_keys=keys, **given)
    path = "/v1/chat/completions" if given else DEPLOYMENT
    reply = await gateway.post(path, CHAT, headers={"api-key": "gw-key"})
    assert (reply.status, upstream.calls) == (403, 0)
