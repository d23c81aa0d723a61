"""Entries in this process's memory, bounded in bytes: the tier in front of another store.

Law: no method suspends, so calls never interleave. Used from one thread. The bytes of an entry are
bytes of the process's memory, Python's objects included (benchmarks/memory_bound.py shows both).

Eviction is S3-FIFO, by bytes. A new entry begins in a small queue. If it is used there, it moves to
the main queue when its turn to leave comes. If not, it is evicted, and its key is remembered as a
ghost: should the key return soon, its entry goes to the main queue at once. In the main queue each
use is worth one more round. So entries of a scan pass through the small queue and leave the used
ones alone, and a hit changes only a counter.

Source: Yang, Zhang, Qiu, Yue, Rashmi: "FIFO queues are all you need for cache eviction", SOSP 2023.
"""

import heapq
from collections import OrderedDict
from collections.abc import Hashable
from sys import getsizeof
from typing import TypeVar, cast

from gateway.cache.ports import Entry, EntryTooLargeError, Page, StoreStats, StoreUnavailableError

ENTRY_SHARE = 8
"""One entry may take an eighth of a store: a larger one would evict too much for one answer."""

SMALL_SHARE = 3
"""The small queue has one byte in ``SMALL_SHARE``.

The paper's tenth is better on Zipf traces by a point. It is worse than LRU on conversations, which
are reused soon or never. A third is better than LRU on both (benchmarks/eviction.py).
"""

MOST_USES = 3
"""More uses do not count: an entry that was hot long ago must leave in the end."""

_ENTRY_BYTES = 740
"""An entry's object, its times, its places in the tables here and of the eviction, and its ghost.

A measured figure, which includes the allocator's rounding.
"""

_DIGEST_BYTES = 136
"""A field's digest and its pair; entries share the field's name."""

_SHARED = ("model", "scope", "fingerprint", "tags")
_MOST_SHARED = 10_000
_LONGEST_SHARED = 256

T = TypeVar("T", bound=Hashable)


class MemoryStore:
    """The port ``Store``, with methods that are no coroutines for the tier in front."""

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
        self._share_values(entry)
        size = resident_size(entry)
        if size > self._max_bytes // ENTRY_SHARE:
            raise EntryTooLargeError(
                f"an entry of {size} bytes, at most {self._max_bytes // ENTRY_SHARE} are stored"
            )
        self.forget(entry.key)
        for evicted in self._eviction.add(entry.key, size):
            del self._entries[evicted]
            self._evictions += 1
        self._entries[entry.key] = entry

    async def delete(self, key: bytes) -> None:
        self._check_open()
        self.forget(key)

    async def walk(self, after: bytes | None, limit: int) -> Page:
        self._check_open()
        rest = (key for key in self._entries if after is None or key > after)
        keys = heapq.nsmallest(limit, rest)
        more = keys[-1] if len(keys) == limit else None
        return Page([self._entries[key] for key in keys], more)

    def stats(self) -> StoreStats:
        return StoreStats(len(self._entries), self._eviction.bytes, self._evictions)

    def clear(self) -> None:
        self._entries.clear()
        self._shared.clear()
        self._eviction = S3Fifo(self._max_bytes)

    async def close(self) -> None:
        self._closed = True
        self.clear()

    def forget(self, key: bytes) -> None:
        if self._entries.pop(key, None) is not None:
            self._eviction.remove(key)

    def _share_values(self, entry: Entry) -> None:
        """Hold values only once that many entries have in common; decoded words are shared."""
        for name in _SHARED:
            value = getattr(entry, name)
            shared = self._share(value)
            if shared is not value:
                # An equal value: nobody can tell, and a copy of the entry would cost more.
                object.__setattr__(entry, name, shared)

    def _share(self, value: T) -> T:
        if isinstance(value, str) and len(value) > _LONGEST_SHARED:
            return value  # a client sent it, and no other entry has it
        if len(self._shared) >= _MOST_SHARED:
            self._shared.clear()
        return cast("T", self._shared.setdefault(value, value))

    def _check_open(self) -> None:
        if self._closed:
            raise StoreUnavailableError("the store is closed")


class _Slot:
    __slots__ = ("size", "uses")

    def __init__(self, size: int) -> None:
        self.size = size
        self.uses = 0


class S3Fifo:
    """The keys and sizes of the stored entries. ``bytes`` never exceeds ``max_bytes``."""

    def __init__(self, max_bytes: int) -> None:
        self.max_bytes = max_bytes
        self.bytes = 0
        self._small_bytes = 0
        self._ghost_bytes = 0
        # First in, first out.
        self._small: OrderedDict[bytes, _Slot] = OrderedDict()
        self._main: OrderedDict[bytes, _Slot] = OrderedDict()
        self._ghosts: OrderedDict[bytes, int] = OrderedDict()

    def __len__(self) -> int:
        return len(self._small) + len(self._main)

    def use(self, key: bytes) -> None:
        slot = self._small.get(key) or self._main.get(key)
        if slot is not None and slot.uses < MOST_USES:
            slot.uses += 1

    def add(self, key: bytes, size: int) -> list[bytes]:
        """Add a new key, of at most ``max_bytes``; return the keys that are evicted for it."""
        returning = self._forget_ghost(key)
        evicted: list[bytes] = []
        while self.bytes + size > self.max_bytes:
            evicted += self._evict()
        self.bytes += size
        if returning:
            self._main[key] = _Slot(size)
        else:
            self._small[key] = _Slot(size)
            self._small_bytes += size
        return evicted

    def remove(self, key: bytes) -> int | None:
        """Forget a key; return its size, or None if it was not there."""
        slot = self._small.pop(key, None)
        if slot is not None:
            self._small_bytes -= slot.size
        else:
            slot = self._main.pop(key, None)
        if slot is None:
            return None
        self.bytes -= slot.size
        return slot.size

    def _evict(self) -> list[bytes]:
        """Evict the next key, or give it another round."""
        small = self._small_bytes * SMALL_SHARE > self.max_bytes or not self._main
        key, slot = (self._small if small else self._main).popitem(last=False)
        if small:
            self._small_bytes -= slot.size
        if slot.uses:
            slot.uses = 0 if small else slot.uses - 1
            self._main[key] = slot
            return []
        self.bytes -= slot.size
        if small:
            self._ghosts[key] = slot.size
            self._ghost_bytes += slot.size
            while self._ghost_bytes > self.max_bytes:
                self._forget_ghost(next(iter(self._ghosts)))
        return [key]

    def _forget_ghost(self, key: bytes) -> bool:
        size = self._ghosts.pop(key, None)
        self._ghost_bytes -= size or 0
        return size is not None


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
