"""The load client of the HTTP benchmarks.

- ``run_wrk``: closed loop by wrk, which is faster than any server here.
- ``run_load``: closed loop without wrk, or with requests that wrk cannot make.
- ``run_arrivals``: open loop; each request is sent when it is due, whatever became of the others.
- ``Client``: one request at a time, between other work.

All but wrk read a reply whole, and note when each piece of a stream came. They are written on an
asyncio protocol, since a full HTTP client costs more than the servers that are measured.
"""

import asyncio
import json
import os
import subprocess
import tempfile
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Self, cast

import orjson
import uvloop

PATH = "/v1/chat/completions"
AUTHORIZATION = "Authorization: Bearer bench\r\n"


def question(words: int = 1, *, stream: bool = False) -> bytes:
    """Return the body of a chat request whose question is repeated so many times."""
    body = {
        "model": "bench",
        "messages": [
            {"role": "system", "content": "You are a helpful assistant."},
            {"role": "user", "content": "How do I reset my password on a new phone? " * words},
        ],
        "temperature": 0.7,
        "stream": stream,
    }
    return orjson.dumps(body)


def post(body: bytes, path: str = PATH, headers: str = AUTHORIZATION) -> bytes:
    """Return the bytes of one HTTP/1.1 POST; each of ``headers`` ends with CR LF."""
    head = (
        f"POST {path} HTTP/1.1\r\nHost: bench\r\nContent-Type: application/json\r\n"
        f"{headers}Content-Length: {len(body)}\r\n\r\n"
    )
    return head.encode() + body


def percentile(values: Iterable[float], share: float) -> float:
    """Return the least value that ``share`` of ``values`` do not exceed; NaN of none."""
    ordered = sorted(values)
    return ordered[min(int(len(ordered) * share), len(ordered) - 1)] if ordered else float("nan")


@dataclass(slots=True)
class Reply:
    """A reply; times are of ``time.perf_counter``. ``pieces``: when came how many events."""

    sent: float
    first: float = 0.0
    last: float = 0.0
    head: bytes = b""
    body: bytes = b""
    pieces: list[tuple[float, int]] = field(default_factory=list)

    @property
    def status(self) -> int:
        return int(self.head[9:12])

    def header(self, name: str) -> str:
        """Return the value of a header, empty if it is not there."""
        start = self.head.lower().find(f"\r\n{name.lower()}:".encode())
        if start < 0:
            return ""
        line = self.head[start + 2 :].partition(b"\r\n")[0]
        return line.partition(b":")[2].strip().decode()

    @property
    def cache_status(self) -> str:
        """What the gateway says of it."""
        return self.header("Cache-Status")

    @property
    def seconds(self) -> float:
        """From the request to the end of the reply."""
        return self.last - self.sent

    def gaps(self) -> list[float]:
        """Return the seconds between events; events that came at once have none between."""
        found: list[float] = []
        before = None
        for at, events in self.pieces:
            if before is not None:
                found.append(at - before)
                events -= 1  # noqa: PLW2901
            found += [0.0] * (events - (before is None))
            before = at
        return found


