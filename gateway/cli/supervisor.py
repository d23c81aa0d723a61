"""Starts the processes of one installation and keeps them running until it is stopped.

Children get a session of their own, so that Ctrl-C reaches the supervisor alone and they stop in
order: in front first, since they have answers to finish that need those behind. Their stdin is a
pipe held here, so that not even a killed supervisor leaves one behind.
"""

import asyncio
import contextlib
import logging
import os
import signal
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field

log = logging.getLogger(__name__)

PYTHON = (sys.executable, "-P")
"""Starts a child. ``python -m`` alone would import modules from the current folder."""

PARENT_PIPE = "REFRAIN_PARENT_PIPE"
"""Set to 1 where stdin is a pipe that the parent holds: its end means that the parent is gone."""

WORKER_SETTINGS = "REFRAIN_WORKER_SETTINGS"
"""Carries a worker's settings as JSON: unlike a command line, an environment is private."""

INSTANCE = "REFRAIN_INSTANCE"
"""Carries the name of the installation; ``upstream.http_client`` reads it."""

STOP_SECONDS = 8.0
FIRST_BACKOFF_SECONDS = 0.5
LAST_BACKOFF_SECONDS = 10.0
SETTLED_SECONDS = 60.0
"""A child that ran for so long has started well; before, its own exit code 1 or 2 is final."""


@dataclass(frozen=True, slots=True)
class Child:
    """A process to run: it is restarted when it ends by itself.

    ``vital`` children that exit with 1 or 2 before they have settled end everything; others are
    started again and again, since the rest can do without them. ``front`` ones are stopped first.
    """

    name: str
    argv: Sequence[str]
    environment: Mapping[str, str] = field(default_factory=dict)
    pass_fds: Sequence[int] = ()
    vital: bool = True
    front: bool = False
    stop_seconds: float = STOP_SECONDS
    """The time for a child to stop before it is killed."""


class Supervisor:
    """Runs children; ``run`` returns when all have ended.

    ``stopping`` is called once they are to end, before any of them does.
    """

    def __init__(
        self, children: Sequence[Child], stopping: Callable[[], None] = lambda: None
    ) -> None:
        self._children = children
        self._stopping = stopping
        self._stop = asyncio.Event()
        self._stop_behind = asyncio.Event()
        self._at_once = asyncio.Event()
        self._exit_code = 0

    def stop(self) -> None:
        """Make ``run`` end every child and return; a second call kills the remaining children."""
        if self._stop.is_set():
            log.warning("told to stop once more: what is under way is broken off")
            self._at_once.set()
            return
        self._stop.set()
        self._stopping()

    async def run(self) -> int:
        """Run until SIGINT, SIGTERM or SIGHUP (returns 0), or a child cannot start (its code)."""
        loop = asyncio.get_running_loop()
        for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
            loop.add_signal_handler(number, self.stop)
        front = [self._keep(child, self._stop) for child in self._children if child.front]
        behind = [
            self._keep(child, self._stop_behind) for child in self._children if not child.front
        ]
        rest = asyncio.gather(*behind)
        await asyncio.gather(self._stop.wait(), *front)
        self._stop_behind.set()
        await rest
        return self._exit_code

    async def _keep(self, child: Child, stop: asyncio.Event) -> None:
        backoff = FIRST_BACKOFF_SECONDS
        while not stop.is_set():
            began = time.monotonic()
            code = await run_child(child, stop, self._at_once)
            if self._stop.is_set():
                return
            lived = time.monotonic() - began
            if child.vital and code in (1, 2) and lived < SETTLED_SECONDS:
                # The child has written the fault to stderr; a restart would not help.
                log.debug("%s cannot start (exit code %d)", child.name, code)
                self._exit_code = code
                self.stop()
                return
            if lived > SETTLED_SECONDS:
                backoff = FIRST_BACKOFF_SECONDS
            text = "%s ended (exit code %d); starting it again"
            log.error(text, child.name, code, extra={"fields": {"event": "process"}})
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(stop.wait(), backoff)
            backoff = min(backoff * 2, LAST_BACKOFF_SECONDS)


async def run_child(child: Child, stop: asyncio.Event, at_once: asyncio.Event) -> int:
    """Run a child until it ends, or ``stop`` is set; return its exit code."""
    process = await asyncio.create_subprocess_exec(
        *child.argv,
        stdin=asyncio.subprocess.PIPE,
        env={**os.environ, **child.environment, PARENT_PIPE: "1"},
        pass_fds=child.pass_fds,
        start_new_session=True,
    )
    end = asyncio.create_task(process.wait())
    await _wait(end, stop)
    with contextlib.suppress(ProcessLookupError):
        if not end.done():
            process.terminate()
            if not await _wait(end, at_once, child.stop_seconds):
                seconds = child.stop_seconds
                text = "%s did not stop in %.0f s and is killed"
                log.warning(text, child.name, seconds, extra={"fields": {"event": "process"}})
            if not end.done():
                process.kill()
    return await end


async def _wait(end: asyncio.Task[int], event: asyncio.Event, seconds: float | None = None) -> bool:
    """Return whether a process ended, or an event was set, within ``seconds``."""
    other = asyncio.create_task(event.wait())
    done, _ = await asyncio.wait((end, other), timeout=seconds, return_when=asyncio.FIRST_COMPLETED)
    other.cancel()
    return bool(done)


def stop_event() -> asyncio.Event:
    """Return an event that is set by SIGTERM, SIGINT or the parent's end."""
    stop = asyncio.Event()
    loop = asyncio.get_running_loop()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, stop.set)
    if os.environ.get(PARENT_PIPE) == "1":
        descriptor = sys.stdin.fileno()

        def readable() -> None:
            if not os.read(descriptor, 4096):
                loop.remove_reader(descriptor)
                stop.set()

        loop.add_reader(descriptor, readable)
    return stop
