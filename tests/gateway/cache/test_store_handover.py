"""One worker takes the place of another: the file is shared meanwhile, and nothing is lost."""

import asyncio
import sqlite3
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest

from gateway.cache.ports import Entry, StoreError, StoreUnavailableError
from gateway.cache.stores.conformance import example_entry
from gateway.cache.stores.sqlite import SHARED_CHANGES
from gateway.server.open.store import OpenedStore, open_store
from gateway.settings import Settings

pytestmark = pytest.mark.usefixtures("patient")


@asynccontextmanager
async def worker(folder: Path, **changes: object) -> AsyncIterator[OpenedStore]:
    """Open the store as a worker does of which its supervisor says nothing yet."""
    settings = Settings.model_validate({"data_dir": folder, **changes})
    opened = open_store(settings, {SHARED_CHANGES: str(folder / "changes")})
    try:
        yield opened
    finally:
        await opened.store.close()


def numbered(n: int, size: int = 1000) -> Entry:
    return example_entry(b"%d" % n, b"x" * size)


def on_disk(folder: Path) -> set[bytes]:
    connection = sqlite3.connect(folder / "entries.sqlite3")
    try:
        return {key for (key,) in connection.execute("SELECT key FROM entry")}
    finally:
        connection.close()


@asynccontextmanager
async def locked(folder: Path) -> AsyncIterator[None]:
    connection = sqlite3.connect(folder / "entries.sqlite3", isolation_level=None)
    connection.execute("BEGIN IMMEDIATE")
    try:
        yield
    finally:
        connection.close()


async def test_what_waits_is_in_the_file_before_another_worker_opens_it(tmp_path: Path):
    async with worker(tmp_path) as old:
        await old.have_alone()
        async with locked(tmp_path):
            for n in range(200):
                await old.store.put(numbered(n))  # at once, though the file is locked
            sharing = asyncio.create_task(old.share())
            await asyncio.sleep(0)
            assert not sharing.done()
        await asyncio.wait_for(sharing, 60)
        assert len(on_disk(tmp_path)) == 200
        await old.store.put(numbered(1000))
        assert b"1000" in on_disk(tmp_path)


async def test_each_sees_what_the_other_stores_and_purges(tmp_path: Path):
    async with worker(tmp_path) as old:
        await old.have_alone()
        await old.store.put(numbered(1))
        assert await old.store.get(b"1") == numbered(1)
        await old.share()
        async with worker(tmp_path) as new:
            assert await new.store.get(b"1") == numbered(1)
            await new.store.put(numbered(1, 10))
            assert await old.store.get(b"1") == numbered(1, 10)
            await old.store.delete(b"1")
            assert await new.store.get(b"1") is None
            assert old.memory is not None
            assert old.memory.find(b"1") is None
            await old.store.put(numbered(2))
            assert await new.store.get(b"2") == numbered(2)
            await new.store.delete(b"2")
            assert await old.store.get(b"2") is None


async def test_the_one_that_stays_has_the_file_alone_with_all_that_changed(tmp_path: Path):
    async with worker(tmp_path) as new:
        async with worker(tmp_path) as old:
            await new.store.put(numbered(1))
            assert new.memory is not None
            assert new.memory.find(b"1") is not None
            await old.store.put(numbered(1, 10))
            await old.store.put(numbered(2))
        await new.have_alone()
        assert await new.store.get(b"1") == numbered(1, 10)
        assert await new.store.get(b"2") == numbered(2)
        async with locked(tmp_path):
            await new.store.put(numbered(3))
            assert b"3" not in on_disk(tmp_path)
            assert await new.store.get(b"3") == numbered(3)
    assert on_disk(tmp_path) == {b"1", b"2", b"3"}


async def test_after_its_own_changes_alone_it_can_share_again(tmp_path: Path):
    async with worker(tmp_path) as old:
        await old.have_alone()
        for n in range(300):
            await old.store.put(numbered(n))
        await old.share()
        assert old.memory is not None
        assert old.memory.find(b"299") == numbered(299)  # its own changes are no news
        async with worker(tmp_path) as new:
            await new.store.delete(b"299")
            assert old.memory.find(b"299") is None


async def test_a_worker_killed_in_a_commit_leaves_nothing_old_in_memory(tmp_path: Path):
    async with worker(tmp_path) as new:
        await new.store.put(numbered(1))
        assert new.memory is not None
        ring = new.file._shared if new.file is not None else None
        assert ring is not None
        ring._words[1] = 1  # a commit is under way, and nobody will say which
        await new.have_alone()
        assert new.memory.find(b"1") is None
        assert await new.store.get(b"1") == numbered(1)


async def test_a_worker_whose_disk_fails_goes_on_sharing(tmp_path: Path):
    async with worker(tmp_path) as new:
        assert new.file is not None
        await new.file.close()
        with pytest.raises(StoreError):
            await new.have_alone()


async def test_what_cannot_be_written_holds_nothing_up(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
):
    async with worker(tmp_path) as old:
        await old.have_alone()
        assert old.file is not None

        def fail(*_: object) -> None:
            raise StoreError("the disk is full")

        monkeypatch.setattr(old.file._writer, "_transact", fail)
        await old.store.put(numbered(1))
        await asyncio.wait_for(old.share(), 60)
        assert await old.store.get(b"1") is None
    assert "1 answers could not be stored: the disk is full" in caplog.text


async def test_entries_in_memory_alone_are_no_answers_once_another_worker_serves(tmp_path: Path):
    async with worker(tmp_path, store="memory") as old:
        await old.share()
        await old.have_alone()
        await old.store.put(numbered(1))
        assert await old.store.get(b"1") == numbered(1)
        await old.leave()
        with pytest.raises(StoreUnavailableError):
            await old.store.get(b"1")
        with pytest.raises(StoreUnavailableError):
            await old.store.walk(None, 10)


@pytest.mark.parametrize("memory_bytes", [0, 2**20])
async def test_without_a_memory_tier_it_is_the_same(tmp_path: Path, memory_bytes: int):
    async with worker(tmp_path, memory_bytes=memory_bytes) as old:
        await old.have_alone()
        await old.store.put(numbered(1))
        await old.share()
        async with worker(tmp_path, memory_bytes=memory_bytes) as new:
            await new.store.put(numbered(1, 10))
            assert await old.store.get(b"1") == numbered(1, 10)
