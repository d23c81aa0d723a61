"""The SQLite store beyond the conformance check: sharing, bounds, eviction, faults of the disk."""

import asyncio
import os
import resource
import sqlite3
import struct
import tempfile
import time
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

import pytest
from sqlite_stores import PATIENT, ROOMY, opened

from gateway.cache.ports import StoreError
from gateway.cache.stores.conformance import example_entry
from gateway.cache.stores.entry_codec import encoded_size
from gateway.cache.stores.memory import MOST_USES
from gateway.cache.stores.sqlite import store as sqlite_store
from gateway.cache.stores.sqlite import writer
from gateway.cache.stores.sqlite.file import PAGE_BYTES, WAL_BYTES, EntryFile
from gateway.cache.stores.sqlite.store import FILE_FACTOR, SqliteStore
from gateway.cache.stores.sqlite.writer import MAX_LOG_BYTES


@pytest.fixture
def path(tmp_path):
    return tmp_path / "entries.sqlite3"


def numbered(n, size=1000, **changes):
    return replace(example_entry(b"%d" % n, b"x" * size), **changes)


def bound_for(entries, size=1000):
    """Bytes that hold exactly so many entries of ``numbered(10..99, size)``."""
    return entries * encoded_size(numbered(10, size))


async def present(store, numbers):
    """Which of the keys are there, without counting as uses of the store under test."""
    return [n for n in numbers if await store.get(b"%d" % n) is not None]


@contextmanager
def write_lock(path):
    connection = sqlite3.connect(path, isolation_level=None)
    connection.execute("BEGIN IMMEDIATE")
    try:
        yield
    finally:
        connection.close()


async def test_only_the_owner_may_read_the_files(path):
    async with opened(path) as store:
        await store.put(numbered(1))
        modes = {each.name: each.stat().st_mode & 0o777 for each in path.parent.iterdir()}
    names = ["entries.sqlite3", *(f"entries.sqlite3{end}" for end in ("-wal", "-shm", ".lock"))]
    assert modes == dict.fromkeys(names, 0o600)


async def test_uses_are_counted_and_bounded(path, monkeypatch):
    monkeypatch.setattr(sqlite_store, "MOST_TOUCHED", 2)
    async with opened(path) as store:
        for n in (10, 11, 12):
            await store.put(numbered(n))
        for n in (10, 11, 12, *[10] * 10):
            store.touch(b"%d" % n)
    assert uses_on_disk(path) == {b"10": MOST_USES, b"11": 1, b"12": 0}
    async with opened(path) as store:
        store.touch(b"11")
    assert uses_on_disk(path)[b"11"] == 2


async def test_a_put_is_seen_at_once_by_another_store_on_the_file(path):
    async with opened(path) as one, opened(path) as two:
        for n in range(50):
            await one.put(numbered(n))
            assert await two.get(b"%d" % n) == numbered(n)
            await two.put(numbered(n, 10))
            assert await one.get(b"%d" % n) == numbered(n, 10)
            await one.delete(b"%d" % n)
            assert await two.get(b"%d" % n) is None


async def test_two_stores_evict_together_and_count_every_byte(path):
    bound = bound_for(20)
    async with opened(path, bound) as one, opened(path, bound) as two:
        stores = (one, two)
        await asyncio.gather(*(stores[n % 2].put(numbered(n)) for n in range(100, 300)))
        await one.delete(b"absent")
        left = await present(two, range(100, 300))
        assert one.stats().entries == len(left)
        assert one.stats().bytes == len(left) * encoded_size(numbered(100)) <= bound
        assert sum(store.stats().evictions for store in stores) == 200 - len(left)


async def test_reads_do_not_wait_for_a_writer_and_writes_wait_only_so_long(path):
    async with opened(path) as store:
        await store.put(numbered(1))
    async with opened(path, write_seconds=0.2) as store:
        with write_lock(path):
            assert await store.get(b"1") == numbered(1)
            before = time.monotonic()
            with pytest.raises(StoreError):
                await store.put(numbered(2))
            assert time.monotonic() - before < 30
        assert await store.get(b"2") is None
    async with opened(path) as store:
        await store.put(numbered(2))
        assert await store.get(b"2") == numbered(2)


async def test_a_put_is_committed_when_it_returns(path):
    async with opened(path) as store:
        for n in range(20):
            await asyncio.gather(store.put(numbered(n)), store.put(numbered(100 + n)))
            assert {b"%d" % n, b"%d" % (100 + n)} <= set(uses_on_disk(path))
            await store.delete(b"%d" % n)
            assert b"%d" % n not in uses_on_disk(path)


async def test_puts_of_a_busy_loop_share_a_commit(path, monkeypatch):
    monkeypatch.setattr(writer, "GATHER_SECONDS", 60)
    async with opened(path) as store:
        await store.put(numbered(0))
        before = commits_in_log(path)

        async def put_later(n):
            for _ in range(n):
                # This look keeps the loop busy.
                assert set(uses_on_disk(path)) == {b"0"}
                await asyncio.sleep(0)
            await store.put(numbered(n))

        await asyncio.gather(*(put_later(n) for n in range(1, 20)))
        assert commits_in_log(path) - before == 1
        assert await present(store, range(20)) == list(range(20))


