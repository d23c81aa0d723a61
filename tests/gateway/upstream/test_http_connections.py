"""One request gets one reply: what else an upstream sends reaches nobody and is never stored."""

import asyncio
import gc
import gzip
import os
import socket
import struct
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import AsyncExitStack

import pytest
from aiohttp import ClientSession
from raw_upstream import (
    EVENTS,
    Says,
    StartRaw,
    answer,
    raw_servers,
    sends,
    whole,
)

from gateway.protocol.errors import UpstreamError
from gateway.protocol.http.messages import read_up_to
from gateway.upstream.request import Outgoing
from gateway.upstream.wire.connection import HttpReply, OneReply
from gateway.upstream.wire.http_client import HttpUpstream
from running_gateway import RunningGateway, StartGateway
from scripted_upstream import stream_of

OWN, OTHER = answer("Own answer."), answer("An answer nobody asked for.")
EXTRA = whole(OTHER)


def chunked(body: bytes, kind: bytes = b"Content-Type: application/json\r\n") -> bytes:
    head = b"HTTP/1.1 200 OK\r\n" + kind + b"Transfer-Encoding: chunked\r\n\r\n"
    return head + b"%x\r\n%b\r\n0\r\n\r\n" % (len(body), body)


HEAD_ALONE = b"HTTP/1.1 200 OK\r\n"
INTERIM = b"HTTP/1.1 103 Early Hints\r\nLink: </a>\r\n\r\n"
REPLIES = {
    "a length": whole(OWN),
    "chunks": chunked(OWN),
    "an interim head first": INTERIM + whole(OWN),
}


@pytest.fixture
async def raw() -> AsyncIterator[StartRaw]:
    async with raw_servers() as start:
        yield start


