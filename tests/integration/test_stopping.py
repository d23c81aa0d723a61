"""SIGTERM: first unready, then the answers that are under way end, then the process does."""

import asyncio
import json
import signal
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
from aiohttp import ClientError, ClientSession
from processes import Process
from raw_upstream import EVENTS, RawUpstream, StartRaw, raw_servers

from scripted_upstream import chunk, stream_of

WORDS = stream_of("Hello from here.")


@pytest.fixture
async def raw() -> AsyncIterator[StartRaw]:
    async with raw_servers() as start:
        yield start


def gateway(upstream: str, data: Path) -> Process:
    argv = ("-m", "gateway.cli", "serve", "--port", "0", "--data-dir", str(data))
    return Process(*argv, "--upstream", upstream, REFRAIN_DRAIN_DELAY="3s")


async def unready(session: ClientSession, base: str) -> dict[str, object]:
    """Return what /readyz says once it is no longer 200; it is asked until then."""
    while True:
        async with session.get(base.removesuffix("/v1") + "/readyz") as reply:
            if reply.status != 200:
                assert reply.status == 503
                assert reply.headers["Connection"] == "close"
                report: dict[str, object] = await reply.json()
                return report


async def test_the_gateway_is_unready_first_and_a_stream_ends_whole(raw: StartRaw, tmp_path: Path):
    may_end = asyncio.Event()

    async def says(_: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        head = b"HTTP/1.1 200 OK\r\n" + EVENTS + b"\r\n"
        writer.write(head + WORDS[0] + chunk(delta={"content": "Hello"}))
        await may_end.wait()
        writer.write(b"".join(WORDS[1:]))
        writer.close()

    upstream: RawUpstream = await raw(says)
    process = gateway(upstream.url, tmp_path)
    line = await asyncio.to_thread(process.wait_for_line, "ready: base URL")
    base = line.rpartition(" ")[2]
    body = {"model": "m", "messages": [{"role": "user", "content": "hi"}], "stream": True}
    async with ClientSession() as session:
        async with session.post(f"{base}/chat/completions", json=body) as stream:
            first = await stream.content.readany()
            process.popen.send_signal(signal.SIGTERM)
            assert (await asyncio.wait_for(unready(session, base), 30))["status"] == "stopping"
            # What comes now is still answered.
            async with session.post(f"{base}/chat/completions", data=b"{") as late:
                assert late.status == 400
            # The port is closed before the stream has ended.
            with pytest.raises(ClientError):
                await asyncio.wait_for(until_refused(session, base), 30)
            may_end.set()
            rest = await asyncio.wait_for(stream.content.read(), 30)
        assert (first + rest).endswith(WORDS[-1])
    assert await asyncio.to_thread(process.stop) == 0
    assert not any("killed" in line for line in process.lines)


async def until_refused(session: ClientSession, base: str) -> None:
    while True:
        async with session.get(base.removesuffix("/v1") + "/healthz") as reply:
            await reply.read()


async def test_the_engine_is_unready_first_and_a_stream_ends_whole():
    model = str(Path(__file__).parents[2] / "backend" / "demo" / "model")
    argv = ("--model", model, "--port", "0", "--drain-delay", "3s", "--log-format", "text")
    process = Process("-m", "backend", *argv)
    line = await asyncio.to_thread(process.wait_for_line, "listening on http://")
    await asyncio.to_thread(process.wait_for_line, "is ready after")
    base = line.rpartition(" ")[2] + "/v1"
    body = {
        "model": "model",
        "messages": [{"role": "user", "content": "Count."}],
        "stream": True,
        "max_tokens": 200,
        "min_tokens": 200,
    }
    async with ClientSession() as session:
        async with session.post(f"{base}/chat/completions", json=body) as stream:
            assert stream.status == 200
            first = await stream.content.readany()
            process.popen.send_signal(signal.SIGTERM)
            assert (await asyncio.wait_for(unready(session, base), 30))["status"] == "stopping"
            rest = await asyncio.wait_for(stream.content.read(), 60)
        events = (first + rest).split(b"\n\n")
        assert events[-2] == b"data: [DONE]"
        assert json.loads(events[-3][6:])["choices"][0]["finish_reason"] is not None
    assert await asyncio.to_thread(process.stop) == 0
