"""A file that one process has alone: puts return at once, and misses read nothing."""

import asyncio
import sqlite3
from contextlib import asynccontextmanager, contextmanager
from dataclasses import replace

import pytest

from gateway.cache.ports import EntryTooLargeError, StoreError
from gateway.cache.stores.conformance import example_entry
from gateway.cache.stores.guarded import GuardedStore
from gateway.cache.stores.memory import MemoryStore
from gateway.cache.stores.sqlite import store as sqlite_store
from gateway.cache.stores.sqlite.key_filter import KeyFilter
from gateway.cache.stores.sqlite.store import BEHIND_BYTES, MAX_BEHIND, SqliteStore
from gateway.cache.stores.tiered import TieredStore

PATIENT = {"read_seconds": 30, "write_seconds": 30}


@asynccontextmanager
async def opened(path, **options):
    store = SqliteStore(path, max_bytes=16 << 20, alone=True, **(PATIENT | options))
    try:
        yield store
    finally:
        await store.close()


@pytest.fixture
def path(tmp_path):
    return tmp_path / "entries.sqlite3"


def numbered(n, size=1000, **changes):
    return replace(example_entry(b"%d" % n, b"x" * size), **changes)


@contextmanager
def write_lock(path):
    connection = sqlite3.connect(path, isolation_level=None)
    connection.execute("BEGIN IMMEDIATE")
    try:
        yield
    finally:
        connection.close()


def on_disk(path):
    connection = sqlite3.connect(path)
    try:
        return {int(key) for (key,) in connection.execute("SELECT key FROM entry")}
    finally:
        connection.close()


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


async def test_a_put_returns_before_the_disk_has_it_and_is_found_at_once(path):
    async with opened(path) as store:
        await store.delete(b"absent")
        with write_lock(path):
            at_once(store.put(numbered(1)))
            assert at_once(store.get(b"1")) == numbered(1)
            at_once(store.put(numbered(1, 10)))
            assert at_once(store.get(b"1")) == numbered(1, 10)
            assert on_disk(path) == set()
    async with opened(path) as store:
        assert await store.get(b"1") == numbered(1, 10)


async def test_a_walk_meets_what_waits(path):
    async with opened(path) as store:
        at_once(store.put(numbered(1)))
        assert [entry.key for entry in (await store.walk(None, 10)).entries] == [b"1"]


async def test_what_was_deleted_while_it_waited_does_not_come_back(path):
    async with opened(path) as store:
        await store.delete(b"absent")
        with write_lock(path):
            at_once(store.put(numbered(1)))
            delete = asyncio.create_task(store.delete(b"1"))
            await asyncio.sleep(0)
            assert await store.get(b"1") is None
        await delete
        assert await store.get(b"1") is None
    assert on_disk(path) == set()


async def test_only_so_much_waits_and_then_puts_wait_and_fail_in_time(path):
    async with opened(path, write_seconds=0.2) as store:
        guarded = GuardedStore(store, read_seconds=30, write_seconds=30)
        await guarded.delete(b"absent")
        with write_lock(path):
            for n in range(MAX_BEHIND):
                at_once(guarded.put(numbered(n)))
            with pytest.raises(StoreError):
                await guarded.put(numbered(MAX_BEHIND))


async def test_a_large_entry_waits_for_its_commit(path):
    async with opened(path) as store:
        await store.put(numbered(1, BEHIND_BYTES + 1))
        assert on_disk(path) == {1}


async def test_an_entry_over_its_share_is_refused_at_once(tmp_path):
    store = SqliteStore(tmp_path / "small.sqlite3", max_bytes=8000, alone=True, **PATIENT)
    try:
        with pytest.raises(EntryTooLargeError):
            store.put(numbered(1)).send(None)
        assert await store.get(b"1") is None
    finally:
        await store.close()


async def test_a_lost_entry_is_counted_leaves_memory_and_later_puts_get_the_fault(path, caplog):
    async with opened(path, write_seconds=0.2) as store:
        tiered = TieredStore(MemoryStore(max_bytes=1 << 20), store, store.touch, store)
        await tiered.delete(b"absent")
        with write_lock(path):
            at_once(tiered.put(numbered(1)))
            async with asyncio.timeout(30):
                while await tiered.get(b"1") is not None:  # noqa: ASYNC110 - nobody tells
                    await asyncio.sleep(0)
            with pytest.raises(StoreError):
                await tiered.put(numbered(2))
        assert "1 answers could not be stored" in caplog.text
        assert store.stats().lost == 1
        await tiered.put(numbered(3))
        at_once(tiered.put(numbered(4)))
    assert on_disk(path) == {3, 4}


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


async def test_a_commit_tells_at_once_what_it_stored_and_evicted(tmp_path):
    """A lookup in between would keep in memory what is not in the file."""
    told, found = [], []
    cold = SqliteStore(tmp_path / "small.sqlite3", max_bytes=20_000, alone=True, **PATIENT)
    store = TieredStore(MemoryStore(max_bytes=1 << 20), cold, cold.touch, None, cold.lacks)

    def forget(key):
        store.forget(key)
        lookup = cold.get(key)
        try:
            lookup.send(None)
        except StopIteration as stopped:
            found.append(stopped.value)
        lookup.close()
        told.append(key)

    cold.listen(forget, store.forget_all)
    try:
        for n in range(60):
            await store.put(numbered(n))
        walked = {entry.key for entry in (await store.walk(None, 100)).entries}
        assert len(told) == 60 - len(walked)
        assert found == []
    finally:
        await store.close()


async def test_what_is_evicted_leaves_memory_too_so_that_a_purge_leaves_nothing(tmp_path):
    cold = SqliteStore(tmp_path / "small.sqlite3", max_bytes=20_000, alone=True, **PATIENT)
    store = TieredStore(MemoryStore(max_bytes=1 << 20), cold, cold.touch, cold, cold.lacks)
    try:
        for n in range(60):
            await store.put(numbered(n))
        walked = {entry.key for entry in (await store.walk(None, 100)).entries}
        assert 0 < len(walked) < 60
        await asyncio.sleep(0)
        assert {b"%d" % n for n in range(60) if store.find(b"%d" % n)} <= walked
    finally:
        await store.close()
