"""An OpenAI-compatible server under the test's control: the fake at the upstream's port."""

import asyncio
import json
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from typing import Any

import orjson
from aiohttp import web

Answer = Callable[[web.Request, dict[str, Any]], Awaitable[web.StreamResponse]]


def completion(content: str, **changes: Any) -> dict[str, Any]:
    """Return a chat completion as OpenAI sends it."""
    choice = {
        "index": 0,
        "message": {"role": "assistant", "content": content, "refusal": None},
        "logprobs": None,
        "finish_reason": changes.pop("finish_reason", "stop"),
    }
    return {
        "id": "chatcmpl-1",
        "object": "chat.completion",
        "created": 1_700_000_000,
        "model": "scripted",
        "choices": [choice],
        "usage": {"prompt_tokens": 7, "completion_tokens": 3, "total_tokens": 10},
        **changes,
    }


def chunk(**choice: Any) -> bytes:
    """Return one SSE event of a streamed chat completion."""
    data = {
        "id": "chatcmpl-1",
        "object": "chat.completion.chunk",
        "created": 1_700_000_000,
        "model": "scripted",
        "choices": [{"index": 0, "delta": {}, "logprobs": None, "finish_reason": None} | choice],
    }
    return b"data: " + orjson.dumps(data) + b"\n\n"


DONE = b"data: [DONE]\n\n"


def stream_of(content: str) -> list[bytes]:
    """Return the events of a streamed answer, a word each."""
    words = content.split(" ")
    pieces = [words[0], *(f" {word}" for word in words[1:])]
    return [
        chunk(delta={"role": "assistant", "content": ""}),
        *(chunk(delta={"content": piece}) for piece in pieces),
        chunk(finish_reason="stop"),
        DONE,
    ]


def text_of(body: dict[str, Any]) -> str:
    """Return the answer that the scripted upstream gives to a request."""
    if "messages" in body:
        return f"You asked: {body['messages'][-1]['content']}"
    return f"You wrote: {body['prompt']}"


async def answer_by_default(request: web.Request, body: dict[str, Any]) -> web.StreamResponse:
    """Answer either endpoint, plain or streamed, with a text made of the question."""
    text = text_of(body)
    if request.path.endswith("/chat/completions"):
        if not body.get("stream"):
            return web.json_response(completion(text))
        response = web.StreamResponse(headers={"Content-Type": "text/event-stream"})
        await response.prepare(request)
        for event in stream_of(text)[:-1]:
            await response.write(event)
        if (body.get("stream_options") or {}).get("include_usage"):
            await response.write(usage_event())
        await response.write(DONE)
        return response
    choice = {"index": 0, "text": text, "logprobs": None, "finish_reason": "stop"}
    result = completion("", object="text_completion", choices=[choice])
    return web.json_response(result)


def usage_event() -> bytes:
    """Return the event that carries the usage of a stream."""
    data = completion("", object="chat.completion.chunk", choices=[])
    return b"data: " + orjson.dumps(data) + b"\n\n"


@dataclass
class ScriptedUpstream:
    """Records what it is asked and answers as ``answer`` says."""

    answer: Answer = answer_by_default
    requests: list[web.Request] = field(default_factory=list)
    bodies: list[Any] = field(default_factory=list)
    raw: list[bytes] = field(default_factory=list)
    cancelled: asyncio.Event = field(default_factory=asyncio.Event)
    arrived: asyncio.Event = field(default_factory=asyncio.Event)
    url: str = ""

    @property
    def calls(self) -> int:
        """How many generations were asked for."""
        return len(self.bodies)

    async def handle(self, request: web.Request) -> web.StreamResponse:
        """Record and answer one generation."""
        raw = await request.read()
        self.requests.append(request)
        self.raw.append(raw)
        body = json.loads(raw)  # which takes lone surrogates, too
        self.bodies.append(body)
        self.arrived.set()
        try:
            return await self.answer(request, body)
        except (asyncio.CancelledError, ConnectionResetError):
            # Who writes without a pause meets the closed connection before it is cancelled.
            self.cancelled.set()
            raise

    async def other(self, request: web.Request) -> web.StreamResponse:
        """Answer any other path with what was received."""
        if request.path == "/v1/models" and "User-Agent" not in request.headers:
            return web.Response(status=404)  # no client wants it: the gateway reads the list
        self.requests.append(request)
        raw = await request.read()
        seen = {"method": request.method, "path": request.path_qs, "body": raw.decode()}
        return web.json_response(seen, status=201, headers={"X-Upstream": "yes"})
