"""The method QUERY beside POST: what HTTP's own caches may answer (RFC 10008)."""

import asyncio
from typing import Any

import orjson
import pytest
from aiohttp import web

from running_gateway import Asked, RunningGateway, StartGateway, start_app
from scripted_upstream import ScriptedUpstream

CHAT = "/v1/chat/completions"
BODY = orjson.dumps({"model": "m", "messages": [{"role": "user", "content": "hi"}]})
JSON = {"Content-Type": "application/json"}


async def query(gateway: RunningGateway, raw: bytes = BODY, *, method: str = "QUERY", **head: Any):
    headers = {name.replace("_", "-"): value for name, value in head.items()} or JSON
    async with gateway.session.request(
        method, gateway.url + CHAT, data=raw, headers=headers
    ) as reply:
        return Asked(reply.status, reply.headers, await reply.read())


async def test_query_and_post_are_one_request(gateway: RunningGateway, upstream: ScriptedUpstream):
    first = await query(gateway)
    again = await query(gateway)
    posted = await gateway.post(CHAT, BODY)

    assert first.cache == "refrain; fwd=miss; stored"
    assert "hit" in again.cache
    assert "hit" in posted.cache
    assert first.json == again.json == posted.json
    assert [request.method for request in upstream.requests] == ["POST"]
    assert first.headers["Cache-Control"] == "private, max-age=3600"
    assert again.headers["Cache-Control"] in ("private, max-age=3600", "private, max-age=3599")
    assert "Authorization" in again.headers["Vary"]
    assert int(again.headers["Age"]) <= 1
    assert again.headers["Accept-Query"] == "application/json"
    assert "Cache-Control" not in posted.headers


async def test_a_bare_socket_is_understood(gateway: RunningGateway, upstream: ScriptedUpstream):
    port = int(gateway.url.rpartition(":")[2])
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    head = f"QUERY {CHAT} HTTP/1.1\r\nHost: a\r\nContent-Type: application/json\r\n"
    writer.write(f"{head}Content-Length: {len(BODY)}\r\nConnection: close\r\n\r\n".encode() + BODY)
    reply = await asyncio.wait_for(reader.read(), 60)
    writer.close()
    assert reply.startswith(b"HTTP/1.1 200 OK\r\n")
    assert b"Cache-Status: refrain; fwd=miss; stored\r\n" in reply
    assert upstream.bodies == [orjson.loads(BODY)]


async def test_a_stream_can_be_asked_for(gateway: RunningGateway, upstream: ScriptedUpstream):
    raw = orjson.dumps({**orjson.loads(BODY), "stream": True})
    first = await query(gateway, raw)
    again = await query(gateway, raw)
    assert first.headers["Cache-Control"] == "no-store"  # its fate was not known yet
    assert first.text == again.text == "You asked: hi"
    assert again.headers["Cache-Control"].startswith("private, max-age=3")
    assert upstream.calls == 1


@pytest.mark.parametrize("content", ["I am anna.smith@acme-corp.com", "hi"])
async def test_what_is_not_stored_here_is_stored_nowhere(
    gateway: RunningGateway, upstream: ScriptedUpstream, content: str
):
    raw = orjson.dumps({"model": "m", "messages": [{"role": "user", "content": content}]})
    head = JSON if "@" in content else {**JSON, "Cache-Control": "no-store"}
    async with gateway.session.request(
        "QUERY", gateway.url + CHAT, data=raw, headers=head
    ) as reply:
        assert reply.headers["Cache-Status"].startswith("refrain; fwd=bypass")
        assert reply.headers.getall("Cache-Control") == ["no-store"]


async def test_what_is_public_here_is_public_on_the_way(
    start_gateway: StartGateway, tmp_path: Any, upstream: ScriptedUpstream
):
    policy = tmp_path / "policy.yaml"
    policy.write_text(
        "version: 1\n"
        "default: {exact: on, semantic: off, freshness: 60s, scope: public, pii: bypass}\n"
    )
    gateway = await start_gateway(policy=policy)
    for _ in range(2):
        asked = await query(gateway)
        assert asked.headers["Cache-Control"] in ("public, max-age=60", "public, max-age=59")
        assert "Vary" not in asked.headers


@pytest.mark.parametrize(
    ("content_type", "status"),
    [("", 400), ("text/plain", 415), ("application/json; charset=utf-8", 200)],
)
async def test_a_query_says_what_it_holds(
    gateway: RunningGateway, upstream: ScriptedUpstream, content_type: str, status: int
):
    port = int(gateway.url.rpartition(":")[2])
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    line = f"Content-Type: {content_type}\r\n" if content_type else ""
    head = f"QUERY {CHAT} HTTP/1.1\r\nHost: a\r\n{line}Content-Length: {len(BODY)}\r\n"
    writer.write(f"{head}Connection: close\r\n\r\n".encode() + BODY)
    reply = await asyncio.wait_for(reader.read(), 60)
    writer.close()
    assert reply.startswith(f"HTTP/1.1 {status} ".encode())
    if status == 415:
        assert b"Accept-Query: application/json\r\n" in reply
    if status != 200:
        assert b"Cache-Status: refrain; detail=invalid-request\r\n" in reply
        assert upstream.calls == 0


async def test_query_is_advertised(gateway: RunningGateway, upstream: ScriptedUpstream):
    options = await query(gateway, b"", method="OPTIONS", X_Any="1")
    assert options.status == 204
    assert options.headers["Allow"] == "OPTIONS, POST, QUERY"
    assert options.headers["Accept-Query"] == "application/json"
    preflight = await query(gateway, b"", method="OPTIONS", Access_Control_Request_Method="POST")
    assert preflight.json["method"] == "OPTIONS"  # the upstream's own answer


async def test_a_refusal_of_the_upstreams_names_query_too(start_gateway: StartGateway):
    only_post = web.Application()
    only_post.router.add_post(CHAT, ScriptedUpstream().handle)
    runner, url = await start_app(only_post)
    try:
        gateway = await start_gateway(upstream=(f"{url}/v1",))
        wrong = await query(gateway, b"", method="DELETE", X_Any="1")
        assert (wrong.status, wrong.headers["Allow"]) == (405, "POST, QUERY")
        assert wrong.headers["Accept-Query"] == "application/json"
        assert wrong.cache == "refrain; fwd=bypass"
    finally:
        await runner.cleanup()
