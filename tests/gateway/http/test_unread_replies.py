"""Clients that do not read their replies: what is held for them has a bound, whoever they are."""

import asyncio
import gc
import logging
import socket

import orjson
import pytest
from aiohttp import web

from gateway.server.http.unread import PIECE, QUIET_SECONDS, Unread
from gateway.upstream.sharing.answer_log import AnswerLog
from running_gateway import RunningGateway, StartGateway
from scripted_upstream import ScriptedUpstream, completion


class Client:
    def __init__(self) -> None:
        self.aborted = 0

    def abort(self) -> None:
        self.aborted += 1


def test_what_several_clients_get_counts_once():
    unread = Unread(1000, 1.0, lambda: 0.0)
    shared, own = bytes(300), bytes(100)
    first, second = Client(), Client()
    unread.hold(first, (shared, own))
    unread.hold(second, (shared,), size=50)
    assert unread.bytes == 450
    unread.release(first)
    assert unread.bytes == 350
    unread.release(second)
    unread.release(second)
    assert unread.bytes == 0


def test_above_the_bound_who_has_read_nothing_for_the_longest_time_is_disconnected():
    unread = Unread(1000, 1.0, lambda: 0.0)
    clients = [Client() for _ in range(4)]
    for client in clients[:3]:
        unread.hold(client, size=300)
    unread.note_progress(clients[0])
    unread.hold(clients[3], size=300)
    assert [client.aborted for client in clients] == [0, 1, 0, 0]
    assert unread.bytes == 900
    unread.hold(Client(), size=5000)  # one alone may have more
    assert [client.aborted for client in clients] == [1, 1, 1, 1]
    assert unread.bytes == 5000


def test_a_crowd_of_slow_clients_leaves_one_line_a_minute(caplog: pytest.LogCaptureFixture):
    now = 100.0
    unread = Unread(100, 1.0, lambda: now)
    with caplog.at_level(logging.WARNING):
        for _ in range(50):
            unread.hold(Client(), size=80)
        now += QUIET_SECONDS
        unread.hold(Client(), size=80)
    assert caplog.text.count("the slowest are disconnected") == 2


LARGE = "a long answer " * 500_000  # 7 MB: more than the buffers of two sockets hold


@pytest.fixture
async def large(upstream: ScriptedUpstream) -> ScriptedUpstream:
    async def answer(_request: web.Request, _body: object) -> web.StreamResponse:
        return web.json_response(completion(LARGE))

    upstream.answer = answer
    return upstream


async def unread_bytes(gateway: RunningGateway) -> float:
    page = (await gateway.get("/metrics")).raw.decode()
    [line] = [line for line in page.splitlines() if line.startswith("refrain_unread_bytes ")]
    return float(line.split()[1])


class Silent:
    """A client that sends requests and reads nothing."""

    def __init__(self, gateway: RunningGateway, sent: bytes) -> None:
        self.gateway, self.sent = gateway, sent

    async def __aenter__(self) -> socket.socket:
        host, port = self.gateway.url.removeprefix("http://").split(":")
        self.socket = socket.socket()
        self.socket.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
        self.socket.setblocking(False)
        loop = asyncio.get_running_loop()
        await loop.sock_connect(self.socket, (host, int(port)))
        await loop.sock_sendall(self.socket, self.sent)
        return self.socket

    async def __aexit__(self, *_: object) -> None:
        self.socket.close()


def request_of(question: str, **more: object) -> bytes:
    body = orjson.dumps({"model": "m", "messages": [{"role": "user", "content": question}], **more})
    head = b"POST /v1/chat/completions HTTP/1.1\r\nHost: x\r\nContent-Type: application/json\r\n"
    return head + b"Content-Length: %d\r\n\r\n" % len(body) + body


async def eventually(gateway: RunningGateway, expected: object) -> None:
    async with asyncio.timeout(20):
        while not expected(await unread_bytes(gateway)):  # type: ignore[operator]
            pass


