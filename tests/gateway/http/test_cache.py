"""Ask twice, compute once: the gateway over HTTP in front of a scripted upstream."""

import asyncio
from typing import Any

import orjson
import pytest
from aiohttp import web

from running_gateway import RunningGateway, StartGateway
from scripted_upstream import DONE, ScriptedUpstream, chunk, completion, stream_of


async def test_the_second_time_is_an_exact_hit(gateway: RunningGateway, upstream: ScriptedUpstream):
    first = await gateway.ask()
    second = await gateway.ask()

    assert first.status == second.status == 200
    assert first.cache == "refrain; fwd=miss; stored"
    assert second.cache in (
        "refrain; hit; ttl=3600; detail=exact",
        "refrain; hit; ttl=3599; detail=exact",
    )
    assert int(second.headers["Age"]) in (0, 1)
    assert "Age" not in first.headers
    assert len(bytes.fromhex(second.headers["Refrain-Entry"])) == 32
    assert second.json == first.json
    assert upstream.calls == 1


async def test_key_order_and_neutral_fields_do_not_matter(
    gateway: RunningGateway, upstream: ScriptedUpstream
):
    await gateway.ask(temperature=1)
    raw = orjson.dumps(
        {
            "temperature": 1,
            "user": "anna",
            "metadata": {"a": "b"},
            "service_tier": "auto",
            "safety_identifier": "x",
            "prompt_cache_key": "k",
            "store": False,
            "messages": [{"content": "How do I reset my password?", "role": "user"}],
            "model": "m",
        }
    ).replace(b'"temperature":1', b'"temperature": 1.0')
    again = await gateway.post("/v1/chat/completions", raw)

    assert "hit" in again.cache
    assert upstream.calls == 1


def form_of(*names: str) -> dict[str, Any]:
    """Return a form of answers whose properties have this order."""
    schema = {"type": "object", "properties": {name: {"type": "string"} for name in names}}
    return {"type": "json_schema", "json_schema": {"name": "a", "schema": schema}}


async def test_an_answer_in_one_order_is_none_in_another(
    gateway: RunningGateway, upstream: ScriptedUpstream
):
    async def answer(_request: web.Request, body: dict[str, Any]) -> web.Response:
        asked = body["response_format"]["json_schema"]["schema"]["properties"]
        return web.json_response(completion(orjson.dumps(dict.fromkeys(asked, "x")).decode()))

    upstream.answer = answer
    orders = [("reasoning", "answer"), ("answer", "reasoning")] * 2
    together = [gateway.ask(response_format=form_of(*order)) for order in orders]
    for replies in (
        await asyncio.gather(*together),
        [await gateway.ask(response_format=form_of(*order)) for order in orders],
    ):
        texts = [reply.json["choices"][0]["message"]["content"] for reply in replies]
        assert [tuple(orjson.loads(text)) for text in texts] == orders
    assert "hit" in replies[0].cache
    assert upstream.calls == 2


@pytest.mark.parametrize(
    "change",
    [
        {"model": "other"},
        {"temperature": 0.5},
        {"seed": 2},
        {"top_k": 3},
        {"anything_unknown": True},
        {"messages": [{"role": "user", "content": "how do I reset my password?"}]},
        {"messages": [{"role": "user", "content": "How do I reset my password? "}]},
        {
            "messages": [
                {"role": "system", "content": "Be terse."},
                {"role": "user", "content": "How do I reset my password?"},
            ]
        },
    ],
)
async def test_any_other_field_makes_another_key(
    gateway: RunningGateway, upstream: ScriptedUpstream, change: dict[str, Any]
):
    await gateway.ask()
    changed = await gateway.ask(**change)

    assert changed.cache == "refrain; fwd=miss; stored"
    assert upstream.calls == 2