async def test_puts_that_wait_together_share_a_commit(path):
    async with opened(path) as store:
        await store.put(numbered(0))
        before = commits_in_log(path)
        with write_lock(path):
            puts = [asyncio.create_task(store.put(numbered(n))) for n in range(1, 101)]
            # The writer takes the first ones alone and must wait; the others queue behind them.
            await asyncio.sleep(0)
        await asyncio.gather(*puts)
        assert commits_in_log(path) - before <= 3
        assert await present(store, range(101)) == list(range(101))


def commits_in_log(path):
    log = path.with_name(path.name + "-wal").read_bytes()
    frames = range(32, len(log), 24 + PAGE_BYTES)
    # A frame that ends a transaction carries the database's size in pages, others carry 0.
    return sum(struct.unpack_from(">I", log, at + 4)[0] != 0 for at in frames)


async def test_expired_entries_go_before_all_others(path):
    async with opened(path, bound_for(10), clock=lambda: 1000.0) as store:
        for n in range(10, 20):
            await store.put(numbered(n, expires_at=999.0 if n in {15, 17} else 2000.0))
        await store.put(numbered(20))
        await store.put(numbered(21))
        assert await present(store, range(10, 22)) == [10, 11, 12, 13, 14, 16, 18, 19, 20, 21]
        await store.put(numbered(22))
        assert store.stats().evictions == 3
        assert await store.get(b"10") is None


async def test_a_read_or_touched_entry_is_kept(path):
    async with opened(path, bound_for(10)) as store:
        for n in range(10, 20):
            await store.put(numbered(n))
        assert await store.get(b"10") is not None
        store.touch(b"12")
        store.touch(b"absent")
        for n in range(20, 24):
            await store.put(numbered(n))
        assert await present(store, range(10, 20)) == [10, 12, 16, 17, 18, 19]


async def test_uses_are_written_down_while_running(path):
    bound = bound_for(10)
    async with opened(path, bound, upkeep_seconds=0) as one, opened(path, bound) as two:
        for n in range(10, 20):
            await two.put(numbered(n))
        first = await asyncio.to_thread(uses_on_disk, path)
        assert await one.get(b"10") is not None
        # Every put to `one` is followed by its upkeep, before the next put is looked at.
        await one.delete(b"absent")
        await one.delete(b"absent")
        second = await asyncio.to_thread(uses_on_disk, path)
        assert (set(first.values()), second[b"10"]) == ({0}, 1)
        await two.put(numbered(20))
        assert await present(two, (10, 11)) == [10]


def uses_on_disk(path):
    connection = sqlite3.connect(path)
    try:
        return dict(connection.execute("SELECT key, uses FROM entry").fetchall())
    finally:
        connection.close()


async def test_file_and_log_stay_within_their_bounds(path):
    bound = 2 << 20
    async with opened(path, bound) as store:
        for start in range(0, 4000, 50):
            # Awkward sizes: many fit a page only once.
            await asyncio.gather(
                *(store.put(numbered(n, 100 + n * 37 % 9000)) for n in range(start, start + 50))
            )
            for n in range(start - 100, start, 7):
                store.touch(b"%d" % n)
            assert path.stat().st_size <= bound * FILE_FACTOR
            assert path.with_name(path.name + "-wal").stat().st_size <= 48 << 20
        assert bound * 0.6 < store.stats().bytes <= bound
    assert not path.with_name(path.name + "-wal").exists()


async def test_the_log_is_bounded_even_when_its_thread_never_gets_to_it(path, monkeypatch):
    monkeypatch.setattr(writer, "_checkpoint", lambda _: None)
    longest = 0
    async with opened(path) as store:
        for n in range(90):
            await store.put(numbered(n, 1 << 20))
            longest = max(longest, path.with_name(path.name + "-wal").stat().st_size)
    assert MAX_LOG_BYTES < longest < MAX_LOG_BYTES + 2 * WAL_BYTES


async def test_a_change_to_a_file_that_was_replaced_meanwhile_is_made_again(path):
    file = EntryFile(path, busy_seconds=30, clock=time.time)
    replaced = []

    def action(connection):
        connection.execute("UPDATE total SET entries = 7")
        if not replaced:
            replaced.append(path.stat().st_ino)
            for suffix in ("-wal", "-shm", ""):
                path.with_name(path.name + suffix).rename(path.with_name("old" + suffix))

    try:
        file.run(action)
        assert path.stat().st_ino != replaced[0]
        assert file.rows("SELECT entries FROM total") == [(7,)]
    finally:
        file.close()


async def test_a_tighter_bound_shrinks_what_is_there(path):
    async with opened(path, 8 << 20) as store:
        await asyncio.gather(*(store.put(numbered(n, 10_000)) for n in range(700)))
    assert path.stat().st_size > 6 << 20
    async with opened(path, 1 << 20) as store:
        await store.delete(b"absent")
        assert store.stats().bytes <= 1 << 20
        kept = await present(store, range(700))
        assert kept == list(range(700))[-len(kept) :]
    async with opened(path, 1 << 20) as store:
        await store.delete(b"absent")
    assert path.stat().st_size <= 2 << 20


