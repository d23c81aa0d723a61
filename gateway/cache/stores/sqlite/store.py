"""The default store: one SQLite file that several gateway workers share.

It survives a restart and ``kill -9``: a put returns when its transaction is in the write-ahead log,
from which every process reads it. A power loss may cost the latest entries, never the file. Entries
take at most ``max_bytes``, and the file at most FILE_FACTOR times that; expired entries are evicted
first, then those that S3-FIFO chooses.

Threads read and write, so that the loop never waits for a disk. A point read from the page cache
takes some 10 us and the hop to a thread ten times that; but a busy disk may take any time.
"""

import asyncio
import logging
import threading
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from queue import SimpleQueue
from typing import Any, TypeVar

from gateway.cache.ports import (
    Entry,
    EntryTooLargeError,
    Page,
    PositionError,
    StoreError,
    StoreStats,
)
from gateway.cache.stores.entry_codec import DamagedEntryError, decode_entry, encoded_size
from gateway.cache.stores.sqlite.file import EntryFile, Reply, Session
from gateway.cache.stores.sqlite.table import (
    Bounds,
    Delete,
    Recency,
    checked_value,
    read_value,
    read_values,
)
from gateway.cache.stores.sqlite.writer import Writer

ENTRY_SHARE = 8
"""One entry may take an eighth of the store: a larger one would evict too much for one answer."""

MAX_ENTRY_BYTES = 64 << 20
FILE_FACTOR = 1.5
"""Pages are never quite full, and the indexes take room too; measured 1.2 to 1.4."""

MAX_WAITING = 1024
_FILE_BYTES_AT_LEAST = 1 << 20
_READERS = 2
_CLOSE_SECONDS = 10.0

_log = logging.getLogger(__name__)
T = TypeVar("T")


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
        """Start the threads, which open the file; a call raises what goes wrong.

        ``read_seconds`` and ``write_seconds`` bound every wait; recent uses are written down every
        ``upkeep_seconds``.
        """
        self._max_entry_bytes = min(max_bytes // ENTRY_SHARE, MAX_ENTRY_BYTES)
        self._read_seconds = read_seconds
        self._write_seconds = write_seconds
        recency = Recency()
        self.touch = recency.touch
        """Notes a use that this store did not see."""
        self._closed = False
        self._writer = Writer(
            EntryFile(path, busy_seconds=write_seconds / 2, clock=clock),
            bounds=Bounds(
                max_bytes, max(int(max_bytes * FILE_FACTOR), max_bytes + _FILE_BYTES_AT_LEAST)
            ),
            recency=recency,
            clock=clock,
            upkeep_seconds=upkeep_seconds,
        )
        self._readers = _Readers(EntryFile(path, busy_seconds=read_seconds, clock=clock))

    async def get(self, key: bytes, *, touch: bool = True) -> Entry | None:
        self._check_open()
        reading = self._readers.submit(partial(self._get, key))
        entry = await reading.wait(self._read_seconds, "reading an entry")
        if touch and entry is not None:
            self.touch(key)
        return entry

    async def put(self, entry: Entry) -> None:
        """Store or replace. Raises EntryTooLargeError over an entry's share of the store.

        After a StoreError for a late answer the entry may or may not have been stored.
        """
        self._check_open()
        size = encoded_size(entry)
        if size > self._max_entry_bytes:
            raise EntryTooLargeError(
                f"an entry of {size} bytes, at most {self._max_entry_bytes} are stored"
            )
        await self._writer.submit(entry, size).wait(self._write_seconds, "storing an entry")

    async def delete(self, key: bytes) -> None:
        self._check_open()
        reply = self._writer.submit(Delete(key), len(key))
        await reply.wait(self._write_seconds, "deleting an entry")

    async def walk(self, after: bytes | None, limit: int) -> Page:
        self._check_open()
        if after is not None and not after.isdigit():
            raise PositionError("expected the number of an entry")
        reading = self._readers.submit(partial(self._page, int(after or 0), limit))
        return await reading.wait(self._write_seconds, "reading a page of entries")

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
        self._readers.stop()
        self._writer.stop()
        if not await asyncio.to_thread(self._join):
            raise StoreError(f"the store did not close within {_CLOSE_SECONDS:g} s")

    def _join(self) -> bool:
        deadline = time.monotonic() + _CLOSE_SECONDS
        threads = (*self._readers.threads, *self._writer.threads)
        for thread in threads:
            thread.join(max(0.0, deadline - time.monotonic()))
        return not any(thread.is_alive() for thread in threads)

    def _check_open(self) -> None:
        if self._closed:
            raise StoreError("the store is closed")

    # On the readers' threads:

    def _get(self, key: bytes, session: Session) -> Entry | None:
        try:
            value = session.run(partial(read_value, key=key))
            return None if value is None else decode_entry(value, key)
        except DamagedEntryError as error:
            self._forget(key, error)
            return None

    def _page(self, after: int, limit: int, session: Session) -> Page:
        rows = session.run(partial(read_values, after=after, limit=limit))
        entries = []
        for _, key, value in rows:
            try:
                entries.append(decode_entry(checked_value(value), key))
            except DamagedEntryError as error:
                self._forget(key, error)
        return Page(entries, b"%d" % rows[-1][0] if len(rows) == limit else None)

    def _forget(self, key: bytes, error: DamagedEntryError) -> None:
        _log.warning("a damaged entry is forgotten: %s", error)
        self._writer.discard(key)


class _Readers:
    """A few threads, each with its own connection; they never wait for the writer."""

    def __init__(self, file: EntryFile) -> None:
        self._file = file
        # None ends a thread.
        self._reads: SimpleQueue[tuple[Callable[[Session], Any], Reply[Any]] | None] = SimpleQueue()
        self.threads = [
            threading.Thread(target=self._run, name=f"store-reader-{n}", daemon=True)
            for n in range(_READERS)
        ]
        for thread in self.threads:
            thread.start()

    def submit(self, read: Callable[[Session], T]) -> Reply[T]:
        """Queue a read. Raises StoreError if too many wait already."""
        if self._reads.qsize() >= MAX_WAITING:
            raise StoreError(f"{MAX_WAITING} reads are waiting already")
        reply: Reply[T] = Reply()
        self._reads.put((read, reply))
        return reply

    def stop(self) -> None:
        """Let the threads end after the queued reads."""
        for _ in self.threads:
            self._reads.put(None)

    def _run(self) -> None:
        session = Session(self._file)
        while (item := self._reads.get()) is not None:
            read, reply = item
            if reply.wanted:
                reply.settle(_outcome(session, read))
        session.close_quietly()


def _outcome(session: Session, read: Callable[[Session], T]) -> T | StoreError:
    try:
        return read(session)
    except StoreError as error:
        return error
    except Exception as error:  # noqa: BLE001 - each caller needs an outcome
        _log.exception("the store's reader failed")
        return StoreError(f"reader failed: {type(error).__name__}")