@pytest.mark.parametrize("stored_streamed", [False, True])
@pytest.mark.parametrize("asked_streamed", [False, True])
async def test_one_entry_serves_both_wires(
    gateway: RunningGateway,
    upstream: ScriptedUpstream,
    stored_streamed: bool,
    asked_streamed: bool,
):
    first = await gateway.ask(stream=stored_streamed)
    second = await gateway.ask(stream=asked_streamed)

    assert first.text == second.text == "You asked: How do I reset my password?"
    assert "hit" in second.cache
    assert upstream.calls == 1
    if asked_streamed:
        assert second.headers["Content-Type"].startswith("text/event-stream")
        assert second.raw.endswith(DONE)
        deltas = [event["choices"][0]["delta"] for event in second.events]
        assert deltas[0]["role"] == "assistant"
        assert second.events[-1]["choices"][0]["finish_reason"] == "stop"
        assert len({event["id"] for event in second.events}) == 1
        assert not any("usage" in event for event in second.events)
    else:
        assert second.json["usage"]["total_tokens"] == 10


async def test_usage_is_on_a_stream_only_where_it_was_asked_for(
    gateway: RunningGateway, upstream: ScriptedUpstream
):
    silent = await gateway.ask(stream=True)
    asked = await gateway.ask(stream=True, stream_options={"include_usage": True})

    assert upstream.bodies[0]["stream_options"] == {"include_usage": True}
    assert not any("usage" in event for event in silent.events)
    assert asked.events[-1]["usage"]["total_tokens"] == 10
    assert asked.events[-1]["choices"] == []


async def test_usage_and_cost_stay_on_a_stream_that_asks_as_openrouter_has_it(
    gateway: RunningGateway, upstream: ScriptedUpstream
):
    usage = {"prompt_tokens": 7, "completion_tokens": 3, "total_tokens": 10, "cost": 0.00042}

    async def answer(request: web.Request, _body: dict[str, Any]) -> web.StreamResponse:
        response = web.StreamResponse(headers={"Content-Type": "text/event-stream"})
        await response.prepare(request)
        last = orjson.dumps(completion("", object="chat.completion.chunk", choices=[], usage=usage))
        for event in (*stream_of("a b")[:-1], b"data: " + last + b"\n\n", DONE):
            await response.write(event)
        return response

    upstream.answer = answer
    for status in ("fwd=miss", "hit"):
        told = await gateway.ask(stream=True, usage={"include": True})
        assert status in told.cache
        assert told.events[-1]["usage"] == usage
    silent = await gateway.ask(stream=True, usage={"include": False})
    assert not any("usage" in event for event in silent.events)


async def test_events_reach_the_client_as_they_come(
    gateway: RunningGateway, upstream: ScriptedUpstream
):
    go_on = asyncio.Event()

    async def answer(request: web.Request, _body: dict[str, Any]) -> web.StreamResponse:
        response = web.StreamResponse(headers={"Content-Type": "text/event-stream"})
        await response.prepare(request)
        first, *rest = stream_of("slowly does it")
        await response.write(first)
        await go_on.wait()
        for event in rest:
            await response.write(event)
        return response

    upstream.answer = answer
    body = {"model": "m", "stream": True, "messages": [{"role": "user", "content": "hi"}]}
    async with (
        asyncio.timeout(60),
        gateway.session.post(f"{gateway.url}/v1/chat/completions", json=body) as reply,
    ):
        assert reply.headers["Cache-Status"] == "refrain; fwd=miss"
        head = await reply.content.readuntil(b"\n\n")
        assert b'"role":"assistant"' in head
        go_on.set()
        assert (await reply.read()).endswith(DONE)
    assert "hit" in (await gateway.ask("hi", stream=True)).cache


@pytest.mark.parametrize("streamed", [False, True])
async def test_a_client_that_is_gone_cancels_the_upstream_call(
    gateway: RunningGateway, upstream: ScriptedUpstream, streamed: bool
):
    async def answer(request: web.Request, _body: dict[str, Any]) -> web.StreamResponse:
        response = web.StreamResponse(headers={"Content-Type": "text/event-stream"})
        if streamed:
            await response.prepare(request)
            await response.write(chunk(delta={"role": "assistant", "content": "a"}))
        await asyncio.Event().wait()
        return response

    upstream.answer = answer
    body = {"model": "m", "stream": streamed, "messages": [{"role": "user", "content": "hi"}]}
    call = asyncio.create_task(
        gateway.session.post(f"{gateway.url}/v1/chat/completions", json=body)
    )
    async with asyncio.timeout(60):
        await upstream.arrived.wait()
        if streamed:
            (await call).close()
        else:
            call.cancel()
        await upstream.cancelled.wait()