@pytest.mark.parametrize("impossible", [{"expires_at": float("nan")}, {"model": None}])
async def test_one_impossible_entry_does_not_spoil_its_group(path, impossible):
    async with opened(path) as store:
        outcomes = await asyncio.gather(
            store.put(numbered(1)),
            store.put(numbered(2, **impossible)),
            store.put(numbered(3)),
            return_exceptions=True,
        )
        assert [type(outcome) for outcome in outcomes] == [type(None), StoreError, type(None)]
        assert await present(store, (1, 2, 3)) == [1, 3]


async def test_an_entry_that_cannot_be_encoded_fails_alone_in_time(path):
    async with opened(path) as store:
        with pytest.raises(StoreError, match="failed: AttributeError"):
            await store.put(numbered(1, model=None))
        await store.put(numbered(2))
        assert await present(store, (1, 2)) == [2]


async def test_close_finishes_what_was_asked(path):
    store = SqliteStore(path, max_bytes=ROOMY, **PATIENT)
    puts = [asyncio.create_task(store.put(numbered(n))) for n in range(100)]
    await asyncio.sleep(0)
    await store.close()
    await asyncio.gather(*puts)
    async with opened(path) as store:
        assert await present(store, range(100)) == list(range(100))


async def test_a_cancelled_put_or_get_harms_nobody(path):
    async with opened(path) as store:
        with write_lock(path):
            put = asyncio.create_task(store.put(numbered(1)))
            get = asyncio.create_task(store.get(b"1"))
            await asyncio.sleep(0)
            put.cancel()
            get.cancel()
        outcomes = await asyncio.gather(put, get, return_exceptions=True)
        assert all(isinstance(outcome, asyncio.CancelledError) for outcome in outcomes)
        await store.put(numbered(2))
        assert await store.get(b"2") == numbered(2)


async def test_too_many_waiting_writes_are_refused(path):
    async with opened(path) as store:
        await store.put(numbered(0))
        with write_lock(path):
            puts = [asyncio.create_task(store.put(numbered(n, 10))) for n in range(1, 2501)]
            await asyncio.sleep(0)
            refused = [put for put in puts if put.done()]
            assert len(refused) > 1000
            with pytest.raises(StoreError, match="waiting already"):
                await refused[0]
        await asyncio.gather(*puts, return_exceptions=True)
        assert store.stats().entries == 2500 + 1 - len(refused)


async def test_a_missing_directory_is_a_store_error_until_it_is_there(tmp_path):
    path = tmp_path / "later" / "entries.sqlite3"
    async with opened(path) as store:
        with pytest.raises(StoreError):
            await store.get(b"1")
        with pytest.raises(StoreError):
            await store.put(numbered(1))
        path.parent.mkdir()
        await store.put(numbered(1))
        assert await store.get(b"1") == numbered(1)


@contextmanager
def read_only_directory():
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        folder.chmod(0o555)
        root = os.geteuid() == 0
        try:
            if root:
                os.seteuid(65534)
            yield folder
        finally:
            if root:
                os.seteuid(0)
            folder.chmod(0o755)


async def test_a_read_only_directory_is_a_store_error():
    with read_only_directory() as folder:
        async with opened(folder / "entries.sqlite3") as store:
            with pytest.raises(StoreError):
                await store.get(b"1")
            with pytest.raises(StoreError):
                await store.put(numbered(1))
            assert store.stats().entries == 0
        assert list(folder.iterdir()) == []


async def test_a_full_disk_is_a_store_error_and_space_heals_it(path):
    async with opened(path) as store:
        await store.put(numbered(1))
        soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
        log = path.with_name(path.name + "-wal").stat().st_size
        resource.setrlimit(resource.RLIMIT_FSIZE, (log + PAGE_BYTES, hard))
        try:
            with pytest.raises(StoreError):
                await store.put(numbered(2, 1 << 20))
            assert await store.get(b"1") == numbered(1)
        finally:
            resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
        await store.put(numbered(2, 1 << 20))
        assert await store.get(b"2") == numbered(2, 1 << 20)
        assert store.stats().entries == 2
    assert [each.name for each in path.parent.glob("*corrupt*")] == []


async def test_a_scan_leaves_alone_what_is_asked_again(path):
    async with opened(path, bound_for(20)) as store:
        for n in range(10, 15):
            await store.put(numbered(n))
            assert await store.get(b"%d" % n) is not None
        for n in range(100, 300):
            await store.put(numbered(n))
        assert await present(store, range(10, 15)) == [10, 11, 12, 13, 14]


async def test_what_returns_soon_after_it_went_is_kept_even_after_a_restart(path):
    bound = bound_for(10)
    async with opened(path, bound) as store:
        for n in range(10, 21):
            await store.put(numbered(n))
        assert await present(store, (10,)) == []
    async with opened(path, bound) as store:
        await store.put(numbered(10))
        for n in range(30, 50):
            await store.put(numbered(n))
        assert await present(store, (10,)) == [10]
