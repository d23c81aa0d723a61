"""A store in memory in front of one that lasts: a hot hit does not suspend.

Law: in this process the hot tier never returns an entry that a put or delete has already replaced
in the cold store. A key leaves the hot tier when a change of it begins. It comes back only from a
read or change that no other change of that key overlapped. Callers that look up a key during its
read share the read, unless a change has begun or ended since.

If other processes change the cold store too, the hot tier needs their ``Invalidations``: a change
made elsewhere is one that overlaps, and while invalidations may be missing, the hot tier is not
used. Without them the cold store is for one process. An entry that Redis evicts may stay hot; it is
still right.
"""

from collections.abc import Callable
from contextlib import suppress
from functools import partial
from typing import Protocol, Self

from gateway.cache.ports import Entry, EntryTooLargeError, Page, Store, StoreStats
from gateway.cache.single_flight import SingleFlight
from gateway.cache.stores.memory import MemoryStore


class Invalidations(Protocol):
    """The changes that other processes make in the cold store."""

    def listen(self, changed: Callable[[bytes], None], lost: Callable[[], None]) -> None:
        """Call ``changed`` for each changed key, ``lost`` when changes may have been missed."""
        ...

    def current(self, key: bytes) -> bool:
        """Tell whether all changes of this key, except the very latest, have arrived."""
        ...


class _Operation:
    """A read or change of a key in the cold store, while it is under way."""

    __slots__ = ("_key", "_reads", "_under_way", "changes", "undisturbed")

    def __init__(
        self,
        under_way: dict[bytes, set["_Operation"]],
        reads: SingleFlight[Entry | None],
        key: bytes,
        *,
        changes: bool,
    ) -> None:
        self._under_way = under_way
        self._reads = reads
        self._key = key
        self.changes = changes
        self.undisturbed = True

    def __enter__(self) -> Self:
        if self.changes:
            self._reads.part(self._key)
        others = self._under_way.get(self._key)
        if others is None:
            self._under_way[self._key] = {self}
            return self
        for other in others:
            if self.changes or other.changes:
                self.undisturbed = other.undisturbed = False
        others.add(self)
        return self

    def __exit__(self, *_: object) -> None:
        if self.changes:
            self._reads.part(self._key)
        here = self._under_way[self._key]
        here.remove(self)
        if not here:
            del self._under_way[self._key]


class TieredStore:
    """The port ``Store``. Closes both stores; used from one event loop."""

    def __init__(
        self,
        hot: MemoryStore,
        cold: Store,
        touch: Callable[[bytes], None],
        invalidations: Invalidations | None = None,
        lacks: Callable[[bytes], bool] = lambda _: False,
    ) -> None:
        """``touch`` notes a hot hit, so that the cold store keeps the entry.

        ``lacks`` tells whether it is sure that the cold store has no such key. Both do no I/O.
        """
        self._hot = hot
        self._cold = cold
        self._touch = touch
        self._invalidations = invalidations
        self._lacks = lacks
        self._under_way: dict[bytes, set[_Operation]] = {}
        self._reads: SingleFlight[Entry | None] = SingleFlight()
        if invalidations is not None:
            invalidations.listen(self.forget, self.forget_all)

    async def get(self, key: bytes, *, touch: bool = True) -> Entry | None:
        if (entry := self.find(key, touch=touch)) is not None:
            return entry
        if self._lacks(key):
            return None
        if not touch:  # such a read does not fill the hot tier either
            return await self._cold.get(key, touch=False)
        return await self._reads.ask(key, partial(self._read, key))

    def find(self, key: bytes, *, touch: bool = True) -> Entry | None:
        if self._invalidations is not None and not self._invalidations.current(key):
            return None
        entry = self._hot.find(key, touch=touch)
        if touch and entry is not None:
            self._touch(key)
        return entry

    async def _read(self, key: bytes) -> Entry | None:
        with self._operation(key, changes=False) as read:
            entry = await self._cold.get(key)
            if entry is not None:
                self._warm(entry, read)
        return entry

    async def put(self, entry: Entry) -> None:
        with self._operation(entry.key, changes=True) as change:
            self._hot.forget(entry.key)
            await self._cold.put(entry)
            self._warm(entry, change)

    async def delete(self, key: bytes) -> None:
        with self._operation(key, changes=True):
            self._hot.forget(key)
            await self._cold.delete(key)

    async def walk(self, after: bytes | None, limit: int) -> Page:
        return await self._cold.walk(after, limit)

    def stats(self) -> StoreStats:
        return self._cold.stats()

    async def close(self) -> None:
        await self._hot.close()
        await self._cold.close()

    def forget(self, key: bytes) -> None:
        """Take a key out of memory, which has changed otherwise than through this store."""
        self._hot.forget(key)
        self._reads.part(key)
        for operation in self._under_way.get(key, ()):
            operation.undisturbed = False

    def forget_all(self) -> None:
        self._hot.clear()
        self._reads.part_all()
        for operations in self._under_way.values():
            for operation in operations:
                operation.undisturbed = False

    def _warm(self, entry: Entry, operation: _Operation) -> None:
        # First: this may tell of a change that overlapped.
        if self._invalidations is not None and not self._invalidations.current(entry.key):
            return
        if not operation.undisturbed:
            return
        # The hot tier is smaller: the cold store serves an entry that is too large for it.
        with suppress(EntryTooLargeError):
            self._hot.keep(entry)

    def _operation(self, key: bytes, *, changes: bool) -> _Operation:
        return _Operation(self._under_way, self._reads, key, changes=changes)
