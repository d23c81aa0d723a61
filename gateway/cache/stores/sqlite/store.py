"""The default store: one SQLite file that several gateway workers share.

It survives a restart and ``kill -9``: a put returns when its transaction is in the write-ahead log,
from which every process reads it. A power loss may cost the latest entries, never the file. Entries
take at most ``max_bytes``, and the file at most FILE_FACTOR times that; expired entries are evicted
first, then those that S3-FIFO chooses.

Threads read and write, so that the loop never waits for a disk. A point read from the page cache
takes some 10 us and the hop to a thread ten times that; but a busy disk may take any time. For that
``GuardedStore`` bounds the waits for get, put and delete. A caller that no longer waits costs a
thread no work.

One thread makes all changes: those that wait together share a commit, and their callers get their
answers as soon as it is made. Uses are written down after that. Another thread syncs the log to the
disk, and the writer waits for it only if the log is too long.
"""

import asyncio
import logging
import threading
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from queue import Empty, SimpleQueue
from typing import Any, TypeVar

from gateway.cache.ports import (
    Entry,
    EntryTooLargeError,
    Page,
    PositionError,
    StoreError,
    StoreStats,
    StoreUnavailableError,
)
from gateway.cache.stores.entry_codec import DamagedEntryError, decode_entry, encode_entry
from gateway.cache.stores.memory import ENTRY_SHARE, MOST_USES
from gateway.cache.stores.sqlite.file import PAGE_BYTES, WAL_BYTES, EntryFile
from gateway.cache.stores.sqlite.table import (
    TOTALS,
    VALUE,
    VALUES,
    Bounds,
    Change,
    commit,
    shrink_file,
)

MAX_ENTRY_BYTES = 64 << 20
FILE_FACTOR = 1.5
"""Pages are never quite full, and the indexes take room too; measured 1.2 to 1.4."""

MAX_WAITING = 1024
"""Reads, and as many writes."""

MAX_WAITING_BYTES = 64 << 20
MOST_TOUCHED = 65_536
GROUP_CHANGES = 128
GROUP_BYTES = 16 << 20
MAX_LOG_BYTES = 32 << 20
PAGES_A_PUT = 6
"""The most pages that a small put changes, about: two tables, three indexes, the totals."""

_FILE_BYTES_AT_LEAST = 1 << 20
_READERS = 2
_CLOSE_SECONDS = 10.0
_CHECKPOINTS = 3

_log = logging.getLogger(__name__)
T = TypeVar("T")

Reply = asyncio.Future[T]
"""A thread's answer, for which the loop waits."""


