"""Two gateways get the same hostile bytes, one with the hot path, one without: their replies agree.

Both are the real server on real sockets in this process, before one upstream whose answers follow
from the request alone. Everything that a client can see is compared: each byte, and whether the
connection was closed. Only ``Date`` and the ids that a gateway makes up may differ.

    python tests/support/hot_path_fuzz.py --count 1000000
"""

import argparse
import asyncio
import contextlib
import hashlib
import json
import logging
import random
import re
import socket
import tempfile
import time
from collections import deque
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from functools import partial
from http import HTTPStatus
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from unittest import mock

import orjson
import uvloop
from aiohttp import web
from hostile_requests import Exchange, exchange, plain_request

from gateway.app import create_app
from gateway.server import hot_path
from gateway.server.hot_path import HotPath
from gateway.server.http.handlers import refuse
from gateway.server.http.hot_connection import HOT_PATH, SERVE, HotConnection
from gateway.server.http.http_server import Connection, Runner
from gateway.server.http.unread import UNREAD
from gateway.settings import Settings
from running_gateway import start_app
from scripted_upstream import DONE, chunk, completion

_PAUSE = rb"(?<=detail=upstream-broke\r\nContent-Type: application/json)\r\nRetry-After: [^\r]*"
"""For how long a broken upstream pauses depends on the failures that each gateway has met."""
PER_PROCESS = re.compile(
    rb"\r\nDate: [^\r]*|(?<=\r\nx-request-id: )req_[^\r]*|req_[0-9a-f]+-\d+|" + _PAUSE
)
TOKEN = "operator"
LANES = 8
PHASE = 150
"""Exchanges of a lane between two changes for all: a reload, a key denied or let in, time."""

HANG_SECONDS = 20.0
HURRIED_TRIES = 3
QUIET_TURNS = 6
"""Turns of the loop without a byte until a server that has nothing to do is at rest."""
WAITING_TURNS = 20
"""The same for one that waits for the rest of a body."""

POLICY = """
version: 1
generation: {generation}
rules:
  - name: short
    match: {{header: {{x-correlation-id: short*}}}}
    freshness: 20s
default:
  {{exact: on, semantic: off, freshness: {freshness}s, scope: tenant, pii: bypass, grace: 10s}}
"""


STATUSES = (400, 429, 500, 204)
"""Of an upstream's replies, one in 32 each; all others are 200."""
ODD = 16
"""Of 256 replies, how many have no body, no type, or the upstream's own id."""


class Untyped(web.Response):
    """A reply without a Content-Type."""

    async def _prepare_headers(self) -> None:
        await super()._prepare_headers()
        self.headers.pop("Content-Type", None)


class Counted(Connection):
    """A connection that counts the bytes that have come."""

    received = 0

    def data_received(self, data: bytes) -> None:
        """Count, and go on."""
        self.received += len(data)
        super().data_received(data)


class CountedHot(Counted, HotConnection):
    """The same with the hot path."""


class Wire:
    """A client's connection to one gateway."""

    def __init__(self, runner: Runner) -> None:
        self._runner = runner
        self._sent = 0
        self._out = bytearray()
        self.closed = False
        self.held: list[bool] = []
        """Of each piece sent, whether it was held back behind it."""

    async def open(self) -> None:
        """Connect."""
        self._socket, theirs = socket.socketpair()
        self._socket.setblocking(False)
        loop = asyncio.get_running_loop()
        _, self._protocol = await loop.connect_accepted_socket(self._runner.server, theirs)

    async def send(self, piece: bytes, *, hurried: bool = False) -> None:
        """Send a piece, and let the server do with it what it can; ``hurried``: let it be read.

        Raises TimeoutError if it hangs: it neither does anything nor waits for its client.
        """
        loop = asyncio.get_running_loop()
        self._sent += len(piece)
        with contextlib.suppress(OSError):
            await asyncio.wait_for(loop.sock_sendall(self._socket, piece), HANG_SECONDS)
        until = loop.time() + HANG_SECONDS
        quiet, before = 0, -1
        while not self.closed:
            self._read()
            now = len(self._out) + self._protocol.received
            quiet, before = (quiet + 1 if now == before else 0), now
            if quiet >= self._turns_at_rest() or (
                hurried and self._protocol.received == self._sent
            ):
                break
            if loop.time() > until:
                raise TimeoutError("the server neither answers nor waits for its client")
            await asyncio.sleep(0)
        self.held.append(isinstance(self._protocol, HotConnection) and self._protocol.reader.holds)

    async def stop_holding(self) -> None:
        """Let the time pass after which the server hands on the beginning of a request."""
        if isinstance(self._protocol, HotConnection) and self._protocol.reader.holds:
            self._protocol._release()
            await self.send(b"")

    def take(self) -> "Reply":
        """Return what came since the last call."""
        out, self._out = PER_PROCESS.sub(b"", bytes(self._out)), bytearray()
        return out, self.closed

    def close(self) -> None:
        """Hang up."""
        self._socket.close()

    def _turns_at_rest(self) -> float:
        one = self._protocol
        if one.received < self._sent:
            return WAITING_TURNS  # it reads no more
        if (isinstance(one, HotConnection) and one.reader.holds) or not one.busy:
            return QUIET_TURNS
        request = one._current_request
        if request is not None and not request.content.is_eof():
            return WAITING_TURNS
        return float("inf")

    def _read(self) -> None:
        try:
            while data := self._socket.recv(1 << 20):
                self._out += data
            self.closed = True
        except BlockingIOError:
            pass
        except OSError:
            self.closed = True


