"""The default store: one SQLite file that survives a restart and ``kill -9``.

A power loss may cost the latest entries, never the file. Entries take at most ``max_bytes``, and
the file at most FILE_FACTOR times that; expired entries are evicted first, then entries that
S3-FIFO chooses.

Several processes may share the file. A put returns when its transaction is in the write-ahead log,
from which every process reads it, and ``shared`` names its key to the others. Puts that wait at the
same time share a transaction. A filter in memory tells which keys were never stored, so that a miss
reads nothing; it is filled in the background.

Threads read and write, so that the loop never waits for a disk. A point read from the page cache
takes some 10 us and the hop to a thread ten times that; but a busy disk may take any time. For that
``GuardedStore`` bounds the waits for get, put and delete. A caller that no longer waits costs a
thread no work.
"""

import asyncio
import logging
import time
from collections.abc import Callable, Iterable
from contextlib import suppress
from functools import partial
from pathlib import Path
from queue import SimpleQueue
from typing import Any, TypeVar

from gateway import background
from gateway.cache.ports import (
    Entry,
    Page,
    PositionError,
    StoreError,
    StoreStats,
    StoreUnavailableError,
)
from gateway.cache.stores.entry_codec import DamagedEntryError, decode_entry
from gateway.cache.stores.memory import MOST_USES
from gateway.cache.stores.sqlite.file import EntryFile, Inode
from gateway.cache.stores.sqlite.key_filter import KeyFilter
from gateway.cache.stores.sqlite.shared_changes import SharedChanges
from gateway.cache.stores.sqlite.table import KEYS, VALUE, VALUES, Bounds
from gateway.cache.stores.sqlite.writer import MAX_WAITING, Reply, Write, Writer, failure, settle

FILE_FACTOR = 1.5
"""Pages are never quite full, and the indexes take room too; measured 1.2 to 1.4."""

MOST_TOUCHED = 65_536

KEYS_AT_ONCE = 500
"""Keys that the filter gets in one turn of the loop."""

