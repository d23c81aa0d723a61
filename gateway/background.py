"""Work in the background: what raises is logged, is a problem in ``/readyz``, and begins again.

Law: no task and no thread that belongs to no request ends in silence. Each one is begun here, and
``tests/architecture/`` finds work that begins elsewhere.
"""

import asyncio
import logging
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from contextvars import Context
from dataclasses import dataclass, field
from threading import Thread

FIRST_PAUSE = 1.0
LONGEST_PAUSE = 30.0
"""Seconds before work begins again: twice as long after each failure."""
SETTLED_SECONDS = 30.0
"""Work that has run for so long since a failure is well again."""

_log = logging.getLogger(__name__)


@dataclass(slots=True)
class Restarts:
    """The failures of one piece of work: how long to pause, and whether it is well again."""

    name: str
    clock: Callable[[], float] = time.monotonic
    fault: str | None = field(default=None, init=False)
    _pause: float = field(default=0.0, init=False)
    _failed_at: float = field(default=0.0, init=False)

    def note(self, error: Exception) -> float:
        """Log a failure; return the seconds after which to begin again."""
        if not self.is_failing():
            self._pause = 0.0
        self._pause = min(2 * self._pause, LONGEST_PAUSE) or FIRST_PAUSE
        self._failed_at = self.clock()
        self.fault = f"{self.name}: failed ({type(error).__name__}) and begins again"
        text = "%s: failed, and begins again in %g s"
        event = {"event": "task"}
        _log.error(text, self.name, self._pause, exc_info=error, extra={"fields": event})
        _failing[self.name] = self
        return self._pause

    def is_failing(self) -> bool:
        """Tell whether the last failure is too recent to trust in the work."""
        settled = self._failed_at + self._pause + SETTLED_SECONDS
        return self.fault is not None and self.clock() < settled

    def end(self) -> None:
        self.fault = None
        _failing.pop(self.name, None)


_failing: dict[str, Restarts] = {}
"""Of this process, which has one gateway."""


def problems() -> list[str]:
    """Return for ``/readyz`` what has failed in the background and may fail again."""
    return [str(each.fault) for each in list(_failing.values()) if each.is_failing()]


def start(
    name: str,
    work: Callable[[], Awaitable[None]],
    *,
    sleep: Callable[[float], Awaitable[None]] = asyncio.sleep,
) -> asyncio.Task[None]:
    """Run work in a task until it returns or is cancelled; it begins again after an exception."""
    # A new context: the work carries no id of the request that began it.
    return asyncio.create_task(_keep_running(name, work, sleep), name=name, context=Context())


async def _keep_running(
    name: str, work: Callable[[], Awaitable[None]], sleep: Callable[[float], Awaitable[None]]
) -> None:
    restarts = Restarts(name)
    try:
        while True:
            try:
                return await work()
            except Exception as error:  # noqa: BLE001 - whatever it is, the work goes on
                pause = restarts.note(error)
            await sleep(pause)
    finally:
        restarts.end()


@asynccontextmanager
async def running(name: str, work: Callable[[], Awaitable[None]]) -> AsyncIterator[None]:
    """Run work in a task, which is cancelled at the end."""
    task = start(name, work)
    try:
        yield
    finally:
        task.cancel()
        await asyncio.wait([task])


def start_thread(
    name: str, work: Callable[[], None], *, sleep: Callable[[float], None] = time.sleep
) -> Thread:
    """Run work in a thread that does not keep the process alive, until the work returns."""

    def run() -> None:
        restarts = Restarts(name)
        while True:
            try:
                work()
            except Exception as error:  # noqa: BLE001 - whatever it is, the work goes on
                sleep(restarts.note(error))
            else:
                return restarts.end()

    thread = Thread(target=run, name=name, daemon=True)
    thread.start()
    return thread
