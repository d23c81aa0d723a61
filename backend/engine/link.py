"""The way to one engine process, and the process at its end.

Law: what was given up is silent. After ``sever`` nothing that the process says is heard, and
``end`` returns in bounded time, with the process killed, whatever breaks it off.
"""

import asyncio
import contextlib
import logging
import signal
import socket
import sys
from asyncio.subprocess import DEVNULL, Process
from collections.abc import Callable, Sequence
from typing import cast

from backend.engine.messages import (
    EngineDescription,
    Loaded,
    LoadFailed,
    Loading,
    Report,
    Submit,
    ToEngine,
)
from backend.engine.wire import FrameReader, frame
from backend.models.config import ModelLoadError
from backend.ports import OverloadedError, UnavailableError
from backend.scheduler.watchdog import Verdict, Watchdog
from backend.settings import EngineOptions

log = logging.getLogger(__name__)

MODULE = "backend.engine.process"
EXIT_SECONDS = 1.0
"""From a closed connection to the process's end."""
KILL_SECONDS = 5.0
"""From SIGKILL to the process's end, which is at once unless it hangs in the kernel."""
TURNS = 20
"""In which a bound is counted, so a stop of this process costs a twentieth of it."""

MOST_UNSENT_BYTES = 64 * 2**20
"""Requests that an engine may leave lying before it is sent no others: it hangs, perhaps."""

KILLED = signal.SIGKILL.name


class _SilentError(ModelLoadError):
    """The process is there and tells of no progress."""


async def launch(
    options: EngineOptions,
    receive: Callable[[Report], None],
    tell: Callable[[str], None],
    *,
    silent_seconds: float,
) -> "Link":
    """Start a process and wait until its engine is warm. Raises ModelLoadError.

    It may take any time, but not be silent for so long.
    """
    ours, theirs = socket.socketpair()
    link = Link(receive, tell)
    try:
        # First of all, so that whatever breaks off here takes the process with it.
        await asyncio.get_running_loop().create_unix_connection(lambda: link, sock=ours)
        try:
            await link.spawn(theirs)
            link.send_first(options)
            await link.load(silent_seconds)
        except BaseException as error:
            given_up = isinstance(error, _SilentError) or not isinstance(error, Exception)
            how = await link.end(patience=0.0 if given_up else EXIT_SECONDS)
            if isinstance(error, UnavailableError):
                text = f"the engine's process ended while it loaded ({how})"
                raise ModelLoadError(text) from error
            raise
    finally:
        theirs.close()
    return link


class Link(asyncio.Protocol):
    """The server's end of the way to one engine process."""

    def __init__(self, receive: Callable[[Report], None], tell: Callable[[str], None]) -> None:
        loop = asyncio.get_running_loop()
        self.loaded: asyncio.Future[None] = loop.create_future()
        self.closed: asyncio.Future[None] = loop.create_future()
        self._loop = loop
        self._process: Process | None = None
        self._receive = receive
        self._tell = tell
        self._frames = FrameReader()
        self._heard = False
        self._stage = "starting"
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
        self._heard = True
        for message in self._frames.feed(data):
            match message:
                case Report():
                    self._receive(message)
                case Loading(stage):
                    self._stage = stage
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
        if not self.closed.done():
            self.closed.set_result(None)

    async def spawn(self, theirs: socket.socket) -> None:
        """Start the process; ``theirs`` is the other end."""
        self._process = await asyncio.create_subprocess_exec(
            *(sys.executable, "-P", "-m", MODULE, str(theirs.fileno())),
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
        """Send ``message`` with all others of this turn of the event loop.

        Raises OverloadedError for a request where too much lies before it.
        """
        if isinstance(message, Submit) and self._num_unsent() > MOST_UNSENT_BYTES:
            raise OverloadedError("the engine does not take in what was sent before", 1.0)
        if not self._outgoing:
            self._loop.call_soon(self._flush)
        self._outgoing.append(message)

    async def load(self, silent_seconds: float) -> None:
        """Wait until the engine is loaded. Raises ModelLoadError, UnavailableError."""
        if not await self.watch(self.loaded, silent_seconds, waiting=lambda: True):
            self.sever()
            raise _SilentError(
                f"the engine's process told of no progress for {silent_seconds:g} s while loading "
                f"({self._stage})"
            )
        self.loaded.result()

    async def watch(
        self,
        over: asyncio.Future[None],
        seconds: float,
        *,
        waiting: Callable[[], bool],
        ask: Callable[[], None] = lambda: None,
    ) -> bool:
        """Wait until ``over``. False: sooner than that, the process was silent for ``seconds``.

        Silence counts from when somebody was ``waiting`` and the process was asked to speak.
        """
        watchdog = Watchdog(TURNS)
        while not await _turn(over, seconds / TURNS):
            heard, self._heard = self._heard, False
            match watchdog.turn(heard=heard, waiting=waiting()):
                case Verdict.ASK:
                    ask()
                case Verdict.HUNG:
                    return False
        return True

    def sever(self) -> None:
        """Hear nothing more of the process, and say nothing to it."""
        if self._transport is not None:
            self._transport.abort()

    async def end(self, *, patience: float) -> str:
        """Wait for the process, kill it after ``patience`` seconds, and say how it ended."""
        self._flush()
        try:
            return await self._reap(patience)
        finally:
            self.sever()

    async def _reap(self, patience: float) -> str:
        process = self._process
        if process is None:
            return "it was not started"
        try:
            await _wait(process, patience)
        finally:
            await _kill(process)
        code = process.returncode
        if code is None:
            return f"{KILLED} without effect"
        return f"exit code {code}" if code >= 0 else signal.Signals(-code).name

    def _num_unsent(self) -> int:
        return 0 if self._transport is None else self._transport.get_write_buffer_size()

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


async def _turn(over: asyncio.Future[None], seconds: float) -> bool:
    """Let ``seconds`` go by, however long that takes a busy loop. True: it is ``over``."""
    await asyncio.wait((over,), timeout=seconds)
    return over.done()


async def _wait(process: Process, seconds: float) -> None:
    with contextlib.suppress(TimeoutError):
        async with asyncio.timeout(seconds):
            await process.wait()


async def _kill(process: Process) -> None:
    """See to it that ``process`` has ended, or is to end as soon as the kernel lets it."""
    if process.returncode is not None:
        return
    with contextlib.suppress(ProcessLookupError):
        process.kill()
    await _wait(process, KILL_SECONDS)
    if process.returncode is None:
        log.error("process %d was killed and is still there: it hangs in the kernel", process.pid)
