"""Runs the engine's process (``engine_process``) and starts it again when it dies.

Law: the client is open exactly while a warm engine is there. When its process ends, for whatever
reason, every request that it had fails at once, and the next engine knows nothing of them.
"""

import asyncio
import contextlib
import logging
import signal
import socket
import sys
import time
from asyncio.subprocess import DEVNULL, Process
from collections.abc import Callable, Sequence
from typing import cast

from backend.models.errors import ModelLoadError
from backend.ports import UnavailableError
from backend.runtime.engine_client import EngineClient, TextSource
from backend.runtime.messages import (
    EngineDescription,
    EngineOptions,
    Loaded,
    LoadFailed,
    Loading,
    Report,
    Stop,
    ToEngine,
)
from backend.runtime.wire import FrameReader, frame

log = logging.getLogger(__name__)

MODULE = "backend.runtime.engine_process"
STOP_SECONDS = 5.0
FIRST_BACKOFF_SECONDS = 0.25
LAST_BACKOFF_SECONDS = 10.0
EXIT_SECONDS = 1.0
"""From a closed connection to the process's end."""
SETTLED_SECONDS = 60.0
"""An engine that ran for so long is started again without much delay."""

_KILLED = signal.SIGKILL.name


class EngineHost:
    """One engine at a time, and the client in front of it; belongs to one event loop."""

    def __init__(self, options: EngineOptions, tell: Callable[[str], None]) -> None:
        """``tell`` is called with what is being done while an engine is loaded, for people."""
        self.client = EngineClient(self._send)
        self._options = options
        self._tell = tell
        self._link: _Link | None = None
        self._keeper: asyncio.Task[None] | None = None

    async def start(self) -> EngineDescription:
        """Start the first engine. Raises ModelLoadError, whatever the reason.

        Cancelling it ends the process.
        """
        self._link = link = await _launch(self._options, self.client.receive, self._tell)
        return link.description

    def open(self, text: TextSource) -> None:
        """Let requests in, and keep an engine running from now on."""
        link = self._link
        if link is None or self._keeper is not None:
            raise RuntimeError("open an engine once, after it was started")
        self.client.open(link.description, text)
        self._keeper = asyncio.create_task(self._keep(link, text))

    async def stop(self) -> None:
        """Fail open requests and end the process; a second call is harmless."""
        if self._keeper is not None:
            self._keeper.cancel()
            await asyncio.gather(self._keeper, return_exceptions=True)
        self.client.close("the engine is shutting down")
        link, self._link = self._link, None
        if link is not None:
            link.send(Stop())
            if await link.end(patience=STOP_SECONDS) == _KILLED:
                log.warning("the engine did not stop in %.0f s and was killed", STOP_SECONDS)

    def _send(self, message: ToEngine) -> None:
        if self._link is not None:
            self._link.send(message)

    async def _keep(self, link: "_Link", text: TextSource) -> None:
        backoff = FIRST_BACKOFF_SECONDS
        while True:
            began = time.monotonic()
            await link.closed.wait()
            self._link = None
            self.client.close("the engine's process died and is being started again")
            how = await link.end(patience=EXIT_SECONDS)
            log.error("the engine's process ended (%s); starting it again", how)
            if time.monotonic() - began > SETTLED_SECONDS:
                backoff = FIRST_BACKOFF_SECONDS
            while self._link is None:
                await asyncio.sleep(backoff)
                backoff = min(backoff * 2, LAST_BACKOFF_SECONDS)
                try:
                    self._link = await _launch(self._options, self.client.receive, self._restarting)
                except (ModelLoadError, OSError) as error:  # no process to be had is one
                    log.error("the engine cannot be started: %s", error)  # noqa: TRY400
                    self.client.close(f"the engine cannot be started: {error}")
                except Exception:
                    # Nobody but this task would ever try again.
                    log.exception("the engine cannot be started")
                    self.client.close("the engine cannot be started")
            link = self._link
            self.client.open(link.description, text)
            log.info("the engine is ready again")

    def _restarting(self, stage: str) -> None:
        self.client.close(f"the engine died and is being started again: {stage}")


