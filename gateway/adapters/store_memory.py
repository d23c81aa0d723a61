"""Entries in this process's memory, bounded in bytes: the tier in front of another store.

Law: no method suspends, so a hit costs about a microsecond and calls never interleave. Used from
one thread. What is counted is an entry's encoded size, the same as on disk; Python's objects take
some 0.7 KB an entry on top of it.
"""

import heapq
from collections import OrderedDict

from gateway.core.entry_codec import encoded_size
from gateway.core.types import Entry
from gateway.ports import EntryTooLargeError, Page, StoreError, StoreStats

ENTRY_SHARE = 8
"""One entry may take an eighth of the store, as on disk."""


class MemoryStore:
    """See the port ``Store``. What must go to make room is what was used longest ago."""

    def __init__(self, *, max_bytes: int) -> None:
        self._max_bytes = max_bytes
        # Oldest use first.
        self._entries: OrderedDict[bytes, tuple[Entry, int]] = OrderedDict()
        self._bytes = 0
        self._evictions = 0
        self._closed = False

    async def get(self, key: bytes) -> Entry | None:
        """See the port."""
        self._check_open()
        found = self._entries.get(key)
        if found is None:
            return None
        self._entries.move_to_end(key)
        return found[0]

    async def put(self, entry: Entry) -> None:
        """See the port. Raises EntryTooLargeError over an entry's share of the store."""
        self._check_open()
        size = encoded_size(entry)
        if size > self._max_bytes // ENTRY_SHARE:
            raise EntryTooLargeError(
                f"an entry of {size} bytes, at most {self._max_bytes // ENTRY_SHARE} are stored"
            )
        self._remove(entry.key)
        while self._bytes + size > self._max_bytes:
            _, (_, evicted) = self._entries.popitem(last=False)
            self._bytes -= evicted
            self._evictions += 1
        self._entries[entry.key] = (entry, size)
        self._bytes += size

    async def delete(self, key: bytes) -> None:
        """See the port."""
        self._check_open()
        self._remove(key)

    async def walk(self, after: bytes | None, limit: int) -> Page:
        """See the port. ``after`` is the last key of the page before."""
        self._check_open()
        rest = (key for key in self._entries if after is None or key > after)
        keys = heapq.nsmallest(limit, rest)
        more = keys[-1] if len(keys) == limit else None
        return Page([self._entries[key][0] for key in keys], more)

    def touch(self, key: bytes) -> None:
        """Note that the entry was used without being read here."""
        if key in self._entries:
            self._entries.move_to_end(key)

    def stats(self) -> StoreStats:
        """See the port."""
        return StoreStats(len(self._entries), self._bytes, self._evictions)

    async def close(self) -> None:
        """Forget everything."""
        self._closed = True
        self._entries.clear()
        self._bytes = 0

    def _remove(self, key: bytes) -> None:
        found = self._entries.pop(key, None)
        if found is not None:
            self._bytes -= found[1]

    def _check_open(self) -> None:
        if self._closed:
            raise StoreError("the store is closed")