class _Connection(asyncio.Protocol):
    """One connection, one request in flight."""

    def __init__(self) -> None:
        self.open = True
        self._answer: asyncio.Future[Reply] | None = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast("asyncio.Transport", transport)

    def ask(self, request: bytes) -> asyncio.Future[Reply]:
        """Send a request; the future has its reply, or ConnectionError."""
        self._data = bytearray()
        self._body = -1  # where it begins
        self._end: int | None = None  # where it ends; None: not known yet
        self._chunk = -1  # where the next chunk begins, if the body has chunks
        self._streams = False
        self._parts: list[bytes] = []  # what the chunks hold
        self._answer = asyncio.get_running_loop().create_future()
        self._reply = Reply(time.perf_counter())
        self._transport.write(request)
        return self._answer

    def data_received(self, data: bytes) -> None:
        if self._answer is None:
            return
        now = time.perf_counter()
        seen = max(len(self._data) - 1, self._body)
        self._data += data
        if self._body < 0:
            seen = self._body = self._read_head()
            if self._body < 0:
                return
        if len(self._data) > self._body:
            self._reply.first = self._reply.first or now
        if self._streams and (events := self._data.count(b"\n\n", seen)):
            self._reply.pieces.append((now, events))
        if self._chunk >= 0:
            self._walk_chunks()
        if self._end is not None and len(self._data) >= self._end:
            self._finish(now)

    def _read_head(self) -> int:
        """Learn how the body is framed; return where it begins, -1 before the head is whole."""
        end = self._data.find(b"\r\n\r\n")
        if end < 0:
            return -1
        head = self._reply.head = bytes(self._data[:end])
        lower = head.lower()
        if b"\r\ntransfer-encoding: chunked" in lower:
            self._chunk = end + 4
        elif length := lower.partition(b"\r\ncontent-length:")[2]:
            self._end = end + 4 + int(length.partition(b"\r\n")[0])
        self._streams = b"text/event-stream" in lower
        if b"\r\nconnection: close" in lower or lower.startswith(b"http/1.0"):
            self.open = False
        return end + 4

    def _walk_chunks(self) -> None:
        while (line := self._data.find(b"\r\n", self._chunk)) >= 0:
            size = int(self._data[self._chunk : line], 16)
            after = line + 2 + size + 2
            if len(self._data) < after:
                return
            self._parts.append(bytes(self._data[line + 2 : after - 2]))
            self._chunk = after
            if not size:
                self._end = after
                return

    def _finish(self, now: float) -> None:
        answer, self._answer = self._answer, None
        self._reply.last = now
        self._reply.body = b"".join(self._parts) or bytes(self._data[self._body :])
        if answer is not None and not answer.done():
            answer.set_result(self._reply)

    def connection_lost(self, exc: Exception | None) -> None:
        self.open = False
        answer, self._answer = self._answer, None
        if answer is None or answer.done():
            return
        if self._body >= 0 and self._end is None and self._chunk < 0:  # the close ends the body
            self._answer = answer
            self._finish(time.perf_counter())
        else:
            answer.set_exception(exc or ConnectionResetError("closed before the reply's end"))

    def close(self) -> None:
        self.open = False
        self._transport.close()


async def _connect(port: int) -> _Connection:
    loop = asyncio.get_running_loop()
    return (await loop.create_connection(_Connection, "127.0.0.1", port))[1]


@dataclass(frozen=True, slots=True)
class LoadResult:
    """Seconds taken, latencies in seconds (sorted), replies other than 200."""

    seconds: float
    latencies: list[float]
    failed: int

    @property
    def requests(self) -> int:
        return len(self.latencies)

    @property
    def rate(self) -> float:
        """Requests per second."""
        return self.requests / self.seconds

    def percentile(self, share: float) -> float:
        """Return the latency below which ``share`` of the requests lie."""
        return percentile(self.latencies, share)


def run_load(
    port: int | Sequence[int],
    request: bytes | Iterator[bytes],
    *,
    connections: int,
    seconds: float = float("inf"),
    may_fail: bool = False,
    report: Callable[[Reply], None] = lambda _: None,
) -> LoadResult:
    """Load 127.0.0.1:port, or several ports by turns, one request in flight on each connection.

    It ends after ``seconds``, or with the requests. Raises SystemExit if a reply is not 200, unless
    requests ``may_fail``.
    """
    ports = [port] if isinstance(port, int) else port
    connected = [ports[number % len(ports)] for number in range(connections)]
    result = uvloop.run(_closed_loop(connected, request, seconds, report))
    if result.failed and not may_fail:
        raise SystemExit(f"port {port}: {result.failed} of {result.requests} requests failed")
    return result


