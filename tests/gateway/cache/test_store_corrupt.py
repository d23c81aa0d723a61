"""Damage: a corrupt file is set aside and the store works on; a damaged entry is a miss."""

import asyncio
import logging
import sqlite3
from contextlib import closing
from datetime import UTC, datetime
from functools import partial

import pytest
import sqlite_stores

from gateway.cache.stores.conformance import example_entry
from gateway.cache.stores.entry_codec import encode_entry

NOW = 1_800_000_000.5
ASIDE = "entries.sqlite3.corrupt-" + datetime.fromtimestamp(NOW, UTC).strftime("%Y%m%dT%H%M%S.%fZ")


opened = partial(sqlite_stores.opened, clock=lambda: NOW)


@pytest.fixture
def path(tmp_path):
    return tmp_path / "entries.sqlite3"


def numbered(n, size=1000):
    return example_entry(b"%d" % n, b"%d" % n * size)


async def fill(path, count=200):
    async with opened(path) as store:
        await asyncio.gather(*(store.put(numbered(n)) for n in range(count)))


async def works(store):
    await store.put(numbered(1000))
    return await store.get(b"1000") == numbered(1000)


async def whole(store, count=200):
    """Return how many entries are there; each must be the one that was put."""
    found = [(n, await store.get(b"%d" % n)) for n in range(count)]
    assert all(entry is None or entry == numbered(n) for n, entry in found)
    return sum(entry is not None for _, entry in found)


def set_aside(path):
    return sorted(each.name for each in path.parent.glob("*.corrupt-*"))


def lines(caplog):
    return [each.getMessage() for each in caplog.records if "set aside" in each.getMessage()]


async def test_garbage_is_set_aside_with_one_line(path, caplog):
    path.write_bytes(b"not a database, " * 1000)
    async with opened(path) as store:
        assert await store.get(b"1") is None
        assert await works(store)
        assert store.stats().entries == 1
    assert path.with_name(ASIDE).read_bytes() == b"not a database, " * 1000
    assert set_aside(path) == [ASIDE]
    [line] = lines(caplog)
    assert line == (
        f"corrupt store file {path} set aside as {ASIDE}, starting empty: file is not a database"
    )
    assert [each.levelno for each in caplog.records] == [logging.ERROR]


@pytest.mark.parametrize("size", [2, 99, 100, 511, 512, 8191, 8192, 8193, 20_000, 100_000, 400_000])
async def test_a_file_cut_short_is_set_aside(path, size, caplog):
    await fill(path)
    assert path.stat().st_size > size
    with path.open("r+b") as file:
        file.truncate(size)
    async with opened(path) as store:
        assert await whole(store) == 0
        assert await works(store)
    assert set_aside(path) == [ASIDE]
    assert len(lines(caplog)) == 1


@pytest.mark.parametrize("content", [b"", b"S"])
async def test_an_empty_file_is_an_empty_store(path, content, caplog):
    # A single byte is what SQLite writes itself to reserve a name, and takes for empty.
    path.write_bytes(content)
    async with opened(path) as store:
        assert await works(store)
    assert set_aside(path) == []
    assert caplog.records == []


@pytest.mark.parametrize(
    ("script", "reason"),
    [
        ("CREATE TABLE theirs (x)", "not a database of entries"),
        ("PRAGMA application_id = 7", "not a database of entries"),
        ("PRAGMA user_version = 99", "schema version 99, expected 2"),
        ("DELETE FROM total", "its totals are missing"),
        ("DROP TABLE total", "a table is missing"),
    ],
)
async def test_a_database_that_is_not_ours_is_set_aside(path, script, reason, caplog):
    if "theirs" not in script:
        await fill(path, 3)
    with closing(sqlite3.connect(path)) as connection:
        connection.executescript(script)
    async with opened(path) as store:
        assert await store.get(b"1") is None
        assert await works(store)
    assert set_aside(path) == [ASIDE]
    assert reason in lines(caplog)[0]


async def test_a_file_that_breaks_while_open_is_set_aside(path, caplog):
    await fill(path)
    async with opened(path) as store, opened(path) as other:
        assert await whole(store) == 200
        assert await whole(other) == 200
        size = path.stat().st_size
        with path.open("r+b") as file:
            file.write(b"\xa5" * size)
        # Pages that SQLite has in its own memory may still answer, and rightly.
        assert await whole(store) <= 200
        assert await works(store)
        assert await works(other)
        assert await whole(other) == 0
        await other.put(numbered(1))
        assert await store.get(b"1") == numbered(1)
    assert set_aside(path) == [ASIDE, f"{ASIDE}-shm", f"{ASIDE}-wal"]
    assert len(lines(caplog)) == 1
    async with opened(path) as store:
        assert await whole(store) == 1
        assert await works(store)
    assert len(lines(caplog)) == 1


async def test_a_file_cut_while_open_is_set_aside_by_a_write(path, caplog):
    await fill(path)
    async with opened(path) as store:
        await store.delete(b"absent")
        with path.open("r+b") as file:
            file.truncate(20_000)
        for n in range(200, 400):
            await store.put(numbered(n))
        assert await whole(store, 400) >= 1
        assert await works(store)
    assert set_aside(path)[0] == ASIDE
    assert len(lines(caplog)) == 1


@pytest.mark.parametrize("page", range(1, 40, 3))
async def test_any_broken_page_costs_entries_but_never_truth(path, page):
    await fill(path)
    with path.open("r+b") as file:
        file.seek(page * 8192)
        file.write(b"\x5a" * 8192)
    async with opened(path) as store:
        assert await whole(store) <= 200
        for n in range(200, 260):
            await store.put(numbered(n))
        for n in range(200):
            await store.delete(b"%d" % n)
        assert await works(store)
        assert await whole(store, 260) <= 60


async def test_a_file_that_is_deleted_or_replaced_while_open_is_left_behind(path):
    async with opened(path) as store:
        await store.put(numbered(1))
        for suffix in ("-wal", "-shm", ""):
            path.with_name(path.name + suffix).unlink()
        assert await store.get(b"1") is None
        assert await works(store)
        async with opened(path) as other:
            assert await other.get(b"1000") == numbered(1000)
    assert set_aside(path) == []


async def test_only_the_latest_corrupt_file_is_kept(path):
    old = path.with_name(path.name + ".corrupt-20200101T000000.000000Z")
    old.write_bytes(b"older")
    old.with_name(old.name + "-wal").write_bytes(b"older")
    path.write_bytes(b"garbage" * 1000)
    async with opened(path) as store:
        assert await works(store)
    assert set_aside(path) == [ASIDE]


@pytest.mark.parametrize(
    "value",
    [
        encode_entry(numbered(1))[:-1] + b"?",
        encode_entry(numbered(2)),
        b"",
        "text",
    ],
    ids=["bit flip", "another key's", "empty", "text"],
)
async def test_a_damaged_entry_is_a_miss_and_forgotten(path, value, caplog):
    await fill(path, 3)
    with closing(sqlite3.connect(path)) as connection:
        connection.execute(
            "UPDATE answer SET value = ? WHERE id = (SELECT id FROM entry WHERE key = ?)",
            (value, b"1"),
        )
        connection.commit()
    async with opened(path) as store:
        assert await store.get(b"1") is None
        assert [each.getMessage()[:26] for each in caplog.records] == ["a damaged entry is forgott"]
        assert await store.get(b"2") == numbered(2)
        await store.delete(b"absent")
        assert store.stats().entries == 2
        await store.put(numbered(1))
        assert await store.get(b"1") == numbered(1)
    assert set_aside(path) == []
