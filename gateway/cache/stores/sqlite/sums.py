"""Sums that workers share, each kind in a file of the data directory: use of keys, and usage."""

import sqlite3
from collections.abc import Mapping, Sequence
from datetime import date, timedelta
from pathlib import Path

import orjson

from gateway.cache.ports import (
    USAGE_DAYS,
    USAGE_OTHER,
    USAGE_ROWS,
    Change,
    Count,
    UsageRow,
)
from gateway.cache.stores.sqlite.small_database import SmallDatabase

KEPT_WINDOWS = 3
"""Of each holder and amount; the one that was begun first goes first, whatever the clock says."""

_COUNTS_SCHEMA = """
CREATE TABLE IF NOT EXISTS key_count (
    number INTEGER PRIMARY KEY AUTOINCREMENT,
    holder TEXT NOT NULL,
    what TEXT NOT NULL,
    window INTEGER NOT NULL,
    amount INTEGER NOT NULL,
    UNIQUE (holder, what, window)
);
"""
_FIND = "SELECT amount FROM key_count WHERE holder = ? AND what = ? AND window = ?"
_SET = """
INSERT INTO key_count (holder, what, window, amount) VALUES (?, ?, ?, ?)
ON CONFLICT DO UPDATE SET amount = excluded.amount
"""
_TRIM = """
DELETE FROM key_count WHERE number IN (
    SELECT number FROM key_count WHERE holder = ? AND what = ?
    ORDER BY number DESC LIMIT -1 OFFSET ?
)
"""
_LOAD = "SELECT holder, what, window, amount FROM key_count WHERE what = ? AND window = ?"

_USAGE_SCHEMA = """
CREATE TABLE IF NOT EXISTS usage (
    day TEXT NOT NULL,
    labels TEXT NOT NULL,
    figures TEXT NOT NULL,
    PRIMARY KEY (day, labels)
) WITHOUT ROWID;
CREATE TABLE IF NOT EXISTS latest (batch TEXT PRIMARY KEY, number INTEGER NOT NULL) WITHOUT ROWID;
"""
_BATCHES = 1_000
"""Names of batches that are kept: a batch is added again soon or never."""


class SqliteKeyCounts:
    """The port ``KeyCounts``. The first change makes the file, with mode 0600.

    A change waits for no disk: after a power failure the last moments may be missing.
    """

    def __init__(self, path: Path) -> None:
        loss = "what is in no worker's memory counts from zero again"
        self._path = path
        self._file = SmallDatabase(
            path, _COUNTS_SCHEMA, what="counts of keys", loss=loss, waits_for_disk=False
        )

    async def load(self, windows: Sequence[tuple[str, int]]) -> Mapping[Count, int]:
        def read(connection: sqlite3.Connection) -> dict[Count, int]:
            rows = (row for window in windows for row in connection.execute(_LOAD, window))
            return {Count(*count): amount for *count, amount in rows}

        return await self._file.run(read) if self._path.exists() else {}

    async def add(self, changes: Mapping[Count, Change]) -> Mapping[Count, int]:
        def write(connection: sqlite3.Connection) -> dict[Count, int]:
            connection.execute("BEGIN IMMEDIATE")
            return {count: _count(connection, count, *each) for count, each in changes.items()}

        return await self._file.run(write)

    async def close(self) -> None:
        await self._file.close()


def _count(connection: sqlite3.Connection, count: Count, amount: int, known: int) -> int:
    """Add to an amount, and return its total."""
    row = connection.execute(_FIND, count).fetchone()
    there = 0 if row is None else int(row[0])
    total = max(there, known) + amount
    if total != there:
        connection.execute(_SET, (*count, total))
        if row is None:
            connection.execute(_TRIM, (count.holder, count.what, KEPT_WINDOWS))
    return total


class SqliteUsage:
    """The port ``UsageStore``. The first call opens the file, with mode 0600."""

    def __init__(self, path: Path) -> None:
        loss = "the figures of usage begin again"
        self._file = SmallDatabase(path, _USAGE_SCHEMA, what="figures of usage", loss=loss)

    async def add(self, batch: str, rows: Sequence[UsageRow]) -> None:
        await self._file.run(lambda connection: _add(connection, batch, rows))

    async def read(self, since: str) -> list[UsageRow]:
        found = await self._file.run(
            lambda connection: connection.execute(
                "SELECT day, labels, figures FROM usage WHERE day >= ?", (since,)
            ).fetchall()
        )
        return [UsageRow(day, labels, orjson.loads(figures)) for day, labels, figures in found]

    async def close(self) -> None:
        await self._file.close()


def _add(connection: sqlite3.Connection, batch: str, rows: Sequence[UsageRow]) -> None:
    connection.execute("BEGIN IMMEDIATE")
    newest = connection.execute("SELECT coalesce(max(number), 0) FROM latest").fetchone()[0]
    there = connection.execute("SELECT 1 FROM latest WHERE batch = ?", (batch,)).fetchone()
    if there is not None:
        return
    connection.execute("INSERT INTO latest VALUES (?, ?)", (batch, newest + 1))
    connection.execute("DELETE FROM latest WHERE number <= ?", (newest + 1 - _BATCHES,))
    for row in rows:
        _add_row(connection, row)
    if rows:
        newest_day = date.fromisoformat(max(row.day for row in rows))
        oldest = (newest_day - timedelta(days=USAGE_DAYS - 1)).isoformat()
        connection.execute("DELETE FROM usage WHERE day < ?", (oldest,))


def _add_row(connection: sqlite3.Connection, row: UsageRow) -> None:
    labels, find = row.labels, "SELECT figures FROM usage WHERE day = ? AND labels = ?"
    there = connection.execute(find, (row.day, labels)).fetchone()
    if there is None:
        count = "SELECT count(*) FROM usage WHERE day = ? AND labels != ?"
        (number,) = connection.execute(count, (row.day, USAGE_OTHER)).fetchone()
        if number >= USAGE_ROWS and labels != USAGE_OTHER:
            labels = USAGE_OTHER
            there = connection.execute(find, (row.day, labels)).fetchone()
    figures = {} if there is None else orjson.loads(there[0])
    for name, value in row.figures.items():
        figures[name] = figures.get(name, 0) + value
    connection.execute(
        "INSERT INTO usage VALUES (?, ?, ?) ON CONFLICT DO UPDATE SET figures = excluded.figures",
        (row.day, labels, orjson.dumps(figures).decode()),
    )
