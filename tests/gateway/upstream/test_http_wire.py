"""What upstreams send that is no HTTP, or not what was asked for: an answer or a clear fault."""

import asyncio
import gzip
from collections.abc import AsyncIterator
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from typing import Any

import orjson
import pytest
from raw_upstream import (
    EVENTS,
    JSON,
    RawUpstream,
    Says,
    StartRaw,
    answer,
    raw_servers,
    sends,
    whole,
)

from gateway.protocol.errors import UpstreamError
from gateway.protocol.http.cache_status import Reason
from gateway.upstream.request import Outgoing
from gateway.upstream.wire.connection import HttpReply
from gateway.upstream.wire.http_client import HttpUpstream
from running_gateway import RunningGateway, StartGateway
from scripted_upstream import chunk, stream_of

OUTGOING = Outgoing("/v1/chat/completions", (), b"{}", "m")
HELLO = answer("Hello.")
STREAM = b"".join(stream_of("Hello from here."))


@pytest.fixture
async def raw() -> AsyncIterator[StartRaw]:
    async with raw_servers() as start:
        yield start


async def pool(start: StartGateway, *upstreams: RawUpstream) -> RunningGateway:
    listed = [
        {"name": name, "url": one.url, "tier": tier, "probe": "off"}
        for tier, (name, one) in enumerate(zip("ab", upstreams, strict=False), 1)
    ]
    return await start(upstream=(), upstreams=listed)


def encoded(coding: bytes, body: bytes = HELLO, **more: bytes) -> bytes:
    return whole(body, b"Content-Encoding: " + coding + b"\r\n", **more)


HEAD = b"HTTP/1.1 200 OK\r\n"
UNREADABLE = {
    "a switch of protocols": whole(b"", b"Upgrade: h2c\r\n", status=b"101 Switching Protocols"),
    "a status that is none": whole(HELLO, status=b"099 Odd"),
    "Brotli": encoded(b"br"),
    "an unknown coding": encoded(b"compress"),
    "a coding in Latin-1": encoded(b"caf\xe9"),
    "two codings": encoded(b"gzip, gzip"),
    "no gzip": encoded(b"gzip"),
    "a compressed transfer": HEAD + b"Transfer-Encoding: gzip, chunked\r\n\r\n0\r\n\r\n",
    "TLS": b"\x15\x03\x03\x00\x02\x02\x28",
    "two lengths": whole(HELLO, b"Content-Length: 3\r\n"),
    "a length below zero": HEAD + b"Content-Length: -1\r\n\r\n" + HELLO,
    "10,000 headers": whole(HELLO, b"".join(b"X-%d: a\r\n" % i for i in range(10_000))),
}


@pytest.mark.parametrize("reply", UNREADABLE.values(), ids=UNREADABLE.keys())
async def test_a_reply_that_cannot_be_read_is_a_fault(raw: StartRaw, reply: bytes):
    upstream = await raw(sends(reply))
    async with opened(HttpUpstream(upstream.url, read_seconds=5.0)) as client:
        assert await fault(client.send(OUTGOING)) is Reason.UPSTREAM_BROKE
    assert upstream.calls == 1


async def test_what_was_answered_though_not_readably_is_not_asked_again(
    start_gateway: StartGateway, raw: StartRaw
):
    upstream = await raw(sends(UNREADABLE["10,000 headers"]))
    reply = await (await pool(start_gateway, upstream)).ask()
    assert (reply.status, upstream.calls) == (502, 1)


async def test_another_upstream_answers_in_place_of_one_that_cannot_be_read(
    start_gateway: StartGateway, raw: StartRaw
):
    bad, good = await raw(sends(UNREADABLE["Brotli"])), await raw(sends(whole(HELLO)))
    reply = await (await pool(start_gateway, bad, good)).ask()
    assert (reply.status, reply.text) == (200, "Hello.")
    assert reply.headers["X-Refrain-Upstream"] == 'b; tried="a=upstream-broke"'


@pytest.mark.parametrize("streamed", [False, True])
async def test_an_answer_compressed_unasked_is_stored_and_passed_on_as_it_was(
    start_gateway: StartGateway, raw: StartRaw, streamed: bool
):
    body, kind = (STREAM, {"kind": EVENTS}) if streamed else (HELLO, {})
    upstream = await raw(sends(encoded(b"x-gzip", gzip.compress(body), **kind)))
    gateway = await start_gateway(upstream=(upstream.url,))
    first = await gateway.ask(stream=streamed, headers={"Accept-Encoding": "gzip, br"})
    again = await gateway.ask(headers={"Accept-Encoding": "br"})
    assert (first.status, first.raw) == (200, body)
    assert "Content-Encoding" not in first.headers
    assert "hit" in again.cache
    assert again.text == first.text
    assert upstream.calls == 1


