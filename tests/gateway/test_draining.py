"""A worker that is told to stop: what is under way ends, whole or with a word why not."""

import asyncio
import socket
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
from aiohttp import ClientSession
from raw_upstream import EVENTS, RawUpstream, StartRaw, raw_servers

from gateway import worker
from gateway.settings import Settings
from running_gateway import Asked, RunningGateway
from scripted_upstream import chunk, stream_of

HEAD = b"HTTP/1.1 200 OK\r\n" + EVENTS + b"\r\n"
WORDS = stream_of("Hello from here.")


class Rig:
    """A worker before an upstream that begins a stream, and goes on once it may."""

    def __init__(self, upstream: RawUpstream, gateway: RunningGateway) -> None:
        self.gateway = gateway
        self.streams = True
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
            writer.write(b"".join(WORDS[1:]))
        leaving.cancel()
        writer.close()

    async def ask(self, *, streamed: bool) -> "asyncio.Task[Asked]":
        self.streams = streamed
        asking = asyncio.create_task(self.gateway.ask(stream=streamed))
        await asyncio.wait_for(self.began.wait(), 30)
        return asking


@pytest.fixture
async def stop(monkeypatch: pytest.MonkeyPatch) -> asyncio.Event:
    event = asyncio.Event()
    monkeypatch.setattr(worker, "stop_event", lambda: event)
    monkeypatch.setattr(worker, "LAST_WORDS_SECONDS", 30.0)
    return event


@pytest.fixture
async def raw() -> AsyncIterator[StartRaw]:
    async with raw_servers() as start:
        yield start


@pytest.fixture
async def rig(
    raw: StartRaw, stop: asyncio.Event, tmp_path: Path, patient: None
) -> AsyncIterator[Rig]:
    sock = socket.create_server(("127.0.0.1", 0))
    upstream = await raw(None)
    settings = Settings(upstream=(upstream.url,), data_dir=tmp_path)
    serving = asyncio.create_task(
        worker.serve(settings, sock, semantic=None, engine_required=False)
    )
    async with ClientSession() as session:
        url = f"http://127.0.0.1:{sock.getsockname()[1]}"
        gateway = RunningGateway(url, session, tmp_path, lambda: asyncio.sleep(0))
        yield Rig(upstream, gateway)
    stop.set()
    await asyncio.wait_for(serving, 30)


async def test_what_ends_in_time_is_whole(rig: Rig, stop: asyncio.Event):
    asking = await rig.ask(streamed=True)
    stop.set()
    await asyncio.sleep(0)
    rig.may_end.set()
    assert (await asking).raw.endswith(WORDS[-1])


@pytest.mark.parametrize("streamed", [True, False])
async def test_what_does_not_is_told_so_and_the_upstream_is_left(
    rig: Rig, stop: asyncio.Event, monkeypatch: pytest.MonkeyPatch, streamed: bool
):
    monkeypatch.setattr(worker, "SHUTDOWN_SECONDS", 0.05)
    rig.gateway.session.headers["Connection"] = "close"
    asking = await rig.ask(streamed=streamed)
    stop.set()
    reply = await asyncio.wait_for(asking, 30)
    assert reply.status == (200 if streamed else 502)
    told = reply.raw.split(b"\n\n")[-2] if streamed else b"data: " + reply.raw
    assert told.startswith(b'data: {"error":{"message":"The gateway was stopped before')
    await asyncio.wait_for(rig.left.wait(), 30)
