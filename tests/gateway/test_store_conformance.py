"""Every store passes the shipped check, and the check tells a broken one."""

import pytest

from gateway.adapters.store_conformance import StoreConformanceError, check_store
from gateway.adapters.store_memory import MemoryStore
from gateway.adapters.store_sqlite import SqliteStore
from gateway.adapters.store_tiered import TieredStore
from gateway.ports import StoreStats


@pytest.fixture
def fresh(tmp_path):
    made = iter(range(100))
    return lambda: tmp_path / f"{next(made)}.sqlite3"


async def test_memory():
    async def make(max_bytes):
        return MemoryStore(max_bytes=max_bytes)

    await check_store(make)


async def test_sqlite(fresh):
    async def make(max_bytes):
        return SqliteStore(fresh(), max_bytes=max_bytes, read_seconds=30, write_seconds=30)

    await check_store(make)


@pytest.mark.parametrize("hot_bytes", [1 << 12, 1 << 20, 64 << 20])
async def test_tiered(fresh, hot_bytes):
    async def make(max_bytes):
        cold = SqliteStore(fresh(), max_bytes=max_bytes, read_seconds=30, write_seconds=30)
        return TieredStore(MemoryStore(max_bytes=hot_bytes), cold)

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
        await check_store(make)
