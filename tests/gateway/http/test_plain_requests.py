"""Plain requests over real connections: odd replies, early bytes, hang-ups, faults and drains."""

import asyncio
import itertools
import logging
import re
import socket
from contextlib import AsyncExitStack, asynccontextmanager, suppress
from urllib.parse import urlsplit

import orjson
import pytest
from aiohttp import web
from raw_upstream import EVENTS, JSON, RawUpstream, answer, raw_servers, sends, whole

import running_gateway
from gateway.app import create_app
from gateway.server.hot_path import HotPath
from gateway.server.http.hot_connection import MAX_EARLY_BYTES, HotConnection
from gateway.server.http.http_server import Connection
from gateway.server.http.middleware import STOPPING
from gateway.settings import Settings
from running_gateway import start_app
from scripted_upstream import completion, text_of

PER_PROCESS = re.compile(rb"\r\nDate: [^\r]*|(?<=\r\nx-request-id: )req_[^\r]*")
LAST = b"GET /healthz HTTP/1.1\r\nHost: h\r\nConnection: close\r\n\r\n"
OWN_ID = b"x-request-id: theirs\r\n"


def post(content="Why?", fields=b"", **more):
    """Return a plain request's bytes."""
    body = {"model": "m", "messages": [{"role": "user", "content": content}], **more}
    raw = orjson.dumps(body)
    head = b"POST /v1/chat/completions HTTP/1.1\r\nHost: h\r\nContent-Type: application/json\r\n"
    return head + fields + b"Content-Length: %d\r\n\r\n" % len(raw) + raw


async def connect(url):
    return await asyncio.open_connection("127.0.0.1", urlsplit(url).port)


async def rest(reader):
    """Return all until the server ends the connection."""
    return await asyncio.wait_for(reader.read(), 30)


@pytest.fixture
async def raw():
    async with raw_servers() as start:
        yield await start(sends(b""))


async def replies(url, request):
    """Send a request, and one more behind its reply; return all bytes."""
    reader, writer = await connect(url)
    writer.write(request)
    head = await asyncio.wait_for(reader.readuntil(b"\r\n\r\n"), 30)
    writer.write(LAST)
    got = head + await rest(reader)
    writer.close()
    return PER_PROCESS.sub(b"", got)


@asynccontextmanager
async def both_ways(raw: RawUpstream, tmp_path, monkeypatch, *, stopping):
    """Give the URLs of two gateways: one takes plain requests, one parses all of them."""
    async with AsyncExitStack() as stack:
        urls = []
        for name in ("plain", "parser"):
            settings = Settings(upstream=(raw.url,), data_dir=tmp_path / name)
            app = create_app(settings, semantic_socket=None)
            runner, url = await start_app(app)
            stack.push_async_callback(runner.cleanup)
            if stopping:
                app[STOPPING].set()
            urls.append(url)
            monkeypatch.setattr(running_gateway, "new_connection", lambda _: Connection)
        yield urls


ODD = {
    "empty, no type": whole(b"", kind=b""),
    "empty, a type": whole(b""),
    "no type": whole(b"some bytes", kind=b""),
    "no type, refused": whole(b"no", kind=b"", status=b"400 Bad Request"),
    "empty, refused": whole(b"", OWN_ID, kind=b"", status=b"429 Too Many Requests"),
    "own id": whole(answer("Yes."), OWN_ID),
    "no content": b"HTTP/1.1 204 No Content\r\n\r\n",
    "not modified": b'HTTP/1.1 304 Not Modified\r\nETag: "a"\r\n' + OWN_ID + b"\r\n",
}


NO_ANSWERS = {"empty, no type", "empty, a type", "no type", "no content"}
"""The upstream's fault: the gateway's own error has a type."""
TYPED = NO_ANSWERS | {"no type, refused", "own id"}


FIELDS = (b"", b"x-request-id:\r\n", b"x-request-id: mine\r\n")


@pytest.mark.parametrize("stopping", [False, True])
async def test_an_odd_reply_is_the_same_as_through_the_parser(
    stopping, raw, tmp_path, monkeypatch, patient
):
    async with both_ways(raw, tmp_path, monkeypatch, stopping=stopping) as urls:
        for odd, fields in itertools.product(ODD, FIELDS):
            raw.says = sends(ODD[odd])
            request = post(f"{odd}, {fields}", fields)  # none is a hit
            plain, parsed = [await replies(url, request) for url in urls]
            assert plain == parsed
            head, _, after = plain.partition(b"\r\n\r\n")
            assert head.startswith(b"HTTP/1.1 502 ") == (odd in NO_ANSWERS)
            octets = b"\r\nContent-Type: application/octet-stream" in head
            assert octets == (odd == "no type, refused")
            assert (b"\r\nContent-Type: " in head) == (odd in TYPED)
            assert (b"\r\nConnection: close" in head) == stopping
            assert after.endswith(b'{"status":"alive"}') != stopping


@pytest.mark.parametrize("status", [b"204 No Content", b"304 Not Modified"])
async def test_a_reply_that_has_no_body_ends_with_its_head(status, raw, start_gateway):
    raw.says = sends(b"HTTP/1.1 " + status + b"\r\n" + EVENTS + b"\r\n")
    gateway = await start_gateway(upstream=(raw.url,))
    reader, writer = await connect(gateway.url)
    writer.write(post(stream=True))
    head = await asyncio.wait_for(reader.readuntil(b"\r\n\r\n"), 30)
    assert head.startswith(b"HTTP/1.1 " + status + b"\r\n")
    assert b"\r\nTransfer-Encoding" not in head
    assert b"\r\nContent-Length" not in head
    assert await rest(reader) == b""
    writer.close()
    raw.says = sends(whole(answer("Yes.")))
    assert b"Yes." in await replies(gateway.url, post("And now?"))


