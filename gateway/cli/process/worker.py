"""One gateway worker process: serves the socket it is given until it is stopped or replaced.

Started by the supervisor, which binds the socket so that a port in use is found at once and
several workers share it.
"""

import argparse
import asyncio
import ctypes
import gc
import logging
import mmap
import os
import socket
import sys
from collections.abc import Awaitable, Callable, Coroutine, Sequence
from pathlib import Path
from typing import Any

import orjson
import uvloop
from aiohttp import web
from prometheus_client import values

from gateway import background
from gateway.app import END_CALLS, READINESS, STORE, create_app
from gateway.cli.process.child_process import Order, ParentLine, Report
from gateway.cli.process.supervisor import SEAT, WORKER_SETTINGS
from gateway.cli.terminal import configure_logging, log_stray, say
from gateway.server.http.handlers import refuse
from gateway.server.http.hot_connection import new_connection
from gateway.server.http.http_server import Runner
from gateway.server.http.middleware import REPLACED, STOPPING
from gateway.server.keys.auth import KeyRingError
from gateway.server.open.secrets import SecretError, SecretSettingError
from gateway.settings import Settings
from gateway.upstream.pool.watch.discovery import DiscoveryError
from gateway.upstream.pool.watch.probes import GREET
from policies.format.load import PolicyError

log = logging.getLogger(__name__)

LAST_WORDS_SECONDS = 0.5
"""Time for clients to read the last error, and then for requests still running."""

OTHERS_SECONDS = 10.0
"""If ``/readyz`` of the workers that serve takes longer, any other worker is better than they."""

IDLE_SECONDS = 5.0
"""A replaced worker closes connections on which nothing came for so long.

It answers the next request on any other one, and closes it with the reply: a client that has just
sent a request would lose it by a connection that closes.
"""

_LOOK_SECONDS = 0.1

TRIM_SECONDS = 10.0
LONGEST_TRIM_PAUSE = 60.0
MUCH_MEMORY = 8 * 2**20


async def serve(
    settings: Settings,
    sock: socket.socket,
    *,
    semantic: Path | None,
    engine_required: bool,
    greets: bool = False,
    started: float | None = None,
    changes: Path | None = None,
) -> None:
    """Serve until SIGTERM, SIGINT or the parent's end; then finish the running requests.

    First ``/readyz`` says 503 for ``drain_delay`` seconds, so that load balancers send their
    requests elsewhere. Then the port is closed, and answers get ``drain_timeout`` seconds. A worker
    that is replaced closes the port at once: another one serves it.
    ``greets`` says that this worker is the one that asks the upstreams how they are. ``started`` is
    when the installation was started, in seconds since the epoch. Through the file ``changes`` the
    workers tell one another what they store.
    """
    asyncio.get_running_loop().set_exception_handler(log_stray)
    line = ParentLine()
    app = create_app(
        settings,
        semantic_socket=semantic,
        engine_required=engine_required,
        started=started,
        changes=changes,
    )
    # Handlers are cancelled when their client is gone, and with them the upstream call.
    runner = Runner(
        app, refuse, connection=new_connection(app), shutdown_timeout=LAST_WORDS_SECONDS
    )
    await runner.setup()
    orders = Orders(line, app, sock)
    try:
        await orders.may_accept()
        if line.stop.is_set():
            return
        site = web.SockSite(runner, sock, backlog=2048)
        await site.start()
        tune_collector()
        trimming = background.start("return of free memory", return_memory)
        greeting = asyncio.ensure_future(app[GREET]()) if greets else None
        await _first(line.stop, orders.leave)
        trimming.cancel()
        if greeting is not None:
            greeting.cancel()
        is_replaced = not line.stop.is_set()
        if is_replaced:
            app[REPLACED].set()
        app[STOPPING].set()
        if not is_replaced:
            await asyncio.sleep(settings.drain_delay)
        await site.stop()
        # Else the kernel still takes connections that no process accepts.
        sock.close()
        if is_replaced:
            orders.report_left()
        await runner.idle(settings.drain_timeout, quiet=IDLE_SECONDS if is_replaced else 0.0)
        # Clients that still wait for an upstream get an error, in the form that is right by then.
        await app[END_CALLS]()
        await runner.idle(LAST_WORDS_SECONDS)
    finally:
        orders.ignore()
        await runner.cleanup()


