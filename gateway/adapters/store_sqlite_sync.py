"""The thread that carries the write-ahead log over into the database file.

This is where the disk is synced, which takes as long as it takes: puts go on meanwhile.
"""

import logging
import sqlite3
import threading
import time

from gateway.adapters.store_sqlite_file import EntryFile, Session
from gateway.ports import StoreError

_PASSES = 3
_CUT = "PRAGMA wal_checkpoint(TRUNCATE)"

_log = logging.getLogger(__name__)


class LogSyncer:
    """Checkpoints when asked; several requests meanwhile are one."""

    def __init__(self, file: EntryFile) -> None:
        self._file = file
        self._wake = threading.Event()
        self._stopping = False
        # SQLite lets only one connection checkpoint, and turns the second away at once.
        self._checkpointing = threading.Lock()
        self._thread = threading.Thread(target=self._run, name="store-syncer", daemon=True)
        self._thread.start()

    def request(self) -> None:
        """Ask for a checkpoint; returns at once."""
        self._wake.set()

    def cut(self, session: Session) -> None:
        """Checkpoint and empty the log on the caller's thread. Raises StoreError."""
        with self._checkpointing:
            session.run(lambda connection: connection.execute(_CUT).fetchall())

    def stop(self) -> None:
        """Let the thread end."""
        self._stopping = True
        self._wake.set()

    def join(self, deadline: float) -> bool:
        """Wait until ``deadline`` (monotonic); tell whether the thread has ended."""
        self._thread.join(max(0.0, deadline - time.monotonic()))
        return not self._thread.is_alive()

    def _run(self) -> None:
        session = Session(self._file)
        while True:
            self._wake.wait()
            self._wake.clear()
            if self._stopping:
                break
            try:
                with self._checkpointing:
                    session.run(_checkpoint)
            except StoreError as error:
                _log.warning("the store's log was not synced: %s", error)
            except Exception:  # noqa: BLE001 - the thread must live on
                _log.exception("the store's log was not synced")
        session.close_quietly()


def _checkpoint(connection: sqlite3.Connection) -> None:
    # A log starts over only once all of it was carried over; a later pass has little left to do.
    for _ in range(_PASSES):
        [(busy, in_log, done)] = connection.execute("PRAGMA wal_checkpoint(PASSIVE)").fetchall()
        if busy or in_log == done:
            return
