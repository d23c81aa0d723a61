"""Servers of several organisations: each makes state that it alone can read, and no other's."""

import asyncio
import re
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Any

import orjson
from aiohttp import web

from running_gateway import start_app
from scripted_upstream import completion

MADE = re.compile(rb"made-by-([a-z]+)-\d+")

CALL = {"id": "call_1", "type": "function", "function": {"name": "look", "arguments": "{}"}}


@dataclass
class Maker:
    """One organisation's server. Its answers hold state in the ``kind`` that a request names."""

    name: str
    url: str = ""
    status: int = 200
    count: int = 0
    bodies: list[dict[str, Any]] = field(default_factory=list)
    runner: web.AppRunner | None = None

    def make(self) -> str:
        """Return a new value that this server alone can read."""
        self.count += 1
        return f"made-by-{self.name}-{self.count}"

    async def stop(self) -> None:
        """Answer nobody any more."""
        assert self.runner is not None
        await self.runner.cleanup()

    async def handle(self, request: web.Request) -> web.StreamResponse:
        """Answer, or refuse what another one has made."""
        if request.path == "/v1/models":  # the pool reads the lists at start
            return web.Response(status=404)
        raw = await request.read()
        json = request.content_type == "application/json" and raw
        body = orjson.loads(raw) if json else {}
        self.bodies.append(body)
        if self.status != 200:
            headers = {"Retry-After": "30"} if self.status in (429, 503) else {}
            error = {"message": f"{self.name} has no room.", "code": "rate_limit_exceeded"}
            return web.json_response({"error": error}, status=self.status, headers=headers)
        foreign = {found.decode() for found in MADE.findall(raw + request.path.encode())}
        if foreign - {self.name}:
            error = {"message": "cannot be read", "code": "invalid_encrypted_content"}
            return web.json_response({"error": error}, status=400)
        kind = str(body.get("model", "file"))
        if request.path not in EVENTS:
            kind = "compact" if request.path.endswith("/compact") else "file"
        answer = ANSWERS[kind](self.make())
        if not body.get("stream"):
            return web.json_response(answer)
        response = web.StreamResponse(headers={"Content-Type": "text/event-stream"})
        await response.prepare(request)
        for event in EVENTS[request.path](answer):
            await response.write(event)
        return response


def _message(*blocks: dict[str, Any]) -> dict[str, Any]:
    return {
        "id": "msg_1",
        "type": "message",
        "role": "assistant",
        "model": "m",
        "content": [*blocks, {"type": "text", "text": "Yes."}],
        "stop_reason": "end_turn",
        "stop_sequence": None,
        "usage": {"input_tokens": 3, "output_tokens": 4},
    }


def _response(*items: dict[str, Any], made: str = "resp_1") -> dict[str, Any]:
    text = {"type": "output_text", "text": "Yes.", "annotations": []}
    message = {
        "type": "message",
        "id": "msg_1",
        "role": "assistant",
        "status": "completed",
        "content": [text],
    }
    return {
        "id": made,
        "object": "response",
        "status": "completed",
        "model": "m",
        "output": [*items, message],
        "usage": {"input_tokens": 3, "output_tokens": 4, "total_tokens": 7},
    }


def _chat(**message: Any) -> dict[str, Any]:
    answer = completion("Yes.")
    answer["choices"][0]["message"] |= message
    return answer


ANSWERS: dict[str, Any] = {
    "thinking": lambda v: _message({"type": "thinking", "thinking": "Hm.", "signature": v}),
    "redacted": lambda v: _message({"type": "redacted_thinking", "data": v}),
    "reasoning": lambda v: _response(
        {"type": "reasoning", "id": "rs_1", "summary": [], "encrypted_content": v}
    ),
    "compaction": lambda v: _response({"type": "compaction", "id": "c_1", "encrypted_content": v}),
    "items": lambda v: _response({"type": "reasoning", "id": v, "summary": []}),
    "container": lambda v: _response(
        {"type": "code_interpreter_call", "id": "ci_1", "container_id": v, "code": "1"}
    ),
    "gemini": lambda v: _chat(
        tool_calls=[{**CALL, "extra_content": {"google": {"thought_signature": v}}}]
    ),
    "details": lambda v: _chat(
        reasoning_details=[
            {"type": "reasoning.text", "text": "Hm.", "index": 0},
            {"type": "reasoning.encrypted", "data": v, "index": 1, "id": "rs_1"},
        ]
    ),
    "signed": lambda v: _chat(
        reasoning_details=[{"type": "reasoning.text", "text": "Hm.", "signature": v, "index": 0}]
    ),
    "file": lambda v: {"id": v, "object": "file", "filename": "a.pdf", "status": "processed"},
    "compact": lambda v: {
        "id": "resp_2",
        "object": "response.compaction",
        "output": [{"type": "compaction", "id": "c_1", "encrypted_content": v}],
    },
}

