"""Runs the engine's process (``worker``) and starts another when it dies or hangs.

Laws: the client is open exactly while a warm engine is there. When its process ends, for whatever
reason, every request that it had fails at once, and the next engine knows nothing of them. A
process that has requests and is silent for too long counts as ended (``EngineProcess.watch``).
A severed connection delivers nothing more, and ``EngineProcess.end`` returns in bounded time with
the process killed.
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
from functools import partial
from typing import Any, cast

from backend.engine.client import EngineClient
from backend.engine.messages import (
    PERSIST_SECONDS,
    Asleep,
    Awake,
    Ended,
    EngineDescription,
    Loaded,
    LoadFailed,
    Loading,
    Ping,
    Report,
    Sleep,
    Stop,
    Submit,
    ToEngine,
    Wake,
)
from backend.engine.wire import FrameReader, decode, encode
from backend.models.config import ModelLoadError
from backend.ports import BusyError, OverloadedError, UnavailableError
from backend.settings import EngineOptions
from backend.tokenizer.tokenizer import Tokenizer

log = logging.getLogger(__name__)

MODULE = "backend.engine.worker"
EXIT_SECONDS = 1.0
"""From a closed connection to the process's end."""
KILL_SECONDS = 5.0
"""From SIGKILL to the process's end, which is at once unless it hangs in the kernel."""
TICKS = 20
"""A bound is counted in so many, so a stop of this process costs a twentieth of it."""

MOST_UNSENT_BYTES = 64 * 2**20
"""Unsent requests, beyond which an engine is sent no others: perhaps it hangs."""

KILLED = signal.SIGKILL.name

STOP_SECONDS = 5.0
FIRST_BACKOFF_SECONDS = 0.25
LAST_BACKOFF_SECONDS = 10.0
QUIET_SECONDS = 0.02
"""Between two looks at whether requests are open."""
SETTLED_SECONDS = 60.0
"""An engine that ran for so long is started again without much delay."""


