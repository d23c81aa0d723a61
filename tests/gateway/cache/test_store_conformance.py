"""Every store passes the shipped check, and the check tells a broken one."""

import tracemalloc
from dataclasses import replace

import pytest

from gateway.cache.ports import EntryTooLargeError, StoreStats
from gateway.cache.stores.conformance import StoreConformanceError, check_store, example_entry
from gateway.cache.stores.entry_codec import decode_entry, encode_entry
from gateway.cache.stores.memory import MemoryStore, resident_size
from gateway.cache.stores.sqlite.store import SqliteStore
from gateway.cache.stores.tiered import TieredStore


@pytest.fixture
def fresh(tmp_path):
    made = iter(range(100))
    return lambda: tmp_path / f"{next(made)}.sqlite3"


async def test_memory():
    async def make(max_bytes):
        return MemoryStore(max_bytes=max_bytes)

    await check_store(make, charge=resident_size)


async def test_sqlite(fresh):
    async def make(max_bytes):
        return SqliteStore(fresh(), max_bytes=max_bytes, read_seconds=30, write_seconds=30)

    await check_store(make)


@pytest.mark.parametrize("hot_bytes", [1 << 12, 1 << 20, 64 << 20])
async def test_tiered(fresh, hot_bytes):
    async def make(max_bytes):
        cold = SqliteStore(fresh(), max_bytes=max_bytes, read_seconds=30, write_seconds=30)
        return TieredStore(MemoryStore(max_bytes=hot_bytes), cold, cold.touch, cold, cold.lacks)

    await check_store(make)


class Forgetful(MemoryStore):
    """Replaces nothing."""

    async def put(self, entry):
        if await self.get(entry.key) is None:
            await super().put(entry)


class Miscounting(MemoryStore):
    """Counts keys, not what lies under them."""

    def stats(self):
        stats = super().stats()
        return StoreStats(stats.entries, stats.entries, stats.evictions)


class Undead(MemoryStore):
    """Answers after close."""

    async def close(self):
        return


@pytest.mark.parametrize(
    ("broken", "message"),
    [
        (Forgetful, "newer entry"),
        (Miscounting, "bytes counted"),
        (Undead, "closed store"),
    ],
)
async def test_the_check_tells_a_broken_store(broken, message):
    async def make(max_bytes):
        return broken(max_bytes=max_bytes)

    with pytest.raises(StoreConformanceError, match=message):
        await check_store(make, charge=resident_size)


async def test_what_memory_counts_is_what_an_entry_takes():
    """Counted against the allocations of Python itself; a ghost of each entry comes later."""
    store = MemoryStore(max_bytes=64 << 20)
    scopes = [b"%032d" % number for number in range(20)]
    tracemalloc.start()
    before, _ = tracemalloc.get_traced_memory()
    for number in range(2000):
        entry = replace(
            example_entry(b"%032d" % number, b"x" * (number % 3000)),
            scope=scopes[number % 20],
            question=f"Question {number}?",
            digests=tuple((f"field-{each}", b"%08d" % number) for each in range(4)),
        )
        # As it comes from disk: nothing in it is held by anything else.
        await store.put(decode_entry(encode_entry(entry)))
    after, _ = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    taken, counted = after - before, store.stats().bytes
    assert 0.7 * counted < taken < counted


async def test_what_clients_name_is_counted_as_well():
    store = MemoryStore(max_bytes=1 << 20)
    entry = replace(example_entry(), model="m" * (1 << 16))
    assert resident_size(entry) > 1 << 16
    for number in range(100):
        await store.put(replace(entry, key=b"%d" % number, model=f"{number}" + entry.model))
    assert store.stats().entries < 16
    with pytest.raises(EntryTooLargeError):
        await store.put(replace(entry, model="m" * (1 << 18)))
