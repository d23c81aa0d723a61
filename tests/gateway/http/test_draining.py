"""A worker that is told to stop: what is under way ends, whole or with a word why not."""

import asyncio
import socket
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
from aiohttp import ClientSession
from raw_upstream import EVENTS, RawUpstream, StartRaw, answer, raw_servers, whole

from gateway.cli.process import worker
from gateway.cli.process.child_process import ParentLine
from gateway.settings import Settings
from running_gateway import Asked, RunningGateway
from scripted_upstream import chunk, stream_of

HEAD = b"HTTP/1.1 200 OK\r\n" + EVENTS + b"\r\n"
WORDS = stream_of("Hello from here.")


class Rig:
    """A worker before an upstream that begins a stream, and goes on once it may."""

    def __init__(self, upstream: RawUpstream, gateway: RunningGateway, sock: socket.socket) -> None:
        self.gateway = gateway
        self.sock = sock
        self.streams = True
        self.answer = b""
        self.began = asyncio.Event()
        self.may_end = asyncio.Event()
        self.left = asyncio.Event()
        upstream.says = self._says

    async def _says(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        if self.streams:
            writer.write(HEAD + WORDS[0] + chunk(delta={"content": "Hello"}))
        ending = asyncio.create_task(self.may_end.wait())
        leaving = asyncio.create_task(reader.read())
        self.began.set()
        await asyncio.wait((ending, leaving), return_when=asyncio.FIRST_COMPLETED)
        if leaving.done():
            self.left.set()
        else:
            writer.write(b"".join(WORDS[1:]) if self.streams else whole(self.answer))
        leaving.cancel()
        writer.close()

    async def ask(self, *, streamed: bool) -> "asyncio.Task[Asked]":
        self.streams = streamed
        asking = asyncio.create_task(self.gateway.ask(stream=streamed))
        await asyncio.wait_for(self.began.wait(), 30)
        return asking


@pytest.fixture
async def stop(monkeypatch: pytest.MonkeyPatch) -> asyncio.Event:
    line = ParentLine()
    monkeypatch.setattr(worker, "ParentLine", lambda: line)
    monkeypatch.setattr(worker, "LAST_WORDS_SECONDS", 30.0)
    return line.stop


@pytest.fixture
async def raw() -> AsyncIterator[StartRaw]:
    async with raw_servers() as start:
        yield start


@pytest.fixture
async def rig(
    request: pytest.FixtureRequest,
    raw: StartRaw,
    stop: asyncio.Event,
    tmp_path: Path,
    patient: None,
) -> AsyncIterator[Rig]:
    sock = socket.create_server(("127.0.0.1", 0))
    upstream = await raw(None)
    settings = Settings(
        upstream=(upstream.url,),
        data_dir=tmp_path,
        drain_delay=0,
        drain_timeout=getattr(request, "param", 30.0),
    )
    serving = asyncio.create_task(
        worker.serve(settings, sock, semantic=None, engine_required=False)
    )
    async with ClientSession() as session:
        url = f"http://127.0.0.1:{sock.getsockname()[1]}"
        gateway = RunningGateway(url, session, tmp_path, lambda: asyncio.sleep(0))
        yield Rig(upstream, gateway, sock)
    stop.set()
    await asyncio.wait_for(serving, 30)


async def test_what_ends_in_time_is_whole(rig: Rig, stop: asyncio.Event):
    asking = await rig.ask(streamed=True)
    stop.set()
    await asyncio.sleep(0)
    rig.may_end.set()
    assert (await asking).raw.endswith(WORDS[-1])


async def test_an_upload_under_way_is_read_to_its_end(rig: Rig, stop: asyncio.Event):
    port = int(rig.gateway.url.rpartition(":")[2])
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    head = b"POST /v1/chat/completions HTTP/1.1\r\nHost: x\r\nContent-Length: 2\r\n\r\n"
    writer.write(head)
    await until_busy(rig)
    stop.set()
    await until_closed(rig.sock)
    writer.write(b"[]")
    reply = await asyncio.wait_for(reader.read(), 30)
    assert reply.startswith(b"HTTP/1.1 400 ")
    assert b"must be an object" in reply
    writer.close()


async def until_busy(rig: Rig) -> None:
    async with rig.gateway.session.get(f"{rig.gateway.url}/healthz") as reply:
        assert reply.status == 200  # what was sent before has been read by now


async def until_closed(sock: socket.socket) -> None:
    """Wait until nobody listens any more."""
    while sock.fileno() != -1:  # noqa: ASYNC110 - nobody tells
        await asyncio.sleep(0)


async def test_a_plain_answer_is_sent_whole_to_a_slow_client(rig: Rig, stop: asyncio.Event):
    text = "word " * 1_500_000
    rig.streams = False
    rig.answer = answer(text)
    port = int(rig.gateway.url.rpartition(":")[2])
    # It reads nothing but a little ahead.
    reader, writer = await asyncio.open_connection("127.0.0.1", port, limit=1024)
    body = b'{"model": "m", "messages": [{"role": "user", "content": "hi"}]}'
    writer.write(
        b"POST /v1/chat/completions HTTP/1.1\r\nHost: x\r\nContent-Length: %d\r\n" % len(body)
    )
    writer.write(b"Content-Type: application/json\r\n\r\n" + body)
    await asyncio.wait_for(rig.began.wait(), 30)
    rig.may_end.set()
    head = await asyncio.wait_for(reader.readuntil(b"\r\n\r\n"), 30)
    stop.set()
    await until_closed(rig.sock)
    length = int(head.lower().partition(b"content-length: ")[2].partition(b"\r\n")[0])
    assert length > len(text)
    assert len(await asyncio.wait_for(reader.readexactly(length), 60)) == length
    writer.close()


@pytest.mark.parametrize("rig", [0.05], indirect=True)
@pytest.mark.parametrize("streamed", [True, False])
async def test_what_does_not_is_told_so_and_the_upstream_is_left(
    rig: Rig, stop: asyncio.Event, streamed: bool
):
    rig.gateway.session.headers["Connection"] = "close"
    asking = await rig.ask(streamed=streamed)
    stop.set()
    reply = await asyncio.wait_for(asking, 30)
    assert reply.status == (200 if streamed else 502)
    told = reply.raw.split(b"\n\n")[-2] if streamed else b"data: " + reply.raw
    assert told.startswith(b'data: {"error":{"message":"The gateway was stopped before')
    await asyncio.wait_for(rig.left.wait(), 30)
