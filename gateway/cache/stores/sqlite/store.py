"""The default store: one SQLite file that several gateway workers share.

It survives a restart and ``kill -9``: a put returns once its transaction is in the write-ahead
log, from where every process reads it. Power loss may cost the latest entries, never the file.
Entries take at most ``max_bytes`` and the file at most FILE_FACTOR times that; what must go to make
room is what expired, then what ``core.eviction`` chooses.
"""

import asyncio
import time
from collections.abc import Callable
from pathlib import Path

from gateway.cache.entry import Entry
from gateway.cache.ports import EntryTooLargeError, Page, PositionError, StoreError, StoreStats
from gateway.cache.stores.entry_codec import encoded_size
from gateway.cache.stores.recency import Recency
from gateway.cache.stores.sqlite.file import EntryFile
from gateway.cache.stores.sqlite.reader import Readers
from gateway.cache.stores.sqlite.table import Bounds, Delete
from gateway.cache.stores.sqlite.writer import Writer

ENTRY_SHARE = 8
"""One entry may take an eighth of the store: a larger one would evict too much for one answer."""

MAX_ENTRY_BYTES = 64 << 20
FILE_FACTOR = 1.5
"""Pages are never quite full, and the indexes take room too; measured 1.2 to 1.4."""

_FILE_BYTES_AT_LEAST = 1 << 20
_READERS = 2
_CLOSE_SECONDS = 10.0


class SqliteStore:
    """See the port ``Store``. Made on any thread, used from one event loop."""

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
        """Start the threads; the file is opened by them, and what goes wrong shows in each call.

        ``read_seconds`` and ``write_seconds`` bound every wait; recent uses are written down every
        ``upkeep_seconds``.
        """
        self._max_entry_bytes = min(max_bytes // ENTRY_SHARE, MAX_ENTRY_BYTES)
        self._read_seconds = read_seconds
        self._write_seconds = write_seconds
        self._recency = Recency()
        self.touch = self._recency.touch
        """Notes that an entry was used without being read here, by a hit in the tier in front."""
        self._closed = False
        self._writer = Writer(
            EntryFile(path, busy_seconds=write_seconds / 2, clock=clock),
            bounds=Bounds(
                max_bytes, max(int(max_bytes * FILE_FACTOR), max_bytes + _FILE_BYTES_AT_LEAST)
            ),
            recency=self._recency,
            clock=clock,
            upkeep_seconds=upkeep_seconds,
        )
        self._readers = Readers(
            EntryFile(path, busy_seconds=read_seconds, clock=clock), _READERS, self._writer.discard
        )

    async def get(self, key: bytes, *, touch: bool = True) -> Entry | None:
        # A damaged entry is forgotten and not found.
        self._check_open()
        entry = await self._readers.submit(key).wait(self._read_seconds, "reading an entry")
        if touch and entry is not None:
            self.touch(key)
        return entry

    async def put(self, entry: Entry) -> None:
        # Raises EntryTooLargeError over an entry's share of the store.
        # After a StoreError for a late answer the entry may or may not have been stored.
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
        reading = self._readers.walk(after, limit)
        return await reading.wait(self._write_seconds, "reading a page of entries")

    def stats(self) -> StoreStats:
        """Return figures of the latest commit here, or of the latest upkeep.

        Entries and bytes are the file's, so those of all workers together; evictions are ours.
        """
        return self._writer.stats

    async def close(self) -> None:
        # Raises StoreError when the disk does not let the threads end.
        if self._closed:
            return
        self._closed = True
        self._readers.stop()
        self._writer.stop()
        if not await asyncio.to_thread(self._join):
            raise StoreError(f"the store did not close within {_CLOSE_SECONDS:g} s")

    def _join(self) -> bool:
        deadline = time.monotonic() + _CLOSE_SECONDS
        return self._readers.join(deadline) and self._writer.join(deadline)

    def _check_open(self) -> None:
        if self._closed:
            raise StoreError("the store is closed")