async def _closed_loop(
    ports: Sequence[int],
    request: bytes | Iterator[bytes],
    seconds: float,
    report: Callable[[Reply], None],
) -> LoadResult:
    latencies: list[float] = []
    failed = 0
    began = time.perf_counter()

    async def drive(port: int) -> None:
        nonlocal failed
        connection = await _connect(port)
        while time.perf_counter() < began + seconds:
            next_one = request if isinstance(request, bytes) else next(request, None)
            if next_one is None:
                break
            async with asyncio.timeout(60):
                reply = await connection.ask(next_one)
            latencies.append(reply.seconds)
            failed += reply.status != 200
            report(reply)
        connection.close()

    await asyncio.gather(*map(drive, ports))
    return LoadResult(time.perf_counter() - began, sorted(latencies), failed)


@dataclass(frozen=True, slots=True)
class Arrival:
    """A request that is due ``at`` seconds after the start.

    ``leave``: the client goes so many seconds after it sent. ``label`` is the caller's.
    """

    at: float
    request: bytes
    label: str = ""
    leave: float | None = None


@dataclass(frozen=True, slots=True)
class Outcome:
    """What became of an arrival: a reply, or the name of an error. ``due`` is as ``Reply.sent``."""

    arrival: Arrival
    due: float
    reply: Reply | None = None
    error: str = ""

    @property
    def ttft(self) -> float:
        """Seconds from when it was due to the first byte of the body."""
        return self.reply.first - self.due if self.reply else float("nan")

    @property
    def seconds(self) -> float:
        """Seconds from when it was due to the end."""
        return self.reply.last - self.due if self.reply else float("nan")


def run_arrivals(
    port: int,
    arrivals: Iterable[Arrival],
    report: Callable[[Outcome], None],
    *,
    ready: int = 0,
    patience: float = 120,
) -> None:
    """Send each request when it is due, and report what became of it.

    A connection that is idle is used again, else one is opened; ``ready`` are opened before. A
    reply that takes longer than ``patience`` seconds is an error.
    """
    uvloop.run(_open_loop(port, arrivals, report, ready, patience))


async def _open_loop(
    port: int,
    arrivals: Iterable[Arrival],
    report: Callable[[Outcome], None],
    ready: int,
    patience: float,
) -> None:
    idle = [await _connect(port) for _ in range(ready)]

    async def send(arrival: Arrival, due: float) -> None:
        while idle and not idle[-1].open:
            idle.pop()
        connection = None
        try:
            connection = idle.pop() if idle else await _connect(port)
            async with asyncio.timeout(patience if arrival.leave is None else arrival.leave):
                reply = await connection.ask(arrival.request)
        except (OSError, TimeoutError) as error:
            if connection is not None:
                connection.close()
            left = arrival.leave is not None and isinstance(error, TimeoutError)
            report(Outcome(arrival, due, error="left" if left else type(error).__name__))
            return
        if connection.open:
            idle.append(connection)
        report(Outcome(arrival, due, reply))

    began = time.perf_counter()
    async with asyncio.TaskGroup() as group:
        for arrival in arrivals:
            due = began + arrival.at
            # A timer may end a little early.
            while (wait := due - time.perf_counter()) > 0:  # noqa: ASYNC110
                await asyncio.sleep(wait)
            group.create_task(send(arrival, due))
    for connection in idle:
        connection.close()


class Client:
    """One connection, one request at a time, between other work of the caller."""

    def __init__(self, port: int) -> None:
        self._port = port
        self._runner = asyncio.Runner(loop_factory=uvloop.new_event_loop)
        self._connection: _Connection | None = None

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._runner.run(self._close())
        self._runner.close()

    async def _close(self) -> None:
        if self._connection is not None:
            self._connection.close()
        await asyncio.sleep(0)

    def ask(self, request: bytes, patience: float = 120) -> Reply:
        """Return the reply. Raises OSError or TimeoutError if there is none."""
        return self._runner.run(self._ask(request, patience))

    async def _ask(self, request: bytes, patience: float) -> Reply:
        await asyncio.sleep(0)  # a close by the server is seen before
        if self._connection is None or not self._connection.open:
            self._connection = await _connect(self._port)
        async with asyncio.timeout(patience):
            return await self._connection.ask(request)


