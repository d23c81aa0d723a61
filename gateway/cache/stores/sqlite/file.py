"""The database file of the entries: opened, renamed if corrupt, and reopened if replaced.

Law: a corrupt file never stops the gateway and is never deleted at once. It is renamed with its
write-ahead log, one log line says so, and an empty file takes its place. Any process that shares
the file may do this at any moment; the others see another inode at the path and open that file.

Opening, renaming and closing happen under an flock on a file beside the database. SQLite's own
locks are in the database file, and a process loses them when it closes *any* descriptor of it. So
this module opens that file itself only to create it.
"""

import fcntl
import logging
import os
import sqlite3
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, TypeVar

from gateway.cache.ports import StoreError, StoreFullError, StoreRefusedError

APPLICATION_ID = 0x52465241
FORMAT = 2
"""Version of the schema; a file of another version is renamed."""

PAGE_BYTES = 8192
"""A 4 KB page holds two 2 KB answers badly; measured in benchmarks/LOG.md."""

WAL_BYTES = 8 << 20
"""The write-ahead log is cut back to this size after a checkpoint."""

_SCHEMA = """
CREATE TABLE entry (
    id INTEGER PRIMARY KEY,
    main INTEGER NOT NULL,
    place INTEGER NOT NULL,
    uses INTEGER NOT NULL,
    expires REAL NOT NULL,
    bytes INTEGER NOT NULL,
    key BLOB NOT NULL UNIQUE
);
CREATE INDEX entry_by_place ON entry (main, place);
CREATE INDEX entry_by_expiry ON entry (expires);
CREATE TABLE answer (id INTEGER PRIMARY KEY, value BLOB NOT NULL);
CREATE TABLE ghost (key BLOB PRIMARY KEY, place INTEGER NOT NULL, bytes INTEGER NOT NULL);
CREATE INDEX ghost_by_place ON ghost (place);
CREATE TABLE total (
    id INTEGER PRIMARY KEY CHECK (id = 0),
    entries INTEGER,
    bytes INTEGER,
    small_bytes INTEGER,
    ghost_bytes INTEGER
);
INSERT INTO total VALUES (0, 0, 0, 0, 0);
"""

_TABLES = {"entry", "answer", "ghost", "total"}
_LOCK_POLL_SECONDS = 0.005
_OPEN_ATTEMPTS = 3
_CORRUPT = frozenset({sqlite3.SQLITE_CORRUPT, sqlite3.SQLITE_NOTADB})

_BUSY = frozenset({sqlite3.SQLITE_BUSY, sqlite3.SQLITE_LOCKED})
_REMEDIES = {
    sqlite3.SQLITE_FULL: "make room on the disk",
    sqlite3.SQLITE_READONLY: "let the gateway write to the file and to its folder",
    sqlite3.SQLITE_CANTOPEN: "it must be a file, and the gateway must be able to write it",
}

_log = logging.getLogger(__name__)
T = TypeVar("T")

Inode = tuple[int, int] | None
"""The device and number of a file, or None where there is none."""


class CorruptFileError(sqlite3.DatabaseError):
    """SQLite can read the file, but it is not ours, of another version, or contradicts itself."""