FILL_AGAIN_SECONDS = 5.0

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
        shared: SharedChanges | None = None,
        clock: Callable[[], float] = time.time,
        read_seconds: float = 0.5,
        write_seconds: float = 2.0,
        upkeep_seconds: float = 5.0,
    ) -> None:
        """Start the threads, which open the file; calls raise its faults.

        ``shared`` is where all that change the file tell their changes; this store closes it.
        Without it, this store is the only one.

        ``read_seconds`` bounds the wait for the file's lock when it is opened, ``write_seconds``
        that for other writers and for a page of a walk. Recent uses are written down every
        ``upkeep_seconds``.
        """
        self._shared = shared or SharedChanges()
        self._shared.listen(self._note_changed, self._note_lost)
        self.current = self._shared.current
        """Part of ``Invalidations``, whose listeners are the store's."""
        self._write_seconds = write_seconds
        self._uses: dict[bytes, int] = {}
        self._closed = False
        self._keys = KeyFilter(0)
        self._filling: asyncio.Task[None] | None = None
        self._inode: Inode = None
        self._file_replaced = False
        """Whether a thread has found a file that the filter was not filled from."""
        self._changed: Callable[[bytes], None] = lambda _: None
        self._lost: Callable[[], None] = lambda: None
        max_file_bytes = max(int(max_bytes * FILE_FACTOR), max_bytes + _FILE_BYTES_AT_LEAST)
        open_file = partial(EntryFile, path, clock=clock, opened=self._note_opened)
        self._writer = Writer(
            partial(open_file, busy_seconds=write_seconds / 2),
            Bounds(max_bytes, max_file_bytes),
            self._uses,
            self._shared,
            evicted=self._note_evicted,
            clock=clock,
            upkeep_seconds=upkeep_seconds,
        )
        # None ends a thread.
        self._reads: SimpleQueue[tuple[Callable[[EntryFile], Any], Reply[Any]] | None]
        self._reads = SimpleQueue()
        self._readers = [
            background.start_thread(
                f"reader {number} of the store",
                partial(self._serve, open_file(busy_seconds=read_seconds)),
            )
            for number in range(_READERS)
        ]

    def lacks(self, key: bytes) -> bool:
        """Tell whether it is sure, without I/O, that no entry has the key.

        A file that took the place of another is noticed at the next read, commit or upkeep.
        """
        if self._closed:
            return False
        self.current()
        if self._file_replaced:
            self._file_replaced = False
            self._drop_filter()
        if self._filling is None or (self._keys.is_full and self._filling.done()):
            self._filling = background.start("filter of the store's keys", self._fill)
        return self._filling.done() and key not in self._keys

    async def get(self, key: bytes, *, touch: bool = True) -> Entry | None:
        self._check_open()
        entry = await self._read(partial(self._get, key))
        if touch and entry is not None:
            self.touch(key)
        return entry

    async def put(self, entry: Entry) -> None:
        """Store or replace. Raises EntryTooLargeError over an entry's share of the store.

        If the caller stops waiting, the entry may or may not have been stored.
        """
        self._check_open()
        self._keys.add(entry.key)
        await self._writer.submit(Write(entry.key, entry, size=len(entry.result)))

    async def delete(self, key: bytes) -> None:
        self._check_open()
        await self._writer.submit(Write(key, size=len(key)))

    async def walk(self, after: bytes | None, limit: int) -> Page:
        self._check_open()
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

    def listen(self, changed: Callable[[bytes], None], lost: Callable[[], None]) -> None:
        """Call ``changed`` for each key that another process changed, or that left the file.

        It left if it was evicted. Call ``lost`` when changes may have been missed.
        """
        self._changed, self._lost = changed, lost

    def stats(self) -> StoreStats:
        """Return the figures of the latest commit here, or of the latest upkeep.

        Entries and bytes count for the file, so for all workers together; the rest is ours.
        """
        return self._writer.stats

    async def close(self) -> None:
        """Close the file. Raises StoreError if the disk does not let the threads end."""
        if self._closed:
            return
        self._closed = True
        if self._filling is not None:
            self._filling.cancel()
            await asyncio.wait([self._filling])
        for _ in self._readers:
            self._reads.put(None)
        self._writer.stop()
        if not await asyncio.to_thread(self._join):
            raise StoreError(f"the store did not close within {_CLOSE_SECONDS:g} s")
        self._shared.close()

    def _join(self) -> bool:
        deadline = time.monotonic() + _CLOSE_SECONDS
        threads = (*self._readers, self._writer.thread)
        for thread in threads:
            thread.join(max(0.0, deadline - time.monotonic()))
        return not any(thread.is_alive() for thread in threads)

    def _note_evicted(self, keys: Iterable[bytes]) -> None:
        # A purge, which walks over the file, must leave nothing behind in memory.
        for key in keys:
            self._changed(key)

    def _note_changed(self, key: bytes) -> None:
        self._keys.add(key)
        self._changed(key)

    def _note_lost(self) -> None:
        self._drop_filter()
        self._lost()

    def _drop_filter(self) -> None:
        if self._filling is not None:
            self._filling.cancel()
            self._filling = None

    async def _fill(self) -> None:
        """Fill a new filter, and try again after a fault: only this task's good end counts."""
        while True:
            with suppress(StoreError):
                return await self._read_all_keys()
            await asyncio.sleep(FILL_AGAIN_SECONDS)

    async def _read_all_keys(self) -> None:
        """Tell a new filter all keys; the puts from now on tell it theirs. Raises StoreError."""
        self._keys = KeyFilter(self.stats().entries)
        # The puts that told the filter before.
        await self._writer.submit(Write(None))
        after = 0
        while True:
            rows = await self._read(partial(_read_keys, after))
            for _, key in rows:
                self._keys.add(key)
            if len(rows) < KEYS_AT_ONCE:
                return
            after = rows[-1][0]

    def _check_open(self) -> None:
        if self._closed:
            raise StoreError("the store is closed")

    async def _read(self, read: Callable[[EntryFile], T]) -> T:
        """Return the read's result. Raises StoreError, also if too many reads wait already."""
        if self._reads.qsize() >= MAX_WAITING:
            raise StoreError(f"{MAX_WAITING} reads are waiting already")
        reply: Reply[T] = asyncio.get_running_loop().create_future()
        self._reads.put((read, reply))
        return await reply

    # On the threads.

    def _note_opened(self, inode: Inode) -> None:
        if self._inode not in (None, inode):
            self._file_replaced = True
        self._inode = inode or self._inode

    # On the readers' threads, each with its own connection; they never wait for the writer.

    def _serve(self, file: EntryFile) -> None:
        while (item := self._reads.get()) is not None:
            read, reply = item
            if reply.done():
                continue
            try:
                settle(reply, read(file))
            except Exception as error:  # noqa: BLE001 - each caller needs an outcome
                settle(reply, failure(error))
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


def _read_keys(after: int, file: EntryFile) -> list[Any]:
    return file.rows(KEYS, after, KEYS_AT_ONCE)
