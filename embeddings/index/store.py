"""Vectors on disk: DATA_DIR/vectors.sqlite3, so that a restart need not encode everything again.

Laws: rows say which encoder made them, and what another encoder or schema made is dropped at load;
a committed row survives kill -9 (WAL; the last moments before a power cut may be lost); a corrupt
file is set aside, never repaired in place; no text is stored, and since a vector gives away much of
its text, the file is readable by its owner only. Times are seconds since the epoch, and arguments.
"""

import logging
import os
import sqlite3
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final, assert_never

import numpy as np

from embeddings.encoder.encoder import Vector

FILE_NAME: Final = "vectors.sqlite3"
SCHEMA_VERSION: Final = 1

_BUSY_TIMEOUT_S: Final = 5.0
_CORRUPT: Final = frozenset({sqlite3.SQLITE_CORRUPT, sqlite3.SQLITE_NOTADB})
_SCHEMA: Final = f"""
    BEGIN IMMEDIATE;
    DROP TABLE IF EXISTS vectors;
    CREATE TABLE vectors (
        age INTEGER PRIMARY KEY AUTOINCREMENT,
        key BLOB NOT NULL UNIQUE,
        partition BLOB NOT NULL,
        expires_at REAL NOT NULL,
        encoder BLOB NOT NULL,
        vector BLOB NOT NULL
    );
    CREATE INDEX vectors_by_expiry ON vectors (expires_at);
    PRAGMA user_version = {SCHEMA_VERSION};
    COMMIT;
"""

_log = logging.getLogger(__name__)


class StoreError(Exception):
    """The vector store cannot be used: not writable, disk full, in use by another process."""


class CorruptStoreError(StoreError):
    """The file is not a sound database of ours."""


@dataclass(frozen=True, slots=True)
class Put:
    """Keep a vector, in place of the key's former one."""

    key: bytes
    partition: bytes
    expires_at: float
    vector: Vector


@dataclass(frozen=True, slots=True)
class Delete:
    """Forget a key."""

    key: bytes


@dataclass(frozen=True, slots=True)
class Expire:
    """Forget what has expired at `now`."""

    now: float


Write = Put | Delete | Expire


class VectorStore:
    """One open store file, for the vectors of one encoder. One thread at a time may use it."""

    def __init__(self, data_dir: Path, *, encoder_digest: str, dimensions: int, now: float) -> None:
        """Open or create the store in `data_dir`; a corrupt file is set aside. Raises StoreError.

        `now` dates the name of a file that has to be set aside.
        """
        self._path = data_dir / FILE_NAME
        self._encoder = bytes.fromhex(encoder_digest)
        self._dimensions = dimensions
        try:
            data_dir.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise StoreError(f"cannot create {data_dir}: {error.strerror}") from error
        try:
            self._connection = self._open()
        except CorruptStoreError as error:
            self._rename_aside(error, now)
            self._connection = self._open()

    def load(self, now: float) -> Iterator[Put]:
        """Yield the usable vectors, oldest first, and remove all other rows.

        Raises CorruptStoreError (then `set_aside`; what was yielded may be garbage), StoreError.
        """
        try:
            removed = self._connection.execute(
                "DELETE FROM vectors WHERE encoder IS NOT ? OR expires_at <= ? "
                "OR typeof(vector) IS NOT 'blob' OR length(vector) IS NOT ? "
                "OR typeof(expires_at) IS NOT 'real' OR typeof(key) IS NOT 'blob' "
                "OR typeof(partition) IS NOT 'blob'",
                (self._encoder, now, 4 * self._dimensions),
            ).rowcount
            if removed:
                _log.info("vector store: removed %d expired, foreign or damaged vectors", removed)
            rows = self._connection.execute(
                "SELECT key, partition, expires_at, vector FROM vectors ORDER BY age"
            )
            for key, partition, expires_at, vector in rows:
                yield Put(key, partition, expires_at, np.frombuffer(vector, dtype="<f4"))
        except sqlite3.Error as error:
            raise self._judged(error) from error

    def apply(self, writes: Sequence[Write]) -> None:
        """Carry out the writes in order, in one transaction. Raises StoreError; then none holds."""
        try:
            self._connection.execute("BEGIN IMMEDIATE")
            try:
                for write in writes:
                    self._apply_one(write)
            except BaseException:
                self._connection.execute("ROLLBACK")
                raise
            self._connection.execute("COMMIT")
        except sqlite3.Error as error:
            raise self._judged(error) from error

    def set_aside(self, reason: CorruptStoreError, now: float) -> None:
        """Rename the file to *.corrupt-<timestamp> and go on with an empty one."""
        self._connection.close()
        self._rename_aside(reason, now)
        self._connection = self._open()

    def close(self) -> None:
        """Close the file. The store cannot be used afterwards."""
        self._connection.close()

    def _apply_one(self, write: Write) -> None:
        match write:
            case Put(key, partition, expires_at, vector):
                self._connection.execute(
                    "INSERT OR REPLACE INTO vectors "
                    "(key, partition, expires_at, encoder, vector) VALUES (?, ?, ?, ?, ?)",
                    (key, partition, expires_at, self._encoder, vector.astype("<f4").tobytes()),
                )
            case Delete(key):
                self._connection.execute("DELETE FROM vectors WHERE key = ?", (key,))
            case Expire(now):
                self._connection.execute("DELETE FROM vectors WHERE expires_at <= ?", (now,))
            case _:
                assert_never(write)

    def _open(self) -> sqlite3.Connection:
        try:
            os.close(os.open(self._path, os.O_RDWR | os.O_CREAT, 0o600))
        except OSError as error:
            raise StoreError(f"cannot open {self._path}: {error.strerror}") from error
        connection = sqlite3.connect(
            self._path, timeout=_BUSY_TIMEOUT_S, isolation_level=None, check_same_thread=False
        )
        try:
            # Two services on one file would each miss what the other removes.
            connection.execute("PRAGMA locking_mode = EXCLUSIVE")
            connection.execute("PRAGMA journal_mode = WAL")
            connection.execute("PRAGMA synchronous = NORMAL")
            (version,) = connection.execute("PRAGMA user_version").fetchone()
            if version != SCHEMA_VERSION:
                if version:
                    _log.info("vector store: dropping vectors of schema version %d", version)
                connection.executescript(_SCHEMA)
        except sqlite3.Error as error:
            connection.close()
            raise self._judged(error) from error
        return connection

    def _judged(self, error: sqlite3.Error) -> StoreError:
        # The low byte is the primary code; the rest says where it was noticed.
        code = getattr(error, "sqlite_errorcode", sqlite3.SQLITE_OK) & 0xFF
        # A file of our version without our table or columns was not written by us.
        kind = CorruptStoreError if code in _CORRUPT | {sqlite3.SQLITE_ERROR} else StoreError
        if code == sqlite3.SQLITE_BUSY:
            return StoreError(f"{self._path} is in use by another process")
        return kind(f"{self._path}: {error}")

    def _rename_aside(self, reason: CorruptStoreError, now: float) -> None:
        stamp = time.strftime("%Y%m%dT%H%M%SZ", time.gmtime(now))
        aside = self._path.with_name(f"{FILE_NAME}.corrupt-{stamp}")
        self._path.rename(aside)
        for suffix in ("-wal", "-shm"):
            side_file = self._path.with_name(FILE_NAME + suffix)
            if side_file.exists():
                side_file.rename(aside.with_name(aside.name + suffix))
        _log.error("vector store is corrupt (%s): set aside as %s, starting empty", reason, aside)
