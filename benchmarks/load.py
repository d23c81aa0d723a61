"""A closed-loop HTTP load generator: N keep-alive connections, one request in flight on each.

Written on asyncio protocols, since a full HTTP client costs more than the servers measured. The
reply's length is learnt from its head each time, so replies may differ in size.
"""

import asyncio
import time
from dataclasses import dataclass
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
