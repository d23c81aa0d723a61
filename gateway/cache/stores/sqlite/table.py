"""What is done to the entries' tables: point reads and write transactions.

Law: the totals change in the same transaction as the entries, and an entry is written only after
room was made for it; so every committed state is within the bounds and exactly accounted.

An entry's small, often changed facts live in ``entry``, its bytes in ``answer``: noting a use or
choosing what to evict never reads an answer's pages.
"""

import sqlite3
from dataclasses import dataclass
from types import TracebackType
from typing import Self, assert_never

from gateway.cache.stores.entry_codec import DamagedEntryError, decode_stored
from gateway.cache.stores.eviction import MOST_USES, SMALL_SHARE
from gateway.cache.stores.recency import Recency
from gateway.cache.stores.sqlite.file import CorruptFileError

_VICTIMS_AT_A_TIME = 16
_VACUUM_PAGES = 256
_ROUNDS = 4096

# The place is the end of the queue, whichever process it was that put somebody there last.
_ENTER = """INSERT INTO entry (main, place, uses, expires, bytes, key)
VALUES (?, (SELECT coalesce(max(place), 0) + 1 FROM entry WHERE main = ?), ?, ?, ?, ?)"""
_ENTER_MAIN = """UPDATE entry SET main = 1, uses = ?,
place = (SELECT coalesce(max(place), 0) + 1 FROM entry WHERE main = 1) WHERE id = ?"""


@dataclass(frozen=True, slots=True)
class Put:
    """Store these encoded bytes, or replace what the key has."""

    key: bytes
    value: bytes
    expires_at: float
    rounds: int = 0
    """Rounds that the entry starts with, see ``core.eviction``."""


@dataclass(frozen=True, slots=True)
class Delete:
    """Forget the key."""

    key: bytes


@dataclass(frozen=True, slots=True)
class Discard:
    """Forget the key if its bytes are still damaged: it may have been replaced meanwhile."""

    key: bytes


Change = Put | Delete | Discard


@dataclass(frozen=True, slots=True)
class Bounds:
    """Bytes the entries, and the pages they lie in, may take."""

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
    # fetchall also ends the read transaction; one left open would keep the log from being reset.
    rows = connection.execute(
        "SELECT value FROM answer WHERE id = (SELECT id FROM entry WHERE key = ?)", (key,)
    ).fetchall()
    if not rows:
        return None
    return whole_value(rows[0][0])


def whole_value(value: object) -> bytes:
    """Return the value as it was written. Raises DamagedEntryError."""
    if not isinstance(value, bytes):
        raise DamagedEntryError("the stored value is not bytes")
    return value


