"""What is no proper request gets an error in OpenAI's form, or its connection's end: both servers.

And each reply names its request by ``x-request-id``.
"""

import ast
import asyncio
import logging
import zlib
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import orjson
import pytest
from aiohttp import web

import backend.request_id
import backend.server.http_server
import gateway.server.http.handlers
import gateway.server.http.http_server
import gateway.telemetry.request_id
from gateway.cli.process.log_lines import TextFormatter
from policies.decision import Endpoint
from running_gateway import StartGateway
from scripted_upstream import ScriptedUpstream, completion

pytest_plugins = ["running_backend"]

ROOT = Path(__file__).parents[2]
CHAT = Endpoint.CHAT.value
MODULES = {
    "gateway": gateway.server.http.http_server,
    "engine": backend.server.http_server,
}


class Place:
    """One of the two servers."""

    def __init__(self, name: str, port: int) -> None:
        self.name, self.port = name, port
        self.http = MODULES[name]

    @asynccontextmanager
    async def connected(self) -> AsyncIterator[tuple[asyncio.StreamReader, asyncio.StreamWriter]]:
        reader, writer = await asyncio.open_connection("127.0.0.1", self.port, limit=2**20)
        try:
            yield reader, writer
        finally:
            writer.close()

    async def says(self, sent: bytes) -> "Said":
        async with self.connected() as (reader, writer):
            writer.write(sent)
            return await said(reader)


class Said:
    def __init__(self, head: bytes, body: bytes) -> None:
        first, *lines = head.decode().split("\r\n")
        self.status = int(first.split()[1])
        fields = (line.partition(": ") for line in lines if line)
        self.headers = {name.lower(): value for name, _, value in fields}
        is_json = b"application/json" in head
        self.error: dict[str, Any] = orjson.loads(body).get("error") if is_json else {}


async def said(reader: asyncio.StreamReader) -> Said:
    head = await asyncio.wait_for(reader.readuntil(b"\r\n\r\n"), 30)
    length = head.lower().partition(b"content-length: ")[2].partition(b"\r\n")[0]
    return Said(head, await asyncio.wait_for(reader.readexactly(int(length or b"0")), 30))


@pytest.fixture(params=["gateway", "engine"])
async def place(
    request: pytest.FixtureRequest, start_gateway: StartGateway, start_server: Any
) -> Place:
    if request.param == "engine":
        return Place("engine", (await start_server()).port)
    return Place("gateway", int((await start_gateway()).url.rpartition(":")[2]))


def request(
    method: str = "POST", target: str = CHAT, fields: bytes = b"", body: bytes = b"{}"
) -> bytes:
    length = b"Content-Length: %d\r\n" % len(body)
    head = f"{method} {target} HTTP/1.1\r\nHost: x\r\n".encode()
    return head + fields + length + b"\r\n" + body