async def _bare(request: web.Request, events: list[bytes]) -> web.StreamResponse:
    response = web.StreamResponse(headers={"Content-Type": "text/event-stream"})
    await response.prepare(request)
    for event in events:
        await response.write(event)
    return response


UNCLEAN = {
    "length": [chunk(delta={"content": "a"}), chunk(finish_reason="length"), DONE],
    "no end": [chunk(delta={"content": "a"})],
    "no done": [chunk(delta={"content": "a"}), chunk(finish_reason="stop")],
    "error": [chunk(delta={"content": "a"}), b'data: {"error": {"message": "x"}}\n\n', DONE],
    "not json": [
        chunk(delta={"content": "a"}),
        b"data: oops\n\n",
        chunk(finish_reason="stop"),
        DONE,
    ],
    "empty": [chunk(finish_reason="stop"), DONE],
    "unknown shape": [chunk(delta={"content": [1]}), chunk(finish_reason="stop"), DONE],
}


@pytest.mark.parametrize("events", UNCLEAN.values(), ids=UNCLEAN.keys())
async def test_a_stream_that_did_not_end_cleanly_is_not_stored(
    gateway: RunningGateway, upstream: ScriptedUpstream, events: list[bytes]
):
    upstream.answer = lambda request, _body: _bare(request, events)
    first = await gateway.ask(stream=True)
    second = await gateway.ask(stream=True)

    assert first.status == 200
    assert second.cache == "refrain; fwd=miss"
    assert upstream.calls == 2


@pytest.mark.parametrize(
    ("result", "reason"),
    [
        (completion("a", finish_reason="length"), "truncated"),
        (completion("a", finish_reason="content_filter"), "filtered"),
        (completion("", finish_reason="stop"), "empty"),
        (completion("a", choices=[]), "empty"),
        ({"unexpected": True}, "unknown-shape"),
    ],
)
async def test_an_incomplete_plain_answer_is_passed_on_but_not_stored(
    gateway: RunningGateway, upstream: ScriptedUpstream, result: dict[str, Any], reason: str
):
    async def answer(_request: web.Request, _body: dict[str, Any]) -> web.StreamResponse:
        return web.json_response(result)

    upstream.answer = answer
    first = await gateway.ask()

    assert first.json == result
    assert first.cache == f"refrain; fwd=miss; detail={reason}"
    assert (await gateway.ask()).cache == f"refrain; fwd=miss; detail={reason}"


async def test_completions_hit_exactly(gateway: RunningGateway, upstream: ScriptedUpstream):
    raw = orjson.dumps({"model": "m", "prompt": "Once upon a time"})
    first = await gateway.post("/v1/completions", raw)
    second = await gateway.post("/v1/completions", raw)

    assert first.cache == "refrain; fwd=miss; stored"
    assert "detail=exact" in second.cache
    assert second.json["choices"][0]["text"] == "You wrote: Once upon a time"
    assert upstream.calls == 1


async def test_other_paths_pass_through_untouched(
    gateway: RunningGateway, upstream: ScriptedUpstream
):
    async with gateway.session.put(
        f"{gateway.url}/v1/files/a%2Fb?x=1&x=2",
        data=b"\x00raw",
        headers={"Authorization": "Bearer k"},
    ) as reply:
        seen = await reply.json()
    assert reply.status == 201
    assert reply.headers["X-Upstream"] == "yes"
    assert seen == {"method": "PUT", "path": "/v1/files/a%2Fb?x=1&x=2", "body": "\x00raw"}
    assert upstream.requests[0].headers["Authorization"] == "Bearer k"
    models = await gateway.get("/v1/models")
    assert models.json["path"] == "/v1/models"


async def test_entries_survive_a_restart(start_gateway: StartGateway, upstream: ScriptedUpstream):
    before = await start_gateway()
    await before.ask()
    await before.stop()
    after = await start_gateway()

    assert "detail=exact" in (await after.ask()).cache
    assert upstream.calls == 1