class SqliteStore:
    """The port ``Store``. Made on any thread, used from one event loop."""

    def __init__(
        self,
        path: Path,
        *,
        max_bytes: int,
        clock: Callable[[], float] = time.time,
        read_seconds: float = 0.5,
        write_seconds: float = 2.0,
        upkeep_seconds: float = 5.0,
    ) -> None:
        """Start the threads, which open the file; calls raise its faults.

        ``read_seconds`` bounds the wait for the file's lock when it is opened, ``write_seconds``
        that for other writers and for a page of a walk. Recent uses are written down every
        ``upkeep_seconds``.
        """
        self._write_seconds = write_seconds
        self._uses: dict[bytes, int] = {}
        self._closed = False
        max_file_bytes = max(int(max_bytes * FILE_FACTOR), max_bytes + _FILE_BYTES_AT_LEAST)
        self._writer = Writer(
            partial(EntryFile, path, busy_seconds=write_seconds / 2, clock=clock),
            Bounds(max_bytes, max_file_bytes),
            self._uses,
            clock=clock,
            upkeep_seconds=upkeep_seconds,
        )
        # None ends a thread.
        self._reads: SimpleQueue[tuple[Callable[[EntryFile], Any], Reply[Any]] | None]
        self._reads = SimpleQueue()
        open_file = partial(EntryFile, path, busy_seconds=read_seconds, clock=clock)
        self._readers = [_start("store-reader", self._serve, open_file()) for _ in range(_READERS)]

    async def get(self, key: bytes, *, touch: bool = True) -> Entry | None:
        entry = await self._read(partial(self._get, key))
        if touch and entry is not None:
            self.touch(key)
        return entry

    async def put(self, entry: Entry) -> None:
        """Store or replace. Raises EntryTooLargeError over an entry's share of the store.

        If the caller stops waiting, the entry may or may not have been stored.
        """
        self._check_open()
        await self._writer.submit(entry, len(entry.result))

    async def delete(self, key: bytes) -> None:
        self._check_open()
        await self._writer.submit(key, len(key))

    async def walk(self, after: bytes | None, limit: int) -> Page:
        if after is not None and not after.isdigit():
            raise PositionError("expected the number of an entry")
        try:
            async with asyncio.timeout(self._write_seconds):
                return await self._read(partial(self._page, int(after or 0), limit))
        except TimeoutError:
            raise StoreUnavailableError("reading a page of entries took too long") from None

    def touch(self, key: bytes) -> None:
        """Note a use; with MOST_TOUCHED keys unwritten, uses of other keys are not noted.

        Each hot hit comes here, so there is no lock: a use that is noted while the writer takes the
        noted ones may be lost, or count twice.
        """
        uses = self._uses.get(key, 0)
        if uses < MOST_USES and (uses or len(self._uses) < MOST_TOUCHED):
            self._uses[key] = uses + 1

    def stats(self) -> StoreStats:
        """Return the figures of the latest commit here, or of the latest upkeep.

        Entries and bytes are the file's, so those of all workers together; evictions are ours.
        """
        return self._writer.stats

    async def close(self) -> None:
        """Close the file. Raises StoreError if the disk does not let the threads end."""
        if self._closed:
            return
        self._closed = True
        for _ in self._readers:
            self._reads.put(None)
        self._writer.stop()
        if not await asyncio.to_thread(self._join):
            raise StoreError(f"the store did not close within {_CLOSE_SECONDS:g} s")

    def _join(self) -> bool:
        deadline = time.monotonic() + _CLOSE_SECONDS
        threads = (*self._readers, self._writer.thread)
        for thread in threads:
            thread.join(max(0.0, deadline - time.monotonic()))
        return not any(thread.is_alive() for thread in threads)

    def _check_open(self) -> None:
        if self._closed:
            raise StoreError("the store is closed")

    async def _read(self, read: Callable[[EntryFile], T]) -> T:
        """Return the read's result. Raises StoreError, also if too many reads wait already."""
        self._check_open()
        if self._reads.qsize() >= MAX_WAITING:
            raise StoreError(f"{MAX_WAITING} reads are waiting already")
        reply: Reply[T] = asyncio.get_running_loop().create_future()
        self._reads.put((read, reply))
        return await reply

    # On the readers' threads, each with its own connection; they never wait for the writer.

    def _serve(self, file: EntryFile) -> None:
        while (item := self._reads.get()) is not None:
            read, reply = item
            if reply.done():
                continue
            try:
                _settle(reply, read(file))
            except Exception as error:  # noqa: BLE001 - each caller needs an outcome
                _settle(reply, _failure(error))
        file.close()

    def _get(self, key: bytes, file: EntryFile) -> Entry | None:
        rows = file.rows(VALUE, key)
        try:
            return decode_entry(rows[0][0], key) if rows else None
        except DamagedEntryError as error:
            self._writer.discard(key, error)
            return None

    def _page(self, after: int, limit: int, file: EntryFile) -> Page:
        rows = file.rows(VALUES, after, limit)
        entries = []
        for _, key, value in rows:
            try:
                entries.append(decode_entry(value, key))
            except DamagedEntryError as error:
                self._writer.discard(key, error)
        return Page(entries, b"%d" % rows[-1][0] if len(rows) == limit else None)


