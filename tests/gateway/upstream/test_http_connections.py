"""One request gets one reply: what else an upstream sends reaches nobody and is never stored."""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable

import pytest
from aiohttp import ClientSession
from raw_upstream import (
    EVENTS,
    RawUpstream,
    Says,
    StartRaw,
    answer,
    raw_servers,
    sends,
    whole,
)

from gateway.upstream.http_client import OneReplyConnector
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


class Fetch:
    """A session whose connections are under test, and an upstream it asks."""

    def __init__(self, session: ClientSession, start: StartRaw) -> None:
        self.session, self._start = session, start

    async def upstream(self, says: Says) -> tuple[RawUpstream, Callable[..., Awaitable[bytes]]]:
        upstream = await self._start(says)

        async def fetch(method: str = "GET") -> bytes:
            async with self.session.request(method, upstream.url) as reply:
                return await reply.read()

        return upstream, fetch


@pytest.fixture
async def client(raw: StartRaw) -> AsyncIterator[Fetch]:
    async with ClientSession(connector=OneReplyConnector(limit=0)) as session:
        yield Fetch(session, raw)


def open_connections(session: ClientSession) -> int:
    kept = session.connector._conns.values()
    return sum(each.is_connected() for idle in kept for each, _ in idle)


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
async def test_replies_without_a_body(client: Fetch, method: str, reply: bytes, kept: int):
    _, fetch = await client.upstream(sends(reply))
    assert await fetch(method) == b""
    assert open_connections(client.session) == kept


async def test_a_body_in_many_reads_is_counted_whole(client: Fetch):
    body = bytes(range(256)) * 4096
    _, fetch = await client.upstream(sends(whole(body)))
    assert await fetch() == body
    assert open_connections(client.session) == 1
    _, fetch = await client.upstream(sends(whole(body) + EXTRA))
    assert await fetch() == body
    assert open_connections(client.session) == 1


async def test_bytes_still_in_the_socket_are_seen_before_a_connection_is_reused(client: Fetch):
    says = TwoFaced(whole(OWN), EXTRA, at_once=False)
    _, fetch = await client.upstream(says)
    assert await fetch() == OWN
    (idle,) = next(iter(client.session.connector._conns.values()))
    assert idle[0].is_connected()
    # Not reading stands for a loop that had no time to.
    idle[0].transport.pause_reading()
    await says.desynchronise()
    assert not idle[0].is_connected()
    assert await fetch() == OWN


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
