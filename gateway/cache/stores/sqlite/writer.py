"""The thread that makes all changes of the file.

Changes that wait together share a commit, because a commit costs as much as ten puts. While the
loop is busy, puts wait GATHER_SECONDS at most for company. Once it has nothing else to do, nobody
would come. The callers get their answers as soon as the commit is made. Uses are written down after
that. Another thread syncs the log to the disk, and the writer waits for it only if the log is too
long.
"""

import asyncio
import logging
import threading
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from queue import Empty, SimpleQueue
from typing import TypeVar

from gateway import background
from gateway.cache.ports import Entry, EntryTooLargeError, StoreError, StoreStats
from gateway.cache.stores.entry_codec import DamagedEntryError, encode_entry
from gateway.cache.stores.memory import ENTRY_SHARE
from gateway.cache.stores.sqlite.file import PAGE_BYTES, WAL_BYTES, EntryFile
from gateway.cache.stores.sqlite.shared_changes import SharedChanges
from gateway.cache.stores.sqlite.table import TOTALS, Bounds, Change, commit, shrink_file

MAX_ENTRY_BYTES = 64 << 20
MAX_WAITING = 1024
"""Reads, and as many writes."""

MAX_WAITING_BYTES = 64 << 20
GATHER_SECONDS = 0.005
LOOK_SECONDS = 0.001
IDLE_TURN_SECONDS = 20e-6
"""In a turn of the loop that is shorter, nothing has happened."""

GROUP_CHANGES = 128
GROUP_BYTES = 16 << 20
MAX_LOG_BYTES = 32 << 20
PAGES_A_COMMIT = 6
PAGES_A_CHANGE = 2
"""The pages that change beside the answers', about: two indexes are not in order of time."""

_CHECKPOINTS = 3

_log = logging.getLogger(__name__)
T = TypeVar("T")

Reply = asyncio.Future[T]
"""A thread's answer, for which the loop waits."""


@dataclass(slots=True, eq=False)
class Write:
    """Store the entry, or forget the key; without a key, only wait for the writes before."""

    key: bytes | None
    entry: Entry | None = None
    size: int = 0
    """Bytes, about."""
    reply: Reply[None] | None = None


