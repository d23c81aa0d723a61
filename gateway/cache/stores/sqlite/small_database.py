"""A small database of one table or two, which the workers share: opened late, renamed if corrupt.

Law: an action is whole or not at all, and is on the disk before it returns. There is no write-ahead
log, since an old frame in it could hold what was deleted. A database that does not wait for the
disk has such a log, and may lose its last actions with the power.
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

_BUSY_SECONDS = 1.0

_log = logging.getLogger(__name__)
T = TypeVar("T")


class SmallDatabase:
    """One file. The first action makes it, with mode 0600."""

    def __init__(
        self, path: Path, schema: str, *, what: str, loss: str, waits_for_disk: bool = True
    ) -> None:
        """Note the words of messages: ``what`` it holds, and the ``loss`` if it is corrupt."""
        self._path = path
        self._schema = schema
        self._what = what
        self._loss = loss
        self._waits_for_disk = waits_for_disk
        self._lock = threading.Lock()
        self._connection: sqlite3.Connection | None = None
        self._closed = False

    async def run(self, action: Callable[[sqlite3.Connection], T]) -> T:
        """Return the action's result, with its changes committed. Raises StoreError."""
        return await asyncio.to_thread(self._run_here, action)

    async def close(self) -> None:
        """Close the file; later actions raise StoreError."""
        self._closed = True

        def disconnect() -> None:
            with self._lock:
                self._disconnect()

        await asyncio.to_thread(disconnect)

    def _run_here(self, action: Callable[[sqlite3.Connection], T]) -> T:
        with self._lock:
            if self._closed:
                raise StoreError(f"the {self._what} are closed")
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
                raise StoreError(f"{self._what}: {type(error).__name__}: {error}") from error

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
            if self._waits_for_disk:
                self._connection.execute("PRAGMA journal_mode = TRUNCATE")
                self._connection.execute("PRAGMA synchronous = FULL")
                self._connection.execute("PRAGMA secure_delete = ON")
            else:
                self._connection.execute("PRAGMA journal_mode = WAL")
                self._connection.execute("PRAGMA synchronous = NORMAL")
            self._connection.executescript(self._schema)
        return self._connection

    def _rename_corrupt(self, error: sqlite3.Error) -> None:
        aside = self._path.with_name(self._path.name + ".corrupt")
        # First the log: SQLite would write its frames into the new file.
        for suffix in ("-wal", "-shm"):
            self._path.with_name(self._path.name + suffix).unlink(missing_ok=True)
        self._path.rename(aside)
        _log.error(
            "corrupt %s %s set aside as %s; %s: %s",
            self._what,
            self._path,
            aside.name,
            self._loss,
            error,
            extra={"fields": {"event": "store"}},
        )

    def _disconnect(self) -> None:
        if self._connection is not None:
            self._connection.close()
            self._connection = None
