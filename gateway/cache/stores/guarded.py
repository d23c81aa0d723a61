"""A circuit breaker around a store that may hang, and bounded waits.

Law: no call waits longer than its bound. After a call that did, or that found the store gone, no
other call waits until the store has answered a probe in the background; the pause before a probe
doubles with each one that fails. A store that refuses a read is not used either. One that refuses
writes alone is read on, and each write tries it again. An error about the entry and not the store
(too large) opens nothing.

What a store does to all requests is logged when it begins and when it ends, at most once a minute.

The bounds do not blame the store while our own loop is busy. A loop that runs 300 handlers in one
turn looks at its sockets and timers only after the last one. A bound by the clock would end waits
for answers that have arrived, and would open the breaker whenever many requests come at once. So a
wait ends after a number of ticks of the loop; a tick lasts TICK, or one turn of a busy loop.

A call that is answered at once takes no timer.
"""

import asyncio
import logging
import time
from collections.abc import Awaitable, Callable, Coroutine, Generator
from contextlib import suppress
from dataclasses import dataclass, field
from types import coroutine
from typing import Any, TypeVar

from gateway import background
from gateway.cache.ports import (
    Entry,
    EntryTooLargeError,
    Page,
    Store,
    StoreError,
    StoreFullError,
    StoreRefusedError,
    StoreStats,
    StoreUnavailableError,
)

TICK = 0.005

T = TypeVar("T")


class LoopTimeout:
    """Waits that share a timer, which runs during waits only. Used from one event loop."""

    def __init__(self) -> None:
        self._left: dict[asyncio.Timeout, int] = {}
        self._timer: asyncio.TimerHandle | None = None

    async def wait(self, call: Awaitable[T], seconds: float) -> T:
        """Return the call's result. Raises its exception, or TimeoutError after ``seconds``."""
        async with asyncio.timeout(None) as bound:
            self._left[bound] = max(1, round(seconds / TICK))
            if self._timer is None:
                self._timer = asyncio.get_running_loop().call_later(TICK, self._tick)
            try:
                return await call
            finally:
                del self._left[bound]

    def _tick(self) -> None:
        loop = asyncio.get_running_loop()
        for bound, left in self._left.items():
            self._left[bound] = left - 1
            if left == 1:
                bound.reschedule(loop.time())
        self._timer = loop.call_later(TICK, self._tick) if self._left else None


FIRST_PAUSE = 0.1
LONGEST_PAUSE = 2.0
"""Seconds: recovery is noticed after at most this and one call."""

PROBE_KEY = bytes(32)
"""A key that no entry has; looking it up is the probe."""

SAME_SECONDS = 60.0
"""So long after it was logged, the same fault is not logged again."""

_log = logging.getLogger(__name__)
_EVENT = {"fields": {"event": "store"}}


@dataclass(slots=True)
class Fault:
    """A fault that lasts: since when, why, and whether the log has it."""

    begins: str
    ends: str
    now: Callable[[], float]
    latest: tuple[float, str] | None = None
    """When it began last and why; it may be over."""
    lasts: bool = False
    _is_told: bool = False
    _told: dict[str, float] = field(default_factory=dict)

    def begin(self, why: str) -> None:
        since = self.latest[0] if self.lasts and self.latest is not None else self.now()
        self.lasts, self.latest = True, (since, why)
        if not self._is_told:
            self._is_told = self.tell(why)

    def tell(self, why: str) -> bool:
        """Log it, unless it was logged a moment ago; tell whether the log has the line."""
        now = self.now()
        if abs(now - self._told.get(why, -SAME_SECONDS)) < SAME_SECONDS:
            return False
        self._told = {why: now}
        _log.warning("%s: %s", self.begins, why, extra=_EVENT)
        return True

    def end(self) -> None:
        if self._is_told:
            _log.info(self.ends, extra=_EVENT)
        self.lasts = self._is_told = False