ODD = {
    "a URL of 20 KB": (request(target="/v1/models?" + "a" * 20_000), 414, "url_too_long"),
    "a header of 60 KB": (
        request(fields=b"X-Large: " + b"a" * 60_000 + b"\r\n"),
        431,
        "headers_too_large",
    ),
    "500 headers": (
        request(fields=b"".join(b"X-%d: a\r\n" % each for each in range(500))),
        431,
        "headers_too_large",
    ),
    "Brotli": (
        request(fields=b"Content-Encoding: br\r\n"),
        415,
        "unsupported_content_encoding",
    ),
    "an unknown coding": (
        request(fields=b"Content-Encoding: compress\r\n"),
        415,
        "unsupported_content_encoding",
    ),
    "no HTTP": (b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03\r\n\r\n", 400, "invalid_http"),
    "TRACE": (request("TRACE"), 405, "method_not_supported"),
    "TRACE elsewhere": (request("TRACE", "/v1/files"), 405, "method_not_supported"),
    "CONNECT": (
        b"CONNECT example.com:443 HTTP/1.1\r\nHost: example.com:443\r\n\r\n",
        405,
        "method_not_supported",
    ),
    "a WebSocket": (
        request(
            "GET",
            "/v1/chat/completions",
            b"Upgrade: websocket\r\nConnection: Upgrade\r\n"
            b"Sec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==\r\nSec-WebSocket-Version: 13\r\n",
            b"",
        ),
        501,
        "websocket_not_supported",
    ),
}


@pytest.mark.parametrize(("sent", "status", "code"), ODD.values(), ids=ODD.keys())
async def test_what_is_refused_is_refused_in_openai_form(
    place: Place, upstream: ScriptedUpstream, sent: bytes, status: int, code: str
):
    reply = await place.says(sent)

    assert (reply.status, reply.error["code"]) == (status, code)
    assert reply.error.keys() == {"message", "type", "param", "code"}
    assert "aaaa" not in reply.error["message"]
    assert reply.headers["x-request-id"]
    if place.name == "gateway":
        assert reply.headers["cache-status"] == "refrain; detail=invalid-request"
    if status == 405:
        assert "POST" in reply.headers["allow"]
    if status == 415:
        assert reply.headers["accept-encoding"] == "gzip, deflate, zstd"
    assert upstream.calls == 0


async def test_a_connection_that_was_to_be_a_websocket_is_closed(place: Place):
    """The parser would read no further request on it, which would wait for ever."""
    reader, writer = await asyncio.open_connection("127.0.0.1", place.port)
    sent, *_ = ODD["a WebSocket"]
    writer.write(sent + request("GET", "/healthz", body=b""))
    reply = await asyncio.wait_for(reader.read(), 30)
    assert reply.startswith(b"HTTP/1.1 501 ")
    assert reply.count(b"HTTP/1.1 ") == 1
    writer.close()


async def test_a_large_token_and_an_offer_of_http2_are_taken(place: Place):
    model = b'{"model": "scripted", "messages": [{"role": "user", "content": "hi"}]}'
    token = b"Authorization: Bearer " + b"a" * 20_000 + b"\r\n"
    offer = b"Upgrade: h2c\r\nConnection: Upgrade, HTTP2-Settings\r\nHTTP2-Settings: AAM\r\n"
    kind = b"Content-Type: application/json\r\n"
    assert (await place.says(request(fields=token + kind, body=model))).status == 200
    assert (await place.says(request(fields=offer + kind, body=model))).status == 200


OFFER = b"Upgrade: h2c\r\nConnection: Upgrade, HTTP2-Settings\r\nHTTP2-Settings: AAM\r\n"
HEALTH = request("GET", "/healthz", body=b"")
WHOLE = b'{"model": "scripted", "messages": [{"role": "user", "content": "\r\n\r\n"}]}'.replace(
    b"\r\n", b"\\r\\n"
)
JSON = b"Content-Type: application/json\r\n"
BEHIND_AN_OFFER = {
    "no body": request("GET", "/healthz", OFFER, b""),
    "a body": request(fields=OFFER + JSON, body=WHOLE),
    "empty lines in the body": request(fields=OFFER + JSON, body=b"\r\n\r\n" + WHOLE + b"\r\n\r\n"),
    "chunks": request(fields=OFFER + JSON + b"Transfer-Encoding: chunked\r\n", body=b"").replace(
        b"Content-Length: 0\r\n", b""
    )
    + b"%x\r\n%b\r\n0\r\n\r\n" % (len(WHOLE), WHOLE),
    "a chunk of empty lines": request(
        fields=OFFER + JSON + b"Transfer-Encoding: chunked\r\n", body=b""
    ).replace(b"Content-Length: 0\r\n", b"")
    + b"%x\r\n%b\r\n0\r\n\r\n" % (len(WHOLE) + 1_000, b"\r\n" * 500 + WHOLE),
}


@pytest.mark.parametrize("offer", BEHIND_AN_OFFER.values(), ids=BEHIND_AN_OFFER.keys())
@pytest.mark.parametrize("cut", [None, 1, -1, -4, -9])
async def test_no_request_is_lost_behind_an_offer_of_another_protocol(
    place: Place, offer: bytes, cut: int | None
):
    sent = offer + HEALTH + offer + HEALTH
    async with place.connected() as (reader, writer):
        if cut is not None:
            at = len(offer) + len(HEALTH) + (cut if cut < 0 else len(offer) - cut)
            writer.write(sent[:at])
            await writer.drain()
            await asyncio.sleep(0)
            sent = sent[at:]
        writer.write(sent)
        assert [(await said(reader)).status for _ in range(4)] == [200] * 4


@pytest.mark.parametrize("chunked", [False, True])
@pytest.mark.parametrize("http", MODULES.values(), ids=MODULES.keys())
async def test_behind_an_offer_of_another_protocol_nothing_is_lost_if_a_body_is_read_slowly(
    http: Any, chunked: bool
):
    async def answer(request: web.Request) -> web.Response:
        while await request.content.readany():  # noqa: ASYNC110 - more comes than is read
            await asyncio.sleep(0.002)
        return web.Response()

    app = web.Application(client_max_size=2**24)
    app.router.add_route("*", "/{path:.*}", answer)
    runner = http.Runner(app, gateway.server.http.handlers.refuse)
    await runner.setup()
    await web.TCPSite(runner, "127.0.0.1", 0).start()
    body = b"\r\n\r\nGET / HTTP/1.1\r\n\r\n" * 100_000
    sent = request(fields=OFFER, body=body)
    if chunked:
        framing = OFFER + b"Transfer-Encoding: chunked\r\n"
        sent = request(fields=framing, body=b"").replace(b"Content-Length: 0\r\n", b"")
        sent += b"%x\r\n%b\r\n0\r\n\r\n" % (len(body), body)
    reader, writer = await asyncio.open_connection(*runner.addresses[0])
    writer.write((sent + HEALTH) * 2)
    assert [(await said(reader)).status for _ in range(4)] == [200] * 4
    writer.close()
    await runner.cleanup()


async def test_empty_lines_behind_an_offer_of_another_protocol_cost_no_more_than_other_bytes(
    place: Place, monkeypatch: pytest.MonkeyPatch
):
    read, pieces = place.http.Connection._feed, list[int]()

    def feed(self: Any, data: bytes) -> None:
        pieces.append(len(data))
        read(self, data)

    monkeypatch.setattr(place.http.Connection, "_feed", feed)
    body = b"\r\n" * 100_000 + WHOLE
    chunked = OFFER + JSON + b"Transfer-Encoding: chunked\r\n"
    sent = request(fields=chunked, body=b"").replace(b"Content-Length: 0\r\n", b"")
    reply = await place.says(sent + b"%x\r\n%b\r\n0\r\n\r\n" % (len(body), body))
    assert reply.status == 200
    assert sum(pieces) > len(body)
    assert len(pieces) < 10_000


@pytest.mark.parametrize("fields", [b"", b"X-Odd: 1\r\nExpect: 100-continue\r\n"])
@pytest.mark.parametrize("count", [1, 3])
async def test_a_client_that_sends_no_more_gets_its_replies(
    place: Place, fields: bytes, count: int
):
    async with place.connected() as (reader, writer):
        writer.write(request(fields=fields + JSON, body=WHOLE) * count)
        writer.write_eof()
        replies = await asyncio.wait_for(reader.read(), 30)
    assert replies.count(b"HTTP/1.1 200 ") == count


async def test_half_a_request_at_the_end_gets_no_reply(place: Place):
    async with place.connected() as (reader, writer):
        writer.write(HEALTH + request(fields=JSON, body=WHOLE)[:-5])
        writer.write_eof()
        assert (await asyncio.wait_for(reader.read(), 30)).count(b"HTTP/1.1 200 ") < 2


async def test_what_is_expected_and_not_known_is_417(place: Place):
    reply = await place.says(request(fields=b"Expect: 200-ok\r\n")[:-2])
    assert reply.status == 417


async def test_half_a_head_is_408_after_a_while(place: Place, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(place.http, "HEAD_SECONDS", 0.05)
    async with place.connected() as (reader, writer):
        writer.write(b"POST /v1/chat/completions HTTP/1.1\r\nHost: x\r\nX-Slow")
        reply = await said(reader)
        assert (reply.status, reply.error["code"]) == (408, "timeout")
        assert reply.headers["connection"] == "close"
        assert await asyncio.wait_for(reader.read(), 30) == b""


async def test_half_a_head_after_a_request_is_408_too(
    place: Place, monkeypatch: pytest.MonkeyPatch
):
    async with place.connected() as (reader, writer):
        writer.write(request("GET", "/healthz", body=b""))
        assert (await said(reader)).status == 200
        monkeypatch.setattr(place.http, "HEAD_SECONDS", 0.05)
        writer.write(b"GET /healthz HT")
        assert (await said(reader)).status == 408
        assert await asyncio.wait_for(reader.read(), 30) == b""


async def test_a_connection_without_a_request_is_closed_in_silence(
    place: Place, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr(place.http, "HEAD_SECONDS", 0.05)
    async with place.connected() as (reader, _):
        assert await asyncio.wait_for(reader.read(), 30) == b""


@pytest.mark.parametrize("encoding", [b"", b"Content-Encoding: deflate\r\n"])
@pytest.mark.parametrize("target", [CHAT, "/v1/files"])
async def test_half_a_body_is_408_after_a_while(
    place: Place, monkeypatch: pytest.MonkeyPatch, encoding: bytes, target: str
):
    monkeypatch.setattr(place.http, "STALLED_SECONDS", 0.05)
    whole = request(target=target, fields=encoding, body=zlib.compress(b'{"model": "m"}'))
    async with place.connected() as (reader, writer):
        writer.write(whole[:-5])
        # The engine has no other path, and says so at once.
        at_once = place.name == "engine" and target != CHAT
        assert (await said(reader)).status == (404 if at_once else 408)


@pytest.mark.parametrize(
    ("path", "status"), [("/healthz", 200), ("/v1/nowhere/..", 404), ("/x", 404)]
)
@pytest.mark.parametrize("given", ["mine-1", "", "b\xe4d", "a" * 129])
async def test_every_reply_names_its_request(place: Place, path: str, status: int, given: str):
    field = f"X-Request-Id: {given}\r\n".encode("latin-1") if given else b""
    reply = await place.says(request("GET", path, field, b""))
    assert reply.status == status
    named = reply.headers["x-request-id"]
    assert named == given if given == "mine-1" else named.startswith("req_")


class Lines(logging.Handler):
    """Log lines as they are written."""

    def __init__(self) -> None:
        super().__init__()
        self.setFormatter(TextFormatter(gateway.telemetry.request_id.CURRENT.get))
        self.lines: list[str] = []

    def emit(self, record: logging.LogRecord) -> None:
        self.lines.append(self.format(record))


@pytest.fixture
def lines() -> Iterator[list[str]]:
    handler = Lines()
    logging.getLogger("gateway").addHandler(handler)
    yield handler.lines
    logging.getLogger("gateway").removeHandler(handler)


async def test_misses_hits_streams_and_errors_have_an_id(start_gateway: StartGateway):
    gateway = await start_gateway()
    for number, stream in enumerate((False, False, True, True)):
        told = await gateway.ask(stream=stream, headers={"X-Request-Id": f"mine-{number}"})
        assert told.headers.getall("x-request-id") == [f"mine-{number}"]
    refused = await gateway.post(CHAT, b"{")
    other = await gateway.post(CHAT, b"{")
    assert refused.headers["x-request-id"] != other.headers["x-request-id"]


@pytest.mark.parametrize(("given", "named"), [({"X-Request-Id": "mine"}, "mine"), ({}, "theirs-1")])
async def test_the_log_names_a_failed_call_by_the_id_of_its_reply(
    start_gateway: StartGateway,
    upstream: ScriptedUpstream,
    lines: list[str],
    given: dict[str, str],
    named: str,
):
    async def answer(_: web.Request, body: Any) -> web.Response:
        return web.json_response({}, status=503, headers={"x-request-id": "theirs-1"})

    upstream.answer = answer
    gateway = await start_gateway()
    reply = await gateway.ask(headers=given)
    assert reply.headers["x-request-id"] == named
    [line] = [line for line in lines if "it answered with status 503" in line]
    assert line.endswith(f" [{named}]")


async def test_the_upstreams_id_stays_where_the_client_has_none(
    start_gateway: StartGateway, upstream: ScriptedUpstream
):
    gateway = await start_gateway()

    async def answer(_: web.Request, body: Any) -> web.Response:
        return web.json_response(completion("Hello."), headers={"x-request-id": "theirs-1"})

    upstream.answer = answer
    assert (await gateway.ask()).headers["x-request-id"] == "theirs-1"
    hit = await gateway.ask()
    assert "hit" in hit.cache
    assert hit.headers["x-request-id"].startswith("req_")
    asked = await gateway.ask("Another?", headers={"X-Request-Id": "mine"})
    assert asked.headers["x-request-id"] == "mine"


def test_a_log_line_of_a_request_ends_in_its_id():
    for ids in (gateway.telemetry.request_id, backend.request_id):
        formatter = TextFormatter(ids.CURRENT.get)
        record = logging.makeLogRecord({"msg": "it failed"})
        before = ids.CURRENT.set("mine-1")
        try:
            assert formatter.format(record).endswith("it failed [mine-1]")
        finally:
            ids.CURRENT.reset(before)
        assert formatter.format(record).endswith("it failed")


@pytest.mark.parametrize(
    ("ours", "theirs"),
    [
        ("gateway/server/http/http_server.py", "backend/server/http_server.py"),
        ("gateway/server/http/codings.py", "backend/server/codings.py"),
        ("gateway/telemetry/request_id.py", "backend/request_id.py"),
    ],
)
def test_both_servers_do_it_alike(ours: str, theirs: str):
    # The packages may not import one another.
    one, other = ((ROOT / file).read_text() for file in (ours, theirs))
    one = one.replace("gateway.server.http.", "backend.server.")
    assert ast.dump(ast.parse(one)) == ast.dump(ast.parse(other))
