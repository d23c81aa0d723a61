"""Servers of Anthropic's Messages API and of chat completions, and requests to /v1/messages."""

from typing import Any

import orjson
from aiohttp import web

from running_gateway import Asked, RunningGateway
from scripted_upstream import DONE, chunk, completion

USAGE = {
    "prompt_tokens": 9,
    "completion_tokens": 3,
    "total_tokens": 12,
    "prompt_tokens_details": {"cached_tokens": 4},
}
WORDS = ("Hello", " there", ".")
ARGUMENTS = '{"city":"Paris"}'
CALL = ("weather", ARGUMENTS)
TOOL = {
    "name": "weather",
    "description": "The weather of a city.",
    "input_schema": {"type": "object", "properties": {"city": {"type": "string"}}},
}


def message(*content: dict[str, Any], stop: str = "end_turn") -> dict[str, Any]:
    """Return a message as Anthropic sends it."""
    return {
        "id": "msg_01",
        "type": "message",
        "role": "assistant",
        "model": "claude-x",
        "content": list(content),
        "stop_reason": stop,
        "stop_sequence": None,
        "usage": {"input_tokens": 5, "cache_read_input_tokens": 4, "output_tokens": 3},
    }


def _event(kind: str, **data: Any) -> bytes:
    return f"event: {kind}\ndata: ".encode() + orjson.dumps({"type": kind, **data}) + b"\n\n"


def _block(at: int, block: dict[str, Any], *deltas: dict[str, Any]) -> list[bytes]:
    return [
        _event("content_block_start", index=at, content_block=block),
        *(_event("content_block_delta", index=at, delta=delta) for delta in deltas),
        _event("content_block_stop", index=at),
    ]


def events_of(body: dict[str, Any], call: tuple[str, str] = CALL) -> list[bytes]:
    """Return the events of Anthropic's answer to a request."""
    name, arguments = call
    words = [{"type": "text_delta", "text": word} for word in WORDS]
    blocks = _block(0, {"type": "text", "text": ""}, *words)
    stop = "end_turn"
    if body.get("tools"):
        stop = "tool_use"
        begun = {"type": "tool_use", "id": "toolu_1", "name": name, "input": {}}
        pieces = (arguments[:5], arguments[5:])
        deltas = [{"type": "input_json_delta", "partial_json": piece} for piece in pieces]
        blocks += _block(1, begun, *deltas)
    start = {**message(), "stop_reason": None}
    start["usage"] = {**start["usage"], "output_tokens": 1}
    delta = {"stop_reason": stop, "stop_sequence": None}
    return [
        _event("message_start", message=start),
        _event("ping"),
        *blocks,
        _event("message_delta", delta=delta, usage={"output_tokens": 3}),
        _event("message_stop"),
    ]


async def as_anthropic(
    request: web.Request, body: dict[str, Any], *, call: tuple[str, str] = CALL
) -> web.StreamResponse:
    """Answer as Anthropic does: three words, and a call if there are tools."""
    if request.path.endswith("/count_tokens"):
        return web.json_response({"input_tokens": 11})
    if body.get("stream"):
        return await _stream(request, events_of(body, call))
    content: list[dict[str, Any]] = [{"type": "text", "text": "".join(WORDS)}]
    if not body.get("tools"):
        return web.json_response(message(*content))
    name, arguments = call
    given = orjson.loads(arguments)
    content.append({"type": "tool_use", "id": "toolu_1", "name": name, "input": given})
    return web.json_response(message(*content, stop="tool_use"))


async def as_openai(
    request: web.Request, body: dict[str, Any], *, call: tuple[str, str] = CALL
) -> web.StreamResponse:
    """Answer the same as a server of chat completions does."""
    name, arguments = call
    head = {"id": "toolu_1", "type": "function"}
    if not body.get("stream"):
        said: dict[str, Any] = {"role": "assistant", "content": "".join(WORDS)}
        finish = "stop"
        if body.get("tools"):
            finish = "tool_calls"
            function = {"name": name, "arguments": arguments}
            said["tool_calls"] = [{**head, "function": function}]
        choice = {"index": 0, "message": said, "finish_reason": finish}
        return web.json_response(completion("", choices=[choice], usage=USAGE))
    events = [chunk(delta={"role": "assistant", "content": ""})]
    events += (chunk(delta={"content": word}) for word in WORDS)
    finish = "stop"
    if body.get("tools"):
        finish = "tool_calls"
        begun = {"index": 0, **head, "function": {"name": name, "arguments": ""}}
        rest = {"index": 0, "function": {"arguments": arguments}}
        events += (chunk(delta={"tool_calls": [each]}) for each in (begun, rest))
    events.append(chunk(finish_reason=finish))
    if (body.get("stream_options") or {}).get("include_usage"):
        usage = completion("", object="chat.completion.chunk", choices=[], usage=USAGE)
        events.append(b"data: " + orjson.dumps(usage) + b"\n\n")
    return await _stream(request, [*events, DONE])


async def _stream(request: web.Request, events: list[bytes]) -> web.StreamResponse:
    response = web.StreamResponse(headers={"Content-Type": "text/event-stream"})
    await response.prepare(request)
    for event in events:
        await response.write(event)
    return response


def is_tool_result(body: dict[str, Any]) -> bool:
    """Whether the last turn has what a tool returned, in either form."""
    last = body["messages"][-1]
    blocks = last["content"] if isinstance(last["content"], list) else []
    return last["role"] == "tool" or any(block["type"] == "tool_result" for block in blocks)


async def ask(
    gateway: RunningGateway, *, path: str = "/v1/messages", headers: Any = None, **fields: Any
) -> Asked:
    """Send a request to /v1/messages."""
    turn = {"role": "user", "content": "How do I reset my password?"}
    body = {"model": "claude-x", "max_tokens": 64, "messages": [turn], **fields}
    return await gateway.post(path, orjson.dumps(body), headers=headers)
