"""The method QUERY beside POST: what HTTP's own caches may answer (RFC 10008)."""

import asyncio
import hashlib
from pathlib import Path
from typing import Any

import orjson
import pytest
from aiohttp import web

from running_gateway import Asked, RunningGateway, StartGateway
from scripted_upstream import ScriptedUpstream, completion

CHAT = "/v1/chat/completions"
BODY = orjson.dumps({"model": "m", "messages": [{"role": "user", "content": "hi"}]})
JSON = {"Content-Type": "application/json"}
THEIRS = {
    "Cache-Control": "public, max-age=9",
    "Expires": "Thu, 01 Jan 2099 00:00:00 GMT",
    "Cache-Status": "refrain; hit; ttl=7; detail=exact",
    "Age": "1",
}
"""Of an upstream that is such a gateway."""


async def query(
    gateway: RunningGateway, raw: bytes = BODY, path: str = CHAT, **headers: str
) -> Asked:
    async with gateway.session.request(
        "QUERY", gateway.url + path, data=raw, headers={**JSON, **headers}
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
    assert first.headers["Cache-Control"] == "no-store"
    assert again.headers["Cache-Control"] in ("private, max-age=3600", "private, max-age=3599")
    assert "Authorization" in again.headers["Vary"]
    assert int(again.headers["Age"]) <= 1
    assert first.headers["Accept-Query"] == again.headers["Accept-Query"] == "application/json"
    assert not {"Cache-Control", "Vary", "Accept-Query"} & {*posted.headers}


async def test_a_stream_can_be_asked_for(gateway: RunningGateway, upstream: ScriptedUpstream):
    raw = orjson.dumps({**orjson.loads(BODY), "stream": True})
    first = await query(gateway, raw)
    again = await query(gateway, raw)
    assert first.text == again.text == "You asked: hi"
    assert first.headers["Cache-Control"] == "no-store"
    assert again.headers["Cache-Control"].startswith("private, max-age=3")
    assert upstream.calls == 1


@pytest.mark.parametrize(
    ("content", "headers"),
    [
        ("I am anna.smith@acme-corp.com", {}),
        ("hi", {"Cache-Control": "no-store"}),
        ("hi", {"Cache-Control": "only-if-cached"}),
    ],
)
async def test_what_is_not_found_here_is_kept_nowhere(
    gateway: RunningGateway, upstream: ScriptedUpstream, content: str, headers: dict[str, str]
):
    async def answer(_request: web.Request, _body: dict[str, Any]) -> web.StreamResponse:
        return web.json_response(completion("Hello."), headers=THEIRS)

    upstream.answer = answer
    raw = orjson.dumps({"model": "m", "messages": [{"role": "user", "content": content}]})
    async with gateway.session.request(
        "QUERY", gateway.url + CHAT, data=raw, headers={**JSON, **headers}
    ) as reply:
        assert not reply.headers["Cache-Status"].rpartition(", ")[2].startswith("refrain; hit")
        assert reply.headers.getall("Cache-Control") == ["no-store"]
        assert "Expires" not in reply.headers


@pytest.mark.parametrize(
    ("content_type", "status"),
    [("", 415), ("text/plain", 415), ("application/json; charset=utf-8", 200)],
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
    assert b"Accept-Query: application/json\r\n" in reply
    assert upstream.calls == (status == 200)
    if status != 200:
        assert b"Cache-Status: refrain; detail=invalid-request\r\n" in reply


async def test_on_another_path_query_is_the_upstreams(
    gateway: RunningGateway, upstream: ScriptedUpstream
):
    passed = await query(gateway, path="/v1/other")
    assert passed.json["method"] == "QUERY"
    assert passed.cache == "refrain; fwd=bypass"
    assert "Accept-Query" not in passed.headers


async def test_a_query_is_asked_for_its_key_before_its_content_type(
    start_gateway: StartGateway, tmp_path: Path
):
    keys = tmp_path / "keys"
    keys.write_text(f"team {hashlib.sha256(b'key').hexdigest()}\n")
    gateway = await start_gateway(gateway_keys=keys)
    text = {"Content-Type": "text/plain"}
    refused = await query(gateway, **text)
    assert refused.status == 401
    assert refused.headers["Cache-Control"] == "no-store"
    assert refused.headers["Accept-Query"] == "application/json"
    assert (await query(gateway, **text, Authorization="Bearer key")).status == 415
