"""Real servers that answer, refuse, break and stall as they are told, and a gateway before them."""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

from aiohttp import web

from running_gateway import RunningGateway, StartGateway, start_app
from scripted_upstream import ScriptedUpstream, chunk, completion, stream_of

EVENTS = {"Content-Type": "text/event-stream"}
CLOSED = "http://127.0.0.1:9/v1"

Answers = Callable[[web.Request, dict[str, Any]], Awaitable[web.StreamResponse]]
StartServer = Callable[[Answers], Awaitable[ScriptedUpstream]]


@asynccontextmanager
async def servers() -> AsyncIterator[StartServer]:
    """Start upstreams; other paths are answered with what was asked."""
    runners = []

    async def start(answer: Answers) -> ScriptedUpstream:
        scripted = ScriptedUpstream(answer)
        app = web.Application()
        app.router.add_post("/v1/chat/completions", scripted.handle)
        app.router.add_route("*", "/{tail:.*}", scripted.other)
        runner, scripted.url = await start_app(app)
        runners.append(runner)
        return scripted

    yield start
    for runner in runners:
        await runner.cleanup()


def policy_with(tmp_path: Path, rules: str) -> Path:
    """Write a policy of the exact cache alone, with further rules; return its path."""
    policy = tmp_path / "policy.yaml"
    policy.write_text(
        "version: 1\ndefault: {exact: on, semantic: off, freshness: 1h, scope: tenant, "
        f"pii: bypass, {rules}}}\n"
    )
    return policy


def says(text: str) -> Answers:
    async def answer(request: web.Request, body: dict[str, Any]) -> web.StreamResponse:
        if not body.get("stream"):
            return web.json_response(completion(text))
        response = web.StreamResponse(headers=EVENTS)
        await response.prepare(request)
        for event in stream_of(text):
            await response.write(event)
        return response

    return answer


def status(code: int, **headers: str) -> Answers:
    async def answer(_request: web.Request, _body: dict[str, Any]) -> web.StreamResponse:
        named = {name.replace("_", "-"): value for name, value in headers.items()}
        return web.json_response({"error": {"message": str(code)}}, status=code, headers=named)

    return answer


async def resets(request: web.Request, _body: dict[str, Any]) -> web.StreamResponse:
    """Close without a word."""
    assert request.transport is not None
    request.transport.abort()
    return web.Response()


async def answers_nothing(request: web.Request, _body: dict[str, Any]) -> web.StreamResponse:
    """Send a head that says that all is well, and an end."""
    response = web.StreamResponse(headers=EVENTS)
    await response.prepare(request)
    return response


async def stalls(_request: web.Request, _body: dict[str, Any]) -> web.StreamResponse:
    """Say nothing at all."""
    await asyncio.Event().wait()
    return web.Response()


async def stalls_after_head(request: web.Request, _body: dict[str, Any]) -> web.StreamResponse:
    """Send a head and no body."""
    response = web.StreamResponse(headers=EVENTS)
    await response.prepare(request)
    await asyncio.Event().wait()
    return response


async def breaks_after_head(request: web.Request, _body: dict[str, Any]) -> web.StreamResponse:
    """Send a head, and close."""
    response = web.StreamResponse(headers=EVENTS)
    await response.prepare(request)
    assert request.transport is not None
    request.transport.abort()
    return response


async def begins_with_an_error(request: web.Request, _body: dict[str, Any]) -> web.StreamResponse:
    """Answer 200 before it is known that there is no answer."""
    response = web.StreamResponse(headers=EVENTS)
    await response.prepare(request)
    await response.write(b'data: {"error": {"message": "The engine is dead.", "code": 500}}\n\n')
    return response


async def ends_after_a_word(request: web.Request, _body: dict[str, Any]) -> web.StreamResponse:
    """Send the first event, and end the stream as if that were all."""
    response = web.StreamResponse(headers=EVENTS)
    await response.prepare(request)
    await response.write(chunk(delta={"role": "assistant", "content": "Half"}))
    return response


async def breaks_after_a_word(request: web.Request, _body: dict[str, Any]) -> web.StreamResponse:
    """Send the first event, and close."""
    response = web.StreamResponse(headers=EVENTS)
    await response.prepare(request)
    await response.write(chunk(delta={"role": "assistant", "content": "Half"}))
    assert request.transport is not None
    request.transport.abort()
    return response


async def shown(gateway: RunningGateway, line: str) -> None:
    """Wait until the metrics have this line: the end of a call may come after its answer."""
    async with asyncio.timeout(30):
        while f"{line}\n" not in (await gateway.get("/metrics")).raw.decode():
            pass


async def pool(
    start: StartGateway, *upstreams: Any, models: Any = None, **settings: Any
) -> RunningGateway:
    """Start a gateway before servers or settings, named a, b … in this order."""
    listed = []
    for name, one in zip("abcdef", upstreams, strict=False):
        given = {"url": f"{one.url}/v1"} if isinstance(one, ScriptedUpstream) else dict(one)
        listed.append({"name": name, "probe": "off", **given})
        if name in (models or {}):
            listed[-1]["models"] = models[name]
    return await start(upstream=(), upstreams=listed, **settings)
