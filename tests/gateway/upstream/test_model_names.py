"""Models by other names: what clients and upstreams call them, and unknown names."""

from collections.abc import AsyncIterator
from typing import Any

import orjson
import pytest
from aiohttp import web

from gateway.upstream.request import Outgoing, with_model
from running_gateway import StartGateway, start_app
from scripted_upstream import ScriptedUpstream

CHAT = "/v1/chat/completions"


@pytest.fixture
async def other() -> AsyncIterator[ScriptedUpstream]:
    """A second upstream."""
    scripted = ScriptedUpstream()
    app = web.Application()
    app.router.add_post(CHAT, scripted.handle)
    app.router.add_route("*", "/{tail:.*}", scripted.other)
    runner, scripted.url = await start_app(app)
    yield scripted
    await runner.cleanup()


def settings(*upstreams: tuple[ScriptedUpstream, dict[str, Any]], **more: Any) -> dict[str, Any]:
    listed = [
        {"name": name, "url": f"{one.url}/v1", "probe": "off", **given}
        for name, (one, given) in zip("ab", upstreams, strict=False)
    ]
    return {"upstream": (), "upstreams": listed, **more}


@pytest.mark.parametrize(
    ("raw", "sent"),
    [
        (
            b'{ "model" : "fast",\n "messages":[{"role":"user","content":"a \\"fast\\""}]}',
            b'{ "model" : "llama",\n "messages":[{"role":"user","content":"a \\"fast\\""}]}',
        ),
        (
            b'{"messages":[{"role":"user","content":"a","model":"fast"}],"x":1.0,"model":"fast"}',
            b'{"messages":[{"role":"user","content":"a","model":"fast"}],"x":1.0,"model":"llama"}',
        ),
        (
            b'{"seed":123456789012345678901234567890,"mod\\u0065l":"fast"}',
            b'{"seed":123456789012345678901234567890,"mod\\u0065l":"llama"}',
        ),
        (b'{"prompt":"\\ud83d","model":"fast"}', b'{"prompt":"\\ud83d","model":"llama"}'),
    ],
)
def test_only_the_models_bytes_change(raw: bytes, sent: bytes):
    assert with_model(raw, "llama") == sent


def test_a_body_that_is_known_is_not_parsed_again(monkeypatch: pytest.MonkeyPatch):
    raw = b'{"model":"fast","prompt":"a"}'
    monkeypatch.delattr("gateway.protocol.exact_json.parse_body")
    outgoing = Outgoing("/v1/completions", (), raw, "fast", body=orjson.loads(raw))
    assert outgoing.sent("llama") == b'{"model":"llama","prompt":"a"}'


async def test_an_upstream_gets_its_own_name_and_the_client_its_reply_unchanged(
    start_gateway: StartGateway, upstream: ScriptedUpstream
):
    gateway = await start_gateway(**settings((upstream, {"rename": {"fast": "llama"}})))
    raw = b'{"model": "fast", "messages": [{"role": "user", "content": "Hi"}] }'
    first = await gateway.post(CHAT, raw)
    assert upstream.raw == [raw.replace(b"fast", b"llama")]
    assert first.json["model"] == "scripted"
    assert "hit" in (await gateway.post(CHAT, raw)).cache
    await gateway.ask(model="llama", stream=True)
    await gateway.ask(model="fast", stream=True)
    assert [body["model"] for body in upstream.bodies] == ["llama"] * 3


async def test_a_second_call_without_additions_has_the_upstreams_name_too(
    start_gateway: StartGateway, upstream: ScriptedUpstream
):
    async def refuse(_request: web.Request, body: dict[str, Any]) -> web.StreamResponse:
        status = 400 if "stream_options" in body else 200
        return web.json_response({"model": body["model"]}, status=status)

    upstream.answer = refuse
    gateway = await start_gateway(**settings((upstream, {"rename": {"fast": "llama"}})))
    assert (await gateway.ask(model="fast", stream=True)).status == 200
    assert [body["model"] for body in upstream.bodies] == ["llama", "llama"]


async def test_an_alias_goes_to_the_upstreams_that_name_it(
    start_gateway: StartGateway, upstream: ScriptedUpstream, other: ScriptedUpstream
):
    gateway = await start_gateway(
        **settings((other, {}), (upstream, {"rename": {"fast": "llama"}}), upstream_routing="load")
    )
    for number in range(4):
        await gateway.ask(str(number), model="fast")
    assert (upstream.calls, other.calls) == (4, 0)


