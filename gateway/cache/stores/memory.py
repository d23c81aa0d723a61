"""Entries in this process's memory, bounded in bytes: the tier in front of another store.

Law: no method suspends, so calls never interleave. Used from one thread. The bytes of an entry are
those of the process's memory, Python's objects included (benchmarks/memory_bound.py shows both).
"""

import heapq
from collections.abc import Hashable
from dataclasses import replace
from sys import getsizeof
from typing import TypeVar, cast

from gateway.cache.ports import Entry, EntryTooLargeError, Page, StoreError, StoreStats
from gateway.cache.stores.eviction import S3Fifo

ENTRY_SHARE = 8
"""One entry may take an eighth of the store, as on disk."""

_ENTRY_BYTES = 740
"""An entry's object, its times, its places in the tables here and of the eviction, and its ghost.

A measured figure, which includes the allocator's rounding.
"""

_DIGEST_BYTES = 136
"""A field's digest and its pair; entries share the field's name."""

_MOST_SHARED = 10_000
_LONGEST_SHARED = 256

T = TypeVar("T", bound=Hashable)


class MemoryStore:
    """The port ``Store``, with methods that are no coroutines for the tier in front.

    ``S3Fifo`` chooses the entries to evict.
    """

    def __init__(self, *, max_bytes: int) -> None:
        self._max_bytes = max_bytes
        self._entries: dict[bytes, Entry] = {}
        self._eviction = S3Fifo(max_bytes)
        self._evictions = 0
        self._shared: dict[Hashable, Hashable] = {}
        self._closed = False

    async def get(self, key: bytes, *, touch: bool = True) -> Entry | None:
        self._check_open()
        return self.find(key, touch=touch)

    def find(self, key: bytes, *, touch: bool = True) -> Entry | None:
        """Return the entry, or None; a closed store has none."""
        found = self._entries.get(key)
        if touch and found is not None:
            self._eviction.use(key)
        return found

    async def put(self, entry: Entry) -> None:
        self.keep(entry)

    def keep(self, entry: Entry) -> None:
        """Store or replace. Raises EntryTooLargeError over an entry's share of the store."""
        self._check_open()
        entry = self._with_shared(entry)
        size = resident_size(entry)
        if size > self._max_bytes // ENTRY_SHARE:
            raise EntryTooLargeError(
                f"an entry of {size} bytes, at most {self._max_bytes // ENTRY_SHARE} are stored"
            )
        self.forget(entry.key)
        for evicted in self._eviction.add(entry.key, size, entry.tokens):
            del self._entries[evicted]
            self._evictions += 1
        self._entries[entry.key] = entry

    async def delete(self, key: bytes) -> None:
        self._check_open()
        self.forget(key)

    async def walk(self, after: bytes | None, limit: int) -> Page:
        """Return a page. ``after`` is the last key of the page before."""
        self._check_open()
        rest = (key for key in self._entries if after is None or key > after)
        keys = heapq.nsmallest(limit, rest)
        more = keys[-1] if len(keys) == limit else None
        return Page([self._entries[key] for key in keys], more)

    def stats(self) -> StoreStats:
        return StoreStats(len(self._entries), self._eviction.bytes, self._evictions)

    def clear(self) -> None:
        """Forget all entries."""
        self._entries.clear()
        self._shared.clear()
        self._eviction = S3Fifo(self._max_bytes)

    async def close(self) -> None:
        self._closed = True
        self.clear()

    def forget(self, key: bytes) -> None:
        """Forget the entry, if there is one."""
        if self._entries.pop(key, None) is not None:
            self._eviction.remove(key)

    def _with_shared(self, entry: Entry) -> Entry:
        """Return the entry with the values that many entries have in common held only once."""
        return replace(
            entry,
            endpoint=self._share(entry.endpoint),
            model=self._share(entry.model),
            upstream=self._share(entry.upstream),
            scope=self._share(entry.scope),
            fingerprint=self._share(entry.fingerprint),
            rule=self._share(entry.rule),
            tags=self._share(entry.tags),
            digests=tuple((self._share(name), digest) for name, digest in entry.digests),
        )

    def _share(self, value: T) -> T:
        if isinstance(value, str) and len(value) > _LONGEST_SHARED:
            return value  # a client sent it, and no other entry has it
        if len(self._shared) >= _MOST_SHARED:
            self._shared.clear()
        return cast("T", self._shared.setdefault(value, value))

    def _check_open(self) -> None:
        if self._closed:
            raise StoreError("the store is closed")


def resident_size(entry: Entry) -> int:
    """Return about how many bytes of this process's memory an entry takes."""
    return (
        _ENTRY_BYTES
        + getsizeof(entry.key)
        + getsizeof(entry.result)
        + getsizeof(entry.question)
        + getsizeof(entry.model)
        + sum(_DIGEST_BYTES + len(name) for name, _ in entry.digests)
    )