@pytest.mark.parametrize("way", ["plain", "stream", "through the parser"])
async def test_a_stored_answer_that_many_do_not_read_is_held_once(
    start_gateway: StartGateway, large: ScriptedUpstream, way: str
):
    gateway = await start_gateway()
    for _ in range(2):
        assert (await gateway.ask("long")).text == LARGE
    sent = request_of("long", **({"stream": True} if way == "stream" else {}))
    if way == "through the parser":
        sent = sent.replace(b"Host: x", b"Host: x\r\nVia: 1.1 somebody")
    size = len(orjson.dumps(completion(LARGE)))
    async with Silent(gateway, sent), Silent(gateway, sent), Silent(gateway, sent):
        most = (1.1 if way == "plain" else 3.5) * size  # what is rendered is each client's own
        await eventually(gateway, lambda held: 0 < held <= most + 3 * 4 * PIECE)
        reply = await gateway.ask("long")
        assert reply.text == LARGE
    await eventually(gateway, lambda held: held == 0)


async def test_above_the_bound_the_slowest_is_disconnected_and_a_reader_gets_everything(
    start_gateway: StartGateway, large: ScriptedUpstream, caplog: pytest.LogCaptureFixture
):
    gateway = await start_gateway(max_unread_bytes=10 * 2**20)
    sent = [request_of(f"long {number}") for number in range(3)]
    async with Silent(gateway, sent[0]) as first:
        await eventually(gateway, lambda held: held > 6 * 2**20)
        async with Silent(gateway, sent[1]):
            while "the slowest are disconnected" not in caplog.text:
                await gateway.get("/healthz")
            await closed(first)
            reply = await gateway.ask("long 2")
            assert reply.text == LARGE
    await eventually(gateway, lambda held: held == 0)


async def closed(client: socket.socket) -> None:
    """Read what has come, to the end that the gateway has made."""
    loop, size = asyncio.get_running_loop(), 0
    async with asyncio.timeout(20):
        try:
            while piece := await loop.sock_recv(client, 2**20):
                size += len(piece)
        except ConnectionResetError:
            pass
    assert size < len(LARGE)


async def test_a_stream_that_nobody_reads_is_not_read_from_the_upstream_either(
    start_gateway: StartGateway, upstream: ScriptedUpstream
):
    sent = 0
    event = b'data: {"id":"x","choices":[{"index":0,"delta":{"content":"%s"}}]}\n\n' % (b"a" * 9000)

    async def endless(request: web.Request, _body: object) -> web.StreamResponse:
        nonlocal sent
        response = web.StreamResponse(headers={"Content-Type": "text/event-stream"})
        await response.prepare(request)
        while True:
            await response.write(event)
            sent += len(event)

    upstream.answer = endless
    gateway = await start_gateway()
    async with Silent(gateway, request_of("go on", stream=True)):
        await upstream.arrived.wait()
        before = -1
        while sent > before or not sent:
            before = sent
            for _ in range(5):
                await gateway.get("/healthz")
        assert sent < 30 * 2**20  # most of it in the buffers of four sockets
        await eventually(gateway, lambda held: 2**20 <= held < 9 * 2**20)
    await eventually(gateway, lambda held: held == 0)


async def test_a_stream_that_its_client_leaves_gives_its_memory_back_at_once(
    start_gateway: StartGateway, upstream: ScriptedUpstream
):
    event = b'data: {"id":"x","choices":[{"index":0,"delta":{"content":"a word"}}]}\n\n'

    async def endless(request: web.Request, _body: object) -> web.StreamResponse:
        response = web.StreamResponse(headers={"Content-Type": "text/event-stream"})
        await response.prepare(request)
        while True:
            await response.write(event * 50)

    upstream.answer = endless
    gateway = await start_gateway()
    gc.collect()
    earlier = [one for one in gc.get_objects() if type(one) is AnswerLog]  # of other tests
    gc.disable()  # a collector comes by late: these are few objects, and large
    try:
        async with Silent(gateway, request_of("go on", stream=True)) as client:
            received = 0
            while received < 2**20:
                received += len(await asyncio.get_running_loop().sock_recv(client, 2**16))
            held = [one for one in gc.get_objects() if type(one) is AnswerLog and one.size]
            held = [one for one in held if all(one is not other for other in earlier)]
            assert len(held) == 1
        async with asyncio.timeout(20):
            while held[0].size:
                await gateway.get("/healthz")
    finally:
        gc.enable()
