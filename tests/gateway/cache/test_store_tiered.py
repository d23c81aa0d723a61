"""The tiers together: cheap hot hits, and no answer from memory that was already replaced."""

import asyncio
from dataclasses import replace

import pytest

from gateway.cache.ports import EntryTooLargeError, StoreError
from gateway.cache.stores.conformance import example_entry
from gateway.cache.stores.memory import MemoryStore
from gateway.cache.stores.sqlite.store import SqliteStore
from gateway.cache.stores.tiered import TieredStore

OLD = example_entry(b"key", b"old")
NEW = replace(OLD, result=b"new")


class GatedStore(MemoryStore):
    """A cold store whose calls wait to be let through, before and after they take effect."""

    def __init__(self):
        super().__init__(max_bytes=1 << 20)
        self.touched = []
        self.fault = None
        self.gates = {}

    def hold(self, call):
        """Return (reached, open): set when the call has taken effect; set it to let it return."""
        self.gates[call] = asyncio.Event(), asyncio.Event()
        return self.gates[call]

    async def pass_gate(self, call):
        if self.fault is not None:
            raise self.fault
        if call in self.gates:
            reached, gate = self.gates.pop(call)
            reached.set()
            await gate.wait()

    async def get(self, key, *, touch=True):
        found = await super().get(key, touch=touch)
        await self.pass_gate("get")
        return found

    async def put(self, entry):
        await super().put(entry)
        await self.pass_gate("put")

    async def delete(self, key):
        await super().delete(key)
        await self.pass_gate("delete")


@pytest.fixture
def cold():
    return GatedStore()


@pytest.fixture
def hot():
    return MemoryStore(max_bytes=1 << 20)


@pytest.fixture
def store(hot, cold):
    return TieredStore(hot, cold, cold.touched.append)


def answered_at_once(coroutine):
    """Run a coroutine that must not suspend."""
    with pytest.raises(StopIteration) as stopped:
        coroutine.send(None)
    return stopped.value.value


async def test_a_hot_hit_does_not_suspend_and_is_told_to_the_cold_store(store, cold):
    await store.put(OLD)
    cold.fault = StoreError("down")
    assert answered_at_once(store.get(b"key")) == OLD
    assert cold.touched == [b"key"]


async def test_a_cold_hit_warms_the_hot_tier(store, hot, cold):
    await cold.put(OLD)
    assert await store.get(b"key") == OLD
    assert answered_at_once(hot.get(b"key")) == OLD


async def test_a_miss_is_a_miss_and_warms_nothing(store, hot):
    assert await store.get(b"key") is None
    assert hot.stats().entries == 0


@pytest.mark.parametrize("change", ["put", "delete"])
async def test_a_read_that_a_change_overtakes_does_not_bring_the_old_back(store, cold, change):
    await cold.put(OLD)
    reached, gate = cold.hold("get")
    read = asyncio.create_task(store.get(b"key"))
    await reached.wait()
    await (store.put(NEW) if change == "put" else store.delete(b"key"))
    gate.set()
    assert await read == OLD
    assert await store.get(b"key") == (NEW if change == "put" else None)


async def test_a_read_during_a_change_does_not_outlive_it(store, cold):
    await store.put(OLD)
    reached, gate = cold.hold("delete")
    delete = asyncio.create_task(store.delete(b"key"))
    await reached.wait()
    assert await store.get(b"key") is None
    await cold.put(OLD)
    assert await store.get(b"key") == OLD
    await cold.delete(b"key")
    gate.set()
    await delete
    assert await store.get(b"key") is None


async def test_of_two_puts_that_overlap_the_cold_store_says_which_won(store, cold):
    reached, gate = cold.hold("put")
    first = asyncio.create_task(store.put(OLD))
    await reached.wait()
    await store.put(NEW)
    gate.set()
    await first
    assert await store.get(b"key") == NEW


@pytest.mark.parametrize("change", ["put", "delete"])
async def test_after_a_failed_change_the_cold_store_is_asked(store, cold, change):
    await store.put(OLD)
    cold.fault = StoreError("too late")
    with pytest.raises(StoreError, match="too late"):
        await (store.put(NEW) if change == "put" else store.delete(b"key"))
    cold.fault = None
    assert await store.get(b"key") == await cold.get(b"key")


async def test_a_cancelled_change_leaves_nothing_under_way(store, cold):
    reached, _ = cold.hold("put")
    put = asyncio.create_task(store.put(OLD))
    await reached.wait()
    put.cancel()
    with pytest.raises(asyncio.CancelledError):
        await put
    await store.put(NEW)
    assert answered_at_once(store.get(b"key")) == NEW


async def test_what_is_too_large_for_the_hot_tier_is_served_from_the_cold(cold):
    store = TieredStore(MemoryStore(max_bytes=8000), cold, cold.touched.append)
    large = replace(OLD, result=b"x" * 5000)
    await store.put(OLD)
    await store.put(large)
    assert await store.get(b"key") == large
    with pytest.raises(EntryTooLargeError):
        await store.put(replace(OLD, result=b"x" * (1 << 20)))
    assert await store.get(b"key") == large


async def test_close_closes_both(store, hot, cold):
    await store.close()
    for each in (store, hot, cold):
        with pytest.raises(StoreError):
            await each.get(b"key")


async def test_hot_hits_keep_the_entry_from_eviction_on_disk(tmp_path):
    cold = SqliteStore(
        tmp_path / "entries.sqlite3", max_bytes=20_000, read_seconds=30, write_seconds=30
    )
    store = TieredStore(MemoryStore(max_bytes=1 << 20), cold, cold.touch)
    try:
        for n in range(60):
            await store.put(example_entry(b"%d" % n, b"x" * 1000))
            assert answered_at_once(store.get(b"0")) is not None
        assert await cold.get(b"0") is not None
        assert await cold.get(b"1") is None
    finally:
        await store.close()


async def test_what_is_evicted_leaves_memory_too_so_that_a_purge_leaves_nothing(tmp_path):
    cold = SqliteStore(
        tmp_path / "small.sqlite3", max_bytes=20_000, read_seconds=30, write_seconds=30
    )
    store = TieredStore(MemoryStore(max_bytes=1 << 20), cold, cold.touch, cold, cold.lacks)
    try:
        for n in range(60):
            await store.put(example_entry(b"%d" % n, b"x" * 1000))
        walked = {entry.key for entry in (await store.walk(None, 100)).entries}
        assert 0 < len(walked) < 60
        await asyncio.sleep(0)
        assert {b"%d" % n for n in range(60) if store.find(b"%d" % n)} <= walked
    finally:
        await store.close()
