"""A store in memory in front of one that lasts: a hot hit suspends nobody.

Law: in this process the hot tier never answers with what a put or delete has already replaced in
the cold store. A key leaves the hot tier when a change of it begins, and comes back only from a
read or change that no other change of that key overlapped. Those who look for a key while it is
read share the read, unless a change has begun or ended since.

Where others change the cold store too, they must be heard of (``News``): a change made elsewhere
is one that overlaps, and while it is not certain that changes would be told, the hot tier is not
used. A store without news is for one process, so with several workers on one disk the composition
root leaves the hot tier off. An entry that the cold store evicts may stay hot; it is as good as
before.
"""

from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from functools import partial
from typing import Protocol

from gateway.cache.entry import Entry
from gateway.cache.ports import EntryTooLargeError, Page, Store, StoreStats
from gateway.cache.single_flight import Together
from gateway.cache.stores.memory import MemoryStore


class News(Protocol):
    """Tells of changes that others make in the cold store."""

    def listen(self, changed: Callable[[bytes], None], lost: Callable[[], None]) -> None:
        """Call ``changed`` for each changed key, ``lost`` when changes may have been missed."""
        ...

    def current(self, key: bytes) -> bool:
        """Tell whether changes of this key, but for the very latest, were told."""
        ...


@dataclass(slots=True, eq=False)
class _Operation:
    """A read or change of a key in the cold store, while it is under way."""

    changes: bool
    undisturbed: bool = True


class TieredStore:
    """See the port ``Store``. Owns both stores; used from one event loop."""

    def __init__(
        self,
        hot: MemoryStore,
        cold: Store,
        touch: Callable[[bytes], None],
        news: News | None = None,
    ) -> None:
        """``touch`` notes a hot hit, so that the cold store does not evict what is hot. No I/O."""
        self._hot = hot
        self._cold = cold
        self._touch = touch
        self._news = news
        self._under_way: dict[bytes, set[_Operation]] = {}
        self._reads: Together[Entry | None] = Together()
        if news is not None:
            news.listen(self._changed, self._lost)

    async def get(self, key: bytes, *, touch: bool = True) -> Entry | None:
        # Does not suspend when the hot tier has the entry and may be used.
        if self._news is None or self._news.current(key):
            entry = await self._hot.get(key, touch=touch)
            if entry is not None:
                if touch:
                    self._touch(key)
                return entry
        if not touch:  # nor is it brought to the hot tier
            return await self._cold.get(key, touch=False)
        return await self._reads.ask(key, partial(self._read, key))

    async def _read(self, key: bytes) -> Entry | None:
        with self._operation(key, changes=False) as read:
            entry = await self._cold.get(key)
            if entry is not None and read.undisturbed:
                await self._warm(entry)
        return entry

    async def put(self, entry: Entry) -> None:
        # Returns once the cold store has the entry.
        with self._operation(entry.key, changes=True) as change:
            await self._hot.delete(entry.key)
            await self._cold.put(entry)
            if change.undisturbed:
                await self._warm(entry)

    async def delete(self, key: bytes) -> None:
        with self._operation(key, changes=True):
            await self._hot.delete(key)
            await self._cold.delete(key)

    async def walk(self, after: bytes | None, limit: int) -> Page:
        # The cold store's, which has all.
        return await self._cold.walk(after, limit)

    def stats(self) -> StoreStats:
        """Return the cold store's figures: what is hot is there too."""
        return self._cold.stats()

    async def close(self) -> None:
        """Close both tiers. Raises StoreError."""
        await self._hot.close()
        await self._cold.close()

    def _changed(self, key: bytes) -> None:
        self._hot.forget(key)
        self._reads.part(key)
        for operation in self._under_way.get(key, ()):
            operation.undisturbed = False

    def _lost(self) -> None:
        self._hot.clear()
        self._reads.part_all()
        for operations in self._under_way.values():
            for operation in operations:
                operation.undisturbed = False

    async def _warm(self, entry: Entry) -> None:
        if self._news is not None and not self._news.current(entry.key):
            return
        # The hot tier is smaller; what is too large for it is served from the cold one.
        with suppress(EntryTooLargeError):
            await self._hot.put(entry)

    @contextmanager
    def _operation(self, key: bytes, *, changes: bool) -> Iterator[_Operation]:
        if changes:
            self._reads.part(key)
        here = self._under_way.setdefault(key, set())
        mine = _Operation(changes)
        for other in here:
            if changes or other.changes:
                mine.undisturbed = other.undisturbed = False
        here.add(mine)
        try:
            yield mine
        finally:
            if changes:
                self._reads.part(key)
            here.remove(mine)
            if not here:
                del self._under_way[key]