Reply = tuple[bytes, bool]
"""What came, and whether the server has closed the connection."""


class Both:
    """A client's connections to both gateways, on which the same is done."""

    def __init__(self, runners: tuple[Runner, ...]) -> None:
        self._runners = runners
        self._wires: tuple[Wire, ...] = ()

    async def send(self, given: Exchange, between: bytes = b"") -> tuple[Reply, Reply]:
        """Send the pieces to both; return the replies. ``between`` goes another way meanwhile."""
        if not self._wires:
            self._wires = tuple(Wire(runner) for runner in self._runners)
            for wire in self._wires:
                await wire.open()
        hot = await self._send(0, given.pieces, given, between)
        # Where bytes were held back, the parser got them in one read: so does the other gateway.
        parsed = await self._send(1, self._as_read(given.pieces), given, between)
        if any(wire.closed for wire in self._wires):
            self.close()
        return hot, parsed

    async def _send(
        self, which: int, pieces: tuple[bytes, ...], given: Exchange, between: bytes
    ) -> Reply:
        wire = self._wires[which]
        wire.held.clear()
        for number, piece in enumerate(pieces):
            await wire.send(piece, hurried=given.hurried and number + 1 < len(pieces))
            if number == 0 and between:
                other = Wire(self._runners[which])
                await other.open()
                await other.send(between)
                other.close()
        await wire.stop_holding()
        return wire.take()

    def _as_read(self, pieces: tuple[bytes, ...]) -> tuple[bytes, ...]:
        held = self._wires[0].held
        joined, begin = [], 0
        for number in range(1, len(pieces) + 1):
            if number == len(pieces) or not held[number - 1]:
                joined.append(b"".join(pieces[begin:number]))
                begin = number
        return tuple(joined)

    def close(self) -> None:
        """Hang up both."""
        for wire in self._wires:
            wire.close()
        self._wires = ()


class Clock:
    """Wall-clock time that stands still until it is moved."""

    def __init__(self) -> None:
        self.now = float(int(time.time()))

    def __call__(self) -> float:
        return self.now


async def _answer(request: web.Request) -> web.StreamResponse:
    """Answer with a text, and in a way, that follow from the request alone."""
    raw = await request.read()
    digest = hashlib.sha256(raw)
    text = digest.hexdigest()
    if request.method != "POST" or not request.path.endswith("completions"):
        return web.Response(body=f"{request.method} {request.path} {text}".encode())
    way = digest.digest()
    if b'"stream":true' in raw.replace(b" ", b""):
        events = [chunk(delta={"content": text}), chunk(finish_reason="stop"), DONE]
        body, kind = b"".join(events), "text/event-stream"
    else:
        body, kind = orjson.dumps(completion(text)), "application/json"
    headers = {"x-request-id": f"theirs-{way[0]}"} if way[0] < ODD else {}
    status = STATUSES[way[1] % 32] if way[1] % 32 < len(STATUSES) else 200
    if status == HTTPStatus.NO_CONTENT and kind == "text/event-stream":
        status = 200  # behind such a head aiohttp would send an event, which is no part of a reply
    reply = web.Response(
        status=status,
        body=b"" if way[2] < ODD else body,
        headers={"Content-Type": kind, **headers},
    )
    if way[3] < ODD:
        reply = Untyped(status=reply.status, body=reply.body, headers=headers)
    return reply


