"""All of an answer comes back: asked with the official client, on either wire, made on either.

Streams are put together by the client's own accumulator.
"""

from typing import Any

import openai
import orjson
import pytest
from aiohttp import web

from running_gateway import RunningGateway
from scripted_upstream import DONE, ScriptedUpstream, chunk, completion

TOKEN = {"token": "a", "logprob": -0.25, "bytes": [97], "top_logprobs": []}
LOGPROBS = {"content": [TOKEN, {**TOKEN, "token": "b", "bytes": [98]}], "refusal": None}
USAGE = {
    "prompt_tokens": 7,
    "completion_tokens": 3,
    "total_tokens": 10,
    "prompt_tokens_details": {"cached_tokens": 5, "audio_tokens": 0},
    "completion_tokens_details": {"reasoning_tokens": 2},
}


def called(place: int) -> dict[str, Any]:
    function = {"name": f"f{place}", "arguments": '{"city": "Z\\u00fcrich", "n": 1.0}'}
    return {"id": f"call_{place}", "type": "function", "function": function}


def said(content: str | None, finish: str = "stop", **more: Any) -> dict[str, Any]:
    logprobs = more.pop("logprobs", None)
    message = {"role": "assistant", "content": content, "refusal": None, **more}
    return {"message": message, "logprobs": logprobs, "finish_reason": finish}


CHOICES = {
    "one text": [said("a b")],
    "three choices": [said("a"), said("b"), said("c d")],
    "tool calls": [said(None, "tool_calls", tool_calls=[called(0), called(1)])],
    "text and a call": [said("Let me see.", "tool_calls", tool_calls=[called(0)])],
    "logprobs": [said("ab", logprobs=LOGPROBS)],
    "reasoning content": [said("so", reasoning_content="because of this")],
}


def whole(name: str) -> dict[str, Any]:
    choices = [{"index": place, **choice} for place, choice in enumerate(CHOICES[name])]
    return completion("", choices=choices, usage=USAGE, system_fingerprint="fp_1")


def in_events(reply: dict[str, Any], *, usage: bool) -> list[bytes]:
    """Return the stream an upstream would make of a reply, calls and texts in pieces."""
    events = []
    for choice in reply["choices"]:
        place, message = choice["index"], choice["message"]
        opening = {"role": "assistant", "content": None if message["content"] is None else ""}
        events.append(chunk(index=place, delta=opening))
        for field in ("reasoning_content", "content"):
            letters = message.get(field) or ""
            events += [chunk(index=place, delta={field: letter}) for letter in letters]
        if choice["logprobs"] is not None:
            events[1:] = [
                chunk(index=place, delta={"content": one["token"]}, logprobs={"content": [one]})
                for one in choice["logprobs"]["content"]
            ]
        for number, call in enumerate(message.get("tool_calls") or ()):
            function, given = call["function"], call["function"]["arguments"]
            head = {**call, "index": number, "function": {**function, "arguments": ""}}
            events.append(chunk(index=place, delta={"tool_calls": [head]}))
            for piece in (given[:9], given[9:]):
                delta = {"index": number, "function": {"arguments": piece}}
                events.append(chunk(index=place, delta={"tool_calls": [delta]}))
        events.append(chunk(index=place, finish_reason=choice["finish_reason"]))
    if usage:
        last = completion("", object="chat.completion.chunk", choices=[], usage=reply["usage"])
        events.append(b"data: " + orjson.dumps(last) + b"\n\n")
    return [*events, DONE]


async def ask(client: openai.AsyncOpenAI, asked: dict[str, Any], streamed: bool) -> dict[str, Any]:
    """Ask on one wire; return the answer in its plain form."""
    if not streamed:
        return (await client.chat.completions.create(**asked)).to_dict()
    options = {"include_usage": True}
    async with client.chat.completions.stream(**asked, stream_options=options) as stream:
        async for _ in stream:
            pass
        return (await stream.get_final_completion()).to_dict()


def meant(reply: dict[str, Any]) -> Any:
    """Return what an answer says; what is null or empty says nothing."""

    def told(value: Any) -> Any:
        if isinstance(value, list):
            return [told(item) for item in value]
        if not isinstance(value, dict):
            return value
        return {
            name: told(item)
            for name, item in value.items()
            if item not in (None, []) and not name.startswith("parsed")
        }

    choices = told(reply["choices"])
    for choice in choices:
        for place, call in enumerate(choice["message"].get("tool_calls", ())):
            assert call.pop("index", place) == place
    return choices, reply["usage"], reply["id"], reply["created"], reply["model"]


@pytest.mark.parametrize("asked_streamed", [False, True], ids=["plain", "streamed"])
@pytest.mark.parametrize("made_streamed", [False, True], ids=["from-plain", "from-streamed"])
@pytest.mark.parametrize("name", CHOICES)
async def test_all_of_an_answer_comes_back_on_either_wire(
    gateway: RunningGateway,
    upstream: ScriptedUpstream,
    name: str,
    made_streamed: bool,
    asked_streamed: bool,
):
    reply = whole(name)

    async def answer(request: web.Request, body: dict[str, Any]) -> web.StreamResponse:
        if not body.get("stream"):
            return web.json_response(reply)
        response = web.StreamResponse(headers={"Content-Type": "text/event-stream"})
        await response.prepare(request)
        for event in in_events(reply, usage=True):
            await response.write(event)
        return response

    upstream.answer = answer
    question = {"role": "user", "content": "q"}
    asked = {"model": "m", "messages": [question], "n": len(reply["choices"])}
    client = openai.AsyncOpenAI(base_url=f"{gateway.url}/v1", api_key="k", max_retries=0)
    async with client:
        made = await ask(client, asked, made_streamed)
        found = await ask(client, asked, asked_streamed)
    assert upstream.calls == 1
    assert meant(made) == meant(found) == meant(reply)