PATHS = {
    "thinking": "/v1/messages",
    "redacted": "/v1/messages",
    "reasoning": "/v1/responses",
    "compaction": "/v1/responses",
    "items": "/v1/responses",
    "container": "/v1/responses",
    "gemini": "/v1/chat/completions",
    "details": "/v1/chat/completions",
    "signed": "/v1/chat/completions",
}


def _chat_events(answer: dict[str, Any]) -> list[bytes]:
    [choice] = answer["choices"]
    message = dict(choice["message"])
    calls = [{**call, "index": n} for n, call in enumerate(message.pop("tool_calls", ()))]
    deltas = [{**message, "tool_calls": calls} if calls else message, {}]
    chunks = []
    for delta, finish in zip(deltas, (None, "stop"), strict=True):
        one = {"index": 0, "delta": delta, "finish_reason": finish}
        head = {"id": "c", "object": "chat.completion.chunk", "created": 1, "model": "m"}
        chunks.append(b"data: " + orjson.dumps({**head, "choices": [one]}) + b"\n\n")
    return [*chunks, b"data: [DONE]\n\n"]


def _named(event: dict[str, Any]) -> bytes:
    return f"event: {event['type']}\ndata: ".encode() + orjson.dumps(event) + b"\n\n"


def _message_events(answer: dict[str, Any]) -> list[bytes]:
    events: list[dict[str, Any]] = [
        {"type": "message_start", "message": {**answer, "content": [], "stop_reason": None}}
    ]
    for at, block in enumerate(answer["content"]):
        empty, deltas = block, []
        if block["type"] == "thinking":
            half = len(block["signature"]) // 2
            empty = {**block, "thinking": "", "signature": ""}
            deltas = [
                {"type": "thinking_delta", "thinking": block["thinking"]},
                {"type": "signature_delta", "signature": block["signature"][:half]},
                {"type": "signature_delta", "signature": block["signature"][half:]},
            ]
        elif block["type"] == "text":
            empty, deltas = {**block, "text": ""}, [{"type": "text_delta", "text": block["text"]}]
        events.append({"type": "content_block_start", "index": at, "content_block": empty})
        events += [{"type": "content_block_delta", "index": at, "delta": each} for each in deltas]
        events.append({"type": "content_block_stop", "index": at})
    end = {"stop_reason": answer["stop_reason"], "stop_sequence": None}
    events.append({"type": "message_delta", "delta": end, "usage": {"output_tokens": 4}})
    events.append({"type": "message_stop"})
    return [_named(event) for event in events]


def _response_events(answer: dict[str, Any]) -> list[bytes]:
    begun = {**answer, "status": "in_progress", "output": [], "usage": None}
    events: list[dict[str, Any]] = [{"type": "response.created", "response": begun}]
    for at, item in enumerate(answer["output"]):
        where = {"output_index": at}
        events.append({"type": "response.output_item.added", **where, "item": item})
        events.append({"type": "response.output_item.done", **where, "item": item})
    events.append({"type": "response.completed", "response": answer})
    return [_named(event) for event in events]


EVENTS: dict[str, Any] = {
    "/v1/chat/completions": _chat_events,
    "/v1/messages": _message_events,
    "/v1/responses": _response_events,
}


def question(kind: str, **more: Any) -> dict[str, Any]:
    """Return the first request of a conversation."""
    if PATHS[kind] == "/v1/responses":
        store = {"store": False} if kind in ("reasoning", "compaction") else {}
        return {"model": kind, "input": [{"role": "user", "content": "Is it?"}], **store, **more}
    return {
        "model": kind,
        "max_tokens": 9,
        "messages": [{"role": "user", "content": "Is it?"}],
        **more,
    }


def continued(kind: str, value: str, **more: Any) -> dict[str, Any]:
    """Return the next request, which sends back what the answer brought."""
    answer, body = ANSWERS[kind](value), question(kind, **more)
    if kind == "items":
        body["input"] += [{"type": "item_reference", "id": value}]
    elif kind == "container":
        body["tools"] = [{"type": "code_interpreter", "container": value}]
    elif "input" in body:
        body["input"] += answer["output"]
    elif PATHS[kind] == "/v1/messages":
        body["messages"] += [{"role": "assistant", "content": answer["content"]}]
    else:
        body["messages"] += [answer["choices"][0]["message"]]
    then = {"role": "user", "content": "And then?"}
    (body["input"] if "input" in body else body["messages"]).append(then)
    return body


@asynccontextmanager
async def makers(*names: str) -> AsyncIterator[list[Maker]]:
    """Start servers by name."""
    started = [Maker(name) for name in names]
    for one in started:
        app = web.Application()
        app.router.add_route("*", "/{tail:.*}", one.handle)
        one.runner, url = await start_app(app)
        one.url = f"{url}/v1"
    yield started
    await asyncio.gather(*(one.stop() for one in started))
