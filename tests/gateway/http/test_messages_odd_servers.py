"""/v1/messages in front of servers of chat completions that are not quite like OpenAI."""

from collections.abc import Iterable
from typing import Any

import orjson
import pytest
from aiohttp import web
from messages_api import TOOL, ask

from gateway.protocol.endpoints.messages import StreamedMessage
from running_gateway import RunningGateway
from scripted_upstream import DONE, ScriptedUpstream, chunk, completion

NULL = b"data: null\n\n"


def entry(index: int, arguments: str, name: str | None = None, **more: Any) -> dict[str, Any]:
    function = {"arguments": arguments} | ({"name": name} if name else {})
    return {"index": index, "function": function, **more}


def streams(upstream: ScriptedUpstream, events: Iterable[bytes]) -> None:
    """Let the server answer with these events, in small writes."""
    whole = b"".join(events)

    async def answer(request: web.Request, _body: dict[str, Any]) -> web.StreamResponse:
        response = web.StreamResponse(headers={"Content-Type": "text/event-stream"})
        await response.prepare(request)
        for start in range(0, len(whole), 97):
            await response.write(whole[start : start + 97])
        return response

    upstream.answer = answer


def told(asked: Any) -> dict[str, Any]:
    """Return a message in its plain form."""
    if not asked.headers["Content-Type"].startswith("text/event-stream"):
        return asked.json
    answer = StreamedMessage(assemble=True, max_bytes=10**6)
    answer.feed(asked.raw)
    return answer.result()


BY_TURNS = [
    chunk(delta={"role": "assistant", "content": ""}),
    chunk(delta={"tool_calls": [entry(0, "", "weather", id="a"), entry(1, "", "weather")]}),
    chunk(delta={"tool_calls": [entry(1, '{"city"'), entry(0, '{"city"')]}),
    NULL,
    chunk(delta={"tool_calls": [entry(1, ':"Rome"}')]}),
    chunk(delta={"tool_calls": [entry(0, ':"Bonn"}')]}),
    chunk(finish_reason="tool_calls"),
    DONE,
]


async def test_calls_by_turns_are_a_message_and_its_hits_are_equal(
    gateway: RunningGateway, upstream: ScriptedUpstream
):
    streams(upstream, BY_TURNS)
    missed = await ask(gateway, stream=True, tools=[TOOL])
    whole = told(missed)
    assert [block["input"] for block in whole["content"]] == [{"city": "Bonn"}, {"city": "Rome"}]
    assert whole["content"][0]["id"] == "a"
    assert whole["stop_reason"] == "tool_use"
    for stream in (True, False):
        hit = await ask(gateway, stream=stream, tools=[TOOL])
        assert "hit" in hit.cache
        assert told(hit) == whole
    assert upstream.calls == 1


@pytest.mark.parametrize("path", ["/v1/messages", "/v1/chat/completions"])
async def test_a_null_between_chunks_hinders_nothing(
    gateway: RunningGateway, upstream: ScriptedUpstream, path: str
):
    streams(
        upstream, [NULL, chunk(delta={"content": "Hi"}), NULL, chunk(finish_reason="stop"), DONE]
    )
    first = await ask(gateway, path=path, stream=True)
    assert b"Hi" in first.raw
    assert "hit" in (await ask(gateway, path=path, stream=True)).cache


async def test_an_answer_that_the_server_broke_off_is_an_error_and_none_that_it_did_not_name(
    gateway: RunningGateway, upstream: ScriptedUpstream
):
    finish = {"finish_reason": "error"}

    async def answer(_request: web.Request, _body: dict[str, Any]) -> web.Response:
        return web.json_response(completion("Half of", **finish))

    upstream.answer = answer
    broken = await ask(gateway)
    assert broken.status == 502
    assert broken.json["type"] == "error"
    finish["finish_reason"] = "eos"
    whole = await ask(gateway)
    assert (whole.status, whole.json["stop_reason"]) == (200, "end_turn")


async def test_an_error_in_an_array_has_its_message(
    gateway: RunningGateway, upstream: ScriptedUpstream
):
    async def answer(_request: web.Request, _body: dict[str, Any]) -> web.Response:
        return web.json_response([{"error": {"code": 400, "message": "Bad schema."}}], status=400)

    upstream.answer = answer
    for stream in (False, True):
        reply = await ask(gateway, stream=stream)
        assert (reply.status, reply.json["error"]["message"]) == (400, "Bad schema.")


SIGNED = {"google": {"thought_signature": "c2lnbmF0dXJl+/=="}}


@pytest.mark.parametrize("stream", [False, True])
async def test_gemini_gets_its_signature_back_from_hits_too(
    gateway: RunningGateway, upstream: ScriptedUpstream, stream: bool
):
    called = {
        "id": "call_1",
        "type": "function",
        "function": {"name": "weather", "arguments": '{"city":"Bonn"}'},
        "extra_content": SIGNED,
    }

    async def answer(request: web.Request, body: dict[str, Any]) -> web.StreamResponse:
        if any(turn["role"] == "tool" for turn in body["messages"]):
            [call] = body["messages"][-2]["tool_calls"]
            assert call == called
            assert body["messages"][-1]["tool_call_id"] == "call_1"
            return web.json_response(completion("Sunny."))
        if not body.get("stream"):
            said = {"role": "assistant", "content": None, "tool_calls": [called]}
            choice = {"index": 0, "message": said, "finish_reason": "tool_calls"}
            return web.json_response(completion("", choices=[choice]))
        response = web.StreamResponse(headers={"Content-Type": "text/event-stream"})
        await response.prepare(request)
        delta = {"tool_calls": [{**called, "index": 0}]}
        for event in (chunk(delta=delta), chunk(finish_reason="tool_calls"), DONE):
            await response.write(event)
        return response

    upstream.answer = answer
    for _ in range(2):
        said = told(await ask(gateway, stream=stream, tools=[TOOL]))
        result = {"type": "tool_result", "content": "sun", "tool_use_id": said["content"][0]["id"]}
        turns = [
            {"role": "user", "content": "Bonn?"},
            {"role": "assistant", "content": said["content"]},
            {"role": "user", "content": [result]},
        ]
        assert (await ask(gateway, messages=turns, tools=[TOOL])).status == 200
    assert upstream.calls == 2


async def test_a_server_that_refuses_thinking_gets_the_history_without_it(
    gateway: RunningGateway, upstream: ScriptedUpstream
):
    async def answer(_request: web.Request, body: dict[str, Any]) -> web.Response:
        if any("reasoning" in turn for turn in body["messages"]):
            return web.json_response({"detail": "extra field"}, status=422)
        return web.json_response(completion("Fine."))

    upstream.answer = answer
    thought = {"type": "thinking", "thinking": "Hm.", "signature": ""}
    turns = [
        {"role": "user", "content": "a"},
        {"role": "assistant", "content": [thought, {"type": "text", "text": "b"}]},
        {"role": "user", "content": "c"},
    ]
    reply = await ask(gateway, messages=turns)
    assert reply.status == 200
    first, second = upstream.bodies
    assert first["messages"][1]["reasoning"] == first["messages"][1]["reasoning_content"] == "Hm."
    assert second["messages"][1] == {"role": "assistant", "content": "b"}
    assert orjson.dumps(first["messages"][::2]) == orjson.dumps(second["messages"][::2])
