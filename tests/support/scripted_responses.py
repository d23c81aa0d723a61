"""Answers of the Responses API for the scripted upstream, in OpenAI's form."""

from collections.abc import Iterable
from typing import Any

import orjson
from aiohttp import web


def message(*parts: dict[str, Any], place: int = 0, **fields: Any) -> dict[str, Any]:
    """Return an output message of parts."""
    return {
        "id": f"msg_{place}",
        "type": "message",
        "status": "completed",
        "role": "assistant",
        "content": list(parts),
        **fields,
    }


def text(said: str, **fields: Any) -> dict[str, Any]:
    """Return a part that is text."""
    return {"type": "output_text", "annotations": [], "logprobs": [], "text": said, **fields}


def call(arguments: str = "{}", **fields: Any) -> dict[str, Any]:
    """Return a call of a function."""
    return {
        "id": "fc_1",
        "type": "function_call",
        "status": "completed",
        "call_id": "call_1",
        "name": "f",
        "arguments": arguments,
        **fields,
    }


def reasoning(*summary: str, **fields: Any) -> dict[str, Any]:
    """Return a reasoning item."""
    parts = [{"type": "summary_text", "text": said} for said in summary]
    return {"id": "rs_1", "type": "reasoning", "summary": parts, **fields}


def response(*output: dict[str, Any], **changes: Any) -> dict[str, Any]:
    """Return a whole response, completed."""
    return {
        "id": "resp_1",
        "object": "response",
        "created_at": 1_700_000_000,
        "status": "completed",
        "completed_at": 1_700_000_001,
        "background": False,
        "error": None,
        "incomplete_details": None,
        "instructions": None,
        "max_output_tokens": None,
        "max_tool_calls": None,
        "model": "scripted",
        "output": list(output),
        "parallel_tool_calls": True,
        "previous_response_id": None,
        "prompt_cache_key": None,
        "reasoning": {"effort": None, "summary": None},
        "safety_identifier": None,
        "service_tier": "default",
        "store": False,
        "temperature": 1.0,
        "text": {"format": {"type": "text"}, "verbosity": "medium"},
        "tool_choice": "auto",
        "tools": [],
        "top_logprobs": 0,
        "top_p": 1.0,
        "truncation": "disabled",
        "usage": {
            "input_tokens": 7,
            "input_tokens_details": {"cached_tokens": 0, "cache_write_tokens": 0},
            "output_tokens": 3,
            "output_tokens_details": {"reasoning_tokens": 0},
            "total_tokens": 10,
        },
        "user": None,
        "metadata": {},
        **changes,
    }


def event(kind: str, **fields: Any) -> bytes:
    """Return one event of a stream."""
    data = orjson.dumps({"type": kind, **fields})
    return b"event: " + kind.encode() + b"\ndata: " + data + b"\n\n"


def events_of(whole: dict[str, Any]) -> list[bytes]:
    """Return the events of a streamed response whose output is one message of one text."""
    begun = {**whole, "status": "in_progress", "output": [], "usage": None}
    [item] = whole["output"]
    [part] = item["content"]
    words = part["text"].split(" ")
    pieces = [words[0], *(f" {word}" for word in words[1:])]
    where = {"item_id": item["id"], "output_index": 0, "content_index": 0}
    told: list[tuple[str, dict[str, Any]]] = [
        ("response.created", {"response": begun}),
        ("response.in_progress", {"response": begun}),
        ("response.output_item.added", {"output_index": 0, "item": {**item, "content": []}}),
        ("response.content_part.added", {**where, "part": {**part, "text": ""}}),
        *(
            ("response.output_text.delta", {**where, "delta": piece, "logprobs": []})
            for piece in pieces
        ),
        ("response.output_text.done", {**where, "text": part["text"], "logprobs": []}),
        ("response.content_part.done", {**where, "part": part}),
        ("response.output_item.done", {"output_index": 0, "item": item}),
        ("response.completed", {"response": whole}),
    ]
    return [
        event(kind, **fields, sequence_number=number) for number, (kind, fields) in enumerate(told)
    ]


async def send_events(request: web.Request, events: Iterable[bytes]) -> web.StreamResponse:
    """Stream events."""
    reply = web.StreamResponse(headers={"Content-Type": "text/event-stream"})
    await reply.prepare(request)
    for one in events:
        await reply.write(one)
    return reply


async def respond(request: web.Request, body: dict[str, Any]) -> web.StreamResponse:
    """Answer plain or streamed, with a text made of the input; repeat who asked, as OpenAI does."""
    names = ("metadata", "user", "safety_identifier", "prompt_cache_key")
    whole = response(
        message(text(f"You asked: {body['input']}")),
        **{name: body[name] for name in names if name in body},
    )
    if body.get("stream") is True:
        return await send_events(request, events_of(whole))
    return web.json_response(whole)