class TwoFaced:
    """Answers, and sends ``extra`` in the same write, or when it is told to."""

    def __init__(self, reply: bytes, extra: bytes, *, at_once: bool) -> None:
        self.reply, self.extra, self.at_once = reply, extra, at_once
        self.connections: set[asyncio.StreamWriter] = set()

    async def __call__(self, _: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.connections.add(writer)
        writer.write(self.reply + (self.extra if self.at_once else b""))

    async def desynchronise(self) -> None:
        (writer,) = (each for each in self.connections if not each.is_closing())
        writer.write(self.extra)
        await writer.drain()


def ask_as(gateway: RunningGateway, number: int) -> Awaitable[object]:
    return gateway.ask(f"Question {number}?", headers={"Authorization": f"Bearer key-{number}"})


EXTRAS = {"a reply": EXTRA, "half a head": HEAD_ALONE, "a byte": b"\n"}


@pytest.mark.parametrize("at_once", [True, False], ids=["in the same write", "while idle"])
@pytest.mark.parametrize("extra", EXTRAS.values(), ids=EXTRAS.keys())
@pytest.mark.parametrize("reply", REPLIES.values(), ids=REPLIES.keys())
async def test_bytes_that_nobody_asked_for_end_their_connection(
    start_gateway: StartGateway, raw: StartRaw, reply: bytes, extra: bytes, at_once: bool
):
    says = TwoFaced(reply, extra, at_once=at_once)
    gateway = await start_gateway(upstream=(await raw(says)).url)
    for number in range(5):
        told = await ask_as(gateway, number)
        assert (told.status, told.text) == (200, "Own answer.")
        if not at_once:
            await says.desynchronise()
    for number in range(5):
        again = await ask_as(gateway, number)
        assert "hit" in again.headers["Cache-Status"]
        assert again.text == "Own answer."
    assert len(says.connections) == 5


@pytest.mark.parametrize("kind", ["stream", "pass-through"])
async def test_streams_and_passed_through_replies_are_as_strict(
    start_gateway: StartGateway, raw: StartRaw, kind: str
):
    stream = chunked(b"".join(stream_of("Own answer.")), EVENTS)
    says = TwoFaced(stream if kind == "stream" else whole(b'{"data": []}'), EXTRA, at_once=False)
    gateway = await start_gateway(upstream=(await raw(says)).url)
    for number in range(4):
        if kind == "stream":
            told = await gateway.ask(f"Question {number}?", stream=True)
        else:
            told = await gateway.get(f"/v1/files?after={number}")
        assert told.status == 200
        assert b"nobody asked" not in told.raw
        await says.desynchronise()
    assert len(says.connections) == 4


@pytest.mark.parametrize("reply", REPLIES.values(), ids=REPLIES.keys())
async def test_a_connection_that_holds_nothing_more_is_reused(
    start_gateway: StartGateway, raw: StartRaw, reply: bytes
):
    says = TwoFaced(reply, b"", at_once=True)
    gateway = await start_gateway(upstream=(await raw(says)).url)
    for number in range(5):
        assert (await ask_as(gateway, number)).status == 200
    assert len(says.connections) == 1


class Client:
    """Asks an upstream, and shows its idle connections."""

    def __init__(self, http: HttpUpstream) -> None:
        self.http = http

    async def fetch(self, method: str = "GET") -> bytes:
        async with self.http.request(method, "/v1", (), None) as reply:
            return await read_up_to(reply.read, 10**9)

    @property
    def idle(self) -> list[OneReply]:
        kept = self.http.connector._conns.values()
        return [each for idle in kept for each, _ in idle if each.is_connected()]


StartClient = Callable[..., Awaitable[Client]]


@pytest.fixture
async def client_of(raw: StartRaw) -> AsyncIterator[StartClient]:
    """Start an upstream and a client of it."""
    async with AsyncExitStack() as stack:

        async def start(
            says: Says, *, at_once: bool = False, connect: float = 10.0, read: float = 5.0
        ) -> Client:
            url = (await raw(says, at_once=at_once)).url
            http = HttpUpstream(url, connect_seconds=connect, read_seconds=read)
            await http.open()
            stack.push_async_callback(http.close)
            return Client(http)

        yield start


@pytest.mark.parametrize(
    ("method", "reply", "kept"),
    [
        ("HEAD", b"HTTP/1.1 200 OK\r\nContent-Length: 9\r\n\r\n", 1),
        ("HEAD", b"HTTP/1.1 200 OK\r\nContent-Length: 9\r\n\r\nHTTP/1.1 2", 0),
        ("GET", b"HTTP/1.1 204 No Content\r\n\r\n", 1),
        ("GET", b"HTTP/1.1 204 No Content\r\n\r\nHTTP/1.1 2", 0),
        ("GET", b"HTTP/1.1 200 OK\r\nContent-Length: 0\r\n\r\n", 1),
        ("GET", b"HTTP/1.1 200 OK\r\nContent-Length: 0\r\n\r\n\r\n", 0),
    ],
)
async def test_replies_without_a_body(client_of: StartClient, method: str, reply: bytes, kept: int):
    client = await client_of(sends(reply))
    assert await client.fetch(method) == b""
    assert len(client.idle) == kept


async def test_a_body_in_many_reads_is_counted_whole(client_of: StartClient):
    body = bytes(range(256)) * 4096
    client = await client_of(sends(whole(body)))
    assert await client.fetch() == body
    assert len(client.idle) == 1
    client = await client_of(sends(whole(body) + EXTRA))
    assert await client.fetch() == body
    assert not client.idle


async def test_bytes_still_in_the_socket_are_seen_before_a_connection_is_reused(
    client_of: StartClient,
):
    says = TwoFaced(whole(OWN), EXTRA, at_once=False)
    client = await client_of(says)
    assert await client.fetch() == OWN
    (idle,) = client.idle
    # Not reading stands for a loop that had no time to.
    idle.transport.pause_reading()
    await says.desynchronise()
    assert not idle.is_connected()
    assert await client.fetch() == OWN


async def test_a_reply_of_200_headers_and_one_of_20_kilobytes_are_passed_on(
    start_gateway: StartGateway, raw: StartRaw
):
    many = b"".join(b"X-Number-%d: %d\r\n" % (each, each) for each in range(200))
    large = b"X-Large: " + b"a" * 20_000 + b"\r\n"
    gateway = await start_gateway(upstream=(await raw(sends(whole(OWN, many + large)))).url)
    # Most clients' own bounds are lower than this.
    async with (
        ClientSession(max_field_size=1 << 16, max_headers=1000) as session,
        session.post(
            f"{gateway.url}/v1/chat/completions",
            json={"model": "m", "messages": [{"role": "user", "content": "Hi."}]},
        ) as reply,
    ):
        assert reply.status == 200
        assert reply.headers["X-Number-199"] == "199"
        assert len(reply.headers["X-Large"]) == 20_000
        assert await reply.read() == OWN


class Leaves:
    """Closes or resets each connection that has carried ``most`` requests, once one more comes."""

    def __init__(self, most: int) -> None:
        self.most = most
        self.counts: dict[asyncio.StreamWriter, int] = {}

    async def __call__(self, _: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.counts[writer] = self.counts.get(writer, 0) + 1
        if self.counts[writer] > self.most:
            writer.transport.abort()
        else:
            writer.write(whole(OWN))


async def test_what_may_be_repeated_is_sent_once_more_on_another_connection(
    start_gateway: StartGateway, raw: StartRaw
):
    says = Leaves(1)
    gateway = await start_gateway(upstream=(await raw(says)).url)
    replies = [(await gateway.get("/v1/files")).raw for _ in range(3)]
    assert replies == [OWN] * 3
    assert list(says.counts.values()) == [2, 2, 1]


@pytest.mark.parametrize("method", ["POST", "PATCH"])
async def test_what_may_not_be_repeated_is_sent_once(client_of: StartClient, method: str):
    says = Leaves(1)
    client = await client_of(says)
    assert await client.fetch(method) == OWN
    with pytest.raises(UpstreamError, match="closed the connection"):
        await client.fetch(method)
    assert list(says.counts.values()) == [2]


async def test_a_request_is_not_sent_a_third_time(start_gateway: StartGateway, raw: StartRaw):
    says = Leaves(0)
    gateway = await start_gateway(upstream=(await raw(says)).url)
    reply = await gateway.get("/v1/files")
    assert (reply.status, reply.json["error"]["code"]) == (502, "upstream-broke")
    assert list(says.counts.values()) == [1, 1]


@pytest.mark.parametrize("part", ["target", "name", "value"])
@pytest.mark.parametrize("text", ["a\r\nX-Evil: b", "a\nX-Evil: b", "a\rb", "a\x00b"])
async def test_no_part_of_a_request_can_end_its_line(client_of: StartClient, part: str, text: str):
    says = Leaves(1)
    client = await client_of(says)
    target = f"/v1/{text}" if part == "target" else "/v1"
    field = (text if part == "name" else "X-Name", text if part == "value" else "value")
    with pytest.raises(ValueError, match="control characters"):
        async with client.http.request("GET", target, (field,), None):
            pass
    assert not says.counts


async def test_a_body_without_a_length_is_whole_where_it_ends_and_not_where_it_breaks(
    client_of: StartClient,
):
    read = asyncio.Event()
    breaks = False

    async def says(_: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write(b"HTTP/1.1 200 OK\r\nContent-Type: application/json\r\n\r\n" + OWN)
        await read.wait()
        if breaks:
            linger = struct.pack("ii", 1, 0)
            writer.get_extra_info("socket").setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, linger)
        writer.close()

    client = await client_of(says)
    for breaks in (False, True):
        read.clear()
        async with client.http.request("GET", "/v1", (), None) as reply:
            assert await reply.read() == OWN
            read.set()
            if breaks:
                with pytest.raises(UpstreamError, match="closed the connection"):
                    await reply.read()
            else:
                assert await reply.read() == b""
    assert not client.idle


async def test_a_reply_that_is_left_closes_its_connection_and_one_that_is_read_gives_it_back(
    client_of: StartClient,
):
    says = TwoFaced(HEAD_ALONE + b"Content-Length: 9\r\n\r\nHalf", b"", at_once=True)
    client = await client_of(says)
    async with client.http.request("GET", "/v1", (), None) as reply:
        assert await reply.read() == b"Half"
    assert not client.idle
    says.reply = whole(OWN)
    async with client.http.request("GET", "/v1", (), None) as reply:
        assert await reply.read() == OWN
        assert await reply.read() == b""
        assert len(client.idle) == 1  # it is free before the reply is left
        assert await reply.read() == b""


async def test_one_timer_serves_later_deadlines_and_nearer_ones(client_of: StartClient):
    asked = asyncio.Event()

    async def says(_: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write(HEAD_ALONE + b"Content-Length: 9\r\n\r\n")
        while True:
            await asked.wait()
            asked.clear()
            writer.write(b"a")

    client = await client_of(says)
    async with client.http.request("GET", "/v1", (), None) as reply:
        client.http.longest_read = 0.5
        first = asyncio.create_task(reply.read())
        await asyncio.wait([first], timeout=0)
        asked.set()
        assert await first == b"a"
        client.http.longest_read = 60.0
        second = asyncio.create_task(reply.read())
        assert not (await asyncio.wait([second], timeout=0.6))[0]
        asked.set()
        assert await second == b"a"
        client.http.longest_read = 0.1
        with pytest.raises(UpstreamError, match="did not answer in time"):
            await reply.read()


async def test_an_upload_that_is_answered_early_is_left(client_of: StartClient):
    taken = asyncio.Event()

    async def says(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"begins")
        writer.write(whole(b"{}", status=b"413 Content Too Large"))
        await reader.read()
        taken.set()

    async def upload() -> AsyncIterator[bytes]:
        yield b"begins"
        await asyncio.Event().wait()

    client = await client_of(says, at_once=True)
    async with client.http.request("POST", "/v1/files", (), upload()) as reply:
        assert (reply.status, await reply.read(), await reply.read()) == (413, b"{}", b"")
    assert not client.idle
    async with asyncio.timeout(60):
        await taken.wait()


async def test_a_reply_that_is_complete_as_it_is_cancelled_leaves_no_deadline(
    client_of: StartClient, monkeypatch: pytest.MonkeyPatch
):
    reads = asyncio.Event()
    connections = set()
    receive = OneReply.data_received

    async def says(_: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        connections.add(writer)
        writer.write(HEAD_ALONE + b"Content-Length: 4\r\n\r\n")
        await reads.wait()
        writer.write(b"Body")

    async def leave() -> None:
        async with client.http.request("GET", "/v1", (), None) as reply:
            reads.set()
            await reply.read()

    def receive_and_cancel(connection: OneReply, data: bytes) -> None:
        receive(connection, data)
        if data == b"Body":
            leaving.cancel()

    client = await client_of(says)
    client.http.longest_read = 0.3
    monkeypatch.setattr(OneReply, "data_received", receive_and_cancel)
    leaving = asyncio.create_task(leave())
    with pytest.raises(asyncio.CancelledError):
        await leaving
    monkeypatch.undo()
    assert len(client.idle) == 1
    # The loop calls this after all timers that were set before, and that are due by then.
    passed = asyncio.Event()
    asyncio.get_running_loop().call_later(client.http.longest_read, passed.set)
    await passed.wait()
    client.http.longest_read = 5.0
    assert await client.fetch() == b"Body"
    assert len(connections) == 1


async def test_the_wait_for_a_head_has_the_bound_for_reads_and_none_for_the_connection(
    client_of: StartClient,
):
    client = await client_of(sends(b""), connect=3600.0, read=0.05)
    async with asyncio.timeout(60):
        with pytest.raises(UpstreamError, match="did not answer in time"):
            await client.fetch()


@pytest.mark.parametrize("fields", [b"", b"Upgrade: websocket\r\nConnection: upgrade\r\n"])
async def test_a_connection_that_changed_its_protocol_is_not_used_again(
    client_of: StartClient, fields: bytes
):
    says = TwoFaced(b"HTTP/1.1 101 Switching Protocols\r\n" + fields + b"\r\n", b"", at_once=True)
    client = await client_of(says)
    with pytest.raises(UpstreamError, match="status 101 in place of an answer"):
        await client.fetch()
    assert not client.idle
    says.reply = whole(OWN)
    assert await client.fetch() == OWN
    assert len(says.connections) == 2


async def test_a_reply_in_a_log_shows_neither_credential_nor_prompt(client_of: StartClient):
    client = await client_of(sends(whole(OWN)))
    fields = (("Authorization", "Bearer sk-secret"),)
    reply = client.http.send(Outgoing("/v1/chat/completions", fields, b'{"p": "a prompt"}', "m"))
    shown = repr(reply)
    async with reply:
        shown += repr(reply)
    assert "HttpReply" in shown
    assert "sk-secret" not in shown
    assert "a prompt" not in shown


def replies_held() -> int:
    return sum(isinstance(each, HttpReply) for each in gc.get_objects())


async def test_a_compressed_reply_that_is_left_early_is_freed_without_the_collector(
    client_of: StartClient,
):
    packed = whole(gzip.compress(os.urandom(300_000)), b"Content-Encoding: gzip\r\n")
    client = await client_of(sends(packed))
    gc.collect()
    before = replies_held()
    gc.disable()
    try:
        async with client.http.request("GET", "/v1", (), None) as reply:
            assert await reply.read()
        assert replies_held() == before + 1
        del reply
        for _ in range(20):
            await asyncio.sleep(0)  # the loop closes the iterators of the body
        assert replies_held() == before
    finally:
        gc.enable()