class Rig:
    """Both gateways, and what changes for both of them between exchanges."""

    def __init__(self, folder: Path, clock: Clock, apps: list[web.Application]) -> None:
        self._folder = folder
        self._clock = clock
        self._numbers = {"generation": 0, "freshness": 60}
        self._denied = False
        self.counts = {"exchanges": 0, "repeated": 0}
        """Exchanges, and requests that the hot path answered."""
        self.hot = apps[0][HOT_PATH]
        kinds = (partial(CountedHot, self.hot, apps[0][SERVE], apps[0][UNREAD]), Counted)
        self.runners = tuple(
            Runner(app, refuse, connection=kind, shutdown_timeout=1.0)
            for app, kind in zip(apps, kinds, strict=True)
        )

    async def change(self, draw: random.Random) -> None:
        """Let time pass; perhaps load another policy, or deny a key or let it in again."""
        self._clock.now += draw.choice((0.4, 2.0, 5.0, 19.0))
        match draw.randrange(4):
            case 0:
                self._numbers["generation"] += 1
                self._numbers["freshness"] = draw.choice((30, 60))
                (self._folder / "policy.yaml").write_text(POLICY.format(**self._numbers))
                wanted = b'"generation":%d' % self._numbers["generation"]
                await self._await(b"GET /readyz HTTP/1.1\r\nHost: h\r\n\r\n", wanted)
            case 1:
                self._denied = not self._denied
                key = hashlib.sha256(b"sk-0-0").hexdigest()
                (self._folder / "denied").write_text(f"one {key}\n" if self._denied else "")
                ask = b"GET /v1/none HTTP/1.1\r\nHost: h\r\nAuthorization: Bearer sk-0-0\r\n\r\n"
                await self._await(ask, b" 401 " if self._denied else b" 200 ")

    async def _await(self, request: bytes, wanted: bytes) -> None:
        for runner in self.runners:
            wire = Wire(runner)
            await wire.open()
            async with asyncio.timeout(HANG_SECONDS):
                reply = b""
                while wanted not in reply:
                    await wire.send(request)
                    reply, _ = wire.take()
            wire.close()


def purge(lane: int) -> bytes:
    """Return the operator's request that drops a lane's entries."""
    body = orjson.dumps({"model": f"m{lane}"})
    head = f"POST /admin/purge HTTP/1.1\r\nHost: h\r\nAuthorization: Bearer {TOKEN}\r\n"
    head += f"Content-Type: application/json\r\nContent-Length: {len(body)}\r\n\r\n"
    return head.encode() + body


class DifferenceError(AssertionError):
    """The two ways do not agree."""


@asynccontextmanager
async def running(folder: Path, store: str) -> AsyncIterator[Rig]:
    """Serve both, with a clock that stands still."""
    clock = Clock()
    shim = SimpleNamespace(time=clock, perf_counter=time.perf_counter, monotonic=time.monotonic)
    policy, denied = folder / "policy.yaml", folder / "denied"
    policy.write_text(POLICY.format(generation=0, freshness=60))
    denied.write_text("")
    upstream = web.Application(client_max_size=2**26)
    upstream.router.add_route("*", "/{tail:.*}", _answer)
    upstream_runner, url = await start_app(upstream)
    with (
        mock.patch("gateway.app.time", shim),
        mock.patch("gateway.app.POLICY_POLL_SECONDS", 0.01),
        mock.patch("gateway.server.keys.auth.POLL_SECONDS", 0.01),
        mock.patch.dict("os.environ", REFRAIN_SECRET="5e" * 32, REFRAIN_ADMIN_TOKEN=TOKEN),
    ):
        settings = {"upstream": (f"{url}/v1",), "policy": policy, "denied_keys": denied}
        apps = [
            create_app(
                Settings(data_dir=folder / name, store=store, **settings), semantic_socket=None
            )
            for name in ("hot", "parser")
        ]
        rig = Rig(folder, clock, apps)
        answer = rig.hot.answer

        def counted(*given: Any) -> Any:
            found = answer(*given)
            rig.counts["repeated"] += found is not None
            return found

        try:
            for runner in rig.runners:
                await runner.setup()
            with mock.patch.object(rig.hot, "answer", counted):
                yield rig
        finally:
            for runner in (*rig.runners, upstream_runner):
                await runner.cleanup()