class EntryFile:
    """One thread's connection to the database at ``path``, replaced when the file is."""

    def __init__(
        self,
        path: Path,
        *,
        busy_seconds: float,
        clock: Callable[[], float],
        opened: Callable[[Inode], None] = lambda _: None,
    ) -> None:
        """Tell ``opened`` which file is open, each time; it runs on the thread that opens it."""
        self._path = path
        self._opened = opened
        self._busy_seconds = busy_seconds
        self._clock = clock
        self._connection: sqlite3.Connection | None = None
        self._inode: Inode = None

    def run(self, action: Callable[[sqlite3.Connection], T]) -> T:
        """Return ``action(connection)``, of which the effect is in the file now at the path.

        The action runs again if the file was corrupt or replaced meanwhile, so it must be all or
        nothing, and repeatable. Raises StoreError.
        """
        try:
            for _ in range(_OPEN_ATTEMPTS):
                connection = self._current()
                try:
                    result = action(connection)
                except sqlite3.Error as error:
                    if not is_corrupt(error):
                        raise
                    with self._lock():
                        # Another process may have renamed it already.
                        if self._is_current():
                            self._rename(str(error))
                else:
                    if self._is_current():
                        return result
                self.close()
        except (sqlite3.Error, OSError) as error:
            self.close()
            raise self._fault(error) from error
        raise StoreError(f"{self._path} was replaced again and again")

    def _fault(self, error: Exception) -> StoreError:
        if isinstance(error, TimeoutError) or _code(error) in _BUSY:
            return StoreError(f"{self._path} is busy: {error}")
        is_full = _code(error) == sqlite3.SQLITE_FULL
        remedy = _REMEDIES.get(_code(error), "look at the disk and at the system's log")
        kind = StoreFullError if is_full else StoreRefusedError
        return kind(f"{self._path}: {error}: {remedy}")

    def rows(self, query: str, *parameters: object) -> list[Any]:
        # fetchall also ends the read transaction; an open one would keep the log from its reset.
        return self.run(lambda connection: connection.execute(query, parameters).fetchall())

    def close(self) -> None:
        """Close the connection, if there is one; a fault is only logged."""
        connection, self._connection = self._connection, None
        if connection is None:
            return
        try:
            # The last connection removes the log by its *path*.
            with self._lock():
                connection.close()
        except (sqlite3.Error, OSError) as error:
            _log.warning("a connection to %s was not closed cleanly: %s", self._path, error)

    def log_bytes(self) -> int:
        try:
            return self._beside("-wal").stat().st_size
        except FileNotFoundError:
            return 0

    def _current(self) -> sqlite3.Connection:
        """Connect; create a missing file, replace a corrupt one. Raises sqlite3.Error, OSError."""
        if self._connection is not None and not self._is_current():
            self.close()
        if self._connection is None:
            with self._lock():
                try:
                    self._connection = self._connect()
                except sqlite3.DatabaseError as error:
                    if not is_corrupt(error):
                        raise
                    self._rename(str(error))
                    self._connection = self._connect()
                self._inode = self._inode_at_path()
                self._opened(self._inode)
        return self._connection

    def _is_current(self) -> bool:
        """Tell whether the path still names the file that was opened."""
        return self._inode is not None and self._inode_at_path() == self._inode

    def _beside(self, suffix: str) -> Path:
        return self._path.with_name(self._path.name + suffix)

    def _inode_at_path(self) -> Inode:
        try:
            status = self._path.stat()
        except FileNotFoundError:
            return None
        return status.st_dev, status.st_ino

    @contextmanager
    def _lock(self) -> Iterator[None]:
        descriptor = os.open(self._beside(".lock"), os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        try:
            deadline = time.monotonic() + self._busy_seconds
            while True:
                try:
                    fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
                    break
                except BlockingIOError:
                    if time.monotonic() > deadline:
                        raise TimeoutError(f"{self._path}: its lock is held elsewhere") from None
                    time.sleep(_LOCK_POLL_SECONDS)
            yield
        finally:
            os.close(descriptor)

    def _connect(self) -> sqlite3.Connection:
        if not self._path.exists():
            # Only the owner may read prompts and answers; the log gets the file's mode.
            os.close(os.open(self._path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600))
        connection = sqlite3.connect(self._path, timeout=self._busy_seconds, isolation_level=None)
        try:
            self._prepare(connection)
        except BaseException:
            connection.close()
            raise
        return connection

    def _prepare(self, connection: sqlite3.Connection) -> None:
        def pragma(text: str) -> object:
            rows = connection.execute(f"PRAGMA {text}").fetchall()
            return rows[0][0] if rows else None

        new = pragma("application_id") == 0 and not pragma("schema_version")
        if new:
            # These work only on an empty file; on a full one they would wait for the writer.
            pragma(f"page_size = {PAGE_BYTES}")
            pragma("auto_vacuum = INCREMENTAL")
        if pragma("journal_mode = WAL") != "wal":
            raise sqlite3.OperationalError("this file system cannot share a write-ahead log")
        pragma("synchronous = NORMAL")
        pragma(f"journal_size_limit = {WAL_BYTES}")
        # The writer checkpoints by itself, after it has answered the waiting puts.
        pragma("wal_autocheckpoint = 0")
        # If a mapped file is cut short, SIGBUS kills the process; without a map the read fails.
        pragma("mmap_size = 0")
        pragma("cell_size_check = ON")
        pragma("secure_delete = FAST")
        if new:
            connection.executescript(
                f"BEGIN IMMEDIATE; PRAGMA application_id = {APPLICATION_ID};"
                f"PRAGMA user_version = {FORMAT}; {_SCHEMA} COMMIT;"
            )
        if pragma("application_id") != APPLICATION_ID:
            raise CorruptFileError("not a database of entries")
        if (version := pragma("user_version")) != FORMAT:
            raise CorruptFileError(f"schema version {version}, expected {FORMAT}")
        tables = connection.execute(
            "SELECT name FROM sqlite_schema WHERE type = 'table'"
        ).fetchall()
        if {name for (name,) in tables} != _TABLES:
            raise CorruptFileError("a table is missing or too many")
        if connection.execute("SELECT count(*) FROM total").fetchall() != [(1,)]:
            raise CorruptFileError("its totals are missing")

    def _rename(self, reason: str) -> None:
        stamp = datetime.fromtimestamp(self._clock(), UTC).strftime("%Y%m%dT%H%M%S.%fZ")
        aside = self._beside(f".corrupt-{stamp}")
        # The operator may look at one; more of them could fill a failing disk.
        for older in self._path.parent.glob(f"{self._path.name}.corrupt-*"):
            older.unlink(missing_ok=True)
        # The log goes first: otherwise SQLite would replay it into the new, empty file.
        for suffix in ("-wal", "-shm", ""):
            source = self._beside(suffix)
            if source.exists():
                source.rename(aside.with_name(aside.name + suffix))
        _log.error(
            "corrupt store file %s set aside as %s, starting empty: %s",
            self._path,
            aside.name,
            reason,
            extra={"fields": {"event": "store"}},
        )


def is_corrupt(error: sqlite3.Error) -> bool:
    """Tell whether the file is at fault, not the disk, the permissions or a lock."""
    return isinstance(error, CorruptFileError) or _code(error) in _CORRUPT


def _code(error: Exception) -> int:
    code: int = getattr(error, "sqlite_errorcode", 0)
    return code & 0xFF