async def test_the_clients_credential_reaches_the_upstream_and_separates_tenants(
    gateway: RunningGateway, upstream: ScriptedUpstream
):
    anna = {"Authorization": "Bearer anna"}
    await gateway.ask(headers=anna)
    assert upstream.requests[0].headers["Authorization"] == "Bearer anna"
    assert "hit" in (await gateway.ask(headers=anna)).cache
    for other in (
        {},
        {"Authorization": "Bearer bert"},
        {"api-key": "anna"},
        {"x-api-key": "anna"},
        {**anna, "OpenAI-Organization": "org"},
        {**anna, "OpenAI-Project": "proj"},
    ):
        assert (await gateway.ask(headers=other)).cache == "refrain; fwd=miss; stored", other
    assert upstream.calls == 7


@pytest.mark.parametrize(
    ("prompt", "answer"),
    [
        ("My mail is anna.smith@acme-corp.com", "Fine."),
        ("My card is 4111 1111 1111 1111", "Fine."),
        ("Who may I write to?", "Write to anna.smith@acme-corp.com please."),
    ],
)
@pytest.mark.parametrize("streamed", [False, True])
async def test_personal_data_is_neither_stored_nor_looked_up(
    gateway: RunningGateway, upstream: ScriptedUpstream, prompt: str, answer: str, streamed: bool
):
    async def reply(request: web.Request, body: dict[str, Any]) -> web.StreamResponse:
        if body.get("stream"):
            return await _bare(request, stream_of(answer))
        return web.json_response(completion(answer))

    upstream.answer = reply
    in_prompt = "Fine" in answer
    if in_prompt:
        expected = "refrain; fwd=bypass; detail=pii"
    else:
        expected = "refrain; fwd=miss" if streamed else "refrain; fwd=miss; detail=pii"
    for _ in range(2):
        asked = await gateway.ask(prompt, stream=streamed)
        assert asked.text == answer
        assert asked.cache == expected
    assert upstream.calls == 2
    page = (await gateway.get("/metrics")).raw.decode()
    counted = (
        'outcome="bypass",reason="pii"' if in_prompt else 'refrain_declined_total{reason="pii"'
    )
    assert counted in page
    assert "anna.smith" not in page


async def test_store_true_bypasses(gateway: RunningGateway, upstream: ScriptedUpstream):
    for _ in range(2):
        assert (await gateway.ask(store=True)).cache == "refrain; fwd=bypass; detail=store-true"
    assert upstream.calls == 2


async def test_request_directives(gateway: RunningGateway, upstream: ScriptedUpstream):
    def control(value: str) -> dict[str, str]:
        return {"Cache-Control": value}

    refused = await gateway.ask(headers=control("only-if-cached"))
    assert refused.status == 504
    assert refused.json["error"].keys() == {"message", "type", "param", "code"}
    assert "fwd" not in refused.cache
    assert upstream.calls == 0

    none = await gateway.ask(headers=control("no-store"))
    assert none.cache == "refrain; fwd=bypass; detail=no-store"
    fresh = await gateway.ask(headers=control("no-cache"))
    assert fresh.cache == "refrain; fwd=miss; stored"
    again = await gateway.ask(headers=control("no-cache"))
    assert again.cache == "refrain; fwd=request; stored; detail=no-cache"
    assert "hit" in (await gateway.ask(headers=control("only-if-cached, max-age=100"))).cache
    assert "fwd=request" in (await gateway.ask(headers=control("min-fresh=7200"))).cache
    assert upstream.calls == 4


@pytest.mark.parametrize(
    ("prompt", "cache"),
    [
        (["hello", "there"], "refrain; fwd=miss; stored"),
        ([15496, 995], "refrain; fwd=bypass; detail=pii"),
        ([[15496], [995]], "refrain; fwd=bypass; detail=pii"),
    ],
)
async def test_a_prompt_of_token_ids_cannot_be_scanned(
    gateway: RunningGateway, upstream: ScriptedUpstream, prompt: list[Any], cache: str
):
    async def reply(_request: web.Request, _body: dict[str, Any]) -> web.StreamResponse:
        choice = {"index": 0, "text": "x", "finish_reason": "stop", "logprobs": None}
        choices = [choice, {**choice, "index": 1}][: 1 if isinstance(prompt[0], int) else 2]
        return web.json_response(
            {"id": "c", "object": "text_completion", "created": 1, "model": "m", "choices": choices}
        )

    upstream.answer = reply
    raw = orjson.dumps({"model": "m", "prompt": prompt})
    assert (await gateway.post("/v1/completions", raw)).cache == cache