async def test_what_passes_through_and_fails_names_who_was_tried(
    start_gateway: StartGateway, raw: StartRaw
):
    bad, good = await raw(sends(UNREADABLE["two lengths"])), await raw(sends(whole(HELLO)))
    reply = await (await pool(start_gateway, bad, good)).get("/v1/files")
    assert (reply.status, reply.json["error"]["code"]) == (502, "upstream-broke")
    assert reply.headers["X-Refrain-Upstream"] == 'tried="a=upstream-broke"'
    assert good.calls == 0  # it may have done what it was asked


async def test_a_compressed_answer_that_is_cut_short_is_no_answer(
    start_gateway: StartGateway, raw: StartRaw
):
    cut = await raw(sends(encoded(b"gzip", gzip.compress(HELLO)[:-12])))
    gateway = await pool(start_gateway, cut, await raw(sends(whole(HELLO))))
    reply = await gateway.ask()
    assert (reply.status, reply.json["error"]["code"]) == (502, "upstream-broke")
    # Its first bytes had come: nobody else was asked, and the client is told who it was.
    assert reply.headers["X-Refrain-Upstream"] == 'tried="a=upstream-broke"'


async def test_a_header_that_nobody_may_send_on_is_left_out(
    start_gateway: StartGateway, raw: StartRaw
):
    fields = b"X-Odd: a\x01b\r\nX-Even: c\r\n"
    upstream = await raw(sends(whole(HELLO, fields, status=b"200 O\x01K")))
    gateway = await start_gateway(upstream=(upstream.url,))
    for reply in (await gateway.ask(), await gateway.get("/v1/files")):
        assert reply.status == 200
        assert reply.headers["X-Even"] == "c"
        assert "X-Odd" not in reply.headers


async def test_an_error_takes_the_place_of_an_unfinished_event(
    start_gateway: StartGateway, raw: StartRaw
):
    half = chunk(delta={"content": "Half"})
    upstream = await raw(sends(whole(half + b'data: {"choices": [', kind=EVENTS)))
    gateway = await start_gateway(upstream=(upstream.url,))
    reply = await gateway.ask(stream=True)
    assert reply.raw.startswith(half)
    told = reply.raw.removeprefix(half)
    assert told.startswith(b'data: {"error":{"message":"The upstream ended the stream')


async def test_what_an_upstream_says_of_the_request_as_events_passes(
    start_gateway: StartGateway, raw: StartRaw
):
    body = b'data: {"error": {"message": "no such model"}}\n\n'
    first = await raw(sends(whole(body, status=b"404 Not Found", kind=EVENTS)))
    other = await raw(sends(whole(HELLO)))
    reply = await (await pool(start_gateway, first, other)).ask(stream=True)
    assert (reply.status, reply.raw, other.calls) == (404, body, 0)


