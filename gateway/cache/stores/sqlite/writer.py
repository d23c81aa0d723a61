"""The only thread that changes the entries' file: changes that wait together share a commit.

Law: callers get their answers as soon as the group is committed. Uses are written down after that;
another thread syncs the log to the disk, and the writer waits for it only if the log is too long.
"""

import logging
import sqlite3
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from queue import Empty, SimpleQueue

from gateway.cache.ports import Entry, StoreError, StoreStats
from gateway.cache.stores.entry_codec import encode_entry
from gateway.cache.stores.eviction import Rounds
from gateway.cache.stores.sqlite.file import PAGE_BYTES, WAL_BYTES, EntryFile, Reply, Session
from gateway.cache.stores.sqlite.table import (
    Bounds,
    Change,
    Delete,
    Put,
    Recency,
    Totals,
    read_totals,
    shrink_file,
    write_transaction,
)

MAX_WAITING = 1024
MAX_WAITING_BYTES = 64 << 20
GROUP_CHANGES = 128
GROUP_BYTES = 16 << 20
TRIM_ENTRIES = 2048
MAX_LOG_BYTES = 32 << 20
PAGES_A_PUT = 6
"""The most pages that a small put changes, about: two tables, three indexes, the totals."""

_PASSES = 3
_CUT = "PRAGMA wal_checkpoint(TRUNCATE)"

_log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class _Write:
    work: Entry | Delete
    bytes: int
    reply: Reply[None] | None


class Writer:
    """The thread that changes the file, and the one that syncs its log."""

    def __init__(
        self,
        file: EntryFile,
        *,
        bounds: Bounds,
        recency: Recency,
        clock: Callable[[], float],
        upkeep_seconds: float,
    ) -> None:
        self._session = Session(file)
        self._file = file
        self._syncer = LogSyncer(file)
        self._bounds = bounds
        self._recency = recency
        self._transaction = partial(write_transaction, bounds=bounds, recency=recency)
        self._clock = clock
        self._upkeep_seconds = upkeep_seconds
        # None ends the thread.
        self._writes: SimpleQueue[_Write | None] = SimpleQueue()
        self._lock = threading.Lock()
        self._waiting_bytes = 0
        self._evictions = 0
        self._rounds = Rounds()
        self._unsynced = 0
        self.stats = StoreStats(entries=0, bytes=0, evictions=0)
        """As of the latest commit or upkeep; read from any thread."""
        thread = threading.Thread(target=self._run, name="store-writer", daemon=True)
        self.threads = (thread, self._syncer.thread)
        thread.start()

    def submit(self, work: Entry | Delete, size: int) -> Reply[None]:
        """Queue a change of about ``size`` bytes. Raises StoreError if too much waits already."""
        with self._lock:
            waiting = self._writes.qsize()
            if waiting >= MAX_WAITING or self._waiting_bytes + size > MAX_WAITING_BYTES:
                raise StoreError(f"{waiting} writes are waiting already")
            self._waiting_bytes += size
        reply: Reply[None] = Reply()
        self._writes.put(_Write(work, size, reply))
        return reply

    def discard(self, key: bytes) -> None:
        """Forget a damaged entry soon; the readers call this."""
        if self._writes.qsize() < MAX_WAITING:
            self._writes.put(_Write(Delete(key, damaged=True), 0, None))

    def stop(self) -> None:
        """Let the threads end after the queued changes."""
        self._syncer.stop()
        self._writes.put(None)

    def _run(self) -> None:
        self._guarded(self._trim)
        next_upkeep = time.monotonic() + self._upkeep_seconds
        stopped = False
        while not stopped:
            writes, stopped = self._collect(next_upkeep - time.monotonic())
            if writes:
                self._commit(writes)
                self._guarded(self._sync_when_due)
            if stopped or time.monotonic() >= next_upkeep:
                self._guarded(self._upkeep)
                next_upkeep = time.monotonic() + self._upkeep_seconds
        self._session.close_quietly()

    def _collect(self, seconds: float) -> tuple[list[_Write], bool]:
        """Wait for a change and take those behind it; also tell whether to stop after them."""
        writes: list[_Write] = []
        size = 0
        try:
            item = self._writes.get(timeout=max(0.0, seconds))
            while item is not None:
                with self._lock:
                    self._waiting_bytes -= item.bytes
                if item.reply is None or item.reply.wanted:
                    writes.append(item)
                    size += item.bytes
                if len(writes) >= GROUP_CHANGES or size >= GROUP_BYTES:
                    return writes, False
                item = self._writes.get_nowait()
        except Empty:
            return writes, False
        return writes, True

    def _commit(self, writes: list[_Write]) -> None:
        outcomes: list[StoreError | None] = [None] * len(writes)
        changes: list[Change] = []
        for at, write in enumerate(writes):
            try:
                changes.append(_encoded(write.work, self._rounds))
            except StoreError as error:
                outcomes[at] = error
        try:
            self._transact(changes)
        except StoreError as error:
            # One each: an exception raised in several tasks would gather all their tracebacks.
            outcomes = [outcome or StoreError(str(error)) for outcome in outcomes]
        except Exception as error:  # noqa: BLE001 - each caller needs an outcome
            _log.exception("the store's writer failed")
            outcomes = [StoreError(f"writer failed: {type(error).__name__}") for _ in writes]
        for write, outcome in zip(writes, outcomes, strict=True):
            if write.reply is not None:
                write.reply.settle(outcome)

    def _transact(self, changes: list[Change]) -> None:
        def action(connection: sqlite3.Connection) -> Totals:
            with self._transaction(connection, now=self._clock()) as transaction:
                for change in changes:
                    transaction.apply(change)
                transaction.trim(TRIM_ENTRIES)
            return transaction.totals

        self._note(self._session.run(action))
        self._unsynced += sum(
            PAGES_A_PUT * PAGE_BYTES + (len(change.value) if isinstance(change, Put) else 0)
            for change in changes
        )

    def _trim(self) -> None:
        """Evict down to the bounds, which may be tighter than at the last use of the file."""

        def action(connection: sqlite3.Connection) -> tuple[Totals, bool]:
            with self._transaction(connection, now=self._clock()) as transaction:
                within = transaction.trim(TRIM_ENTRIES)
            shrinking = shrink_file(connection, self._bounds)
            return transaction.totals, within and not shrinking

        within = False
        while not within:
            totals, within = self._session.run(action)
            self._note(totals)
            self._unsynced += totals.evicted * PAGE_BYTES
            self._sync_when_due()

    def _upkeep(self) -> None:
        """Write down recent uses, and read the totals that other processes have changed."""
        uses = self._recency.take()

        def action(connection: sqlite3.Connection) -> Totals:
            if not uses:
                shrink_file(connection, self._bounds)
                return read_totals(connection)
            with self._transaction(connection, now=self._clock()) as transaction:
                transaction.write_uses(uses)
            return transaction.totals

        self._note(self._session.run(action))
        self._unsynced += len(uses) * PAGE_BYTES
        self._sync_when_due()

    def _sync_when_due(self) -> None:
        if self._unsynced < WAL_BYTES:
            return
        self._unsynced = 0
        self._syncer.request()
        if self._file.log_bytes() > MAX_LOG_BYTES:
            # Changes or reads without a gap keep the log from its restart: make them wait.
            self._syncer.cut(self._session)

    def _note(self, totals: Totals) -> None:
        self._evictions += totals.evicted
        self.stats = StoreStats(totals.entries, totals.bytes, self._evictions)

    def _guarded(self, step: Callable[[], None]) -> None:
        """Run a step for which nobody waits; if its fault stays, the next request meets it."""
        try:
            step()
        except StoreError as error:
            _log.warning("the store's upkeep failed: %s", error)
        except Exception:  # noqa: BLE001 - the thread must live on
            _log.exception("the store's upkeep failed")


