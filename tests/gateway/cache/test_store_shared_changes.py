"""Workers that share a disk: none answers from its memory what another one has changed."""

import asyncio
import subprocess
import sys
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import replace

import pytest

from gateway.cache.ports import StoreError
from gateway.cache.stores.conformance import check_store, example_entry
from gateway.cache.stores.entry_codec import encoded_size
from gateway.cache.stores.memory import MemoryStore
from gateway.cache.stores.sqlite import shared_changes
from gateway.cache.stores.sqlite.shared_changes import RECORDS, SharedChanges
from gateway.cache.stores.sqlite.store import SqliteStore
from gateway.cache.stores.tiered import TieredStore

ROOMY = 16 << 20
OLD = example_entry(b"key", b"old")
NEW = replace(OLD, result=b"new")


def worker(folder, max_bytes=ROOMY):
    """Return the store of one worker, as the composition root makes it."""
    cold = SqliteStore(
        folder / "entries.sqlite3",
        max_bytes=max_bytes,
        shared=SharedChanges(folder / "changes"),
        read_seconds=30,
        write_seconds=30,
    )
    hot = MemoryStore(max_bytes=1 << 20)
    return TieredStore(hot, cold, cold.touch, cold, cold.lacks)


@asynccontextmanager
async def workers(folder, count=2, **options):
    async with AsyncExitStack() as opened:
        made = []
        for _ in range(count):
            made.append(worker(folder, **options))
            opened.push_async_callback(made[-1].close)
        yield made


@pytest.fixture
def changes(tmp_path):
    """The view of a further worker."""
    shared = SharedChanges(tmp_path / "changes")
    yield shared
    shared.close()


def at_once(coroutine):
    """Run a coroutine that must not suspend."""
    with pytest.raises(StopIteration) as stopped:
        coroutine.send(None)
    return stopped.value.value


async def warm(store, entry):
    """Read the entry until it is in the worker's memory."""
    assert await store.get(entry.key) == entry
    assert store.find(entry.key) == entry


def taken(shared):
    """Return the keys that others changed, or None where some may be missing."""
    keys, lost = [], []
    shared.listen(keys.append, lambda: lost.append(True))
    shared.current()
    return None if lost else keys


async def test_a_worker_is_a_store(tmp_path):
    made = iter(range(100))

    async def make(max_bytes):
        folder = tmp_path / str(next(made))
        folder.mkdir()
        return worker(folder, max_bytes)

    await check_store(make)


async def test_what_one_worker_replaces_or_deletes_leaves_the_memory_of_the_others(tmp_path):
    async with workers(tmp_path, 3) as (one, two, three):
        for _ in range(20):
            await one.put(OLD)
            await warm(two, OLD)
            await warm(three, OLD)
            await two.put(NEW)
            assert await one.get(b"key") == await three.get(b"key") == NEW
            assert at_once(two.get(b"key")) == NEW
            await three.delete(b"key")
            assert await one.get(b"key") is await two.get(b"key") is None


async def test_of_changes_at_the_same_time_all_workers_remember_the_last(tmp_path):
    async with workers(tmp_path, 3) as stores:
        for n in range(60):
            entries = [replace(OLD, result=b"%d %d" % (n, at)) for at in range(3)]
            await asyncio.gather(
                *(store.put(entry) for store, entry in zip(stores, entries, strict=True))
            )
            assert len({(await store.get(b"key")).result for store in stores}) == 1


async def test_a_read_that_another_workers_change_overtakes_does_not_bring_the_old_back(tmp_path):
    async with workers(tmp_path) as (one, two):
        await one.put(OLD)
        for n in range(50):
            entry = replace(OLD, result=b"%d" % n)
            read = asyncio.create_task(two.get(b"key"))
            await asyncio.sleep(0)
            await one.put(entry)
            await read
            assert await two.get(b"key") == entry


async def test_a_key_that_no_worker_stored_needs_no_read(tmp_path):
    async with workers(tmp_path) as (one, two):
        await two.get(b"absent")
        async with asyncio.timeout(30):
            while not two._lacks(b"absent"):  # noqa: ASYNC110 - nobody tells
                await asyncio.sleep(0)
        assert at_once(two.get(b"key")) is None
        await one.put(OLD)
        assert await two.get(b"key") == OLD


