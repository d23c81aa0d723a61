"""What a rule says of sampling, prompt length, finish reasons and personal data, over HTTP."""

from collections.abc import Awaitable, Callable
from typing import Any

import orjson
import pytest
from aiohttp import web

from running_gateway import RunningGateway, StartGateway
from scripted_upstream import ScriptedUpstream, completion

Start = Callable[..., Awaitable[RunningGateway]]


@pytest.fixture
def ruled(start_gateway: StartGateway, tmp_path: Any) -> Start:
    async def start(**settings: Any) -> RunningGateway:
        default = {
            "exact": "on",
            "semantic": "off",
            "freshness": "1h",
            "scope": "tenant",
            "pii": "bypass",
            **settings,
        }
        policy = tmp_path / "policy.yaml"
        lines = "".join(f"  {key}: {value}\n" for key, value in default.items())
        policy.write_text(f"version: 1\ndefault:\n{lines}")
        return await start_gateway(policy=policy)

    return start


def numbered(upstream: ScriptedUpstream, **changes: Any) -> None:
    async def answer(_request: web.Request, _body: dict[str, Any]) -> web.StreamResponse:
        return web.json_response(completion(f"Answer {upstream.calls}", **changes))

    upstream.answer = answer


@pytest.mark.parametrize(
    ("temperature", "cached"), [(None, True), (0, True), (0.3, True), (0.31, False), (2, False)]
)
async def test_what_is_asked_hotter_than_the_rule_allows_is_not_cached(
    ruled: Start, upstream: ScriptedUpstream, temperature: float | None, cached: bool
):
    gateway = await ruled(max_temperature=0.3)
    fields = {} if temperature is None else {"temperature": temperature}
    await gateway.ask(**fields)
    again = await gateway.ask(**fields)
    assert ("hit" in again.cache) is cached
    if not cached:
        assert again.cache == "refrain; fwd=bypass; detail=temperature"


@pytest.mark.parametrize("directive", ["", "no-store", "only-if-cached"])
async def test_a_prompt_that_is_too_long_is_refused_before_anything_else(
    ruled: Start, upstream: ScriptedUpstream, directive: str
):
    gateway = await ruled(max_prompt_tokens=100)
    refused = await gateway.ask("a" * 500, headers={"Cache-Control": directive})
    assert refused.status == 400
    assert refused.json["error"] == {
        "message": (
            "This prompt is too long: about 126 tokens, and at most 100 are allowed here. "
            "Please shorten it."
        ),
        "type": "invalid_request_error",
        "param": "messages",
        "code": "prompt_too_long",
    }
    assert refused.cache == "refrain; detail=prompt-too-long"
    assert upstream.calls == 0
    page = (await gateway.get("/metrics")).raw.decode()
    assert 'outcome="invalid",reason="prompt-too-long"' in page
    tokens = orjson.dumps({"model": "m", "prompt": list(range(101))})
    assert (await gateway.post("/v1/completions", tokens)).json["error"]["param"] == "prompt"
    fits = orjson.dumps({"model": "m", "prompt": list(range(100))})
    assert (await gateway.post("/v1/completions", fits)).status == 200


async def test_the_rule_says_with_which_end_an_answer_is_stored(
    ruled: Start, upstream: ScriptedUpstream
):
    numbered(upstream, finish_reason="length")
    gateway = await ruled(finish_reasons="[stop, length]")
    assert (await gateway.ask()).cache == "refrain; fwd=miss; stored"
    assert "hit" in (await gateway.ask()).cache


MAIL = "Write to anna.smith@acme-corp.com please."


@pytest.mark.parametrize(
    ("prompt", "answer"), [(MAIL, "Fine."), ("Who may I write to?", MAIL), (MAIL, MAIL)]
)
async def test_personal_data_is_kept_for_its_own_end_user(
    ruled: Start, upstream: ScriptedUpstream, prompt: str, answer: str
):
    async def reply(_request: web.Request, _body: dict[str, Any]) -> web.StreamResponse:
        return web.json_response(completion(answer))

    upstream.answer = reply
    gateway = await ruled(pii="user")
    assert (await gateway.ask(prompt, user="ann")).cache == "refrain; fwd=miss; stored"
    assert "detail=exact" in (await gateway.ask(prompt, user="ann")).cache
    assert (await gateway.ask(prompt, user="bob")).cache == "refrain; fwd=miss; stored"
    unnamed = (await gateway.ask(prompt)).cache
    assert unnamed.endswith("detail=pii")
    assert ("fwd=bypass" in unnamed) is (prompt == MAIL)
    assert upstream.calls == 3


async def test_what_is_clean_is_shared_by_all_end_users(ruled: Start, upstream: ScriptedUpstream):
    gateway = await ruled(pii="user")
    await gateway.ask(user="ann")
    for name in ("bob", "ann"):
        assert "detail=exact" in (await gateway.ask(user=name)).cache
    assert "detail=exact" in (await gateway.ask()).cache
    assert upstream.calls == 1


@pytest.mark.parametrize(
    ("path", "method", "status", "expected"),
    [
        ("/v1/models", "GET", 201, "refrain; fwd=bypass"),
        ("/v1/files", "POST", 201, "refrain; fwd=bypass"),
        ("/nowhere", "GET", 404, "refrain; detail=invalid-request"),
        ("/v1/chat/completions", "POST", 400, "refrain; detail=invalid-request"),
        ("/v1/../x", "GET", 404, "refrain; detail=invalid-request"),
    ],
)
async def test_every_path_says_what_the_cache_did(
    gateway: RunningGateway, path: str, method: str, status: int, expected: str
):
    async with gateway.session.request(method, gateway.url + path, data=b"{") as reply:
        assert (reply.status, reply.headers["Cache-Status"]) == (status, expected)


async def test_a_path_that_is_passed_through_says_so_when_the_upstream_is_gone(
    start_gateway: StartGateway,
):
    gateway = await start_gateway(upstream=("http://127.0.0.1:9/v1",))
    gone = await gateway.get("/v1/models")
    assert (gone.status, gone.cache) == (502, "refrain; fwd=bypass; detail=upstream-unreachable")