class LogSyncer:
    """The thread that copies the write-ahead log into the database file, on request.

    It syncs the disk, which may take long: puts go on meanwhile. Requests meanwhile count as one.
    """

    def __init__(self, file: EntryFile) -> None:
        self._file = file
        self._wake = threading.Event()
        self._stopping = False
        # SQLite lets only one connection checkpoint, and refuses the second at once.
        self._checkpointing = threading.Lock()
        self.thread = threading.Thread(target=self._run, name="store-syncer", daemon=True)
        self.thread.start()

    def request(self) -> None:
        """Ask for a checkpoint; returns at once."""
        self._wake.set()

    def cut(self, session: Session) -> None:
        """Checkpoint and empty the log on the caller's thread. Raises StoreError."""
        with self._checkpointing:
            session.run(lambda connection: connection.execute(_CUT).fetchall())

    def stop(self) -> None:
        """Let the thread end."""
        self._stopping = True
        self._wake.set()

    def _run(self) -> None:
        session = Session(self._file)
        while True:
            self._wake.wait()
            self._wake.clear()
            if self._stopping:
                break
            try:
                with self._checkpointing:
                    session.run(_checkpoint)
            except StoreError as error:
                _log.warning("the store's log was not synced: %s", error)
            except Exception:  # noqa: BLE001 - the thread must live on
                _log.exception("the store's log was not synced")
        session.close_quietly()


def _encoded(work: Entry | Delete, rounds: Rounds) -> Change:
    if isinstance(work, Entry):
        value = encode_entry(work)
        return Put(work.key, value, work.kept_until, rounds.of(len(value), work.tokens))
    return work


def _checkpoint(connection: sqlite3.Connection) -> None:
    # The log restarts only when all of it was copied; a later pass has little to do.
    for _ in range(_PASSES):
        [(busy, in_log, done)] = connection.execute("PRAGMA wal_checkpoint(PASSIVE)").fetchall()
        if busy or in_log == done:
            return
