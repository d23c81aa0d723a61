"""Sums that workers share, each kind in a file of the data directory: use of keys, and usage."""

import sqlite3
from collections.abc import Mapping, Sequence
from datetime import date, timedelta
from pathlib import Path
from typing import Any

import orjson

from gateway.cache.stores.counts import (
    USAGE_DAYS,
    USAGE_OTHER,
    USAGE_ROWS,
    Change,
    Count,
    UsageRow,
)
from gateway.cache.stores.sqlite.small_database import SmallDatabase
from gateway.cache.stores.windows import PERIODS

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
_ROWS = """
WITH given (place, holder, what, window, change, known) AS (
    SELECT key, json_extract(value, '$[0]'), json_extract(value, '$[1]'),
        json_extract(value, '$[2]'), json_extract(value, '$[3]'), json_extract(value, '$[4]')
    FROM json_each(?)
)
"""
_RAISE = """
INSERT INTO key_count (holder, what, window, amount)
SELECT holder, what, window, known FROM given WHERE known > 0
ON CONFLICT DO UPDATE SET amount = excluded.amount WHERE excluded.amount > amount
"""
_ADD = """
INSERT INTO key_count (holder, what, window, amount)
SELECT holder, what, window, change FROM given WHERE change != 0
ON CONFLICT DO UPDATE SET amount = amount + excluded.amount
"""
_TOTALS = """
SELECT json_group_array(coalesce(amount, 0)) FROM (
    SELECT amount FROM given LEFT JOIN key_count USING (holder, what, window) ORDER BY place
)
"""
_TRIM = """
DELETE FROM key_count WHERE number IN (
    SELECT one.number FROM given JOIN key_count AS one USING (holder, what)
    WHERE json_extract(?, '$.' || substr(what, instr(what, '/') + 1)) <= (
        SELECT count(*) FROM key_count AS later
        WHERE later.holder = one.holder AND later.what = one.what AND later.number > one.number
    )
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


class SqliteKeyCounts(SmallDatabase):
    """The port ``KeyCounts``. The first change makes the file, with mode 0600.

    A change waits for no disk: after a power failure the last moments may be missing.
    """

    def __init__(self, path: Path) -> None:
        loss = "what is in no worker's memory counts from zero again"
        super().__init__(
            path, _COUNTS_SCHEMA, what="counts of keys", loss=loss, waits_for_disk=False
        )

    async def load(self, windows: Sequence[tuple[str, int]]) -> Mapping[Count, int]:
        def read(connection: sqlite3.Connection) -> dict[Count, int]:
            rows = (row for window in windows for row in connection.execute(_LOAD, window))
            return {Count(*count): amount for *count, amount in rows}

        return await self.run(read) if self._path.exists() else {}

    async def add(self, batch: str, changes: Mapping[Count, Change]) -> Mapping[Count, int]:  # noqa: ARG002
        # An add that failed has changed nothing, so no batch is there twice.
        rows = [(*count, *change) for count, change in changes.items()]
        totals = await self.run(lambda connection: _add_counts(connection, rows))
        return dict(zip(changes, totals, strict=True))


def _add_counts(connection: sqlite3.Connection, rows: list[tuple[Any, ...]]) -> list[int]:
    """Add to counts, and return their totals.

    One statement adds all rows. While the event loop is busy, each step of a statement may wait
    five milliseconds for Python's lock.
    """
    given = orjson.dumps(rows).decode()
    connection.execute("BEGIN IMMEDIATE")
    connection.execute(_ROWS + _RAISE, (given,))
    connection.execute(_ROWS + _ADD, (given,))
    totals: list[int] = orjson.loads(connection.execute(_ROWS + _TOTALS, (given,)).fetchone()[0])
    # Where nothing was known and nobody else has counted, a window has begun.
    begun = [
        row for row, total in zip(rows, totals, strict=True) if row[3] == total != 0 and not row[4]
    ]
    if begun:
        bounds = orjson.dumps({name: row.windows for name, row in PERIODS.items()}).decode()
        connection.execute(_ROWS + _TRIM, (orjson.dumps(begun).decode(), bounds))
    return totals


class SqliteUsage(SmallDatabase):
    """The port ``UsageStore``. The first call opens the file, with mode 0600."""

    def __init__(self, path: Path) -> None:
        loss = "the figures of usage begin again"
        super().__init__(path, _USAGE_SCHEMA, what="figures of usage", loss=loss)

    async def add(self, batch: str, rows: Sequence[UsageRow]) -> None:
        await self.run(lambda connection: _add(connection, batch, rows))

    async def read(self, since: str) -> list[UsageRow]:
        found = await self.run(
            lambda connection: connection.execute(
                "SELECT day, labels, figures FROM usage WHERE day >= ?", (since,)
            ).fetchall()
        )
        return [UsageRow(day, labels, orjson.loads(figures)) for day, labels, figures in found]


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
