"""One worker takes the place of another: both have the store meanwhile."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest

from gateway.cache.ports import Entry, StoreUnavailableError
from gateway.cache.stores.conformance import example_entry
from gateway.server.open.store import OpenedStore, open_store
from gateway.settings import Settings

pytestmark = pytest.mark.usefixtures("patient")


@asynccontextmanager
async def worker(folder: Path, **changes: object) -> AsyncIterator[OpenedStore]:
    settings = Settings.model_validate({"data_dir": folder, **changes})
    opened = open_store(settings, {}, folder / "changes")
    try:
        yield opened
    finally:
        await opened.store.close()


def numbered(n: int, size: int = 1000) -> Entry:
    return example_entry(b"%d" % n, b"x" * size)


@pytest.mark.parametrize("memory_bytes", [0, 2**20])
async def test_each_sees_what_the_other_stores_and_purges(tmp_path: Path, memory_bytes: int):
    async with worker(tmp_path, memory_bytes=memory_bytes) as old:
        await old.store.put(numbered(1))
        assert await old.store.get(b"1") == numbered(1)
        async with worker(tmp_path, memory_bytes=memory_bytes) as new:
            assert await new.store.get(b"1") == numbered(1)
            await new.store.put(numbered(1, 10))
            assert await old.store.get(b"1") == numbered(1, 10)
            await old.store.delete(b"1")
            assert await new.store.get(b"1") is None
            await old.store.put(numbered(2))
            assert await new.store.get(b"2") == numbered(2)
            await new.store.delete(b"2")
            assert await old.store.get(b"2") is None


async def test_entries_in_memory_alone_are_no_answers_once_another_worker_serves(tmp_path: Path):
    async with worker(tmp_path, store="memory") as old:
        await old.store.put(numbered(1))
        assert await old.store.get(b"1") == numbered(1)
        await old.leave()
        with pytest.raises(StoreUnavailableError):
            await old.store.get(b"1")
        with pytest.raises(StoreUnavailableError):
            await old.store.walk(None, 10)