async def _launch(
    options: EngineOptions, receive: Callable[[Report], None], tell: Callable[[str], None]
) -> "_Link":
    """Start a process and wait until its engine is warm. Raises ModelLoadError."""
    ours, theirs = socket.socketpair()
    link = _Link(receive, tell)
    try:
        # First of all, so that whatever breaks off here takes the process with it.
        await asyncio.get_running_loop().create_unix_connection(lambda: link, sock=ours)
        try:
            await link.spawn(theirs)
            link.send_first(options)
            await link.loaded
        except BaseException as error:
            given_up = not isinstance(error, Exception)
            how = await link.end(patience=0.0 if given_up else EXIT_SECONDS)
            if isinstance(error, UnavailableError):
                text = f"the engine's process ended while it loaded ({how})"
                raise ModelLoadError(text) from error
            raise
    finally:
        theirs.close()
    return link


class _Link(asyncio.Protocol):
    """The server's end of the way to one engine process."""

    def __init__(self, receive: Callable[[Report], None], tell: Callable[[str], None]) -> None:
        loop = asyncio.get_running_loop()
        self.loaded: asyncio.Future[None] = loop.create_future()
        self.closed = asyncio.Event()
        self._loop = loop
        self._process: Process | None = None
        self._receive = receive
        self._tell = tell
        self._frames = FrameReader()
        self._outgoing: list[object] = []
        self._transport: asyncio.WriteTransport | None = None
        self._description: EngineDescription | None = None

    @property
    def description(self) -> EngineDescription:
        """What the process said of itself."""
        if self._description is None:
            raise UnavailableError("the engine is not loaded")
        return self._description

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """See asyncio.Protocol."""
        self._transport = cast("asyncio.WriteTransport", transport)

    def data_received(self, data: bytes) -> None:
        """See asyncio.Protocol."""
        for message in self._frames.feed(data):
            match message:
                case Report():
                    self._receive(message)
                case Loading(stage):
                    self._tell(stage)
                case Loaded(description):
                    self._description = description
                    self._settle(None)
                case LoadFailed(text):
                    self._settle(ModelLoadError(text))
                case _:
                    raise TypeError(f"a message of type {type(message).__name__}")

    def connection_lost(self, exc: Exception | None) -> None:
        """See asyncio.Protocol."""
        del exc
        self._settle(UnavailableError("the engine's process ended"))
        self.closed.set()

    async def spawn(self, theirs: socket.socket) -> None:
        """Start the process; ``theirs`` is the other end."""
        self._process = await asyncio.create_subprocess_exec(
            *(sys.executable, "-m", MODULE, str(theirs.fileno())),
            stdin=DEVNULL,
            pass_fds=(theirs.fileno(),),
            # Ctrl-C reaches the server alone, which stops its engine in order.
            start_new_session=True,
        )
        theirs.close()  # or its end would not be seen

    def send_first(self, options: EngineOptions) -> None:
        """Tell the process what to load."""
        self._write([options])

    def send(self, message: ToEngine) -> None:
        """Send ``message`` with all others of this turn of the event loop."""
        if not self._outgoing:
            self._loop.call_soon(self._flush)
        self._outgoing.append(message)

    async def end(self, *, patience: float) -> str:
        """Wait for the process, kill it after ``patience`` seconds, and say how it ended."""
        self._flush()
        try:
            return await self._reap(patience)
        finally:
            if self._transport is not None:
                self._transport.close()

    async def _reap(self, patience: float) -> str:
        process = self._process
        if process is None:
            return "it was not started"
        try:
            async with asyncio.timeout(patience):
                await process.wait()
        except TimeoutError:
            with contextlib.suppress(ProcessLookupError):
                process.kill()
            await process.wait()
        code = process.returncode or 0
        return f"exit code {code}" if code >= 0 else signal.Signals(-code).name

    def _flush(self) -> None:
        outgoing, self._outgoing = self._outgoing, []
        if outgoing:
            self._write(outgoing)

    def _write(self, messages: Sequence[object]) -> None:
        if self._transport is not None and not self._transport.is_closing():
            self._transport.write(frame(messages))

    def _settle(self, error: Exception | None) -> None:
        if self.loaded.done():
            return
        if error is None:
            self.loaded.set_result(None)
        else:
            self.loaded.set_exception(error)
            self.loaded.exception()  # it is no defect when nobody waits any more
