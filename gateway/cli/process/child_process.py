"""A process of an installation, and the line between it and its parent.

The line is the child's stdin: a socket of which the parent holds the other end. Its end tells that
the parent is gone, so that not even a killed supervisor leaves a process behind. Gateway workers
also get orders through it, and report.
"""

import asyncio
import contextlib
import logging
import os
import signal
import socket
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Self

log = logging.getLogger(__name__)

PYTHON = (sys.executable, "-P")
"""Starts a child. ``python -m`` alone would import modules from the current folder."""

PARENT_PIPE = "REFRAIN_PARENT_PIPE"
"""Set to 1 where stdin is the line to the parent: its end means that the parent is gone."""

STOP_SECONDS = 8.0

_STDIN = 0


class Order(StrEnum):
    """What a worker is to do."""

    ACCEPT = "accept"
    """Take connections."""
    LEAVE = "leave"
    """Another worker has taken your place: end once your requests have."""


class Report(StrEnum):
    """What a worker tells."""

    READY = "ready"
    """It may be told to accept."""
    LEFT = "left"
    """It has been told to LEAVE, and takes no connections any more."""


class ChildError(Exception):
    """A child did not report; the message says why."""


@dataclass(frozen=True, slots=True)
class Child:
    """A process to run: it is restarted when it ends by itself.

    ``vital`` children that exit with 1 or 2 before they have settled end everything; others are
    started again and again, since the rest can do without them. ``front`` ones are gateway workers:
    they are stopped first, and can be replaced.
    """

    name: str
    argv: Sequence[str]
    environment: Mapping[str, str] = field(default_factory=dict)
    pass_fds: Sequence[int] = ()
    vital: bool = True
    front: bool = False
    stop_seconds: float = STOP_SECONDS
    """The time for a child to stop before it is killed."""
    ended: Callable[[str], None] = lambda _: None
    """Called with the name of each running process, once it has ended."""


class ChildProcess:
    """A child that was started."""

    def __init__(
        self,
        child: Child,
        process: asyncio.subprocess.Process,
        line: tuple[asyncio.StreamReader, asyncio.StreamWriter],
    ) -> None:
        self.child = child
        self.began = time.monotonic()
        self.end = asyncio.create_task(process.wait())
        """Ends with the process, and has its exit code."""
        self.was_ready = False
        """Whether it is known to have started well."""
        self._process = process
        self._reports, self._orders = line
        self.end.add_done_callback(lambda _: self._orders.close())

    @classmethod
    async def start(cls, child: Child, more: Mapping[str, str] | None = None) -> Self:
        ours, theirs = socket.socketpair()
        with theirs:
            line = await asyncio.open_unix_connection(sock=ours)
            try:
                # The last wait: a process that was started is ours, or was killed.
                process = await asyncio.create_subprocess_exec(
                    *child.argv,
                    stdin=theirs.fileno(),
                    env={**os.environ, **child.environment, **(more or {}), PARENT_PIPE: "1"},
                    pass_fds=child.pass_fds,
                    start_new_session=True,
                )
            except BaseException:
                line[1].close()
                raise
        return cls(child, process, line)

    def order(self, order: Order) -> None:
        """Tell a worker what to do."""
        if not self._orders.is_closing():
            self._orders.write(f"{order}\n".encode())

    async def report(self, expected: Report, seconds: float) -> None:
        """Wait for a report. Raises ChildError if it does not come in time."""
        try:
            async with asyncio.timeout(seconds):
                with contextlib.suppress(ConnectionError):
                    while line := await self._reports.readline():
                        if line == f"{expected}\n".encode():
                            return
                code = await self.end
        except TimeoutError:
            name = self.child.name
            raise ChildError(f"{name} did not report {expected!s} in {seconds:.0f} s") from None
        raise ChildError(f"{self.child.name} ended (exit code {code}); its own lines say why")

    async def stop(self, at_once: asyncio.Event) -> None:
        """End the process; kill it if it takes too long, or as soon as ``at_once`` is set."""
        with contextlib.suppress(ProcessLookupError):
            if not self.end.done():
                self._process.terminate()
        await self.await_end(at_once)

    async def await_end(self, at_once: asyncio.Event) -> None:
        """Wait for an end that is due; kill the process as ``stop`` does."""
        if not await is_first(self.end, at_once, self.child.stop_seconds):
            seconds = self.child.stop_seconds
            text = "%s did not stop in %.0f s and is killed"
            log.warning(text, self.child.name, seconds, extra={"fields": {"event": "process"}})
        with contextlib.suppress(ProcessLookupError):
            if not self.end.done():
                self._process.kill()
        await asyncio.wait([self.end])


async def run_child(child: Child, stop: asyncio.Event, at_once: asyncio.Event) -> int:
    """Run a child until it ends, or ``stop`` is set; return its exit code."""
    process = await ChildProcess.start(child)
    await is_first(process.end, stop)
    await process.stop(at_once)
    return process.end.result()


async def is_first(
    end: "asyncio.Task[int]", event: asyncio.Event, seconds: float | None = None
) -> bool:
    """Return whether a process ended, or an event was set, within ``seconds``."""
    other = asyncio.create_task(event.wait())
    try:
        done, _ = await asyncio.wait(
            (end, other), timeout=seconds, return_when=asyncio.FIRST_COMPLETED
        )
    finally:
        other.cancel()
    return bool(done)


class ParentLine:
    """A child's end of the line; without a parent there are no orders.

    ``stop`` is set by SIGTERM, SIGINT or the parent's end. Made within an event loop.
    """

    def __init__(self) -> None:
        self.stop = asyncio.Event()
        self.has_parent = os.environ.get(PARENT_PIPE) == "1"
        self.orders: asyncio.Queue[Order] = asyncio.Queue()
        self._begun = b""
        loop = asyncio.get_running_loop()
        for number in (signal.SIGTERM, signal.SIGINT):
            loop.add_signal_handler(number, self.stop.set)
        if self.has_parent:
            loop.add_reader(_STDIN, self._read)

    def report(self, report: Report) -> None:
        """Tell the parent. If it is gone, ``stop`` is about to be set."""
        with contextlib.suppress(OSError):
            os.write(_STDIN, f"{report}\n".encode())

    def _read(self) -> None:
        try:
            data = os.read(_STDIN, 4096)
        except ConnectionError:
            data = b""
        if not data:
            asyncio.get_running_loop().remove_reader(_STDIN)
            self.stop.set()
            return
        *lines, self._begun = (self._begun + data).split(b"\n")
        for line in lines:
            self.orders.put_nowait(Order(line.decode()))
