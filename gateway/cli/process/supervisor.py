"""Keeps the processes of one installation running until it is stopped, and replaces its workers.

Children get their own session, so that Ctrl-C reaches the supervisor alone and they stop in
order: in front first, since they have answers to finish that need those behind.

A reload replaces one worker after another. The new one is ready before the old one leaves, so that
at every moment somebody accepts. If the new one does not become ready, the old one stays.
"""

import asyncio
import contextlib
import logging
import signal
import time
from collections.abc import Awaitable, Callable, Sequence
from itertools import count

from gateway.cli.process.child_process import Child, ChildError, ChildProcess, Order, Report

log = logging.getLogger(__name__)
_EVENT = {"fields": {"event": "gateway"}}

WORKER_SETTINGS = "REFRAIN_WORKER_SETTINGS"
"""Carries a worker's settings as JSON: unlike a command line, an environment is private."""

INSTANCE = "REFRAIN_INSTANCE"
"""Carries the name of the installation; ``upstream.http_client`` reads it."""

SEAT = "REFRAIN_SEAT"
"""Carries a worker's name among the running ones. Another worker gets it once this one ended."""

FIRST_BACKOFF_SECONDS = 0.5
LAST_BACKOFF_SECONDS = 10.0
SETTLED_SECONDS = 60.0
"""A child that ran for so long has started well; before, its own exit code 1 or 2 is final."""

MOST_LEAVING = 2
"""So many replaced processes of one place may finish their answers at a time."""

READY_SECONDS = 60.0
LEFT_SECONDS = 10.0


class ReloadError(Exception):
    """The settings in force stay; the message says why."""


Reload = Callable[[], Awaitable[Sequence[Child]]]
"""Reads the settings again, and returns the workers by them. Raises ReloadError."""


class Slot:
    """A place for one process at a time: it is started again if it ends, or replaced."""

    def __init__(self, child: Child) -> None:
        self.child = child
        """What is started next."""
        self.process: ChildProcess | None = None
        self.lock = asyncio.Lock()
        """Held while a process is put here."""
        self.moved = asyncio.Event()
        """Set when another process was put here."""
        self._running: dict[int, ChildProcess] = {}
        """The process here and the leaving ones, by a number that is free once they have ended."""

    async def start(self, child: Child) -> ChildProcess:
        """Start a process for this place; processes that leave it may still run."""
        running = self._running = self._still_running()
        number = next(number for number in count() if number not in running)
        seat = f"{child.name}.{number}"
        process = await ChildProcess.start(child, {SEAT: seat})
        process.end.add_done_callback(lambda _: child.ended(seat))
        running[number] = process
        return process

    @property
    def is_crowded(self) -> bool:
        """Whether no process may be replaced until a leaving one has ended."""
        leaving = [one for one in self._still_running().values() if one is not self.process]
        return len(leaving) >= MOST_LEAVING

    def _still_running(self) -> dict[int, ChildProcess]:
        return {number: one for number, one in self._running.items() if not one.end.done()}


