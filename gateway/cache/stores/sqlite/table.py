"""The tables of the entries: queries, the transaction that changes them, eviction.

Law: the totals change in the same transaction as the entries, and an entry is written only after
there is room for it. So every committed state is within the bounds, and its totals are exact.

The small columns that change often are in ``entry``, the bytes in ``answer``: to note a use or to
evict reads no page of an answer.
"""

import sqlite3
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from gateway.cache.ports import StoreStats
from gateway.cache.stores.memory import MOST_USES, SMALL_SHARE
from gateway.cache.stores.sqlite.file import CorruptFileError

TRIM_ENTRIES = 2048
"""The most entries that a commit evicts to meet the bounds, beside those in the way of a put."""

_VACUUM_PAGES = 256
_ROUNDS = 4096

# A damaged value may have any type.
VALUE = "SELECT CAST(value AS BLOB) FROM answer WHERE id = (SELECT id FROM entry WHERE key = ?)"
"""The encoded entry of a key."""

VALUES = """SELECT entry.id, entry.key, CAST(answer.value AS BLOB)
FROM entry JOIN answer ON answer.id = entry.id
WHERE entry.id > ? ORDER BY entry.id LIMIT ?"""
"""Id, key and encoded entry of the entries after an id, in order of id.

A replaced entry gets a new id at the end: a walk may meet it twice, but never misses it.
"""

KEYS = "SELECT id, key FROM entry WHERE id > ? ORDER BY id LIMIT ?"
"""Id and key of the entries after an id, in the same order."""

TOTALS = "SELECT entries, bytes FROM total"

# ``place`` is the end of the queue, whichever process added an entry last.
_ENTER = """INSERT INTO entry (main, place, uses, expires, bytes, key)
VALUES (?, (SELECT coalesce(max(place), 0) + 1 FROM entry WHERE main = ?), 0, ?, ?, ?)"""
_ENTER_MAIN = """UPDATE entry SET main = 1, uses = ?,
place = (SELECT coalesce(max(place), 0) + 1 FROM entry WHERE main = 1) WHERE id = ?"""
_HEAD = "SELECT id, bytes, main, key, uses FROM entry WHERE main = ? ORDER BY place LIMIT 1"
_EXPIRED = "SELECT id, bytes, main, key FROM entry WHERE expires <= ? ORDER BY expires LIMIT 1"


@dataclass(frozen=True, slots=True)
class Bounds:
    """The most bytes of the entries, and of the pages that hold them."""

    max_bytes: int
    max_file_bytes: int


@dataclass(frozen=True, slots=True)
class Change:
    """Store or replace the key's encoded entry; without a value, forget the key."""

    key: bytes
    value: bytes | None = None
    expires_at: float = 0.0


def shrink_file(connection: sqlite3.Connection, bounds: Bounds) -> bool:
    """Return some free pages to the disk; tell whether there is more to do.

    Raises sqlite3.Error.
    """
    file_bytes = _pragma(connection, "page_count") * _pragma(connection, "page_size")
    if file_bytes <= bounds.max_file_bytes or not _pragma(connection, "freelist_count"):
        return False
    # execute() would stop after the first page: the pragma yields a row without columns for each.
    connection.executescript(f"PRAGMA incremental_vacuum({_VACUUM_PAGES})")
    return True


def commit(
    connection: sqlite3.Connection,
    changes: Iterable[Change] = (),
    written_uses: Mapping[bytes, int] | None = None,
    *,
    bounds: Bounds,
    uses: dict[bytes, int],
    now: float,
) -> tuple[StoreStats, bool, list[bytes]]:
    """Make all changes in one transaction, or none; evict down to the bounds.

    ``uses`` has the uses that are not written down yet, by key. The transaction takes the uses of
    the keys that it meets, and writes down ``written_uses``. Returns the totals with this commit's
    evictions, whether the bounds are met, and the keys that were evicted. Raises sqlite3.Error.
    """
    connection.execute("BEGIN IMMEDIATE")
    try:
        transaction = _Transaction(connection, bounds, uses, now)
        if written_uses:
            transaction.write_uses(written_uses)
        for change in changes:
            transaction.apply(change)
        within = transaction.trim()
        stats = transaction.write_totals()
        connection.execute("COMMIT")
    finally:
        # SQLite has already rolled back after some errors, such as a full disk.
        if connection.in_transaction:
            connection.execute("ROLLBACK")
    return stats, within, transaction.evicted


def _pragma(connection: sqlite3.Connection, name: str) -> int:
    [(number,)] = connection.execute(f"PRAGMA {name}").fetchall()
    return int(number)


