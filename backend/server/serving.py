"""Serves the application on a socket: listen, load the model, stop when told."""

import asyncio
import contextlib
import logging
import os
import signal
import socket
import threading
import time

from aiohttp import web

from backend.ports import EngineError
from backend.server.application import kv_events_key, served_model_key
from backend.server.front import STOPPING
from backend.server.http_server import Runner
from backend.server.middleware import refuse
from backend.server.served_model import ServedModel

PARENT_PIPE = "REFRAIN_PARENT_PIPE"
"""Set to 1 where stdin is a pipe that the parent holds: its end means that the parent is gone."""

# Handlers were drained by then; this is for connections that are slow to close.
_CLOSE_SECONDS = 1.0

_STDIN = 0

log = logging.getLogger(__name__)


class StartError(Exception):
    """The server cannot run; the text is for people and fits a line."""


async def serve(
    app: web.Application,
    host: str,
    port: int,
    *,
    drain_delay: float = 0.0,
    drain_timeout: float = 0.0,
) -> None:
    """Run until SIGINT, SIGTERM or the parent's end.

    Then it drains: see ``drain``.

    Raises StartError when the address is taken, EngineError when the engine does not warm up, and
    whatever loading the model raises.
    """
    stop = _stop_event()
    runner = Runner(app, refuse, shutdown_timeout=_CLOSE_SECONDS)
    await runner.setup()
    try:
        await _listen(runner, host, port)
        await _load_and_wait(app[served_model_key], stop)
        log.info("stopping")
        await drain(runner, app, delay=drain_delay, wait=drain_timeout)
    finally:
        await runner.cleanup()


async def drain(runner: Runner, app: web.Application, *, delay: float, wait: float) -> None:
    """Say 503 at ``/readyz`` for ``delay`` seconds, close the port, wait for open requests.

    The wait ends after ``wait`` seconds.
    """
    app[STOPPING].set()
    await asyncio.sleep(delay)
    for site in list(runner.sites):
        await site.stop()
    if (kv_events := app.get(kv_events_key)) is not None:
        kv_events.close()
    await runner.idle(wait)


async def _listen(runner: web.AppRunner, host: str, port: int) -> None:
    try:
        await web.TCPSite(runner, host, port).start()
    except OSError as error:
        named = error.strerror if isinstance(error, socket.gaierror) else None
        # asyncio's own text repeats the address, in another form.
        reason = named or os.strerror(error.errno or 0)
        raise StartError(f"cannot listen on {host}:{port}: {reason}") from error
    bound_host, bound_port, *_ = runner.addresses[0]
    shown = f"[{bound_host}]" if ":" in bound_host else bound_host
    log.info("listening on http://%s:%d", shown, bound_port)


async def _load_and_wait(model: ServedModel, stop: asyncio.Event) -> None:
    began = time.perf_counter()
    loading = asyncio.create_task(model.load())
    stopping = asyncio.create_task(stop.wait())
    try:
        await asyncio.wait((loading, stopping), return_when=asyncio.FIRST_COMPLETED)
        if stopping.done():
            return
        try:
            await loading
        except EngineError as error:
            raise StartError(f"the model does not warm up: {error}") from error
        log.info("%s is ready after %.1f s", model.name, time.perf_counter() - began)
        await stopping
    finally:
        for task in (loading, stopping):
            task.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await asyncio.gather(loading, stopping, return_exceptions=True)


def _stop_event() -> asyncio.Event:
    stop = asyncio.Event()
    loop = asyncio.get_running_loop()
    for number in (signal.SIGINT, signal.SIGTERM):
        loop.add_signal_handler(number, stop.set)
    if os.environ.get(PARENT_PIPE) == "1":
        # A thread, because an event loop cannot watch whatever stdin may be.
        threading.Thread(
            target=_watch_parent, args=(loop, stop), name="parent-pipe", daemon=True
        ).start()
    return stop


def _watch_parent(loop: asyncio.AbstractEventLoop, stop: asyncio.Event) -> None:
    # A stdin that cannot be read, because it was closed, has ended as well.
    with contextlib.suppress(OSError):
        while os.read(_STDIN, 4096):
            pass
    if not loop.is_closed():
        loop.call_soon_threadsafe(stop.set)