class Writer:
    """The only thread that changes the file; now and then it starts one that syncs the log.

    ``evicted`` is called on the loop with the keys that a commit evicted, before any caller of that
    commit goes on.
    """

    def __init__(
        self,
        open_file: Callable[[], EntryFile],
        bounds: Bounds,
        uses: dict[bytes, int],
        shared: SharedChanges,
        *,
        evicted: Callable[[Sequence[bytes]], None],
        clock: Callable[[], float],
        upkeep_seconds: float,
    ) -> None:
        self._file = open_file()
        self._open_file = open_file
        self._syncing: threading.Thread | None = None
        self._bounds = bounds
        self._max_entry_bytes = min(bounds.max_bytes // ENTRY_SHARE, MAX_ENTRY_BYTES)
        self._uses = uses
        self._evicted = evicted
        self._shared = shared
        self._clock = clock
        self._upkeep_seconds = upkeep_seconds
        # None ends the thread.
        self._writes: SimpleQueue[Write | None] = SimpleQueue()
        self._due = threading.Event()
        """Set when the thread is to look at the queue."""
        self._loop: asyncio.AbstractEventLoop | None = None
        self._gathers = False
        # One number for each thread, so that neither needs a lock.
        self._bytes_submitted = 0
        self._bytes_taken = 0
        self._unsynced = 0
        self._complained = ""
        self.stats = StoreStats(entries=0, bytes=0, evictions=0)
        """As of the latest commit or upkeep."""
        self.thread = background.start_thread("writer of the store", self._run)

    def submit(self, write: Write) -> Reply[None]:
        """Queue a change and return its outcome. Raises StoreError if too much waits already."""
        waiting = self._writes.qsize()
        bytes_waiting = self._bytes_submitted - self._bytes_taken
        if waiting >= MAX_WAITING or bytes_waiting >= MAX_WAITING_BYTES:
            raise StoreError(f"{waiting} writes are waiting already")
        loop = asyncio.get_running_loop()
        self._gathers = self._gathers and loop is self._loop
        self._loop = loop
        reply = write.reply = self._loop.create_future()
        self._bytes_submitted += write.size
        self._writes.put(write)
        if write.entry is None:
            # An operator's purge deletes one entry after another.
            self._due.set()
        elif not self._gathers:
            self._gathers = True
            until = time.monotonic() + GATHER_SECONDS
            self._loop.call_soon(self._gather, self._loop, until)
        return reply

    def _gather(
        self, loop: asyncio.AbstractEventLoop, until: float, turn_began: float | None = None
    ) -> None:
        """Let puts wait for company until then, or until the loop has an idle turn."""
        now = time.monotonic()
        if turn_began is None:
            loop.call_soon(self._gather, loop, until, now)
        elif (
            now - turn_began > IDLE_TURN_SECONDS
            and now < until
            and self._writes.qsize() < GROUP_CHANGES
        ):
            loop.call_later(LOOK_SECONDS, self._gather, loop, until)
        else:
            self._gathers = False
            self._due.set()

    def discard(self, key: bytes, error: DamagedEntryError) -> None:
        """Forget a damaged entry soon; the readers call this."""
        # If it was replaced a moment ago, the loss is one miss.
        _log.warning("a damaged entry is forgotten: %s", error)
        if self._writes.qsize() < MAX_WAITING:
            self._writes.put(Write(key))
            self._due.set()

    def stop(self) -> None:
        self._writes.put(None)
        self._due.set()

    # On the thread.

    def _try(self, step: Callable[[], object]) -> None:
        """Run a step without a caller; if its fault stays, the next request gets the fault."""
        try:
            step()
        except StoreError as error:
            # It is tried every second. If a store refuses writes, its guard logs it.
            level = logging.DEBUG if str(error) == self._complained else logging.WARNING
            self._complained = str(error)
            _log.log(level, "the store's upkeep failed: %s", error)
        except Exception:  # noqa: BLE001 - the thread must live on
            _log.exception("the store's upkeep failed")
        else:
            self._complained = ""

    def _run(self) -> None:
        self._try(self._trim)
        next_upkeep = time.monotonic() + self._upkeep_seconds
        stopped = False
        while not stopped:
            writes, stopped = self._collect(next_upkeep - time.monotonic())
            if writes:
                self._commit(writes)
                self._try(self._sync_when_due)
            if stopped or time.monotonic() >= next_upkeep:
                self._try(self._keep_up)
                next_upkeep = time.monotonic() + self._upkeep_seconds
        self._wait_for_sync()
        self._file.close()

    def _collect(self, seconds: float) -> tuple[list[Write], bool]:
        """Wait for a change and take all queued ones; also tell whether to stop after them."""
        writes: list[Write] = []
        size = 0
        self._due.wait(max(0.0, seconds))
        # Before the queue is read: whatever is queued from now on sets it again.
        self._due.clear()
        try:
            item = self._writes.get_nowait()
            while item is not None:
                self._bytes_taken += item.size
                if item.reply is None or not item.reply.done():
                    writes.append(item)
                    size += item.size
                if len(writes) >= GROUP_CHANGES or size >= GROUP_BYTES:
                    self._due.set()
                    return writes, False
                item = self._writes.get_nowait()
        except Empty:
            return writes, False
        return writes, True

    def _commit(self, writes: list[Write]) -> None:
        # One error each: an exception raised in several tasks would gather all their tracebacks.
        outcomes: list[StoreError | None] = [None] * len(writes)
        changes: list[Change] = []
        for at, write in enumerate(writes):
            try:
                if write.key is not None:
                    changes.append(self._change(write.key, write.entry))
            except Exception as error:  # noqa: BLE001 - it is this caller's alone
                outcomes[at] = failure(error)
        evicted: Sequence[bytes] = ()
        try:
            _, evicted = self._transact(changes)
        except Exception as error:  # noqa: BLE001 - each caller needs an outcome
            fault = failure(error)
            outcomes = [outcome or type(fault)(*fault.args) for outcome in outcomes]
        self._tell(evicted, writes, outcomes)

    def _change(self, key: bytes, entry: Entry | None) -> Change:
        """Return the change for a commit. Raises EntryTooLargeError."""
        if entry is None:
            return Change(key)
        value = encode_entry(entry)
        if len(value) > self._max_entry_bytes:
            raise EntryTooLargeError(
                f"an entry of {len(value)} bytes, at most {self._max_entry_bytes} are stored"
            )
        return Change(key, value, entry.kept_until)

    def _tell(
        self,
        evicted: Sequence[bytes],
        writes: Sequence[Write] = (),
        outcomes: Sequence[StoreError | None] = (),
    ) -> None:
        # On a closed loop no caller waits.
        with suppress(RuntimeError):
            if self._loop is not None:
                self._loop.call_soon_threadsafe(self._settle, evicted, writes, outcomes)

    def _settle(
        self,
        evicted: Sequence[bytes],
        writes: Sequence[Write],
        outcomes: Sequence[StoreError | None],
    ) -> None:
        """Give callers on the loop their answers."""
        if evicted:
            self._evicted(evicted)
        for write, outcome in zip(writes, outcomes, strict=True):
            if write.reply is not None:
                _set(write.reply, outcome)

    def _transact(
        self, changes: Sequence[Change] = (), written_uses: dict[bytes, int] | None = None
    ) -> tuple[bool, list[bytes]]:
        """Commit, and note the figures.

        Tell whether the file is within the bounds, and which keys were evicted.
        """
        now = self._clock()
        with self._shared.commit([change.key for change in changes]) as announced:
            stats, within, evicted = self._file.run(
                lambda connection: commit(
                    connection, changes, written_uses, bounds=self._bounds, uses=self._uses, now=now
                )
            )
            announced.extend(evicted)
        self._note(stats)
        pages = PAGES_A_COMMIT + PAGES_A_CHANGE * (len(changes) + stats.evictions)
        self._unsynced += PAGE_BYTES * (pages + len(written_uses or ()))
        self._unsynced += sum(len(change.value or b"") for change in changes)
        return within, evicted

    def _trim(self) -> None:
        """Evict down to the bounds, which may be tighter than at the last use of the file."""
        done = False
        while not done:
            within, evicted = self._transact()
            self._tell(evicted)
            done = not self._file.run(partial(shrink_file, bounds=self._bounds)) and within
            self._sync_when_due()

    def _keep_up(self) -> None:
        """Write down recent uses, or read the totals that other processes have changed."""
        uses = self._uses.copy()
        self._uses.clear()
        if uses:
            _, evicted = self._transact(written_uses=uses)
            self._tell(evicted)
        else:
            # This also notices a worker that died in a commit.
            with self._shared.commit(()):
                [(entries, size)] = self._file.rows(TOTALS)
            self._note(StoreStats(entries, size, 0))
            self._file.run(partial(shrink_file, bounds=self._bounds))
        self._sync_when_due()

    def _note(self, stats: StoreStats) -> None:
        self.stats = StoreStats(stats.entries, stats.bytes, self._shared.evicted)

    def _sync_when_due(self) -> None:
        if self._unsynced < WAL_BYTES:
            return
        if self._file.log_bytes() > MAX_LOG_BYTES:
            # Changes or reads without a gap keep the log from its restart: make them wait.
            self._wait_for_sync()
            self._file.rows("PRAGMA wal_checkpoint(TRUNCATE)")
        elif self._syncing is not None and self._syncing.is_alive():
            return
        else:
            self._syncing = start_thread("store-syncer", self._sync, self._open_file())
        self._unsynced = 0

    def _wait_for_sync(self) -> None:
        # SQLite lets only one connection checkpoint, and refuses the second at once.
        if self._syncing is not None:
            self._syncing.join()

    def _sync(self, file: EntryFile) -> None:
        """Copy the log into the database file: it may take long, and puts go on meanwhile."""
        self._try(partial(_checkpoint, file))
        file.close()


def start_thread(name: str, run: Callable[..., None], *arguments: object) -> threading.Thread:
    """Start a thread that does not keep the process alive."""
    thread = threading.Thread(target=run, args=arguments, name=name, daemon=True)
    thread.start()
    return thread


def failure(error: Exception) -> StoreError:
    """Return what callers get for an error of a thread; log what nobody expects."""
    if isinstance(error, StoreError):
        return error
    _log.error("a thread of the store failed", exc_info=error)
    return StoreError(f"a thread of the store failed: {type(error).__name__}")


def settle(reply: Reply[T], outcome: T | StoreError) -> None:
    """Give the loop its answer, from any thread."""
    # On a closed loop no caller waits.
    with suppress(RuntimeError):
        reply.get_loop().call_soon_threadsafe(_set, reply, outcome)


def _set(reply: Reply[T], outcome: T | StoreError) -> None:
    if reply.done():
        return
    if isinstance(outcome, StoreError):
        reply.set_exception(outcome)
    else:
        reply.set_result(outcome)


def _checkpoint(file: EntryFile) -> None:
    # The log restarts only when all of it was copied; a later pass has little to do.
    for _ in range(_CHECKPOINTS):
        [(busy, in_log, done)] = file.rows("PRAGMA wal_checkpoint(PASSIVE)")
        if busy or in_log == done:
            return