async def compare(rig: Rig, both: Both, given: Exchange, between: bytes = b"") -> None:
    """Send an exchange to both gateways. Raises DifferenceError or TimeoutError."""
    rig.counts["exchanges"] += 1
    hot, parsed = await both.send(given, between)
    for _ in range(HURRIED_TRIES if given.hurried else 0):
        if hot == parsed:
            break
        both.close()  # what is read together is a matter of luck
        hot, parsed = await both.send(given)
    if hot != parsed:
        raise DifferenceError(
            f"{given.what}\n sent {given.pieces!r}\n  hot    {hot!r}\n  parser {parsed!r}"
        )
    if not given.clean:
        both.close()


async def _lane(
    rig: Rig, draw: random.Random, lane: int, recent: deque[Exchange], count: int
) -> None:
    both = Both(rig.runners)
    for _ in range(count):
        if draw.random() < 0.02:
            both.close()
        if recent and draw.random() < 0.25:
            given = draw.choice(recent)  # only what comes again can be answered by its bytes
        else:
            given = exchange(draw, lane)
            if not given.clean:
                if draw.random() < 0.5:
                    # What the servers have left of it shows in what becomes of the next request.
                    pieces = (*given.pieces, plain_request(draw, lane))
                    hurried = draw.random() < 0.3
                    given = Exchange(pieces, f"{given.what}, then plain", hurried=hurried)
                recent.append(given)
        between = purge(lane) if draw.random() < 0.005 else b""
        await compare(rig, both, given, between)
    both.close()


async def fuzz(
    folder: Path,
    count: int,
    seed: int = 0,
    *,
    store: str = "disk",
    tell: Callable[[dict[str, int]], None] = lambda _: None,
) -> dict[str, int]:
    """Send about so many exchanges; return what happened.

    Raises DifferenceError where the replies differ, TimeoutError where a server hangs.
    """
    draw = random.Random(seed)
    recent: list[deque[Exchange]] = [deque(maxlen=6) for _ in range(LANES)]
    async with running(folder, store) as rig:
        while rig.counts["exchanges"] < count:
            each = min(PHASE, -(-(count - rig.counts["exchanges"]) // LANES))
            async with asyncio.TaskGroup() as lanes:
                for lane in range(LANES):
                    own = random.Random(draw.randrange(1 << 62))
                    lanes.create_task(_lane(rig, own, lane, recent[lane], each))
            await rig.change(draw)
            check_bounds(rig.hot)
            tell(rig.counts)
    return rig.counts


def check_bounds(hot: HotPath) -> None:
    """Raise AssertionError if a table of the hot path has outgrown its bound."""
    assert len(hot._heads) <= hot_path.MAX_HEADS
    assert len(hot._answered) <= hot_path.MAX_HEADS
    assert len(hot._answers) <= hot_path.MAX_ANSWERS
    assert hot._rendered_bytes <= hot_path.MAX_RENDERED_BYTES + hot_path.MAX_BODY_BYTES


def main() -> None:
    """Run it, tell how far it is, and print one line of JSON."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--count", type=int, default=100_000, help="exchanges (default: 100,000)")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--store", choices=("disk", "memory"), default="memory")
    options = parser.parse_args()
    logging.disable(logging.CRITICAL)
    began = time.monotonic()
    last = began

    def tell(counts: dict[str, int]) -> None:
        nonlocal last
        if time.monotonic() - last > 10:
            last = time.monotonic()
            print(f"{last - began:.0f} s: {counts}", flush=True)

    with tempfile.TemporaryDirectory() as folder:
        work = fuzz(Path(folder), options.count, options.seed, store=options.store, tell=tell)
        counts = uvloop.run(work)
    seconds = round(time.monotonic() - began)
    print(json.dumps({"fuzz": "hot_path", "seed": options.seed, "seconds": seconds, **counts}))


if __name__ == "__main__":
    main()