@pytest.mark.parametrize("early", [b"P", post("And then?")])
async def test_a_hang_up_behind_early_bytes_cancels_the_call(early, gateway, upstream):
    never = asyncio.Event()

    async def waits(_request, _body):
        await never.wait()
        return web.Response()

    upstream.answer = waits
    _, writer = await connect(gateway.url)
    writer.write(post())
    await asyncio.wait_for(upstream.arrived.wait(), 30)
    writer.write(early)
    await writer.drain()
    writer.close()
    await asyncio.wait_for(upstream.cancelled.wait(), 30)


async def test_many_early_bytes_wait_unread_and_are_answered_in_order(tmp_path, upstream, patient):
    may_answer = asyncio.Event()

    async def answers(_request, body):
        await may_answer.wait()
        return web.json_response(completion(text_of(body)[:20]))

    upstream.answer = answers
    settings = Settings(upstream=(f"{upstream.url}/v1",), data_dir=tmp_path)
    runner, url = await start_app(create_app(settings, semantic_socket=None))
    reader, writer = await connect(url)
    writer.write(post("0"))
    await asyncio.wait_for(upstream.arrived.wait(), 30)
    (served,) = runner.server.connections
    writer.write(post("1"))
    writer.write(post("2" * MAX_EARLY_BYTES) + post("3") + LAST)
    async with asyncio.timeout(30):
        while served.transport.is_reading():  # noqa: ASYNC110 - nobody tells
            await asyncio.sleep(0)
    may_answer.set()
    found = re.findall(rb"You asked: (\d)", await rest(reader))
    assert found == [b"0", b"1", b"2", b"3"]
    writer.close()
    await runner.cleanup()


def fails(*_given, **_options):
    raise RuntimeError("a defect")


@pytest.fixture
def early_bytes(monkeypatch):
    """Have each connection read a request in the turn of the loop in which it is made."""
    made = HotConnection.connection_made

    def make(request, *, lost=False):
        def made_and_read(connection, transport):
            made(connection, transport)
            if lost:
                transport.abort()
            connection.data_received(request)

        monkeypatch.setattr(HotConnection, "connection_made", made_and_read)

    return make


async def test_a_request_that_comes_with_its_connection_is_plain(gateway, early_bytes, monkeypatch):
    early_bytes(post())
    monkeypatch.setattr(HotConnection, "_parse", fails)
    reader, writer = await connect(gateway.url)
    head = await asyncio.wait_for(reader.readuntil(b"\r\n\r\n"), 30)
    assert head.startswith(b"HTTP/1.1 200 ")
    writer.close()


async def test_a_client_that_leaves_with_its_first_bytes_is_no_fault(gateway, early_bytes, caplog):
    early_bytes(post(), lost=True)
    reader, writer = await connect(gateway.url)
    with suppress(ConnectionResetError):
        assert await rest(reader) == b""
    assert not [each for each in caplog.records if each.levelno >= logging.ERROR]
    writer.close()


@pytest.mark.parametrize("where", ["remember", "trace", "sink"])
async def test_a_fault_of_the_gateway_is_told_and_logged(where, gateway, monkeypatch, caplog):
    request = post(fields=b"x-request-id: mine\r\n")
    assert b" 200 OK" in await replies(gateway.url, request)
    match where:
        case "remember":
            monkeypatch.setattr(HotPath, "remember", fails)
        case "trace":
            monkeypatch.setattr("gateway.server.http.handlers.Handlers._begin", fails)
        case "sink":
            monkeypatch.setattr("gateway.telemetry.observation.Observation.finish", fails)
    with caplog.at_level(logging.ERROR):
        reader, writer = await connect(gateway.url)
        writer.write(request)
        head = await asyncio.wait_for(reader.readuntil(b"\r\n\r\n"), 30)
        length = int(re.search(rb"\r\nContent-Length: (\d+)", head)[1])
        body = orjson.loads(await reader.readexactly(length))
        if where != "remember":
            assert await rest(reader) == b""
        writer.close()
    assert "a defect" in caplog.text
    if where != "sink":  # which is called when the reply is sent
        assert head.startswith(b"HTTP/1.1 500 ")
        assert body["error"]["type"] == "server_error"
        assert b"\r\nx-request-id: mine\r\n" in head


async def test_a_connection_is_busy_until_a_late_reader_has_the_last_reply(raw, tmp_path, patient):
    may_answer, arrived = asyncio.Event(), asyncio.Event()
    text = "word " * 1_500_000

    async def says(_reader, writer):
        arrived.set()
        await may_answer.wait()
        writer.write(whole(answer(text), kind=JSON))

    raw.says = says
    app = create_app(Settings(upstream=(raw.url,), data_dir=tmp_path), semantic_socket=None)
    runner, url = await start_app(app)
    sock = socket.socket()
    sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 65_536)
    sock.setblocking(False)
    await asyncio.get_running_loop().sock_connect(sock, ("127.0.0.1", urlsplit(url).port))
    reader, writer = await asyncio.open_connection(sock=sock, limit=1024)
    writer.write(post())
    await asyncio.wait_for(arrived.wait(), 30)
    app[STOPPING].set()
    may_answer.set()
    head = await asyncio.wait_for(reader.readuntil(b"\r\n\r\n"), 30)
    assert b"\r\nConnection: close\r\n" in head
    (served,) = runner.server.connections
    for _ in range(10):  # all that the server does at once with the end of the request
        await asyncio.sleep(0)
    assert served.busy
    body = await rest(reader)
    assert len(body) == int(re.search(rb"\r\nContent-Length: (\d+)", head)[1]) > len(text)
    await asyncio.wait_for(runner.idle(30), 30)
    assert not served.busy
    writer.close()
    await runner.cleanup()