@dataclass(frozen=True, slots=True)
class _Write:
    work: Entry | bytes
    """An entry to store, or a key to forget."""
    size: int
    reply: Reply[None] | None


class Writer:
    """The only thread that changes the file; now and then it starts one that syncs the log."""

    def __init__(
        self,
        open_file: Callable[[], EntryFile],
        bounds: Bounds,
        uses: dict[bytes, int],
        *,
        clock: Callable[[], float],
        upkeep_seconds: float,
    ) -> None:
        self._file = open_file()
        self._open_file = open_file
        self._syncing: threading.Thread | None = None
        self._bounds = bounds
        self._max_entry_bytes = min(bounds.max_bytes // ENTRY_SHARE, MAX_ENTRY_BYTES)
        self._uses = uses
        self._clock = clock
        self._upkeep_seconds = upkeep_seconds
        # None ends the thread.
        self._writes: SimpleQueue[_Write | None] = SimpleQueue()
        # One number for each thread, so that neither needs a lock.
        self._bytes_submitted = 0
        self._bytes_taken = 0
        self._evictions = 0
        self._unsynced = 0
        self.stats = StoreStats(entries=0, bytes=0, evictions=0)
        """As of the latest commit or upkeep; read from any thread."""
        self.thread = _start("store-writer", self._run)

    def submit(self, work: Entry | bytes, size: int) -> Reply[None]:
        """Queue a change of about ``size`` bytes. Raises StoreError if too much waits already."""
        waiting = self._writes.qsize()
        bytes_waiting = self._bytes_submitted - self._bytes_taken
        if waiting >= MAX_WAITING or bytes_waiting >= MAX_WAITING_BYTES:
            raise StoreError(f"{waiting} writes are waiting already")
        self._bytes_submitted += size
        reply: Reply[None] = asyncio.get_running_loop().create_future()
        self._writes.put(_Write(work, size, reply))
        return reply

    def discard(self, key: bytes, error: DamagedEntryError) -> None:
        """Forget a damaged entry soon; the readers call this."""
        # If it was replaced a moment ago, the loss is one miss.
        _log.warning("a damaged entry is forgotten: %s", error)
        if self._writes.qsize() < MAX_WAITING:
            self._writes.put(_Write(key, 0, None))

    def stop(self) -> None:
        """Let the thread end after the queued changes."""
        self._writes.put(None)

    def _run(self) -> None:
        _upkeep(self._trim)
        next_upkeep = time.monotonic() + self._upkeep_seconds
        stopped = False
        while not stopped:
            writes, stopped = self._collect(next_upkeep - time.monotonic())
            if writes:
                self._commit(writes)
                _upkeep(self._sync_when_due)
            if stopped or time.monotonic() >= next_upkeep:
                _upkeep(self._keep_up)
                next_upkeep = time.monotonic() + self._upkeep_seconds
        self._wait_for_sync()
        self._file.close()

    def _collect(self, seconds: float) -> tuple[list[_Write], bool]:
        """Wait for a change and take all queued ones; also tell whether to stop after them."""
        writes: list[_Write] = []
        size = 0
        try:
            item = self._writes.get(timeout=max(0.0, seconds))
            while item is not None:
                self._bytes_taken += item.size
                if item.reply is None or not item.reply.done():
                    writes.append(item)
                    size += item.size
                if len(writes) >= GROUP_CHANGES or size >= GROUP_BYTES:
                    return writes, False
                item = self._writes.get_nowait()
        except Empty:
            return writes, False
        return writes, True

    def _commit(self, writes: list[_Write]) -> None:
        # One error each: an exception raised in several tasks would gather all their tracebacks.
        outcomes: list[StoreError | None] = [None] * len(writes)
        changes: list[Change] = []
        for at, write in enumerate(writes):
            try:
                changes.append(self._change(write.work))
            except Exception as error:  # noqa: BLE001 - it is this caller's alone
                outcomes[at] = _failure(error)
        try:
            self._transact(changes)
        except Exception as error:  # noqa: BLE001 - each caller needs an outcome
            failure = _failure(error)
            outcomes = [outcome or StoreError(str(failure)) for outcome in outcomes]
        for write, outcome in zip(writes, outcomes, strict=True):
            if write.reply is not None:
                _settle(write.reply, outcome)

    def _change(self, work: Entry | bytes) -> Change:
        if isinstance(work, bytes):
            return Change(work)
        value = encode_entry(work)
        if len(value) > self._max_entry_bytes:
            raise EntryTooLargeError(
                f"an entry of {len(value)} bytes, at most {self._max_entry_bytes} are stored"
            )
        return Change(work.key, value, work.kept_until)

    def _transact(
        self, changes: Sequence[Change] = (), written_uses: dict[bytes, int] | None = None
    ) -> bool:
        """Commit, and note the figures; tell whether the file is within the bounds."""
        now = self._clock()
        stats, within = self._file.run(
            lambda connection: commit(
                connection, changes, written_uses, bounds=self._bounds, uses=self._uses, now=now
            )
        )
        self._note(stats)
        pages = PAGES_A_PUT * len(changes) + stats.evictions + len(written_uses or ())
        self._unsynced += PAGE_BYTES * pages
        self._unsynced += sum(len(change.value or b"") for change in changes)
        return within

    def _trim(self) -> None:
        """Evict down to the bounds, which may be tighter than at the last use of the file."""
        done = False
        while not done:
            within = self._transact()
            done = not self._file.run(partial(shrink_file, bounds=self._bounds)) and within
            self._sync_when_due()

    def _keep_up(self) -> None:
        """Write down recent uses, or read the totals that other processes have changed."""
        uses = self._uses.copy()
        self._uses.clear()
        if uses:
            self._transact(written_uses=uses)
        else:
            [(entries, size)] = self._file.rows(TOTALS)
            self._note(StoreStats(entries, size, 0))
            self._file.run(partial(shrink_file, bounds=self._bounds))
        self._sync_when_due()

    def _note(self, stats: StoreStats) -> None:
        self._evictions += stats.evictions
        self.stats = StoreStats(stats.entries, stats.bytes, self._evictions)

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
            self._syncing = _start("store-syncer", self._sync, self._open_file())
        self._unsynced = 0

    def _wait_for_sync(self) -> None:
        # SQLite lets only one connection checkpoint, and refuses the second at once.
        if self._syncing is not None:
            self._syncing.join()

    def _sync(self, file: EntryFile) -> None:
        """Copy the log into the database file: it may take long, and puts go on meanwhile."""
        _upkeep(partial(_checkpoint, file))
        file.close()


def _start(name: str, run: Callable[..., None], *arguments: object) -> threading.Thread:
    thread = threading.Thread(target=run, args=arguments, name=name, daemon=True)
    thread.start()
    return thread


def _failure(error: Exception) -> StoreError:
    """Return what callers get for an error of a thread; log what nobody expects."""
    if isinstance(error, StoreError):
        return error
    _log.error("a thread of the store failed", exc_info=error)
    return StoreError(f"a thread of the store failed: {type(error).__name__}")


def _settle(reply: Reply[T], outcome: T | StoreError) -> None:
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


def _upkeep(step: Callable[[], object]) -> None:
    """Run a step without a caller; if its fault stays, the next request gets the fault."""
    try:
        step()
    except StoreError as error:
        _log.warning("the store's upkeep failed: %s", error)
    except Exception:  # noqa: BLE001 - the thread must live on
        _log.exception("the store's upkeep failed")


def _checkpoint(file: EntryFile) -> None:
    # The log restarts only when all of it was copied; a later pass has little to do.
    for _ in range(_CHECKPOINTS):
        [(busy, in_log, done)] = file.rows("PRAGMA wal_checkpoint(PASSIVE)")
        if busy or in_log == done:
            return
