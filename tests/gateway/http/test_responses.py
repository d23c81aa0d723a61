"""The Responses API over HTTP: cached where nothing is kept upstream, on both wires."""

import asyncio
import json
from typing import Any

import openai
import orjson
import pytest
from aiohttp import web
from example_requests import plan_of
from scripted_responses import (
    call,
    event,
    events_of,
    message,
    reasoning,
    respond,
    response,
    send_events,
    text,
)

from policies.decision import Endpoint
from running_gateway import RunningGateway
from scripted_upstream import ScriptedUpstream

PATH = "/v1/responses"
LOGPROB = {"token": "a", "logprob": -0.5, "bytes": [97], "top_logprobs": []}
CITATION = {"type": "url_citation", "start_index": 0, "end_index": 1, "url": "u", "title": "t"}
ANSWERS = {
    "text": [message(text("a b"))],
    "two texts": [message(text("a"), text("b"))],
    "logprobs and citations": [message(text("a", logprobs=[LOGPROB], annotations=[CITATION]))],
    "call": [call('{"x": 1}')],
    "two calls": [call(), call(id="fc_2", call_id="call_2")],
    "custom call": [
        {
            "id": "ctc_1",
            "type": "custom_tool_call",
            "status": "completed",
            "call_id": "c",
            "name": "n",
            "input": "free text",
        }
    ],
    "reasoning": [
        reasoning("first", "second", encrypted_content="gAAAA"),
        message(text("so"), place=1),
    ],
    "reasoning text": [
        reasoning(content=[{"type": "reasoning_text", "text": "hm"}]),
        message(text("so"), place=1),
    ],
}


@pytest.fixture(autouse=True)
def _responding(upstream: ScriptedUpstream) -> None:
    upstream.answer = respond


async def ask(gateway: RunningGateway, given: Any = "q", *, headers: Any = None, **fields: Any):
    body = {"model": "m", "input": given, "store": False, **fields}
    return await gateway.post(PATH, orjson.dumps(body), headers=headers)


def last(reply: Any) -> dict[str, Any]:
    """Return the whole response of a stream's last event."""
    events = events_in(reply.raw)
    assert [one["sequence_number"] for one in events] == list(range(len(events)))
    assert events[-1]["type"] == "response.completed"
    return events[-1]["response"]


def events_in(raw: bytes) -> list[dict[str, Any]]:
    parts = [part.split(b"\n") for part in raw.split(b"\n\n") if part]
    for name, data in parts:
        assert orjson.loads(data[6:])["type"] == name[7:].decode()
    return [orjson.loads(data[6:]) for _, data in parts]


@pytest.mark.parametrize("first", [False, True])
@pytest.mark.parametrize("second", [False, True])
async def test_one_entry_serves_both_wires(gateway, upstream, first, second):
    made = await ask(gateway, stream=first)
    found = await ask(gateway, stream=second)
    assert made.cache == ("refrain; fwd=miss" if first else "refrain; fwd=miss; stored")
    assert found.cache.startswith("refrain; hit; ttl=")
    assert found.cache.endswith("detail=exact")
    whole = last(made) if first else made.json
    assert (last(found) if second else found.json) == whole
    assert found.headers["Content-Type"].startswith(
        "text/event-stream" if second else "application/json"
    )
    assert upstream.calls == 1


@pytest.mark.parametrize(
    ("fields", "detail"),
    [
        ({"store": True}, "store-true"),
        ({"store": None}, "store-true"),
        ({"background": True}, "background"),
        ({"conversation": "c"}, "conversation"),
        ({"previous_response_id": "r"}, "previous-response-id"),
        ({"prompt": {"id": "p"}}, "stored-prompt"),
        ({"tools": [{"type": "web_search"}]}, "web-search"),
        ({"tools": [{"type": "mcp", "server_label": "s"}]}, "hosted-tools"),
    ],
)
async def test_what_depends_on_more_than_the_request_bypasses(gateway, upstream, fields, detail):
    for _ in range(2):
        reply = await ask(gateway, **fields)
        assert reply.cache == f"refrain; fwd=bypass; detail={detail}"
    assert upstream.calls == 2


