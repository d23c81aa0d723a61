"""The hot path over real connections: byte for byte what follows through the parser."""

import asyncio
import hashlib
import random
import re
import time
from types import SimpleNamespace
from urllib.parse import urlsplit

import orjson
import pytest
from aiohttp import web
from examples import some

import running_gateway
from gateway.app import create_app
from gateway.server.hot_path import HotPath
from gateway.server.http.http_server import Connection
from gateway.server.http.middleware import STOPPING
from gateway.settings import Settings
from running_gateway import start_app
from scripted_upstream import completion

POLICY = """
version: 1
generation: {generation}
rules:
  - name: short
    match: {{header: {{x-correlation-id: short*}}}}
    freshness: 20s
  - name: user
    match: {{model: personal}}
    scope: user
default:
  {{exact: on, semantic: off, freshness: {freshness}s, scope: tenant, pii: bypass, grace: 10s}}
"""
PER_PROCESS = re.compile(rb"\r\nDate: [^\r]*|(?<=\r\nx-request-id: )req_[^\r]*")


class Clock:
    """Wall-clock time that stands still between steps."""

    def __init__(self):
        self.now = float(int(time.time()))

    def __call__(self):
        return self.now


class Client:
    """One connection that sends bytes as it is told and reads whole replies."""

    def __init__(self, url):
        self._address = urlsplit(url)
        self._writer = None

    async def send(self, *pieces):
        """Send the pieces of a request, each by itself; return the reply's bytes."""
        if self._writer is None:
            self._reader, self._writer = await asyncio.open_connection(
                self._address.hostname, self._address.port
            )
        for piece in pieces:
            self._writer.write(piece)
            await self._writer.drain()
            for _ in range(3):  # the server, on the same loop, reads each piece by itself
                await asyncio.sleep(0)
        head = await self._reader.readuntil(b"\r\n\r\n")
        if b"\r\nTransfer-Encoding: chunked" in head:
            body = b""
            while (size := int(await self._reader.readline(), 16)) > 0:
                body += (await self._reader.readexactly(size + 2))[:-2]
            await self._reader.readline()
        else:
            length = int(re.search(rb"\r\nContent-Length: (\d+)", head)[1])
            body = await self._reader.readexactly(length)
        if b"\r\nConnection: close" in head:
            self.close()
        return head + body

    def close(self):
        """Close the connection."""
        if self._writer is not None:
            self._writer.close()
            self._writer = None


def head_and_body(draw):
    """Return a random request's head and body."""
    body = {
        "model": draw.choice(("m", "m", "personal")),
        "messages": [{"role": "user", "content": f"Question {draw.randrange(2)}?"}],
    }
    if draw.random() < 0.3:
        body["stream"] = True
        if draw.random() < 0.5:
            body["stream_options"] = {"include_usage": True}
    if draw.random() < 0.3:
        body["user"] = draw.choice(("ann", "bob"))
    raw = orjson.dumps(body)
    lines = ["POST /v1/chat/completions HTTP/1.1", "Host: h", "Content-Type: application/json"]
    if draw.random() < 0.8:
        lines.append(f"Authorization: Bearer sk-{draw.randrange(2)}")
    if draw.random() < 0.3:
        lines.append(
            f"traceparent: 00-{draw.randrange(10**9):032x}-{draw.randrange(10**9):016x}-01"
        )
    if draw.random() < 0.2:
        lines.append(f"x-request-id: mine-{draw.randrange(100)}")
    if draw.random() < 0.1:
        lines.append(f"x-correlation-id: {draw.choice(('short', 'long'))}")
    if draw.random() < 0.1:
        asked = draw.choice(("no-cache", "no-store", "max-age=5", "only-if-cached", "max-stale=30"))
        lines.append(f"Cache-Control: {asked}")
    if draw.random() < 0.1:
        lines.append(f"Connection: {draw.choice(('keep-alive', 'close'))}")
    draw.shuffle(lines[1:])
    lines.append(f"Content-Length: {len(raw)}")
    return ("\r\n".join(lines) + "\r\n\r\n").encode(), raw


async def replies_of(draw, clock, start_gateway, tmp_path, upstream):
    """Return the replies to a random sequence of requests, with changes between them."""
    calls = 0

    async def answer(_request, _body):
        nonlocal calls
        calls += 1
        return web.json_response(completion(f"Answer {calls}"))

    upstream.answer = answer
    policy, denied = tmp_path / "policy.yaml", tmp_path / "denied.keys"
    numbers = {"generation": 0, "freshness": 60}
    policy.write_text(POLICY.format(**numbers))
    denied.write_text("")
    gateway = await start_gateway(policy=policy, denied_keys=denied, data_dir=tmp_path / "data")
    clients = [Client(gateway.url) for _ in range(3)]
    replies = []
    for _ in range(300):
        match draw.randrange(40):
            case 0:
                clock.now += draw.choice((0.4, 5.0, 19.0, 40.0))
            case 1:
                await gateway.post("/admin/purge", orjson.dumps({"model": "m"}))
            case 2:
                numbers["generation"] += 1
                numbers["freshness"] = draw.choice((30, 60))
                policy.write_text(POLICY.format(**numbers))
                while (await generation(gateway)) != numbers["generation"]:
                    pass
            case _:
                head, raw = head_and_body(draw)
                client = draw.choice(clients)
                pieces = (head, raw) if draw.random() < 0.3 else (head + raw,)
                replies.append(PER_PROCESS.sub(b"", await client.send(*pieces)))
    for client in clients:
        client.close()
    await gateway.stop()
    return replies