class _Transaction:
    def __init__(
        self, connection: sqlite3.Connection, bounds: Bounds, uses: dict[bytes, int], now: float
    ) -> None:
        self._connection = connection
        self._bounds = bounds
        self._uses = uses
        self._now = now
        [(self._entries, self._bytes, self._small_bytes, self._ghost_bytes)] = self._rows(
            "SELECT entries, bytes, small_bytes, ghost_bytes FROM total"
        )
        self.evicted: list[bytes] = []
        # Each round is a write: after ``_ROUNDS`` of them, used entries are evicted too.
        self._rounds_left = _ROUNDS

    def write_totals(self) -> StoreStats:
        self._connection.execute(
            "UPDATE total SET entries = ?, bytes = ?, small_bytes = ?, ghost_bytes = ?",
            (self._entries, self._bytes, self._small_bytes, self._ghost_bytes),
        )
        return StoreStats(self._entries, self._bytes, len(self.evicted))

    def apply(self, change: Change) -> None:
        """Make the change; evict entries if it needs room."""
        self._uses.pop(change.key, None)
        for row in self._rows("SELECT id, bytes, main FROM entry WHERE key = ?", change.key):
            self._drop(*row)
        if change.value is None:
            return
        main = self._forget_ghost(change.key)
        size = len(change.value)
        while self._entries and self._bytes + size > self._bounds.max_bytes:
            self._evict()
        row = self._connection.execute(_ENTER, (main, main, change.expires_at, size, change.key))
        self._connection.execute(
            "INSERT INTO answer (id, value) VALUES (?, ?)", (row.lastrowid, change.value)
        )
        self._entries += 1
        self._bytes += size
        self._small_bytes += 0 if main else size

    def trim(self) -> bool:
        """Evict down to both bounds, but TRIM_ENTRIES at most; tell whether the bounds are met."""
        page_bytes = _pragma(self._connection, "page_size")
        limit = len(self.evicted) + TRIM_ENTRIES
        while self._entries and len(self.evicted) < limit:
            if self._bytes <= self._bounds.max_bytes:
                pages = _pragma(self._connection, "page_count")
                used = pages - _pragma(self._connection, "freelist_count")
                if used * page_bytes <= self._bounds.max_file_bytes:
                    return True
            self._evict()
        return not self._entries

    def write_uses(self, uses: Mapping[bytes, int]) -> None:
        """Write down how often entries were used; unknown keys are ignored."""
        self._connection.executemany(
            "UPDATE entry SET uses = min(uses + ?, ?) WHERE key = ?",
            [(count, MOST_USES, key) for key, count in uses.items()],
        )

    def _drop(self, identity: int, size: int, main: bool) -> None:
        self._connection.execute("DELETE FROM answer WHERE id = ?", (identity,))
        self._connection.execute("DELETE FROM entry WHERE id = ?", (identity,))
        self._entries -= 1
        self._bytes -= size
        self._small_bytes -= 0 if main else size

    def _evict(self) -> None:
        """Take one step: evict the next entry, or give it another round.

        Expired entries go first, then the queues of ``memory.S3Fifo`` choose.
        """
        expired = self._rows(_EXPIRED, self._now)
        if expired:
            [(identity, size, main, key)] = expired
            self._drop(identity, size, main)
            self.evicted.append(key)
            return
        small_is_due = self._small_bytes * SMALL_SHARE > self._bounds.max_bytes
        head = (not small_is_due and self._rows(_HEAD, True)) or self._rows(_HEAD, False)
        if not head:
            raise CorruptFileError("the totals count entries that the table does not have")
        [(identity, size, main, key, uses)] = head
        uses = min(uses + self._uses.pop(key, 0), MOST_USES)
        if uses and self._rounds_left > 0:
            self._rounds_left -= 1
            self._connection.execute(_ENTER_MAIN, (uses - 1 if main else 0, identity))
            self._small_bytes -= 0 if main else size
            return
        self._drop(identity, size, main)
        self.evicted.append(key)
        if not main:
            self._remember_ghost(key, size)

    def _remember_ghost(self, key: bytes, size: int) -> None:
        self._connection.execute(
            "INSERT INTO ghost (key, place, bytes)"
            " VALUES (?, (SELECT coalesce(max(place), 0) + 1 FROM ghost), ?)",
            (key, size),
        )
        self._ghost_bytes += size
        while self._ghost_bytes > self._bounds.max_bytes:
            [(oldest,)] = self._rows("SELECT key FROM ghost ORDER BY place LIMIT 1")
            self._forget_ghost(oldest)

    def _forget_ghost(self, key: bytes) -> bool:
        """Forget that the key was evicted; tell whether it was, not long ago."""
        ghosts = self._rows("SELECT bytes FROM ghost WHERE key = ?", key)
        for (size,) in ghosts:
            self._connection.execute("DELETE FROM ghost WHERE key = ?", (key,))
            self._ghost_bytes -= size
        return bool(ghosts)

    def _rows(self, query: str, *parameters: object) -> list[Any]:
        return self._connection.execute(query, parameters).fetchall()