def read_values(
    connection: sqlite3.Connection, after: int, limit: int
) -> list[tuple[int, bytes, object]]:
    """Return (id, key, encoded entry) of the entries behind the id ``after``, in order of id.

    An entry that is replaced gets a new id at the end: a walk meets it again, never not at all.
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
    """Give a bounded number of free pages back to the disk; tell whether there is more to do.

    Raises sqlite3.Error.
    """
    excess = _pages(connection) * _page_bytes(connection) > bounds.max_file_bytes
    if not excess or not _free_pages(connection):
        return False
    # execute() would stop after the first page: this pragma yields a row without columns for each.
    connection.executescript(f"PRAGMA incremental_vacuum({_VACUUM_PAGES})")
    return True


class WriteTransaction:
    """A context in which entries change; all of it is committed at its end, or none.

    Entering and leaving raise sqlite3.Error, and so does every method.
    """

    def __init__(
        self, connection: sqlite3.Connection, bounds: Bounds, recency: Recency, now: float
    ) -> None:
        self._connection = connection
        self._bounds = bounds
        self._recency = recency
        self._now = now
        self._entries = 0
        self._bytes = 0
        self._small_bytes = 0
        self._ghosts = _Ghosts(connection, bounds.max_bytes)
        self._evicted = 0
        # Each is a write: what is hot beyond these many goes all the same.
        self._rounds_left = _ROUNDS

    def __enter__(self) -> Self:
        self._connection.execute("BEGIN IMMEDIATE")
        try:
            [(self._entries, self._bytes, self._small_bytes, self._ghosts.bytes)] = (
                self._connection.execute(
                    "SELECT entries, bytes, small_bytes, ghost_bytes FROM total"
                ).fetchall()
            )
        except BaseException:
            self._connection.execute("ROLLBACK")
            raise
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        try:
            if error is None:
                self._connection.execute(
                    "UPDATE total SET entries = ?, bytes = ?, small_bytes = ?, ghost_bytes = ?",
                    (self._entries, self._bytes, self._small_bytes, self._ghosts.bytes),
                )
                self._connection.execute("COMMIT")
        finally:
            # SQLite has already rolled back on some errors, a full disk among them.
            if self._connection.in_transaction:
                self._connection.execute("ROLLBACK")

    @property
    def totals(self) -> Totals:
        """What the file will hold once this is committed."""
        return Totals(self._entries, self._bytes, self._evicted)

    def apply(self, change: Change) -> None:
        """Make the change, evicting what must go for it."""
        match change:
            case Put():
                self._remove(change.key)
                main = self._ghosts.recall(change.key)
                self._make_room(len(change.value))
                self._insert(change, main=main)
            case Delete():
                self._remove(change.key)
            case Discard():
                if self._is_damaged(change.key):
                    self._remove(change.key)
            case _:
                assert_never(change)

    def trim(self, max_evictions: int) -> bool:
        """Evict until within both bounds, or as often as allowed; tell whether they are met."""
        page_bytes = _page_bytes(self._connection)
        limit = self._evicted + max_evictions
        while self._entries and self._evicted < limit:
            if self._bytes > self._bounds.max_bytes:
                self._evict_some(self._bounds.max_bytes)
                continue
            used = _pages(self._connection) - _free_pages(self._connection)
            if used * page_bytes <= self._bounds.max_file_bytes:
                return True
            self._evict_some(0)
        return not self._entries

    def write_uses(self, uses: dict[bytes, int]) -> None:
        """Write down how often entries were used; keys that are gone are ignored."""
        self._connection.executemany(
            "UPDATE entry SET uses = min(uses + ?, ?) WHERE key = ?",
            [(count, MOST_USES, key) for key, count in uses.items()],
        )

    def _insert(self, change: Put, *, main: bool) -> None:
        size = len(change.value)
        row = self._connection.execute(
            _ENTER,
            (main, main, change.rounds, change.expires_at, size, change.key),
        )
        self._connection.execute(
            "INSERT INTO answer (id, value) VALUES (?, ?)", (row.lastrowid, change.value)
        )
        self._entries += 1
        self._bytes += size
        self._small_bytes += 0 if main else size

    def _remove(self, key: bytes) -> None:
        self._recency.pop(key)
        for identity, size, main in self._connection.execute(
            "SELECT id, bytes, main FROM entry WHERE key = ?", (key,)
        ).fetchall():
            self._drop(identity, size, main)

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
                decode_stored(value, key)
        except DamagedEntryError:
            return True
        return False

    def _make_room(self, size: int) -> None:
        while self._entries and self._bytes + size > self._bounds.max_bytes:
            self._evict_some(self._bounds.max_bytes - size)

    def _evict_some(self, until_bytes: int) -> None:
        """Take up to a handful of steps: expired entries first, then whose turn it is."""
        expired = self._connection.execute(
            "SELECT id, bytes, main FROM entry WHERE expires <= ? ORDER BY expires LIMIT ?",
            (self._now, _VICTIMS_AT_A_TIME),
        ).fetchall()
        for identity, size, main in expired:
            if self._bytes <= until_bytes:
                return
            self._drop(identity, size, main)
            self._evicted += 1
        if not expired:
            self._take_turns(until_bytes)

    def _take_turns(self, until_bytes: int) -> None:
        """Do what ``core.eviction`` does, on tables."""
        main_rows = self._head(main=True)
        small = self._small_is_due or not main_rows
        rows = self._head(main=False) if small else main_rows
        if not rows:
            raise CorruptFileError("the totals count entries that the table does not have")
        has_main = bool(main_rows)
        for identity, size, key, uses in rows:
            if self._bytes <= until_bytes or small != (self._small_is_due or not has_main):
                return
            counted = min(uses + self._recency.pop(key), MOST_USES)
            if counted and self._rounds_left > 0:
                self._rounds_left -= 1
                self._go_round(identity, size, 0 if small else counted - 1, small=small)
                has_main = True
                continue
            self._drop(identity, size, not small)
            self._evicted += 1
            if small:
                self._ghosts.remember(key, size)

    @property
    def _small_is_due(self) -> bool:
        return self._small_bytes * SMALL_SHARE > self._bounds.max_bytes

    def _head(self, *, main: bool) -> list[tuple[int, int, bytes, int]]:
        return self._connection.execute(
            "SELECT id, bytes, key, uses FROM entry WHERE main = ? ORDER BY place LIMIT ?",
            (main, _VICTIMS_AT_A_TIME),
        ).fetchall()

    def _go_round(self, identity: int, size: int, uses: int, *, small: bool) -> None:
        self._connection.execute(
            _ENTER_MAIN,
            (uses, identity),
        )
        if small:
            self._small_bytes -= size


class _Ghosts:
    """Keys of entries that went unused, so that one which returns soon is taken for what it is.

    Their sizes add up to no more than the store's bound; the oldest go (see ``core.eviction``).
    ``bytes`` is read and written with the totals. Methods raise sqlite3.Error.
    """

    def __init__(self, connection: sqlite3.Connection, max_bytes: int) -> None:
        self._connection = connection
        self._max_bytes = max_bytes
        self.bytes = 0

    def remember(self, key: bytes, size: int) -> None:
        """Keep the key of an entry that goes."""
        self._connection.execute(
            "INSERT INTO ghost (key, place, bytes)"
            " VALUES (?, (SELECT coalesce(max(place), 0) + 1 FROM ghost), ?)",
            (key, size),
        )
        self.bytes += size
        while self.bytes > self._max_bytes:
            [(oldest, freed)] = self._connection.execute(
                "SELECT key, bytes FROM ghost ORDER BY place LIMIT 1"
            ).fetchall()
            self._forget(oldest, freed)

    def recall(self, key: bytes) -> bool:
        """Tell whether the key went not long ago, and forget that it did."""
        rows = self._connection.execute("SELECT bytes FROM ghost WHERE key = ?", (key,)).fetchall()
        for (size,) in rows:
            self._forget(key, size)
        return bool(rows)

    def _forget(self, key: bytes, size: int) -> None:
        self._connection.execute("DELETE FROM ghost WHERE key = ?", (key,))
        self.bytes -= size


def _pages(connection: sqlite3.Connection) -> int:
    return _figure(connection, "page_count")


def _free_pages(connection: sqlite3.Connection) -> int:
    return _figure(connection, "freelist_count")


def _page_bytes(connection: sqlite3.Connection) -> int:
    return _figure(connection, "page_size")


def _figure(connection: sqlite3.Connection, pragma: str) -> int:
    [(figure,)] = connection.execute(f"PRAGMA {pragma}").fetchall()
    return int(figure)
