"""Wrapped data keys in a file of the data directory, which the workers share.

Law: a key is on the disk before anything is sealed with it, and a forgotten key is overwritten in
the file before ``forget`` returns. Without the master key the file is noise.

There is no write-ahead log, since an old frame in it could hold a forgotten key.
"""

import asyncio
import logging
import os
import sqlite3
import threading
from collections.abc import Callable
from pathlib import Path
from typing import TypeVar

from gateway.cache.ports import StoreError
from gateway.cache.stores.sqlite.file import is_corrupt

_SCHEMA = """
CREATE TABLE IF NOT EXISTS scope_key (
    tag BLOB NOT NULL,
    master BLOB NOT NULL,
    wrapped BLOB NOT NULL,
    until REAL NOT NULL,
    PRIMARY KEY (tag, master)
) WITHOUT ROWID;
CREATE INDEX IF NOT EXISTS scope_key_by_end ON scope_key (until);
"""
_BUSY_SECONDS = 1.0
_REAPED_AT_A_TIME = 64

_log = logging.getLogger(__name__)
T = TypeVar("T")


class SqliteScopeKeys:
    """The port ``ScopeKeys``. The first call opens the file, with mode 0600."""

    def __init__(self, path: Path, *, clock: Callable[[], float]) -> None:
        self._path = path
        self._clock = clock
        self._lock = threading.Lock()
        self._connection: sqlite3.Connection | None = None
        self._closed = False

    async def find(self, tag: bytes, master: bytes) -> bytes | None:
        return await self._run(lambda connection: _find(connection, tag, master))

    async def ensure(self, tag: bytes, master: bytes, proposed: bytes, until: float) -> bytes:
        now = self._clock()

        def action(connection: sqlite3.Connection) -> bytes:
            there = _find(connection, tag, master, until)
            if there is not None:  # the usual case, without a write
                return there
            connection.execute("BEGIN IMMEDIATE")
            connection.execute(
                "DELETE FROM scope_key WHERE (tag, master) IN"
                " (SELECT tag, master FROM scope_key WHERE until < ? LIMIT ?)",
                (now, _REAPED_AT_A_TIME),
            )
            connection.execute(
                "INSERT INTO scope_key VALUES (?, ?, ?, ?)"
                " ON CONFLICT DO UPDATE SET until = max(until, excluded.until)",
                (tag, master, proposed, until),
            )
            return _find(connection, tag, master) or proposed

        return await self._run(action)

    async def forget(self, tag: bytes) -> None:
        await self._run(
            lambda connection: connection.execute("DELETE FROM scope_key WHERE tag = ?", (tag,))
        )

    async def close(self) -> None:
        self._closed = True

        def disconnect() -> None:
            with self._lock:
                self._disconnect()

        await asyncio.to_thread(disconnect)

    async def _run(self, action: Callable[[sqlite3.Connection], T]) -> T:
        """Return the action's result, with its changes committed. Raises StoreError."""
        return await asyncio.to_thread(self._run_here, action)

    def _run_here(self, action: Callable[[sqlite3.Connection], T]) -> T:
        with self._lock:
            if self._closed:
                raise StoreError("the scope keys are closed")
            try:
                try:
                    with self._connect() as connection:
                        return action(connection)
                except sqlite3.Error as error:
                    if not is_corrupt(error):
                        raise
                    self._disconnect()
                    self._rename_corrupt(error)
                    with self._connect() as connection:
                        return action(connection)
            except (sqlite3.Error, OSError) as error:
                self._disconnect()
                raise StoreError(f"scope keys: {type(error).__name__}: {error}") from error

    def _connect(self) -> sqlite3.Connection:
        """Return the connection, which is a context of a transaction."""
        if self._connection is None:
            os.close(os.open(self._path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600))
            self._connection = sqlite3.connect(
                self._path,
                timeout=_BUSY_SECONDS,
                isolation_level=None,
                # The lock admits one thread at a time.
                check_same_thread=False,
            )
            self._connection.execute("PRAGMA journal_mode = TRUNCATE")
            self._connection.execute("PRAGMA synchronous = FULL")
            self._connection.execute("PRAGMA secure_delete = ON")
            self._connection.executescript(_SCHEMA)
        return self._connection

    def _rename_corrupt(self, error: sqlite3.Error) -> None:
        aside = self._path.with_name(self._path.name + ".corrupt")
        self._path.rename(aside)
        _log.error(
            "corrupt scope keys %s set aside as %s; what is sealed is lost: %s",
            self._path,
            aside.name,
            error,
        )

    def _disconnect(self) -> None:
        if self._connection is not None:
            self._connection.close()
            self._connection = None


def _find(
    connection: sqlite3.Connection, tag: bytes, master: bytes, until: float = 0.0
) -> bytes | None:
    """Return the wrapped key if it is kept until ``until`` at least."""
    rows = connection.execute(
        "SELECT wrapped FROM scope_key WHERE tag = ? AND master = ? AND until >= ?",
        (tag, master, until),
    ).fetchall()
    return rows[0][0] if rows else None
