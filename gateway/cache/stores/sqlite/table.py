"""The tables of the entries: point reads, write transactions, eviction.

Law: the totals change in the same transaction as the entries, and an entry is written only after
there is room for it. So every committed state is within the bounds, and its totals are exact.

The small columns that change often are in ``entry``, the bytes in ``answer``: to note a use or to
evict reads no page of an answer.
"""

import sqlite3
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

from gateway.cache.stores.entry_codec import DamagedEntryError, decode_entry
from gateway.cache.stores.eviction import MOST_USES, SMALL_SHARE
from gateway.cache.stores.sqlite.file import CorruptFileError

MOST_TOUCHED = 65_536
_VACUUM_PAGES = 256
_ROUNDS = 4096

# ``place`` is the end of the queue, whichever process added an entry last.
_ENTER = """INSERT INTO entry (main, place, uses, expires, bytes, key)
VALUES (?, (SELECT coalesce(max(place), 0) + 1 FROM entry WHERE main = ?), ?, ?, ?, ?)"""
_ENTER_MAIN = """UPDATE entry SET main = 1, uses = ?,
place = (SELECT coalesce(max(place), 0) + 1 FROM entry WHERE main = 1) WHERE id = ?"""
_HEAD = "SELECT id, bytes, main, key, uses FROM entry WHERE main = ? ORDER BY place LIMIT 1"
_EXPIRED = "SELECT id, bytes, main FROM entry WHERE expires <= ? ORDER BY expires LIMIT 1"