class Orders:
    """Does what the parent says, in the order in which it says so."""

    def __init__(self, line: ParentLine, app: web.Application, sock: socket.socket) -> None:
        self.leave = asyncio.Event()
        """Set once another worker has taken this one's place."""
        self._line = line
        self._app = app
        self._sock = sock
        self._accept = asyncio.Event()
        if not line.has_parent:
            self._accept.set()
        self._lacks: set[str] = set()
        """Why this worker is not ready, while the serving workers are."""
        self._following = self._begin(self._follow())

    async def may_accept(self) -> None:
        """Wait until connections may be accepted, or the worker is to stop.

        A worker that replaces another one learns of it after it was ready.
        """
        ready = self._begin(self._report_readiness())
        await _first(self._accept, self._line.stop)
        if self._lacks and not self._accept.is_set():
            log.error("not ready to take connections: %s", "; ".join(sorted(self._lacks)))
        ready.cancel()

    def report_left(self) -> None:
        """Tell that all connections go to others from now on."""
        self._line.report(Report.LEFT)

    def ignore(self) -> None:
        self._following.cancel()

    async def _report_readiness(self) -> None:
        """Report once this worker is as ready as the serving workers.

        An outage that they have, too, such as the encoder's, must not block a reload.
        """
        while reasons := set((await self._app[READINESS].report())["reasons"]):
            try:
                async with asyncio.timeout(OTHERS_SECONDS):
                    self._lacks = reasons - await _reasons_of_others(self._sock)
            except TimeoutError:
                break
            except (OSError, ValueError) as error:
                log.debug("/readyz of the workers that serve: %s", error)
            else:
                if not self._lacks:
                    break
            await asyncio.sleep(_LOOK_SECONDS)
        self._line.report(Report.READY)

    async def _follow(self) -> None:
        while True:
            match await self._line.orders.get():
                case Order.ACCEPT:
                    self._accept.set()
                case Order.LEAVE:
                    await self._app[STORE].leave()
                    self.leave.set()

    def _begin(self, work: Coroutine[Any, Any, None]) -> "asyncio.Task[None]":
        task = asyncio.create_task(work)
        task.add_done_callback(self._note_end)
        return task

    def _note_end(self, task: "asyncio.Task[None]") -> None:
        """Stop if a task fails: a worker that follows no orders would stay for ever."""
        if not task.cancelled() and (fault := task.exception()) is not None:
            log.error("a defect: this worker stops", exc_info=fault)
            self._line.stop.set()


async def _reasons_of_others(sock: socket.socket) -> set[str]:
    """Return why the workers that accept on the same socket are not ready.

    Raises OSError, or ValueError if the answer was cut.
    """
    reader, writer = await asyncio.open_connection(*sock.getsockname()[:2])
    try:
        writer.write(b"GET /readyz HTTP/1.0\r\n\r\n")
        page = (await reader.read()).partition(b"\r\n\r\n")[2]
    finally:
        writer.close()
    return set(orjson.loads(page)["reasons"])


async def _first(*events: asyncio.Event) -> None:
    waits = [asyncio.ensure_future(event.wait()) for event in events]
    try:
        await asyncio.wait(waits, return_when=asyncio.FIRST_COMPLETED)
    finally:
        for wait in waits:
            wait.cancel()


def tune_collector() -> None:
    """Let the cyclic garbage collector leave alone what lives as long as the process.

    The objects of a request die by their reference counts; the default thresholds have the
    collector look at thousands of stored entries again and again.
    """
    gc.collect()
    gc.freeze()
    gc.set_threshold(10_000, 20, 20)


async def return_memory(sleep: Callable[[float], Awaitable[None]] = asyncio.sleep) -> None:
    """Give free memory back to the system; often as long as there is much of it.

    The allocator keeps it in small pieces, so a process would stay as large as a crowd of long
    streams has made it.
    """
    trim = getattr(ctypes.CDLL(None), "malloc_trim", None)
    pause = TRIM_SECONDS
    while trim is not None:
        await sleep(pause)
        before = _resident_bytes()
        await asyncio.to_thread(trim, 0)
        is_much = before - _resident_bytes() > MUCH_MEMORY
        pause = TRIM_SECONDS if is_much else min(2 * pause, LONGEST_TRIM_PAUSE)


def _resident_bytes() -> int:
    return int(Path("/proc/self/statm").read_bytes().split()[1]) * mmap.PAGESIZE


def name_figures() -> None:
    """Count on in the files of the worker that had the same name before this one.

    The library names files by process ids. Each restart and each reload would leave files behind,
    all of which are read for each page.
    """
    if "PROMETHEUS_MULTIPROC_DIR" not in os.environ or not (seat := os.environ.get(SEAT)):
        return
    in_file = values.MultiProcessValue(lambda: seat)  # type: ignore[no-untyped-call]

    class OwnValue(in_file):  # type: ignore[misc, valid-type]
        """Counts on in the file, and returns what this process has counted.

        The page reads the files. OTLP sends the figures of this process since its start.
        """

        def __init__(self, typ: str, *args: Any, **kwargs: Any) -> None:
            super().__init__(typ, *args, **kwargs)
            self._before = 0.0 if typ == "gauge" else super().get()

        def get(self) -> float:
            return float(super().get() - self._before)

    values.ValueClass = OwnValue


def main(argv: Sequence[str] | None = None) -> int:
    """Run a worker; return its exit code."""
    parser = argparse.ArgumentParser(prog="gateway.cli.process.worker", description=__doc__)
    parser.add_argument("--socket-fd", type=int, required=True)
    parser.add_argument("--semantic-socket", type=Path)
    parser.add_argument("--engine-required", action="store_true")
    parser.add_argument("--greet-upstreams", action="store_true")
    parser.add_argument("--started", type=float)
    parser.add_argument("--changes", type=Path)
    options = parser.parse_args(argv)
    settings = Settings.model_validate_json(os.environ[WORKER_SETTINGS])
    configure_logging(settings.log_level, settings.log_format)
    # It logs what it cannot parse, header lines with keys among them; faults of ours are logged
    # by the handlers.
    logging.getLogger("aiohttp.server").setLevel(logging.CRITICAL)
    sock = socket.socket(fileno=options.socket_fd)
    name_figures()
    try:
        uvloop.run(
            serve(
                settings,
                sock,
                semantic=options.semantic_socket,
                engine_required=options.engine_required,
                greets=options.greet_upstreams,
                started=options.started,
                changes=options.changes,
            )
        )
    except (PolicyError, KeyRingError, SecretSettingError, DiscoveryError) as error:
        say(str(error))
        return 2
    except (OSError, SecretError) as error:
        say(str(error))
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
