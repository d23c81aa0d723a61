"""Personal data in whatever is sent or kept, in disguise or not, is neither stored nor shared."""

import asyncio
from base64 import b64encode
from typing import Any

import orjson
import pytest
from aiohttp import web

from running_gateway import RunningGateway, StartGateway
from scripted_upstream import ScriptedUpstream, completion, stream_of

MAIL = "ada@example.com"
PATH = "/v1/chat/completions"
BYPASS = "refrain; fwd=bypass; detail=pii"


@pytest.mark.parametrize(
    "change",
    [
        {"user": MAIL},
        {"safety_identifier": "+44 20 7946 0958"},
        {"prompt_cache_key": "4111 1111 1111 1111"},
        {"metadata": {"by": MAIL}},
        {"metadata": {MAIL: "yes"}},
        {"metadata": {"by": "ada%40example.com"}},
        {"model": f"m-{MAIL}"},
        {"made_up": {"deep": [MAIL]}},
        {MAIL: 1},
        {"chat_template_kwargs": {MAIL: True}},
        {"messages": [{"role": "user", "content": part} for part in ("ada@exam", "ple.com")]},
        {"messages": [{"role": "user", "content": "ada\u3164@\u200bexample.com"}]},
        {"messages": [{"role": "user", "content": "123<b>-45-</b>6789"}]},
    ],
    ids=repr,
)
async def test_a_request_with_personal_data_anywhere_is_not_stored(
    gateway: RunningGateway, upstream: ScriptedUpstream, change: dict[str, Any]
):
    for _ in range(2):
        assert (await gateway.ask(**change)).cache == BYPASS
    assert upstream.calls == 2


async def test_the_query_string_is_scanned(gateway: RunningGateway, upstream: ScriptedUpstream):
    raw = orjson.dumps({"model": "m", "messages": [{"role": "user", "content": "hi"}]})
    for _ in range(2):
        assert (await gateway.post(f"{PATH}?for=ada%40example.com", raw)).cache == BYPASS
    for expected in ("stored", "hit"):
        asked = await gateway.post(f"{PATH}?api-version=2024-10-21&key=0a1b2c3d4e5f", raw)
        assert expected in asked.cache
    assert upstream.calls == 3


@pytest.mark.parametrize("streamed", [False, True])
@pytest.mark.parametrize(
    "answer",
    [
        "Write to ada\u200b@example.com",
        "Write to ada&#64;example.com",
        f"Decode {b64encode(b'ada@example.com').decode()}",
    ],
    ids=ascii,
)
async def test_an_answer_with_personal_data_in_disguise_is_not_stored(
    gateway: RunningGateway, upstream: ScriptedUpstream, answer: str, streamed: bool
):
    async def reply(request: web.Request, body: dict[str, Any]) -> web.StreamResponse:
        if not body.get("stream"):
            return web.json_response(completion(answer))
        response = web.StreamResponse(headers={"Content-Type": "text/event-stream"})
        await response.prepare(request)
        for event in stream_of(answer):
            await response.write(event)
        return response

    upstream.answer = reply
    for _ in range(2):
        assert (await gateway.ask(stream=streamed)).text == answer
    assert upstream.calls == 2


async def test_what_is_stored_is_still_served_to_whoever_names_himself(
    gateway: RunningGateway, upstream: ScriptedUpstream
):
    assert (await gateway.ask()).cache.endswith("stored")
    assert "hit" in (await gateway.ask(user=MAIL)).cache
    assert upstream.calls == 1


async def test_a_user_named_by_an_address_has_a_cache_of_his_own(
    start_gateway: StartGateway, upstream: ScriptedUpstream, tmp_path: Any
):
    policy = tmp_path / "policy.yaml"
    policy.write_text(
        "version: 1\ndefault: {exact: on, semantic: off, freshness: 1h, scope: tenant, pii: user}\n"
    )
    gateway = await start_gateway(policy=policy)
    assert (await gateway.ask(user=MAIL)).cache.endswith("stored")
    assert "hit" in (await gateway.ask(user=MAIL)).cache
    assert (await gateway.ask(user="bob")).cache == "refrain; fwd=miss; stored"
    assert upstream.calls == 2


@pytest.mark.parametrize("personal_first", [True, False])
async def test_requests_of_one_key_share_no_call_where_one_sends_personal_data_beside_it(
    gateway: RunningGateway, upstream: ScriptedUpstream, personal_first: bool
):
    both, release = asyncio.Event(), asyncio.Event()

    async def reply(_request: web.Request, body: dict[str, Any]) -> web.StreamResponse:
        if upstream.calls == 2:
            both.set()
        await release.wait()
        return web.json_response(completion(f"for {body.get('metadata')}"))

    upstream.answer = reply
    changes: list[dict[str, Any]] = [{"metadata": {"by": MAIL}}, {}]
    if not personal_first:
        changes.reverse()
    first = asyncio.create_task(gateway.ask(**changes[0]))
    await upstream.arrived.wait()
    second = asyncio.create_task(gateway.ask(**changes[1]))
    await both.wait()
    release.set()
    asked = [await first, await second]
    personal, plain = asked if personal_first else asked[::-1]
    assert personal.cache == BYPASS
    assert plain.cache == "refrain; fwd=miss; stored"
    assert (await gateway.ask()).text == "for None"