class Supervisor:
    """Runs children; ``run`` returns when all have ended.

    ``stopping`` is called once they are to end, before any of them does. ``reload`` is called at
    SIGHUP; without it, that signal ends everything.
    """

    def __init__(
        self,
        children: Sequence[Child],
        stopping: Callable[[], None] = lambda: None,
        reload: Reload | None = None,
    ) -> None:
        self._front = [Slot(child) for child in children if child.front]
        self._behind = [Slot(child) for child in children if not child.front]
        self._stopping = stopping
        self._reload = reload
        self._reload_due = asyncio.Event()
        self._leaving: set[asyncio.Task[None]] = set()
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
        """Run until SIGINT or SIGTERM (returns 0), or a child cannot start (its code)."""
        loop = asyncio.get_running_loop()
        for number in (signal.SIGINT, signal.SIGTERM):
            loop.add_signal_handler(number, self.stop)
        hang_up = self.stop if self._reload is None else self._reload_due.set
        loop.add_signal_handler(signal.SIGHUP, hang_up)
        front = [self._keep(slot, self._stop) for slot in self._front]
        behind = [self._keep(slot, self._stop_behind) for slot in self._behind]
        rest = asyncio.gather(*behind)
        await asyncio.gather(self._reload_until_stop(), *front)
        self._stop_behind.set()
        await rest
        return self._exit_code

    async def _keep(self, slot: Slot, stop: asyncio.Event) -> None:
        backoff, has_ended = FIRST_BACKOFF_SECONDS, False
        while not stop.is_set():
            async with slot.lock:
                if slot.process is None and not stop.is_set():
                    slot.process = await slot.start(slot.child)
                    if has_ended:
                        log.info("%s was started again", slot.child.name, extra=_EVENT)
                    slot.process.order(Order.ACCEPT)
                process = slot.process
                slot.moved.clear()
            if process is None:
                return
            await _first(process.end, stop, slot.moved)
            if stop.is_set():
                break
            async with slot.lock:
                if slot.process is not process:
                    backoff = FIRST_BACKOFF_SECONDS
                    continue
                slot.process = None
            child, code = process.child, process.end.result()
            lived = time.monotonic() - process.began
            settled = process.was_ready or lived >= SETTLED_SECONDS
            if child.vital and code in (1, 2) and not settled:
                # The child has written the fault to stderr; a restart would not help.
                log.debug("%s cannot start (exit code %d)", child.name, code)
                self._exit_code = code
                self.stop()
                return
            if lived > SETTLED_SECONDS:
                backoff = FIRST_BACKOFF_SECONDS
            text = "%s ended (exit code %d); starting it again"
            log.error(text, child.name, code, extra={"fields": {"event": "process"}})
            has_ended = True
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(stop.wait(), backoff)
            backoff = min(backoff * 2, LAST_BACKOFF_SECONDS)
        if slot.process is not None:
            await slot.process.stop(self._at_once)

    async def _reload_until_stop(self) -> None:
        reloading = asyncio.create_task(self._reload_when_due())
        await self._stop.wait()
        reloading.cancel()
        await asyncio.wait([reloading])
        if self._leaving:
            await asyncio.wait(self._leaving)

    async def _reload_when_due(self) -> None:
        while True:
            await self._reload_due.wait()
            self._reload_due.clear()
            try:
                await self._await_room()
                # The settings are read only now: signals during the wait ask for the same.
                self._reload_due.clear()
                await self._replace_all()
            except ReloadError as error:
                log.error("reload: keeping the settings in force: %s", error, extra=_EVENT)  # noqa: TRY400
            except Exception:
                text = "reload: keeping the settings in force, because of a defect"
                log.exception(text, extra=_EVENT)

    async def _replace_all(self) -> None:
        if self._reload is None:
            return
        log.info("reload: reading the settings")
        replaced: list[tuple[Slot, Child]] = []
        for slot, child in zip(self._front, await self._reload(), strict=True):
            former = slot.child
            try:
                await self._replace(slot, child)
            except ChildError as error:
                await self._put_back(replaced)
                raise ReloadError(str(error)) from None
            replaced.append((slot, former))
        log.info("reload: the new settings are in force", extra=_EVENT)

    async def _await_room(self) -> None:
        """Wait while too many replaced workers finish their answers: each takes memory."""
        if number := sum(slot.is_crowded for slot in self._front):
            text = "reload: it waits for %d workers that finish their answers"
            log.info(text, number, extra=_EVENT)
        while any(slot.is_crowded for slot in self._front):
            await asyncio.wait(self._leaving, return_when=asyncio.FIRST_COMPLETED)

    async def _put_back(self, replaced: Sequence[tuple[Slot, Child]]) -> None:
        for slot, former in replaced:
            try:
                await self._replace(slot, former)
            except ChildError as error:
                text = "reload: %s has the new settings still: %s"
                log.error(text, former.name, error, extra=_EVENT)  # noqa: TRY400

    async def _replace(self, slot: Slot, child: Child) -> None:
        """Put a new process in the place of the old one, which stays if this raises ChildError."""
        async with slot.lock:
            old = slot.process
            new = await slot.start(child)
            try:
                await new.report(Report.READY, READY_SECONDS)
            except BaseException:
                await new.stop(self._at_once)
                raise
            # Nothing waits from here on: a stop finds the old process in its place, or the new one.
            new.was_ready = True
            slot.child, slot.process = child, new
            new.order(Order.ACCEPT)
            slot.moved.set()
            if old is not None:
                old.order(Order.LEAVE)
                leaving = asyncio.create_task(old.await_end(self._at_once))
                self._leaving.add(leaving)
                leaving.add_done_callback(self._leaving.discard)
        if old is not None:
            # From then on, each new connection finds the new settings.
            with contextlib.suppress(ChildError):
                await old.report(Report.LEFT, LEFT_SECONDS)


async def _first(end: "asyncio.Task[int]", *events: asyncio.Event) -> None:
    others = [asyncio.create_task(event.wait()) for event in events]
    try:
        await asyncio.wait((end, *others), return_when=asyncio.FIRST_COMPLETED)
    finally:
        for other in others:
            other.cancel()