async def generation(gateway):
    return (await gateway.get("/readyz")).json["policy"]["generation"]


@pytest.fixture
def clock(monkeypatch):
    clock = Clock()
    shim = SimpleNamespace(time=clock, perf_counter=time.perf_counter, monotonic=time.monotonic)
    monkeypatch.setattr("gateway.app.time", shim)
    return clock


@pytest.mark.parametrize("seed", range(some(4)))
async def test_both_ways_give_the_same_bytes(  # noqa: PLR0917
    seed, clock, start_gateway, tmp_path, upstream, monkeypatch
):
    monkeypatch.setenv("REFRAIN_SECRET", "5e" * 32)
    repeated = 0
    answer = HotPath.answer

    def counted(self, *given):
        nonlocal repeated
        found = answer(self, *given)
        repeated += found is not None
        return found

    monkeypatch.setattr(HotPath, "answer", counted)
    begin = clock.now
    runs = []
    for name in ("repeats", "plain", "parser"):
        clock.now = begin
        folder = tmp_path / name
        folder.mkdir()
        draw = random.Random(seed)
        runs.append(await replies_of(draw, clock, start_gateway, folder, upstream))
        if name == "repeats":
            monkeypatch.setattr(HotPath, "answer", lambda *_: None)
        else:
            monkeypatch.setattr(running_gateway, "new_connection", lambda _: Connection)
    assert repeated > 10
    for number, (repeats, plain, parser) in enumerate(zip(*runs, strict=True)):
        assert repeats == parser, number
        assert plain == parser, number


REQUEST = orjson.dumps({"model": "m", "messages": [{"role": "user", "content": "Why?"}]})
HEAD = b"POST /v1/chat/completions HTTP/1.1\r\nHost: h\r\nContent-Length: %d\r\n\r\n" % len(REQUEST)


async def warmed(gateway):
    """Return a connection whose request has a hit, known by its bytes."""
    client = Client(gateway.url)
    for _ in range(3):
        reply = await client.send(HEAD + REQUEST)
    assert b"refrain; hit" in reply
    return client


async def test_a_denied_key_gets_no_answer_from_memory(start_gateway, tmp_path):
    denied = tmp_path / "denied.keys"
    denied.write_text("")
    gateway = await start_gateway(denied_keys=denied)
    client = Client(gateway.url)
    key = HEAD.replace(b"Host", b"Authorization: Bearer sk-1\r\nHost")
    for _ in range(3):
        reply = await client.send(key + REQUEST)
    assert b"refrain; hit" in reply
    denied.write_text(f"one {hashlib.sha256(b'sk-1').hexdigest()}\n")
    while b" 200 OK" in (reply := await client.send(key + REQUEST)):
        pass
    assert reply.startswith(b"HTTP/1.1 401 ")
    client.close()


async def test_every_repetition_is_counted(gateway):
    client = await warmed(gateway)
    for _ in range(10):
        await client.send(HEAD + REQUEST)
    page = (await gateway.get("/metrics")).raw.decode()
    labels = 'endpoint="/v1/chat/completions",outcome="hit",reason="exact",rule="default"'
    assert f"refrain_requests_total{{{labels}}} 12.0" in page
    assert 'refrain_request_seconds_count{outcome="hit"} 12.0' in page
    assert 'refrain_time_to_first_token_seconds_bucket{le="+Inf",outcome="hit"} 12.0' in page
    client.close()


async def test_a_body_that_does_not_come_is_waited_for_by_the_parser(gateway, monkeypatch):
    monkeypatch.setattr("gateway.server.http.hot_connection.HOLD_SECONDS", 0.0)
    client = await warmed(gateway)
    reader, writer = await asyncio.open_connection("127.0.0.1", urlsplit(gateway.url).port)
    writer.write(HEAD + REQUEST[:-5])
    for _ in range(10):
        await asyncio.sleep(0)
    writer.write(REQUEST[-5:])
    assert b"refrain; hit" in await reader.readuntil(b"\r\n\r\n")
    writer.close()
    client.close()


async def test_the_beginning_of_a_repetition_ends_with_its_connection(gateway):
    client = await warmed(gateway)
    reader, writer = await asyncio.open_connection("127.0.0.1", urlsplit(gateway.url).port)
    writer.write(HEAD + REQUEST[:-5])
    writer.write_eof()
    assert b" 200 " not in await reader.read()
    writer.close()
    assert b"refrain; hit" in await client.send(HEAD + REQUEST)
    client.close()


async def test_a_decision_log_has_every_repetition(start_gateway, tmp_path):
    log = tmp_path / "decisions.jsonl"
    gateway = await start_gateway(decision_log=log)
    client = await warmed(gateway)
    client.close()
    await gateway.stop()
    assert [orjson.loads(line)["outcome"] for line in log.read_bytes().splitlines()] == [
        "miss",
        "hit",
        "hit",
    ]


async def test_a_server_that_stops_says_so_to_a_repetition_too(upstream, tmp_path, patient):
    app = create_app(
        Settings(upstream=(f"{upstream.url}/v1",), data_dir=tmp_path), semantic_socket=None
    )
    runner, url = await start_app(app)
    client = await warmed(SimpleNamespace(url=url))
    app[STOPPING].set()
    assert b"\r\nConnection: close\r\n" in await client.send(HEAD + REQUEST)
    await runner.cleanup()