class EngineProcess(asyncio.Protocol):
    """One engine process, and the server's end of the connection to it."""

    def __init__(self, receive: Callable[[Report], None], progress: Callable[[str], None]) -> None:
        loop = asyncio.get_running_loop()
        self.loaded: asyncio.Future[EngineDescription] = loop.create_future()
        self.closed: asyncio.Future[None] = loop.create_future()
        self.ended = asyncio.Event()
        self.asleep = False
        """It was put to sleep, and its end is no failure."""
        self._settled = asyncio.Event()
        self._reply: type[Asleep | Awake] = Asleep
        """What ``_settled`` is set by, if not by the process's end."""
        self._loop = loop
        self._process: Process | None = None
        self._receive = receive
        self._progress = progress
        self._frames = FrameReader()
        self._heard = False
        self.reason = ""
        """Why the process ended, where it could say so."""
        self._stage = "starting"
        self._outgoing: list[object] = []
        self._transport: asyncio.WriteTransport  # from ``connection_made`` on

    @property
    def description(self) -> EngineDescription:
        """What the process reported when it was loaded."""
        return self.loaded.result()

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Keep the transport."""
        self._transport = cast("asyncio.WriteTransport", transport)

    def data_received(self, data: bytes) -> None:
        """Act on the messages that ``data`` completes. Raises TypeError for an unknown one."""
        self._heard = True
        for message in map(decode, self._frames.feed(data)):
            match message:
                case Report():
                    self._receive(message)
                case Loading(stage):
                    self._stage = stage
                    self._progress(stage)
                case Loaded(description):
                    self.loaded.set_result(description)
                case LoadFailed(text):
                    self._fail_load(ModelLoadError(text))
                case Asleep() | Awake():
                    if isinstance(message, self._reply):
                        self._settled.set()
                case Ended(reason):
                    self.reason = reason
                    self._fail_load(ModelLoadError(reason))
                case _:
                    raise TypeError(f"a message of type {type(message).__name__}")

    def connection_lost(self, exc: Exception | None) -> None:
        """End the wait for the engine, and for its end."""
        del exc
        self._fail_load(UnavailableError("the engine's process ended"))
        if not self.closed.done():
            self.closed.set_result(None)
        self._settled.set()

    async def spawn(self, theirs: socket.socket, options: EngineOptions) -> None:
        """Start the process, which loads what ``options`` name; ``theirs`` is the other end."""
        self._process = await asyncio.create_subprocess_exec(
            *(sys.executable, "-P", "-m", MODULE, str(theirs.fileno())),
            stdin=DEVNULL,
            pass_fds=(theirs.fileno(),),
            # Ctrl-C reaches the server alone, which stops its engine in order.
            start_new_session=True,
        )
        theirs.close()  # or its end would not be seen
        self._write([options])

    def send(self, message: ToEngine) -> None:
        """Send ``message`` with all others of this iteration of the event loop.

        Raises OverloadedError for a request if too much is unsent.
        """
        if (
            isinstance(message, Submit)
            and self._transport.get_write_buffer_size() > MOST_UNSENT_BYTES
        ):
            raise OverloadedError("the engine does not take in what was sent before", 1.0)
        if not self._outgoing:
            self._loop.call_soon(self._flush)
        self._outgoing.append(message)

    async def load(self, silent_seconds: float) -> None:
        """Wait until the engine is loaded. Raises ModelLoadError, UnavailableError."""
        if not await self.watch(self.loaded, silent_seconds, waiting=lambda: True):
            await self.end(patience=0.0)
            raise ModelLoadError(
                f"the engine's process reported no progress for {silent_seconds:g} s while loading "
                f"({self._stage})"
            )
        self.loaded.result()

    async def settle(self, message: Sleep | Wake, seconds: float) -> bool:
        """Send ``message``; return whether the engine did as it says within ``seconds``."""
        if self.closed.done():
            return False
        self._reply = Asleep if isinstance(message, Sleep) else Awake
        self._settled.clear()
        self.send(message)
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(seconds):
                await self._settled.wait()
                return not self.closed.done()
        self.sever()
        return False

    async def watch(
        self,
        over: asyncio.Future[Any],
        seconds: float,
        *,
        waiting: Callable[[], bool],
        ask: Callable[[], None] = lambda: None,
    ) -> bool:
        """Wait until ``over``. False: before that, the process was silent for ``seconds``.

        Silence is counted in ticks of this process, without a clock: a watcher that was itself
        stopped has had one tick. An idle engine owes no answer. One for which requests are
        ``waiting`` is asked, and owes an answer from then on, even if the work is gone. It has all
        its ticks to give the answer, and any message is one.
        """
        left: int | None = None  # ticks to answer in; None: it owes nothing
        while not await _tick(over, seconds / TICKS):
            heard, self._heard = self._heard, False
            if heard:
                left = None
            elif left is not None:
                left -= 1
                if not left:
                    return False
            elif waiting():
                left = TICKS
                ask()
        return True

    def sever(self) -> None:
        """Deliver nothing more, in either direction."""
        self._transport.abort()

    async def end(self, *, patience: float) -> str:
        """Wait for the process, kill it after ``patience`` seconds, and say how it ended."""
        self._flush()
        try:
            if self._process is None:
                return "it was not started"
            return await _reap(self._process, patience)
        finally:
            self.sever()
            self.ended.set()

    def _flush(self) -> None:
        outgoing, self._outgoing = self._outgoing, []
        if outgoing:
            self._write(outgoing)

    def _write(self, messages: Sequence[object]) -> None:
        if not self._transport.is_closing():
            self._transport.write(encode(messages))

    def _fail_load(self, error: Exception) -> None:
        if not self.loaded.done():
            self.loaded.set_exception(error)
            self.loaded.exception()  # it is no defect when nobody waits any more


async def _tick(over: asyncio.Future[Any], seconds: float) -> bool:
    """Let ``seconds`` go by, however long that takes a busy loop. True: it is ``over``."""
    await asyncio.wait((over,), timeout=seconds)
    return over.done()


async def _wait(process: Process, seconds: float) -> None:
    with contextlib.suppress(TimeoutError):
        async with asyncio.timeout(seconds):
            await process.wait()


async def _reap(process: Process, patience: float) -> str:
    """Wait for ``process``, or kill it; it has ended then, or ends once the kernel lets it."""
    try:
        await _wait(process, patience)
    finally:
        if process.returncode is None:
            with contextlib.suppress(ProcessLookupError):
                process.kill()
            await _wait(process, KILL_SECONDS)
    code = process.returncode
    if code is None:
        log.error("process %d was killed and is still there: it hangs in the kernel", process.pid)
        return f"{KILLED} without effect"
    return f"exit code {code}" if code >= 0 else signal.Signals(-code).name


class EngineSupervisor:
    """One engine at a time, and the client in front of it; belongs to one event loop.

    While ``sleep_level`` is 1, the engine's weights are on the host and it has no KV pool; while it
    is 2, there is no process.
    """

    def __init__(
        self,
        options: EngineOptions,
        progress: Callable[[str], None],
        *,
        step_seconds: float = 300.0,
        load_seconds: float = 600.0,
        wakes: bool = True,
    ) -> None:
        """``progress`` is called with the stage of loading, for people.

        ``wakes``: a request wakes an engine that sleeps, else it is refused.

        An engine hangs if it has requests and is silent for ``step_seconds``, which must be longer
        than the longest step, or if it loads and is silent for ``load_seconds``.
        """
        self.client = EngineClient(self._send)
        self._options = options
        self._progress = progress
        self._step_seconds = step_seconds
        self._load_seconds = load_seconds
        self._process: EngineProcess | None = None
        self._keeper: asyncio.Task[None] | None = None
        self._wakes = wakes
        self.sleep_level = 0
        self._awake, self._opened = asyncio.Event(), asyncio.Event()
        self._awake.set()
        self._waking: asyncio.Task[None] | None = None
        self._changing = asyncio.Lock()

    async def start(self) -> None:
        """Start the first engine. Raises ModelLoadError; cancelling it ends the process."""
        self._process = await self._launch(self._progress)

    def open(self, text: Tokenizer) -> None:
        """Let requests in, and keep an engine running from now on."""
        process = self._process
        if process is None or self._keeper is not None:
            raise RuntimeError("open an engine once, after it was started")
        self._text = text
        self._open(process)
        self._keeper = asyncio.create_task(self._keep_for_ever(process))

    async def sleep(self, level: int, patience: float) -> None:
        """Give memory back once no request is open, or raise BusyError after ``patience`` seconds.

        Raises UnavailableError where there is no engine to put to sleep.
        """
        while True:
            while self.client.has_requests:
                if patience <= 0:
                    raise BusyError("requests are open")
                await asyncio.sleep(QUIET_SECONDS)
                patience -= QUIET_SECONDS
            async with self._changing:
                if not self.client.has_requests:
                    await self._fall_asleep(level)
                    return

    async def _fall_asleep(self, level: int) -> None:
        if level <= self.sleep_level:
            return
        process = self._process
        if process is None or not (self.client.ready or self.sleep_level):
            raise UnavailableError(self.client.unready_reason)
        self._awake.clear()
        self._opened.clear()
        self.sleep_level, process.asleep = level, True
        self.client.close(f"the engine sleeps (level {level})")
        if self._wakes:
            self.client.waken = self.wake
        if level == 1:
            await process.settle(Sleep(), self._load_seconds)
            return
        try:
            process.send(Stop())
            await asyncio.wait((process.closed,), timeout=self._stop_seconds)
        finally:
            process.sever()
        await process.ended.wait()  # memory is free once the process is gone

    async def wake(self) -> None:
        """Let the engine compute again. Raises UnavailableError where it does not come back."""
        if self._waking is None and not self._opened.is_set():
            self._waking = asyncio.create_task(self._wake())
        if self._waking is not None:
            await asyncio.shield(self._waking)

    async def _wake(self) -> None:
        try:
            async with self._changing, asyncio.timeout(self._load_seconds):
                level, self.sleep_level = self.sleep_level, 0
                self._awake.set()
                process = self._process
                if level == 1 and process is not None and not process.closed.done():
                    process.asleep = False
                    if await process.settle(Wake(), self._load_seconds):
                        self._open(process, is_new=False)
                await self._opened.wait()
        except TimeoutError:
            raise UnavailableError(self.client.unready_reason) from None
        finally:
            self.client.waken = self._waking = None

    def _open(self, process: EngineProcess, **how: bool) -> None:
        self.client.open(process.description, self._text, **how)
        self._opened.set()

    async def stop(self) -> None:
        """Fail open requests and end the process; a second call is harmless."""
        for task in (self._waking, self._keeper):
            if task is not None:
                task.cancel()
                await asyncio.gather(task, return_exceptions=True)
        self.client.close("the engine is shutting down")
        process, self._process = self._process, None
        if process is not None:
            process.send(Stop())
            if await process.end(patience=self._stop_seconds) == KILLED:
                log.warning("the engine did not stop by itself and was killed")

    @property
    def _stop_seconds(self) -> float:
        return STOP_SECONDS + (PERSIST_SECONDS if self._options.kv_disk_bytes else 0.0)

    def _send(self, message: ToEngine) -> None:
        if self._process is not None:
            self._process.send(message)

    async def _keep_for_ever(self, process: EngineProcess) -> None:
        while True:
            try:
                await self._keep(process)
            except Exception:
                # What state the engine is in is not known: without this, nobody would look again.
                log.exception("the engine's state is not known; starting it again")
                process = self._process or process
                process.sever()
                await asyncio.sleep(FIRST_BACKOFF_SECONDS)

    async def _keep(self, process: EngineProcess) -> None:
        backoff = FIRST_BACKOFF_SECONDS
        while True:
            began = time.monotonic()
            died = await process.watch(
                process.closed,
                self._step_seconds,
                waiting=lambda: self.client.has_requests,
                ask=partial(process.send, Ping()),
            )
            what = "died" if died else "hung"
            if process.reason:
                what += f" ({process.reason})"
            process.sever()
            asleep = process.asleep
            if not asleep:
                self._opened.clear()
                self.client.close(f"the engine's process {what} and is being started again")
            how = await process.end(patience=EXIT_SECONDS if died else 0.0)
            self._process = None
            if asleep:
                # One that slept on level 1 and died need not be started before somebody wants it.
                self.sleep_level = self.sleep_level and 2
                log.info("the engine sleeps, and its process ended (%s)", how)
                await self._awake.wait()
                what = "was asleep"
            else:
                log.error("the engine's process %s (%s); starting it again", what, how)
            if time.monotonic() - began > SETTLED_SECONDS:
                backoff = FIRST_BACKOFF_SECONDS
            tried = False
            while self._process is None:
                await asyncio.sleep(backoff if tried or not asleep else 0)
                tried, backoff = True, min(backoff * 2, LAST_BACKOFF_SECONDS)
                try:
                    self._process = await self._launch(partial(self._restarting, what))
                except (ModelLoadError, OSError) as error:  # a process that cannot be made is one
                    log.error("the engine cannot be started: %s", error)  # noqa: TRY400
                    self.client.close(f"the engine cannot be started: {error}")
                except Exception:
                    # No other task would try again.
                    log.exception("the engine cannot be started")
                    self.client.close("the engine cannot be started")
            process = self._process
            self._open(process, failed=not asleep)
            log.info("the engine is ready again")

    def _restarting(self, what: str, stage: str) -> None:
        self.client.close(f"the engine {what} and is being started again: {stage}")

    async def _launch(self, progress: Callable[[str], None]) -> EngineProcess:
        """Start a process and wait until its engine is warm. Raises ModelLoadError."""
        ours, theirs = socket.socketpair()
        engine = EngineProcess(self.client.receive, progress)
        with theirs:
            # First of all, so that whatever breaks off here takes the process with it.
            await asyncio.get_running_loop().create_unix_connection(lambda: engine, sock=ours)
            try:
                await engine.spawn(theirs, self._options)
                await engine.load(self._load_seconds)
            except BaseException as error:
                how = await engine.end(patience=EXIT_SECONDS if isinstance(error, Exception) else 0)
                if isinstance(error, UnavailableError):
                    text = f"the engine's process ended while it loaded ({how})"
                    raise ModelLoadError(text) from error
                raise
        return engine