_SCRIPT = """
wrk.method = "POST"
wrk.headers["Content-Type"] = "application/json"
wrk.headers["Authorization"] = "Bearer bench"
wrk.path = "%(path)s"
local file = io.open("%(body)s", "rb")
wrk.body = file:read("*a")
file:close()
%(request)s
function done(summary, latency, requests)
  local errors = summary.errors
  io.write(string.format(
    "\\n{\\"requests\\": %%d, \\"us\\": %%d, \\"p50\\": %%d, \\"p99\\": %%d, \\"errors\\": %%d}\\n",
    summary.requests, summary.duration, latency:percentile(50), latency:percentile(99),
    errors.connect + errors.read + errors.write + errors.status + errors.timeout))
end
"""

TRACE_HEADERS = """
local number = 0
function request()
  number = number + 1
  wrk.headers["traceparent"] = string.format("00-%032x-%016x-01", number, number)
  wrk.headers["x-request-id"] = string.format("bench-%d", number)
  return wrk.format()
end
"""
"""Lua that gives each request headers of its own, as tracing clients do."""

NEW_QUESTIONS = """
local number, text = 0, wrk.body
-- letters, since a long number is looked at as a phone's
local run = tostring({}):gsub("[^0-9a-f]", ""):gsub("%d", function(digit)
  return string.char(103 + digit)
end)
function request()
  number = number + 1
  local new = text:gsub("new phone", "phone of model " .. run .. " and batch " .. number, 1)
  return wrk.format(nil, nil, nil, new)
end
"""
"""Lua that asks something new each time."""

OTHER_BYTES = """
local number, text = 0, wrk.body:sub(1, -2)
function request()
  number = number + 1
  return wrk.format(nil, nil, nil, text .. ',"user":"u' .. number .. '"}')
end
"""
"""Lua that asks the same in other bytes each time: it is a hit, but nothing is repeated."""


@dataclass(frozen=True, slots=True)
class WrkResult:
    """Requests done, requests a second, and latencies in seconds."""

    requests: int
    rate: float
    p50: float
    p99: float


def run_wrk(
    port: int,
    body: bytes,
    *,
    connections: int,
    seconds: float,
    core: int | None = None,
    path: str = PATH,
    vary: str = "",
    timeout: int = 2,
) -> WrkResult:
    """Load 127.0.0.1:port with wrk, bound to a core. ``vary`` is Lua that makes each request.

    A reply that takes over ``timeout`` seconds is a failed request.

    Raises SystemExit if wrk is not installed, or if a request failed.
    """
    with tempfile.TemporaryDirectory() as folder:
        script, data = Path(folder) / "post.lua", Path(folder) / "body"
        data.write_bytes(body)
        script.write_text(_SCRIPT % {"body": data, "path": path, "request": vary})
        options = [
            "-t1",
            f"-c{connections}",
            f"-d{max(1, round(seconds))}s",
            f"-s{script}",
            f"--timeout={timeout}",
        ]
        argv = ["wrk", *options, f"http://127.0.0.1:{port}"]
        if core is not None:
            argv = ["taskset", "--cpu-list", str(core), *argv]
        environment = {**os.environ, "LC_ALL": "C"}
        try:
            ran = subprocess.run(argv, capture_output=True, check=True, env=environment)
        except FileNotFoundError:
            raise SystemExit("wrk is not installed: apt-get install wrk") from None
        except subprocess.CalledProcessError as error:
            raise SystemExit(f"wrk failed (apt-get install wrk): {error.stderr.decode()}") from None
    told = json.loads(ran.stdout.splitlines()[-1])
    if told["errors"]:
        raise SystemExit(f"port {port}: {told['errors']} of {told['requests']} requests failed")
    rate = told["requests"] * 1e6 / told["us"]
    return WrkResult(told["requests"], rate, told["p50"] / 1e6, told["p99"] / 1e6)
