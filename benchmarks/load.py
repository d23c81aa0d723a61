"""Closed-loop HTTP load: N keep-alive connections, one request in flight on each.

``run_wrk`` drives wrk, which is faster than any server here. ``run_load`` needs no other program:
it is written on asyncio protocols, since a full HTTP client costs more than the servers measured.
It learns a reply's length from its head each time, so replies may differ in size.
"""

import asyncio
import json
import os
import subprocess
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path
from typing import cast

import uvloop


@dataclass(frozen=True, slots=True)
class LoadResult:
    """Requests done, seconds taken, latencies in seconds (sorted), and the last reply."""

    requests: int
    seconds: float
    latencies: list[float]
    last_reply: bytes

    @property
    def rate(self) -> float:
        """Requests per second."""
        return self.requests / self.seconds

    def percentile(self, share: float) -> float:
        """Latency in seconds below which ``share`` of the requests lie."""
        return self.latencies[min(len(self.latencies) - 1, int(len(self.latencies) * share))]


def post(path: str, body: bytes) -> bytes:
    """Return the bytes of one HTTP/1.1 POST."""
    head = (
        f"POST {path} HTTP/1.1\r\nHost: bench\r\nContent-Type: application/json\r\n"
        f"Authorization: Bearer bench\r\nContent-Length: {len(body)}\r\n\r\n"
    )
    return head.encode() + body


class _Connection(asyncio.Protocol):
    def __init__(self, request: bytes, deadline: float, latencies: list[float]) -> None:
        self._request = request
        self._deadline = deadline
        self._latencies = latencies
        self._buffer = b""
        self._sent = 0.0
        self.done: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self.last = b""

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast("asyncio.Transport", transport)
        self._send()

    def _send(self) -> None:
        self._sent = time.perf_counter()
        self._transport.write(self._request)

    def data_received(self, data: bytes) -> None:
        buffer = self._buffer + data
        end = buffer.find(b"\r\n\r\n")
        if end < 0:
            self._buffer = buffer
            return
        head = buffer[:end].lower()
        start = head.index(b"content-length:") + 15
        stop = head.find(b"\r\n", start)
        length = int(head[start : stop if stop > 0 else len(head)])
        if len(buffer) < end + 4 + length:
            self._buffer = buffer
            return
        self._buffer = b""
        self.last = buffer
        now = time.perf_counter()
        self._latencies.append(now - self._sent)
        if now < self._deadline:
            self._send()
        else:
            self._transport.close()

    def connection_lost(self, exc: Exception | None) -> None:
        if not self.done.done():
            if exc is not None:
                self.done.set_exception(exc)
            else:
                self.done.set_result(None)


async def _run(port: int, request: bytes, connections: int, seconds: float) -> LoadResult:
    loop = asyncio.get_running_loop()
    latencies: list[float] = []
    began = time.perf_counter()
    protocols = []
    for _ in range(connections):
        _, protocol = await loop.create_connection(
            lambda: _Connection(request, began + seconds, latencies), "127.0.0.1", port
        )
        protocols.append(protocol)
    async with asyncio.timeout(seconds + 30):
        await asyncio.gather(*(protocol.done for protocol in protocols))
    took = time.perf_counter() - began
    return LoadResult(len(latencies), took, sorted(latencies), protocols[0].last)


def run_load(port: int, request: bytes, *, connections: int, seconds: float) -> LoadResult:
    """Load 127.0.0.1:port for ``seconds`` and return what was measured."""
    return uvloop.run(_run(port, request, connections, seconds))


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


@dataclass(frozen=True, slots=True)
class WrkResult:
    """Requests a second, and latencies in seconds."""

    rate: float
    p50: float
    p99: float


def run_wrk(
    port: int,
    path: str,
    body: bytes,
    *,
    core: int,
    connections: int,
    seconds: float,
    vary: str = "",
) -> WrkResult:
    """Load 127.0.0.1:port with wrk, bound to a core. ``vary`` is Lua that makes each request.

    Raises SystemExit if a request failed.
    """
    with tempfile.TemporaryDirectory() as folder:
        script, data = Path(folder) / "post.lua", Path(folder) / "body"
        data.write_bytes(body)
        script.write_text(_SCRIPT % {"body": data, "path": path, "request": vary})
        options = ["-t1", f"-c{connections}", f"-d{max(1, round(seconds))}s", f"-s{script}"]
        argv = ["taskset", "--cpu-list", str(core), "wrk", *options, f"http://127.0.0.1:{port}"]
        environment = {**os.environ, "LC_ALL": "C"}
        ran = subprocess.run(argv, capture_output=True, check=True, env=environment)
    told = json.loads(ran.stdout.splitlines()[-1])
    if told["errors"]:
        raise SystemExit(f"port {port}: {told['errors']} of {told['requests']} requests failed")
    return WrkResult(told["requests"] * 1e6 / told["us"], told["p50"] / 1e6, told["p99"] / 1e6)
