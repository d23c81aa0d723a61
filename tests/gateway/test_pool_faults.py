"""A pool of real servers that fail in every way: who answers, and what the client is told."""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from typing import Any

import pytest
from aiohttp import web

from running_gateway import RunningGateway, StartGateway, start_app
from scripted_upstream import DONE, ScriptedUpstream, chunk, completion, stream_of

EVENTS = {"Content-Type": "text/event-stream"}
CLOSED = "http://127.0.0.1:9/v1"

Answers = Callable[[web.Request, dict[str, Any]], Awaitable[web.StreamResponse]]
StartServer = Callable[[Answers], Awaitable[ScriptedUpstream]]


@pytest.fixture
async def server() -> AsyncIterator[StartServer]:
    """Start upstreams that answer as they are told."""
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


async def breaks_after_a_word(request: web.Request, _body: dict[str, Any]) -> web.StreamResponse:
    """Send the first event, and close."""
    response = web.StreamResponse(headers=EVENTS)
    await response.prepare(request)
    await response.write(chunk(delta={"role": "assistant", "content": "Half"}))
    assert request.transport is not None
    request.transport.abort()
    return response


async def pool(start: StartGateway, *upstreams: Any, **settings: Any) -> RunningGateway:
    """Start a gateway before servers or settings, named a, b … in this order."""
    listed = []
    for name, one in zip("abcdef", upstreams, strict=False):
        given = {"url": f"{one.url}/v1"} if isinstance(one, ScriptedUpstream) else dict(one)
        listed.append({"name": name, "probe": "off", **given})
    return await start(upstream=(), upstreams=listed, **settings)


FAILS_BEFORE_THE_FIRST_BYTE = {
    "500": (status(500), "upstream-status"),
    "502": (status(502), "upstream-status"),
    "504": (status(504), "upstream-status"),
    "429": (status(429), "upstream-limited"),
    "503": (status(503), "upstream-limited"),
    "reset before the head": (resets, "upstream-broke"),
    "reset after the head": (breaks_after_head, "upstream-broke"),
    "stalled before the head": (stalls, "upstream-timeout"),
    "stalled after the head": (stalls_after_head, "upstream-timeout"),
}


@pytest.mark.parametrize(
    ("bad", "why"), FAILS_BEFORE_THE_FIRST_BYTE.values(), ids=FAILS_BEFORE_THE_FIRST_BYTE.keys()
)
async def test_who_fails_before_the_first_byte_is_replaced_unseen(
    start_gateway: StartGateway, server: StartServer, bad: Answers, why: str
):
    first, second = await server(bad), await server(says("Hello from b."))
    patience = {"first_token_timeout": 0.05} if why == "upstream-timeout" else {}
    gateway = await pool(start_gateway, {"url": f"{first.url}/v1", **patience}, second)

    reply = await gateway.ask(stream=True)

    assert (reply.status, reply.text) == (200, "Hello from b.")
    assert reply.headers["X-Refrain-Upstream"] == f'b; tried="a={why}"'
    assert (first.calls, second.calls) == (1, 1)


async def test_who_cannot_be_reached_is_replaced(start_gateway: StartGateway, server: StartServer):
    gateway = await pool(start_gateway, {"url": CLOSED}, await server(says("Hello.")))
    reply = await gateway.ask()
    assert reply.text == "Hello."
    assert reply.headers["X-Refrain-Upstream"] == 'b; tried="a=upstream-unreachable"'


async def test_nothing_is_sent_again_after_the_first_byte(
    start_gateway: StartGateway, server: StartServer
):
    first, second = await server(breaks_after_a_word), await server(says("no"))
    gateway = await pool(start_gateway, first, second)

    reply = await gateway.ask(stream=True)

    assert reply.events[0]["choices"][0]["delta"]["content"] == "Half"
    assert reply.events[-1]["error"]["code"] == "upstream-broke"
    assert DONE not in reply.raw
    assert (first.calls, second.calls) == (1, 0)


@pytest.mark.parametrize("code", [400, 401, 403, 404, 422])
async def test_what_an_upstream_says_of_the_request_passes(
    start_gateway: StartGateway, server: StartServer, code: int
):
    first, second = await server(status(code)), await server(says("no"))
    gateway = await pool(start_gateway, first, second)
    reply = await gateway.ask()
    assert (reply.status, reply.json) == (code, {"error": {"message": str(code)}})
    assert reply.headers["X-Refrain-Upstream"] == "a"
    assert second.calls == 0
