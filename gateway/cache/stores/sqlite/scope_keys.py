"""Wrapped data keys in a file of the data directory, which the workers share.

Law: a key is on the disk before anything is sealed with it, and a forgotten key is overwritten in
the file before ``forget`` returns. Without the master key the file is noise.
"""

import sqlite3
from collections.abc import Callable
from pathlib import Path

from gateway.cache.stores.sqlite.small_database import SmallDatabase

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
_REAPED_AT_A_TIME = 64


class SqliteScopeKeys(SmallDatabase):
    """The port ``ScopeKeys``. The first call opens the file, with mode 0600."""

    def __init__(self, path: Path, *, clock: Callable[[], float]) -> None:
        self._clock = clock
        loss = "what is sealed is lost"
        super().__init__(path, _SCHEMA, what="scope keys", loss=loss)

    async def find(self, tag: bytes, master: bytes) -> bytes | None:
        return await self.run(lambda connection: _find(connection, tag, master))

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

        return await self.run(action)

    async def forget(self, tag: bytes) -> None:
        await self.run(
            lambda connection: connection.execute("DELETE FROM scope_key WHERE tag = ?", (tag,))
        )


def _find(
    connection: sqlite3.Connection, tag: bytes, master: bytes, until: float = 0.0
) -> bytes | None:
    """Return the wrapped key if it is kept until ``until`` at least."""
    rows = connection.execute(
        "SELECT wrapped FROM scope_key WHERE tag = ? AND master = ? AND until >= ?",
        (tag, master, until),
    ).fetchall()
    return rows[0][0] if rows else None