async def test_an_upstream_in_its_place_gets_its_own_name_of_the_model(
    start_gateway: StartGateway, upstream: ScriptedUpstream, other: ScriptedUpstream
):
    async def fail(_request: web.Request, _body: dict[str, Any]) -> web.StreamResponse:
        return web.json_response({}, status=500)

    upstream.answer = fail
    gateway = await start_gateway(
        **settings(
            (upstream, {"rename": {"fast": "llama"}}),
            (other, {"rename": {"fast": "mistral"}, "tier": 2}),
        )
    )
    assert (await gateway.ask(model="fast")).status == 200
    assert upstream.bodies[0]["model"] == "llama"
    assert other.bodies[0]["model"] == "mistral"


@pytest.mark.parametrize(
    "changed",
    [
        {"rename": {"fast": "mistral"}},
        {"rename": {"other": "llama"}},
        {"rename": {"fast": "llama"}, "query": {"v": "2"}},
    ],
)
async def test_an_alias_of_something_else_finds_no_older_entry(
    start_gateway: StartGateway, upstream: ScriptedUpstream, changed: dict[str, Any]
):
    before = {"rename": {"fast": "llama"}}
    named = {"upstream_name": "house"}
    for given, cached in ((before, "miss"), (before, "hit"), (changed, "miss"), (before, "hit")):
        gateway = await start_gateway(**settings((upstream, given), **named))
        assert cached in (await gateway.ask(model="fast")).cache
        await gateway.settle()
        await gateway.stop()


async def test_an_alias_that_moves_to_another_upstream_finds_no_older_entry(
    start_gateway: StartGateway, upstream: ScriptedUpstream, other: ScriptedUpstream
):
    alias = {"rename": {"fast": "llama"}}
    for first, second, cached in (
        (alias, {"models": ["x"]}, "miss"),
        (alias, alias, "hit"),
        ({"models": ["x"]}, alias, "miss"),
    ):
        gateway = await start_gateway(**settings((upstream, first), (other, second)))
        assert cached in (await gateway.ask(model="fast")).cache
        await gateway.settle()
        await gateway.stop()


async def test_a_model_that_no_upstream_declares_is_refused_with_those_that_are_there(
    start_gateway: StartGateway, upstream: ScriptedUpstream, other: ScriptedUpstream
):
    gateway = await start_gateway(
        **settings((upstream, {"models": ["qwen*"]}), (other, {"rename": {"fast": "llama"}}))
    )
    for model, declared in (("qwen-2", upstream), ("fast", other)):
        assert (await gateway.ask(model=model)).status == 200
        assert declared.calls == 1
    # The second upstream declares no globs, and so serves every name.
    assert (await gateway.ask(model="gpt-5")).status == 200
    strict = {"models": ["llama"], "rename": {"fast": "llama"}}
    gateway = await start_gateway(
        **settings((upstream, {"models": ["qwen*"]}), (other, strict)),
        data_dir=gateway.data_dir / "2",
    )
    calls = upstream.calls + other.calls
    reply = await gateway.ask(model="gpt-5")
    assert reply.status == 404
    assert reply.json["error"] == {
        "message": "The model 'gpt-5' does not exist. Models here: qwen*, fast, llama.",
        "type": "invalid_request_error",
        "param": "model",
        "code": "model_not_found",
    }
    assert upstream.calls + other.calls == calls
    assert (await gateway.ask(model="llama")).status == 200


async def test_an_unknown_model_passes_where_the_settings_say_so(
    start_gateway: StartGateway, upstream: ScriptedUpstream, other: ScriptedUpstream
):
    both = (upstream, {"models": ["qwen*"]}), (other, {"models": ["llama*"]})
    gateway = await start_gateway(**settings(*both, unknown_models="pass"))
    assert (await gateway.ask(model="gpt-5")).status == 200


async def test_the_list_of_models_has_the_aliases(
    start_gateway: StartGateway, upstream: ScriptedUpstream
):
    async def models(_request: web.Request) -> web.Response:
        listed = [{"id": name, "object": "model", "owned_by": "me"} for name in ("llama", "qwen")]
        return web.json_response({"object": "list", "data": listed})

    app = web.Application()
    app.router.add_get("/v1/models", models)
    runner, url = await start_app(app)
    upstream.url = url
    given = {"rename": {"fast": "llama", "deep": "unlisted"}, "models": ["qwen"]}
    gateway = await start_gateway(**settings((upstream, given)))
    data = (await gateway.get("/v1/models")).json["data"]
    assert [model["id"] for model in data] == ["fast", "deep", "qwen"]
    assert data[0]["owned_by"] == "me"
    assert data[1] == {"id": "deep", "object": "model", "created": 0, "owned_by": "refrain"}
    await runner.cleanup()


async def test_an_upstream_without_a_list_of_models_has_its_aliases(
    start_gateway: StartGateway, upstream: ScriptedUpstream
):
    runner, upstream.url = await start_app(web.Application())
    gateway = await start_gateway(**settings((upstream, {"rename": {"fast": "llama"}})))
    assert [model["id"] for model in (await gateway.get("/v1/models")).json["data"]] == ["fast"]
    await runner.cleanup()