class GuardedStore:
    """The port ``Store``. Closes the store it guards; used from one event loop.

    ``read_seconds`` bounds get, ``write_seconds`` put and delete. The store itself bounds a page of
    a walk, since no request waits for it.
    """

    def __init__(
        self,
        store: Store,
        *,
        read_seconds: float,
        write_seconds: float,
        sleep: Callable[[float], Awaitable[None]] = asyncio.sleep,
        now: Callable[[], float] = time.time,
    ) -> None:
        self._store = store
        self._read_seconds = read_seconds
        self._write_seconds = write_seconds
        self._sleep = sleep
        self._timeout = LoopTimeout()
        self._probing: asyncio.Task[None] | None = None  # while the breaker is open
        self._closed = False
        self._silence = Fault("store: not used until it answers again", "store: answers again", now)
        self._refusal = Fault(
            "store: it refuses to store answers", "store: it stores answers again", now
        )
        self._is_full = False
        self._refusals = 0
        self._busy = Fault("store: some calls fail", "", now)

    @property
    def is_used(self) -> bool:
        return self._probing is None

    @property
    def problem(self) -> tuple[str, float, str] | None:
        """What is wrong with the store, since when, and why; None where nothing is known."""
        for fault, text in ((self._silence, "not answering"), (self._refusal, "refuses writes")):
            if fault.lasts and fault.latest is not None:
                return text, *fault.latest
        return None

    def note_upkeep(self, error: StoreError | None) -> None:
        """Learn what became of the upkeep, which writes: requests may be rare."""
        if isinstance(error, StoreRefusedError):
            self._refuse(error)
        elif error is None and not self._is_full:
            # It needs no room: of a full store it says nothing.
            self._refusal.end()

    async def check(self) -> None:
        """Look whether the store answers: without requests, nothing else would find that out."""
        with suppress(StoreError):
            await self.get(PROBE_KEY, touch=False)

    async def get(self, key: bytes, *, touch: bool = True) -> Entry | None:
        try:
            return await self._call(self._store.get(key, touch=touch), self._read_seconds)
        except StoreError as error:
            self._note(error, self._open)
            raise

    async def put(self, entry: Entry) -> None:
        await self._write(self._store.put(entry))

    async def delete(self, key: bytes) -> None:
        await self._write(self._store.delete(key))

    async def walk(self, after: bytes | None, limit: int) -> Page:
        return await self._store.walk(after, limit)

    def stats(self) -> StoreStats:
        return self._store.stats()

    async def close(self) -> None:
        self._closed = True
        if self._probing is not None:
            self._probing.cancel()
            await asyncio.wait([self._probing])
        await self._store.close()

    async def _write(self, call: Coroutine[Any, Any, None]) -> None:
        before = self._refusals
        try:
            await self._call(call, self._write_seconds)
        except StoreError as error:
            self._note(error, self._refuse)
            raise
        # The store may have told of one on the way.
        if self._refusals == before:
            self._refusal.end()

    def _note(self, error: StoreError, refused: Callable[[StoreError], None]) -> None:
        match error:
            case StoreRefusedError():
                refused(error)
            case StoreUnavailableError() | EntryTooLargeError():
                pass
            case _:
                self._busy.tell(str(error))

    def _refuse(self, error: StoreError) -> None:
        self._refusals += 1
        self._is_full = isinstance(error, StoreFullError)
        self._refusal.begin(str(error))

    async def _call(self, call: Coroutine[Any, Any, T], seconds: float) -> T:
        if self._probing is not None:
            call.close()
            raise StoreUnavailableError("the store is not answering; it is probed meanwhile")
        try:
            waits_for = call.send(None)
        except StopIteration as end:
            answer: T = end.value
            return answer
        except StoreUnavailableError as error:
            self._open(error)
            raise
        try:
            return await self._timeout.wait(_resume(call, waits_for), seconds)
        except TimeoutError:
            fault = StoreUnavailableError(f"the store did not answer within {seconds:g} s")
            self._open(fault)
            raise fault from None
        except StoreUnavailableError as fault:
            self._open(fault)
            raise

    def _open(self, fault: StoreError) -> None:
        if self._probing is not None or self._closed:
            return
        self._silence.begin(str(fault))
        self._probing = background.start("probe of the store", self._probe)

    async def _probe(self) -> None:
        pause = FIRST_PAUSE
        while True:
            await self._sleep(pause)
            try:
                await self._timeout.wait(self._store.get(PROBE_KEY), self._read_seconds)
            except Exception as error:  # noqa: BLE001 - whatever it is, the probing goes on
                if not isinstance(error, StoreError | TimeoutError):
                    _log.warning("store: the probe failed: %s", type(error).__name__)
                if isinstance(error, StoreError):
                    self._silence.begin(str(error))
                pause = min(2 * pause, LONGEST_PAUSE)
            else:
                self._probing = None
                self._silence.end()
                return


@coroutine
def _resume(call: Coroutine[Any, Any, T], waits_for: Any) -> Generator[Any, None, T]:
    """Await the rest of a call that was begun, and that waits for a future."""
    try:
        while True:
            try:
                yield waits_for
            except BaseException as error:  # noqa: BLE001 - the call takes it, and may end by it
                waits_for = call.throw(error)
            else:
                waits_for = call.send(None)
    except StopIteration as end:
        answer: T = end.value
        return answer
    finally:
        call.close()