class Recency:
    """Uses that are not written down yet: a hit counts in memory and never writes.

    The loop calls ``touch``, the writer's thread the other methods.
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._uses: dict[bytes, int] = {}

    def touch(self, key: bytes) -> None:
        """Note a use. With MOST_TOUCHED of them unwritten, uses of other keys are not noted."""
        # Each hot hit comes here: a key that has all its uses needs no lock.
        if self._uses.get(key, 0) >= MOST_USES:
            return
        with self._lock:
            uses = self._uses
            if key in uses:
                uses[key] += 1
            elif len(uses) < MOST_TOUCHED:
                uses[key] = 1

    def pop(self, key: bytes) -> int:
        """Return the uses of a key, and forget them."""
        with self._lock:
            return self._uses.pop(key, 0)

    def take(self) -> dict[bytes, int]:
        """Return the uses of all keys, and forget them."""
        with self._lock:
            uses, self._uses = self._uses, {}
            return uses


@dataclass(frozen=True, slots=True)
class Put:
    """Store these encoded bytes, or replace those of the key."""

    key: bytes
    value: bytes
    expires_at: float
    rounds: int = 0
    """The uses that the entry starts with, see ``eviction.Rounds``."""


@dataclass(frozen=True, slots=True)
class Delete:
    """Forget the key; with ``damaged``, only if its bytes are damaged and not replaced by now."""

    key: bytes
    damaged: bool = False


Change = Put | Delete


@dataclass(frozen=True, slots=True)
class Bounds:
    """The most bytes of the entries, and of the pages that hold them."""

    max_bytes: int
    max_file_bytes: int


@dataclass(frozen=True, slots=True)
class Totals:
    """What the file holds, and how many entries a transaction evicted."""

    entries: int
    bytes: int
    evicted: int = 0


def read_value(connection: sqlite3.Connection, key: bytes) -> bytes | None:
    """Return the encoded entry of the key. Raises sqlite3.Error, DamagedEntryError."""
    # fetchall also ends the read transaction; an open one would keep the log from its reset.
    rows = connection.execute(
        "SELECT value FROM answer WHERE id = (SELECT id FROM entry WHERE key = ?)", (key,)
    ).fetchall()
    return checked_value(rows[0][0]) if rows else None


def checked_value(value: object) -> bytes:
    """Return the value, which must be bytes. Raises DamagedEntryError."""
    if not isinstance(value, bytes):
        raise DamagedEntryError("the stored value is not bytes")
    return value


def read_values(
    connection: sqlite3.Connection, after: int, limit: int
) -> list[tuple[int, bytes, object]]:
    """Return (id, key, encoded entry) of the entries after this id, in order of id.

    A replaced entry gets a new id at the end: a walk may meet it twice, but never misses it.
    Raises sqlite3.Error.
    """
    return connection.execute(
        "SELECT entry.id, entry.key, answer.value FROM entry JOIN answer ON answer.id = entry.id"
        " WHERE entry.id > ? ORDER BY entry.id LIMIT ?",
        (after, limit),
    ).fetchall()


def read_totals(connection: sqlite3.Connection) -> Totals:
    """Return the committed totals. Raises sqlite3.Error."""
    [(entries, size)] = connection.execute("SELECT entries, bytes FROM total").fetchall()
    return Totals(entries, size)


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


def _pragma(connection: sqlite3.Connection, name: str) -> int:
    [(number,)] = connection.execute(f"PRAGMA {name}").fetchall()
    return int(number)


@contextmanager
def write_transaction(
    connection: sqlite3.Connection, bounds: Bounds, recency: Recency, now: float
) -> Iterator["WriteTransaction"]:
    """Commit all changes of the context at its end, or none. Raises sqlite3.Error."""
    connection.execute("BEGIN IMMEDIATE")
    try:
        transaction = WriteTransaction(connection, bounds, recency, now)
        yield transaction
        transaction.write_totals()
        connection.execute("COMMIT")
    finally:
        # SQLite has already rolled back after some errors, such as a full disk.
        if connection.in_transaction:
            connection.execute("ROLLBACK")


class WriteTransaction:
    """A transaction in which entries change. Its methods raise sqlite3.Error."""

    def __init__(
        self, connection: sqlite3.Connection, bounds: Bounds, recency: Recency, now: float
    ) -> None:
        self._connection = connection
        self._bounds = bounds
        self._recency = recency
        self._now = now
        [(self._entries, self._bytes, self._small_bytes, self._ghost_bytes)] = self._rows(
            "SELECT entries, bytes, small_bytes, ghost_bytes FROM total"
        )
        self._evicted = 0
        # Each round is a write: after so many, used entries are evicted too.
        self._rounds_left = _ROUNDS

    @property
    def totals(self) -> Totals:
        """The totals of the file after the commit."""
        return Totals(self._entries, self._bytes, self._evicted)

    def write_totals(self) -> None:
        """Write down the totals."""
        self._connection.execute(
            "UPDATE total SET entries = ?, bytes = ?, small_bytes = ?, ghost_bytes = ?",
            (self._entries, self._bytes, self._small_bytes, self._ghost_bytes),
        )

    def apply(self, change: Change) -> None:
        """Make the change; evict entries if it needs room."""
        if isinstance(change, Put):
            self._remove(change.key)
            main = self._forget_ghost(change.key)
            while self._entries and self._bytes + len(change.value) > self._bounds.max_bytes:
                self._evict()
            self._insert(change, main=main)
        elif not change.damaged or self._is_damaged(change.key):
            self._remove(change.key)

    def trim(self, max_evictions: int) -> bool:
        """Evict down to both bounds, but so many at most; tell whether the bounds are met."""
        page_bytes = _pragma(self._connection, "page_size")
        limit = self._evicted + max_evictions
        while self._entries and self._evicted < limit:
            if self._bytes <= self._bounds.max_bytes:
                pages = _pragma(self._connection, "page_count")
                used = pages - _pragma(self._connection, "freelist_count")
                if used * page_bytes <= self._bounds.max_file_bytes:
                    return True
            self._evict()
        return not self._entries

    def write_uses(self, uses: dict[bytes, int]) -> None:
        """Write down how often entries were used; unknown keys are ignored."""
        self._connection.executemany(
            "UPDATE entry SET uses = min(uses + ?, ?) WHERE key = ?",
            [(count, MOST_USES, key) for key, count in uses.items()],
        )

    def _insert(self, change: Put, *, main: bool) -> None:
        size = len(change.value)
        row = self._connection.execute(
            _ENTER, (main, main, change.rounds, change.expires_at, size, change.key)
        )
        self._connection.execute(
            "INSERT INTO answer (id, value) VALUES (?, ?)", (row.lastrowid, change.value)
        )
        self._entries += 1
        self._bytes += size
        self._small_bytes += 0 if main else size

    def _remove(self, key: bytes) -> None:
        self._recency.pop(key)
        for row in self._rows("SELECT id, bytes, main FROM entry WHERE key = ?", key):
            self._drop(*row)

    def _drop(self, identity: int, size: int, main: bool) -> None:
        self._connection.execute("DELETE FROM answer WHERE id = ?", (identity,))
        self._connection.execute("DELETE FROM entry WHERE id = ?", (identity,))
        self._entries -= 1
        self._bytes -= size
        self._small_bytes -= 0 if main else size

    def _is_damaged(self, key: bytes) -> bool:
        try:
            value = read_value(self._connection, key)
            if value is not None:
                decode_entry(value, key)
        except DamagedEntryError:
            return True
        return False

    # Eviction: expired entries first, then S3-FIFO on tables (see ``eviction.S3Fifo``).

    def _evict(self) -> None:
        """Take one step: evict an entry, or give the one whose turn it is another round."""
        expired = self._rows(_EXPIRED, self._now)
        if expired:
            self._drop(*expired[0])
            self._evicted += 1
            return
        small_is_due = self._small_bytes * SMALL_SHARE > self._bounds.max_bytes
        head = (not small_is_due and self._rows(_HEAD, True)) or self._rows(_HEAD, False)
        if not head:
            raise CorruptFileError("the totals count entries that the table does not have")
        [(identity, size, main, key, uses)] = head
        uses = min(uses + self._recency.pop(key), MOST_USES)
        if uses and self._rounds_left > 0:
            self._rounds_left -= 1
            self._connection.execute(_ENTER_MAIN, (uses - 1 if main else 0, identity))
            self._small_bytes -= 0 if main else size
            return
        self._drop(identity, size, main)
        self._evicted += 1
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