async def test_a_template_may_name_the_model(gateway, upstream):
    raw = orjson.dumps({"prompt": {"id": "p"}, "input": "q", "store": False})
    assert (await gateway.post(PATH, raw)).cache == "refrain; fwd=bypass; detail=stored-prompt"
    assert upstream.raw == [raw]


async def test_streams_are_forwarded_as_they_came(gateway, upstream):
    await ask(gateway, stream=True, stream_options={"include_obfuscation": False})
    assert upstream.bodies[0]["stream_options"] == {"include_obfuscation": False}
    await ask(gateway, "another", stream=True)
    assert "stream_options" not in upstream.bodies[1]


@pytest.mark.parametrize("name", ANSWERS)
async def test_whatever_is_in_a_response_comes_back_on_both_wires(gateway, upstream, name):
    whole = response(*ANSWERS[name])

    async def answer(_request: web.Request, _body: dict[str, Any]) -> web.StreamResponse:
        return web.json_response(whole)

    upstream.answer = answer
    mine = {"Authorization": "Bearer k"}
    assert (await ask(gateway, headers=mine)).cache == "refrain; fwd=miss; stored"
    assert (await ask(gateway, headers=mine)).json == whole
    assert last(await ask(gateway, headers=mine, stream=True)) == whole
    client = openai.AsyncOpenAI(base_url=f"{gateway.url}/v1", api_key="k", max_retries=0)
    async with client:
        client_reply = await client.responses.create(model="m", input="q", store=False)
        async with client.responses.stream(model="m", input="q", store=False) as stream:
            kinds = [one.type async for one in stream]
            final = await stream.get_final_response()
    assert upstream.calls == 1
    assert client_reply.to_dict()["output"] == whole["output"]
    assert [item.type for item in final.output] == [item["type"] for item in whole["output"]]
    assert client_reply.usage == final.usage
    assert client_reply.output_text == final.output_text
    assert kinds[:2] == ["response.created", "response.in_progress"]
    assert kinds[-1] == "response.completed"


async def test_the_caller_is_named_as_itself_and_never_as_another(gateway, upstream):
    names = {"metadata": {"ticket": "1"}, "user": "ann", "safety_identifier": "a"}
    first = await ask(gateway, **names, prompt_cache_key="k")
    assert first.json["user"] == "ann"
    second = await ask(gateway, metadata={"ticket": "2"}, user="bob")
    assert "hit" in second.cache
    assert second.json["metadata"] == {"ticket": "2"}
    assert second.json["user"] == "bob"
    assert second.json["safety_identifier"] is None
    assert second.json["prompt_cache_key"] is None
    bare = await ask(gateway, stream=True)
    assert last(bare) == response(message(text("You asked: q")))
    assert b'"ann"' not in bare.raw
    assert (await ask(gateway, **names, prompt_cache_key="k")).json == first.json
    assert upstream.calls == 1