async def test_what_is_evicted_leaves_every_memory_so_that_a_purge_leaves_nothing(tmp_path):
    size = encoded_size(example_entry(b"10", b"x" * 1000))
    async with workers(tmp_path, max_bytes=20 * size) as (one, two):
        first = example_entry(b"10", b"x" * 1000)
        await one.put(first)
        await warm(two, first)
        for n in range(11, 99):
            await one.put(example_entry(b"%d" % n, b"x" * 1000))
        stats = one.stats()
        assert stats.evictions == 89 - stats.entries > 0
        walked = {entry.key for entry in (await one.walk(None, 1000)).entries}
        await asyncio.sleep(0)
        kept = {b"%d" % n for n in range(10, 99) for store in (one, two) if store.find(b"%d" % n)}
        assert kept <= walked


async def test_a_worker_that_fell_behind_forgets_all(tmp_path, changes):
    async with workers(tmp_path) as (one, two):
        await one.put(OLD)
        await warm(two, OLD)
        for _ in range(3):
            with changes.commit([b"other"] * (RECORDS // 2)):
                pass
        assert two.find(b"key") is None
        await warm(two, OLD)


async def test_a_key_too_long_for_the_ring_makes_all_forget_all(tmp_path, changes):
    other = SharedChanges(tmp_path / "changes")
    with other.commit([b"x" * 100]):
        pass
    assert taken(changes) is None
    with other.commit([b"short"]):
        pass
    assert taken(changes) == [b"short"]
    other.close()


async def test_a_worker_that_died_in_a_commit_holds_nothing_and_its_change_is_not_missed(
    tmp_path, changes
):
    async with workers(tmp_path) as (one, two):
        await one.put(OLD)
        await warm(two, OLD)
        died = (
            "import os, sys, pathlib\n"
            "from gateway.cache.stores.sqlite.shared_changes import SharedChanges\n"
            "with SharedChanges(pathlib.Path(sys.argv[1])).commit([b'key']):\n"
            "    os._exit(9)\n"
        )
        argv = [sys.executable, "-c", died, str(tmp_path / "changes")]
        process = await asyncio.create_subprocess_exec(*argv)
        assert await process.wait() == 9
        assert taken(changes) == [b"key"]  # that of the put: nothing of the dead one yet
        await one.put(replace(OLD, key=b"other"))
        assert two.find(b"key") is None
        assert taken(changes) is None


async def test_a_lock_that_a_frozen_worker_holds_is_a_store_error_in_time(tmp_path, monkeypatch):
    monkeypatch.setattr(shared_changes, "LOCK_SECONDS", 0.1)
    frozen = SharedChanges(tmp_path / "changes")
    async with workers(tmp_path) as (one, two):
        await one.put(OLD)
        with frozen.commit([]):
            with pytest.raises(StoreError, match="another worker holds the lock"):
                await one.put(NEW)
            assert await two.get(b"key") == OLD
        await one.put(NEW)
        assert await two.get(b"key") == NEW
    frozen.close()


def test_only_the_owner_may_read_the_changes(tmp_path, changes):
    assert (tmp_path / "changes").stat().st_mode & 0o777 == 0o600


def test_changes_of_processes_that_write_at_once_all_arrive(tmp_path, changes):
    writes = (
        "import sys, pathlib\n"
        "from gateway.cache.stores.sqlite.shared_changes import SharedChanges\n"
        "shared = SharedChanges(pathlib.Path(sys.argv[1]))\n"
        "for n in range(1000):\n"
        "    with shared.commit([b'%s %d' % (sys.argv[2].encode(), n)]):\n"
        "        pass\n"
    )
    argv = [sys.executable, "-c", writes, str(tmp_path / "changes")]
    processes = [subprocess.Popen([*argv, name]) for name in "abc"]
    assert [process.wait() for process in processes] == [0, 0, 0]
    keys = taken(changes)
    for name in "abc":
        mine = [key for key in keys if key.startswith(name.encode())]
        assert mine == [b"%s %d" % (name.encode(), n) for n in range(1000)]
    assert len(keys) == 3000
