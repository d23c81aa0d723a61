"""A filter in memory tells which keys were never stored, so that a miss reads nothing."""

import asyncio

import pytest
from sqlite_stores import opened

from gateway.cache.ports import StoreError
from gateway.cache.stores.conformance import example_entry
from gateway.cache.stores.memory import MemoryStore
from gateway.cache.stores.sqlite import store as sqlite_store
from gateway.cache.stores.sqlite.key_filter import KeyFilter
from gateway.cache.stores.tiered import TieredStore


@pytest.fixture
def path(tmp_path):
    return tmp_path / "entries.sqlite3"


def numbered(n):
    return example_entry(b"%d" % n, b"x" * 1000)


def at_once(coroutine):
    """Run a coroutine that must not suspend."""
    with pytest.raises(StopIteration) as stopped:
        coroutine.send(None)
    return stopped.value.value


async def filled(store):
    """Wait until the store can tell which keys it lacks."""
    async with asyncio.timeout(30):
        while not store.lacks(b"never stored"):  # noqa: ASYNC110 - nobody tells
            await asyncio.sleep(0)


async def test_a_key_that_was_never_stored_needs_no_read(path):
    async with opened(path) as store:
        for n in range(50):
            await store.put(numbered(n))
    async with opened(path) as store:
        assert not store.lacks(b"never stored")  # until all keys are known, the disk is asked
        await filled(store)
        assert [n for n in range(50) if store.lacks(b"%d" % n)] == []
        tiered = TieredStore(MemoryStore(max_bytes=1 << 20), store, store.touch, store, store.lacks)
        assert at_once(tiered.get(b"never stored")) is None
        assert await tiered.get(b"7") == numbered(7)
        await tiered.put(numbered(100))
        assert not store.lacks(b"100")
    with pytest.raises(StoreError):
        await tiered.get(b"never stored")


async def test_the_filter_is_filled_in_pages_and_anew_once_it_is_full(path, monkeypatch):
    monkeypatch.setattr(sqlite_store, "KEYS_AT_ONCE", 7)
    monkeypatch.setattr("gateway.cache.stores.sqlite.key_filter.FEWEST_BITS", 1 << 10)
    async with opened(path) as store:
        await filled(store)
        for n in range(100):
            await store.put(numbered(n))
        first = store._keys
        assert first.is_full
        await filled(store)
        assert store._keys is not first
        assert [n for n in range(100) if store.lacks(b"%d" % n)] == []


async def test_a_fault_of_the_disk_leaves_the_filter_unused_until_it_has_all(tmp_path, monkeypatch):
    monkeypatch.setattr(sqlite_store, "FILL_AGAIN_SECONDS", 0)
    path = tmp_path / "later" / "entries.sqlite3"
    async with opened(path) as store:
        assert not store.lacks(b"1")
        with pytest.raises(StoreError):
            await store.get(b"1")
        path.parent.mkdir()
        await filled(store)
        assert await store.get(b"1") is None


async def test_a_filter_that_could_not_be_filled_hides_nothing(path, monkeypatch, caplog):
    async with opened(path) as store:
        await store.put(numbered(1))
    attempts = []

    def no_memory(keys):
        attempts.append(keys)
        if len(attempts) < 2:
            raise MemoryError
        return KeyFilter(keys)

    async with opened(path) as store:
        monkeypatch.setattr(sqlite_store, "KeyFilter", no_memory)
        assert not store.lacks(b"1")
        while len(attempts) < 2:
            await asyncio.sleep(0.001)
            assert not store.lacks(b"1")
        await filled(store)
        assert await store.get(b"1") == numbered(1)
    assert caplog.text.count("filter of the store's keys: failed") == 1


async def test_a_file_that_took_the_place_of_another_is_asked_for_all_its_keys(path):
    other = path.with_name("other")
    async with opened(other) as store:
        await store.put(numbered(1))
    async with opened(path) as store:
        await store.put(numbered(2))
        await filled(store)
        assert store.lacks(b"1")
        for suffix in ("-wal", "-shm"):
            path.with_name(path.name + suffix).unlink()
        other.rename(path)
        assert [entry.key for entry in (await store.walk(None, 10)).entries] == [b"1"]
        assert not store.lacks(b"never stored")
        await filled(store)
        assert not store.lacks(b"1")
        assert await store.get(b"1") == numbered(1)