@pytest.mark.parametrize("streamed", [False, True])
@pytest.mark.parametrize(
    ("changes", "declined"),
    [
        (
            {"status": "incomplete", "incomplete_details": {"reason": "max_output_tokens"}},
            "truncated",
        ),
        ({"status": "incomplete", "incomplete_details": {"reason": "content_filter"}}, "filtered"),
        ({"status": "failed", "error": {"code": "server_error", "message": "m"}}, "unclean"),
        ({"status": "cancelled"}, "unclean"),
        ({"output": []}, "empty"),
        ({"output": [message(text(""))]}, "empty"),
        ({"output": [reasoning("a")]}, "empty"),
        ({"output": [call("{")]}, "invalid-tool-call"),
        (
            {"output": [{"type": "web_search_call", "id": "w", "status": "completed"}]},
            "unknown-shape",
        ),
        ({"output": [message({"type": "refusal", "refusal": "No."})]}, "refusal"),
        ({"output": [message(text("a"), status="in_progress")]}, "unclean"),
        ({"output": None}, "unknown-shape"),
        # What no events can be made of.
        *(
            ({"output": [reasoning(content=content), message(text("a"), place=1)]}, "unknown-shape")
            for content in (5, "a", {"text": "a"}, [{"text": "a"}], [{"type": 5, "text": "a"}])
        ),
        ({"output": [message(text("a", annotations=5))]}, "unknown-shape"),
    ],
)
async def test_what_did_not_end_well_is_not_stored(gateway, upstream, changes, declined, streamed):
    whole = response(message(text("a"))) | changes

    async def answer(request: web.Request, _body: dict[str, Any]) -> web.StreamResponse:
        if streamed:
            status = whole["status"] if whole["status"] != "cancelled" else "failed"
            return await send_events(request, [event(f"response.{status}", response=whole)])
        return web.json_response(whole)

    upstream.answer = answer
    first = await ask(gateway, stream=streamed)
    if not streamed:
        assert first.cache == f"refrain; fwd=miss; detail={declined}"
        assert first.json == whole
    assert (await ask(gateway, stream=streamed)).cache.startswith("refrain; fwd=miss")
    assert upstream.calls == 2


async def test_a_response_too_deep_for_an_event_is_not_stored(gateway, upstream):
    deep = orjson.loads(b"[" * 253 + b"]" * 253)

    async def answer(_request: web.Request, _body: dict[str, Any]) -> web.StreamResponse:
        whole = {**response(message(text("a"))), "made_up": deep}
        return web.Response(body=orjson.dumps(whole), content_type="application/json")

    upstream.answer = answer
    assert (await ask(gateway)).cache == "refrain; fwd=miss; detail=unknown-shape"


async def test_another_caller_at_the_same_time_is_not_answered_as_the_first(gateway, upstream):
    go_on = asyncio.Event()

    async def slowly(request: web.Request, body: dict[str, Any]) -> web.StreamResponse:
        await go_on.wait()
        return await respond(request, body)

    upstream.answer = slowly
    first = asyncio.create_task(ask(gateway, metadata={"ticket": "1"}))
    async with asyncio.timeout(60):
        await upstream.arrived.wait()
        upstream.arrived.clear()
        second = asyncio.create_task(ask(gateway, metadata={"ticket": "2"}))
        await upstream.arrived.wait()
    go_on.set()
    assert (await first).json["metadata"] == {"ticket": "1"}
    assert (await second).json["metadata"] == {"ticket": "2"}


def test_misses_share_a_call_exactly_if_they_would_get_the_very_same_response():
    def coalescing_key(**fields: Any) -> bytes:
        body = {"model": "m", "input": "q", "store": False, **fields}
        return plan_of(body, endpoint=Endpoint.RESPONSES).coalescing_key

    assert coalescing_key() == coalescing_key(stream=True) == coalescing_key(user=None)
    ann = coalescing_key(user="ann", metadata={"a": "1", "b": "2"})
    assert ann == coalescing_key(metadata={"b": "2", "a": "1"}, user="ann")
    keys = {ann, coalescing_key(), coalescing_key(user="bob"), coalescing_key(metadata={"a": "1"})}
    assert len(keys) == 4


async def test_json_that_was_asked_for_must_be_json(gateway, upstream):
    reply = await ask(gateway, text={"format": {"type": "json_object"}})
    assert reply.cache == "refrain; fwd=miss; detail=invalid-json"