async def drips_its_head(_reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    writer.write(b"HTTP/1.1 200 OK\r\nX-Long: ")
    while True:
        writer.write(b"a")
        await writer.drain()
        await asyncio.sleep(0.01)


async def goes_on_saying_wait(_reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    while True:
        writer.write(b"HTTP/1.1 102 Processing\r\n\r\n")
        await writer.drain()
        await asyncio.sleep(0.01)


@pytest.mark.parametrize("says", [drips_its_head, goes_on_saying_wait])
async def test_a_head_that_never_ends_is_waited_for_no_longer_than_one_that_never_comes(
    raw: StartRaw, says: Says
):
    url = (await raw(says)).url
    async with opened(HttpUpstream(url, connect_seconds=0.1, read_seconds=0.1)) as client:
        assert await fault(client.send(OUTGOING)) is Reason.UPSTREAM_TIMEOUT


CHUNKED = HEAD + JSON + b"Transfer-Encoding: chunked\r\n\r\n"
EARLY_HINTS = b"HTTP/1.1 103 Early Hints\r\nLink: </a>; rel=preload\r\n\r\n"
ENDLESS = {
    "interim replies": (b"", EARLY_HINTS),
    "interim replies with long heads": (
        b"",
        b"HTTP/1.1 102 P\r\nX: " + b"a" * 60_000 + b"\r\n\r\n",
    ),
    "empty lines before the head": (b"", b"\r\n"),
    "a status line": (b"HTTP/1.1 200 O", b"K"),
    "the name of a header": (HEAD, b"X"),
    "the value of a header": (HEAD + b"X: ", b"a"),
    "headers": (HEAD, b"X-Header: a\r\n"),
    "long headers": (HEAD, b"X-Header: " + b"a" * 60_000 + b"\r\n"),
    "the extension of a chunk": (CHUNKED + b"1;", b"a"),
    "the size of a chunk": (CHUNKED, b"0"),
    "trailers": (CHUNKED + b"0\r\n", b"X-Trailer: a\r\n"),
    "long trailers": (CHUNKED + b"0\r\n", b"X-Trailer: " + b"a" * 60_000 + b"\r\n"),
}
"""What begins a reply, and what never ends."""


@pytest.mark.parametrize(("begins", "goes_on"), ENDLESS.values(), ids=ENDLESS.keys())
async def test_a_reply_that_never_comes_to_its_answer_is_a_fault_after_few_bytes(
    raw: StartRaw, begins: bytes, goes_on: bytes
):
    sent = 0

    async def floods(_reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        nonlocal sent
        writer.write(begins)
        while True:
            writer.write(goes_on * (2**16 // len(goes_on) + 1))
            sent += 2**16
            await writer.drain()

    upstream = await raw(floods)
    async with opened(HttpUpstream(upstream.url, read_seconds=600.0)) as client:
        assert await fault(client.send(OUTGOING)) is Reason.UPSTREAM_BROKE
    assert upstream.calls == 1
    assert sent < 2**25  # most of it lies in the buffers of two sockets


@pytest.mark.parametrize("ends", [True, False], ids=["whole", "cut"])
async def test_a_stream_of_many_events_is_read_in_small_pieces_and_to_its_last_byte(
    raw: StartRaw, ends: bool
):
    body = b": ping\n\n" * 50_000
    sent = whole(body, kind=EVENTS) if ends else whole(body + b"x", kind=EVENTS)[:-1]

    async def says(_reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write(sent)
        writer.close()

    upstream = await raw(says)
    pieces: list[bytes] = []
    turns = 0

    async def others() -> None:
        nonlocal turns
        while True:
            turns += 1
            await asyncio.sleep(0)

    async with opened(HttpUpstream(upstream.url)) as client:
        other = asyncio.create_task(others())
        why = None
        try:
            async with client.send(OUTGOING) as reply:
                before = turns
                while piece := await reply.read():
                    pieces.append(piece)
        except UpstreamError as error:
            why = error.reason
        other.cancel()
    assert why is (None if ends else Reason.UPSTREAM_BROKE)
    assert b"".join(pieces) == body
    assert max(map(len, pieces)) <= 8192
    assert turns - before >= len(pieces) // 2  # nobody waits for more than a piece or two


async def test_an_answer_that_comes_after_some_interim_replies_is_read(
    start_gateway: StartGateway, raw: StartRaw
):
    upstream = await raw(sends(EARLY_HINTS * 200 + whole(HELLO)))
    reply = await (await start_gateway(upstream=(upstream.url,))).ask()
    assert (reply.status, reply.text) == (200, "Hello.")


async def takes_nothing(_reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    writer.transport.pause_reading()  # type: ignore[attr-defined]
    await asyncio.Event().wait()


LARGE = bytes(2**24)
"""More than the buffers of two sockets hold."""


@pytest.mark.filterwarnings("ignore:Sending a large body")
async def test_a_request_that_nobody_takes_is_given_up(raw: StartRaw):
    url = (await raw(takes_nothing, at_once=True)).url
    async with opened(HttpUpstream(url, connect_seconds=0.1, read_seconds=0.1)) as client:
        outgoing = Outgoing("/v1/chat/completions", (), LARGE, "m")
        assert await fault(client.send(outgoing)) is Reason.UPSTREAM_TIMEOUT


async def test_an_upload_that_nobody_takes_is_given_up_but_a_slow_client_is_not(raw: StartRaw):
    typed = asyncio.Event()

    async def upload() -> AsyncIterator[bytes]:
        yield b"begins"
        await typed.wait()  # for longer than the upstream may take
        while True:
            yield LARGE

    url = (await raw(takes_nothing, at_once=True)).url
    async with opened(HttpUpstream(url, connect_seconds=30, read_seconds=0.1)) as client:
        sending = asyncio.create_task(fault(client.request("POST", "/v1/files", (), upload())))
        done, _ = await asyncio.wait([sending], timeout=0.3)
        assert not done
        typed.set()
        assert await sending is Reason.UPSTREAM_TIMEOUT


@asynccontextmanager
async def opened(upstream: HttpUpstream) -> AsyncIterator[HttpUpstream]:
    await upstream.open()
    yield upstream
    await upstream.close()


async def fault(sending: AbstractAsyncContextManager[Any]) -> Reason | None:
    """Return why there was no reply that could be read to its end."""
    told: UpstreamError | None = None
    try:
        async with sending as reply:
            if isinstance(reply, HttpReply):
                while await reply.read():
                    pass
    except UpstreamError as error:
        told = error
    if told is None:
        return None
    assert orjson.loads(orjson.dumps(told.body()))["error"]["code"] == told.reason.value
    return told.reason
