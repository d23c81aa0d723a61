"""Streams of /v1/messages while the server is silent: they begin, and pings follow."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import aiohttp
import orjson
import pytest
from aiohttp import web
from messages_api import ask

from gateway.protocol.endpoints.messages import StreamedMessage
from gateway.server.http.pings import Patience
from running_gateway import RunningGateway, StartGateway
from scripted_upstream import DONE, ScriptedUpstream, chunk

ASKED = {
    "model": "m",
    "max_tokens": 9,
    "stream": True,
    "messages": [{"role": "user", "content": "How do I reset my password?"}],
}
ANSWER = [chunk(delta={"content": "Hel"}), chunk(delta={"content": "lo"})]
END = [chunk(finish_reason="stop"), DONE]
PING = b'event: ping\ndata: {"type":"ping"}\n\n'


@pytest.fixture(autouse=True)
def little_patience(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("gateway.app.PATIENCE", Patience(0.05, 0.05))


class Silence:
    """A server that is silent before a part of its answer until it is told to go on."""

    def __init__(self, before: str, *, status: int = 200) -> None:
        self.before, self.status, self.over = before, status, asyncio.Event()

    async def __call__(self, request: web.Request, _body: Any) -> web.StreamResponse:
        if self.before == "the head":
            await self.over.wait()
        if self.status != 200:
            error = {"error": {"message": "Not now.", "type": "x"}}
            return web.json_response(error, status=self.status, headers={"Retry-After": "7"})
        response = web.StreamResponse(headers={"Content-Type": "text/event-stream"})
        await response.prepare(request)
        if self.before == "the first chunk":
            await self.over.wait()
        for place, event in enumerate([*ANSWER, *END]):
            if place == 1 and self.before == "the second chunk":
                await self.over.wait()
            await response.write(event)
        return response


@asynccontextmanager
async def posted(gateway: RunningGateway) -> AsyncIterator[aiohttp.ClientResponse]:
    url = f"{gateway.url}/v1/messages"
    async with gateway.session.post(url, data=orjson.dumps(ASKED)) as response:
        yield response


async def read_until(response: aiohttp.ClientResponse, found: bytes) -> bytes:
    seen = b""
    while found not in seen:
        piece = await response.content.readany()
        assert piece, seen
        seen += piece
    return seen


def message_of(events: bytes) -> dict[str, Any]:
    answer = StreamedMessage(assemble=True, max_bytes=10**6)
    answer.feed(events)
    return answer.result()


@pytest.mark.parametrize("before", ["the head", "the first chunk", "the second chunk"])
async def test_a_client_hears_of_a_silent_server(
    gateway: RunningGateway, upstream: ScriptedUpstream, before: str
):
    upstream.answer = silence = Silence(before)
    async with posted(gateway) as response:
        events = await read_until(response, PING + PING if before == "the head" else PING)
        assert response.status == 200
        assert response.headers["Cache-Status"].startswith("refrain; fwd=miss")
        assert events.startswith(b"event: message_start\n")
        silence.over.set()
        events += await response.read()
    assert events.count(b"event: message_start") == events.count(b"event: message_stop") == 1
    assert events.endswith(b'{"type":"message_stop"}\n\n')
    whole = message_of(events)
    assert whole["content"] == [{"type": "text", "text": "Hello"}]
    hit = await ask(gateway, messages=ASKED["messages"], model="m", max_tokens=9, stream=True)
    assert "hit" in hit.cache
    assert PING not in hit.raw
    assert message_of(hit.raw)["content"] == whole["content"]


@pytest.mark.parametrize("status", [429, 500])
async def test_what_fails_after_the_beginning_is_an_error_event(
    gateway: RunningGateway, upstream: ScriptedUpstream, status: int
):
    upstream.answer = silence = Silence("the head", status=status)
    async with posted(gateway) as response:
        events = await read_until(response, PING)
        silence.over.set()
        events += await response.read()
    last = events.strip().rpartition(b"\n\n")[2]
    assert last.startswith(b"event: error\n")
    assert b"Not now." in last


async def test_what_fails_in_time_has_its_status(
    gateway: RunningGateway, upstream: ScriptedUpstream
):
    upstream.answer = Silence("", status=429)
    async with posted(gateway) as response:
        assert response.status == 429


async def test_another_server_may_answer_after_the_beginning(
    start_gateway: StartGateway, upstream: ScriptedUpstream
):
    silence = Silence("the head", status=500)

    async def answer(request: web.Request, body: dict[str, Any]) -> web.StreamResponse:
        return await (silence if upstream.calls == 1 else Silence(""))(request, body)

    upstream.answer = answer
    urls = [f"{upstream.url}/v1", f"{upstream.url.replace('127.0.0.1', 'localhost')}/v1"]
    listed = [{"url": url, "name": f"u{at}", "probe": "off"} for at, url in enumerate(urls)]
    gateway = await start_gateway(upstream=(), upstreams=listed)
    async with posted(gateway) as response:
        events = await read_until(response, PING)
        silence.over.set()
        events += await response.read()
    assert message_of(events)["content"] == [{"type": "text", "text": "Hello"}]
    assert upstream.calls == 2


async def test_a_client_that_leaves_ends_the_call(
    gateway: RunningGateway, upstream: ScriptedUpstream
):
    left = asyncio.Event()

    async def answer(request: web.Request, _body: Any) -> web.StreamResponse:
        try:
            await asyncio.Event().wait()
        finally:
            left.set()
        raise AssertionError

    upstream.answer = answer
    async with posted(gateway) as response:
        await read_until(response, PING)
        response.close()
    await left.wait()