@pytest.mark.parametrize(
    "spoil",
    [
        lambda events: events[:-1],
        lambda events: [*events[:-1], event("error", code="x", message="m", param=None)],
        lambda events: [one.replace(b'"delta":"You"', b'"delta":"Me"') for one in events],
        lambda events: [*events[:-1], events[-1].replace(b"You asked", b"They asked")],
        lambda events: [*events[:-1], b"data: nothing\n\n"],
    ],
)
async def test_a_stream_that_breaks_or_contradicts_itself_is_not_stored(gateway, upstream, spoil):
    events = spoil(events_of(response(message(text("You asked: q")))))

    async def answer(request: web.Request, _body: dict[str, Any]) -> web.StreamResponse:
        return await send_events(request, events)

    upstream.answer = answer
    first = await ask(gateway, stream=True)
    assert first.raw.startswith(b"".join(events[:-1]))
    assert (await ask(gateway, stream=True)).cache == "refrain; fwd=miss"


async def test_a_last_event_without_output_is_completed_from_the_items_before_it(gateway, upstream):
    whole = response(message(text("a b")))
    *events, _ = events_of(whole)
    bare = event("response.completed", response={**whole, "output": []}, sequence_number=9)

    async def answer(request: web.Request, _body: dict[str, Any]) -> web.StreamResponse:
        return await send_events(request, [*events, bare])

    upstream.answer = answer
    await ask(gateway, stream=True)
    assert (await ask(gateway)).json == whole


async def test_an_upstream_without_the_endpoint_says_so_itself(gateway, upstream):
    async def absent(_request: web.Request, _body: dict[str, Any]) -> web.StreamResponse:
        error = {"message": "Invalid URL", "type": "invalid_request_error"}
        return web.json_response({"error": error}, status=404)

    upstream.answer = absent
    reply = await ask(gateway)
    assert (reply.status, reply.json["error"]["message"]) == (404, "Invalid URL")
    assert reply.cache == "refrain; fwd=miss; detail=upstream-status"


@pytest.mark.parametrize(
    ("fields", "param", "code"),
    [
        ({"model": 1}, "model", "invalid_type"),
        ({"input": 1}, "input", "invalid_type"),
        ({"input": ["a"]}, "input[0]", "invalid_type"),
        ({"stream": 2}, "stream", "invalid_type"),
        ({"store": "no"}, "store", "invalid_type"),
        ({"tools": {}}, "tools", "invalid_type"),
        ({"metadata": "x"}, "metadata", "invalid_type"),
    ],
)
async def test_what_openai_would_refuse_is_refused(gateway, upstream, fields, param, code):
    reply = await ask(gateway, **fields)
    assert reply.status == 400
    assert (reply.json["error"]["param"], reply.json["error"]["code"]) == (param, code)
    assert upstream.calls == 0


async def test_instructions_and_history_are_part_of_the_key(gateway, upstream):
    await ask(gateway, "q", instructions="Be brief.")
    for other in (
        await ask(gateway, "q"),
        await ask(gateway, "q", instructions="Be long."),
        await ask(gateway, [{"role": "user", "content": "q"}], instructions="Be brief."),
    ):
        assert other.cache == "refrain; fwd=miss; stored"
    assert upstream.calls == 4


async def test_personal_data_in_the_input_bypasses(gateway):
    reply = await ask(gateway, "I am ann.miller@example.org")
    assert reply.cache == "refrain; fwd=bypass; detail=pii"


@pytest.mark.parametrize("parts", [["x"], [None], [{"text": 5}, 1]])
async def test_content_of_odd_parts_is_the_upstreams_to_refuse(gateway, upstream, parts):
    reply = await ask(gateway, [{"type": "message", "role": "user", "content": parts}])
    assert (reply.status, upstream.calls) == (200, 1)


@pytest.mark.parametrize("named", [{"metadata": {"n": 2**70}}, {"prompt_cache_key": 2**70}])
async def test_a_caller_named_by_a_huge_number_is_answered_and_named_again(gateway, named):
    body = {"model": "m", "input": "q", "store": False, **named}
    replies = [await gateway.post(PATH, json.dumps(body).encode()) for _ in range(2)]
    assert [reply.status for reply in replies] == [200, 200]
    assert "hit" in replies[1].cache
    assert b"1180591620717411303424" in replies[1].raw
