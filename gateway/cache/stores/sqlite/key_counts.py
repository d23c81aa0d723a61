"""What holders of gateway keys have used, in a file of the data directory that workers share.

A commit waits for no disk: after a power failure the last moments may be missing, and no more.
"""

import asyncio
import os
import sqlite3
import threading
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import TypeVar

from gateway.cache.ports import Count, StoreError

KEPT_WINDOWS = 3
"""Of each holder and amount; the one that was begun first goes first, whatever the clock says."""

_SCHEMA = """
CREATE TABLE IF NOT EXISTS key_count (
    number INTEGER PRIMARY KEY AUTOINCREMENT,
    holder TEXT NOT NULL,
    what TEXT NOT NULL,
    window INTEGER NOT NULL,
    amount INTEGER NOT NULL,
    UNIQUE (holder, what, window)
);
"""
_ADD = """
INSERT INTO key_count (holder, what, window, amount) VALUES (?, ?, ?, ?)
ON CONFLICT DO UPDATE SET amount = amount + excluded.amount RETURNING amount
"""
_FIND = "SELECT amount FROM key_count WHERE holder = ? AND what = ? AND window = ?"
_TRIM = """
DELETE FROM key_count WHERE number IN (
    SELECT number FROM key_count WHERE holder = ? AND what = ?
    ORDER BY number DESC LIMIT -1 OFFSET ?
)
"""
_LOAD = "SELECT holder, what, window, amount FROM key_count WHERE what = ? AND window = ?"
_BUSY_SECONDS = 1.0

T = TypeVar("T")


class SqliteKeyCounts:
    """The port ``KeyCounts``. The first change makes the file, with mode 0600."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._lock = threading.Lock()
        self._connection: sqlite3.Connection | None = None

    async def load(self, windows: Sequence[tuple[str, int]]) -> Mapping[Count, int]:
        def read(connection: sqlite3.Connection) -> dict[Count, int]:
            rows = (row for window in windows for row in connection.execute(_LOAD, window))
            return {Count(*count): amount for *count, amount in rows}

        return await self._run(read) if self._path.exists() else {}

    async def add(self, changes: Mapping[Count, int]) -> Mapping[Count, int]:
        def write(connection: sqlite3.Connection) -> dict[Count, int]:
            connection.execute("BEGIN IMMEDIATE")
            return {count: _add(connection, count, delta) for count, delta in changes.items()}

        return await self._run(write)

    async def close(self) -> None:
        def disconnect() -> None:
            with self._lock:
                self._disconnect()

        await asyncio.to_thread(disconnect)

    async def _run(self, action: Callable[[sqlite3.Connection], T]) -> T:
        """Return the action's result, with its changes committed. Raises StoreError."""
        return await asyncio.to_thread(self._run_here, action)

    def _run_here(self, action: Callable[[sqlite3.Connection], T]) -> T:
        with self._lock:
            try:
                with self._connect() as connection:
                    return action(connection)
            except (sqlite3.Error, OSError) as error:
                self._disconnect()
                raise StoreError(
                    f"{self._path}: {error}; if the file is damaged, delete it: the counts of all "
                    "keys then begin anew"
                ) from error

    def _connect(self) -> sqlite3.Connection:
        """Return the connection, which is a context of a transaction."""
        if self._connection is None:
            os.close(os.open(self._path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600))
            connection = self._connection = sqlite3.connect(
                self._path,
                timeout=_BUSY_SECONDS,
                isolation_level=None,
                # The lock admits one thread at a time.
                check_same_thread=False,
            )
            connection.execute("PRAGMA journal_mode = WAL")
            connection.execute("PRAGMA synchronous = NORMAL")
            connection.executescript(_SCHEMA)
        return self._connection

    def _disconnect(self) -> None:
        if self._connection is not None:
            self._connection.close()
            self._connection = None


def _add(connection: sqlite3.Connection, count: Count, delta: int) -> int:
    """Add to an amount, and return its total; zero only asks."""
    if not delta:
        row = connection.execute(_FIND, count).fetchone()
        return 0 if row is None else int(row[0])
    ((amount,),) = connection.execute(_ADD, (*count, delta)).fetchall()
    if amount == delta:
        connection.execute(_TRIM, (count.holder, count.what, KEPT_WINDOWS))
    return int(amount)
