"""The threads that read entries, so that the loop never waits for a disk.

A point read from the page cache takes some 10 us and the hop here and back ten times that; but the
same read from a busy disk takes as long as the disk likes.
"""

import logging
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass
from queue import SimpleQueue
from typing import TypeVar

from gateway.cache.entry import Entry
from gateway.cache.ports import Page, StoreError
from gateway.cache.stores.entry_codec import DamagedEntryError, decode_stored
from gateway.cache.stores.sqlite.file import EntryFile, Reply, Session
from gateway.cache.stores.sqlite.table import read_value, read_values, whole_value

MAX_WAITING = 1024

_log = logging.getLogger(__name__)
R = TypeVar("R")
T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class _Get:
    key: bytes
    reply: Reply[Entry | None]


@dataclass(frozen=True, slots=True)
class _Walk:
    after: bytes | None
    limit: int
    reply: Reply[Page]


@dataclass(frozen=True, slots=True)
class _Stop:
    """The last thing a thread is told."""


class Readers:
    """A few threads, each with its own connection; they never wait for the writer."""

    def __init__(self, file: EntryFile, count: int, damaged: Callable[[bytes], None]) -> None:
        self._file = file
        self._damaged = damaged
        self._reads: SimpleQueue[_Get | _Walk | _Stop] = SimpleQueue()
        self._threads = [
            threading.Thread(target=self._run, name=f"store-reader-{n}", daemon=True)
            for n in range(count)
        ]
        for thread in self._threads:
            thread.start()

    def submit(self, key: bytes) -> Reply[Entry | None]:
        """Queue a look-up. Raises StoreError when too many wait already."""
        reply: Reply[Entry | None] = Reply()
        self._queue(_Get(key, reply))
        return reply

    def walk(self, after: bytes | None, limit: int) -> Reply[Page]:
        """Queue the reading of a page. Raises StoreError when too many wait already."""
        reply: Reply[Page] = Reply()
        self._queue(_Walk(after, limit, reply))
        return reply

    def _queue(self, read: _Get | _Walk) -> None:
        if self._reads.qsize() >= MAX_WAITING:
            raise StoreError(f"{MAX_WAITING} reads are waiting already")
        self._reads.put(read)

    def stop(self) -> None:
        """Let the threads end after what is queued."""
        for _ in self._threads:
            self._reads.put(_Stop())

    def join(self, deadline: float) -> bool:
        """Wait until ``deadline`` (monotonic); tell whether all threads have ended."""
        for thread in self._threads:
            thread.join(max(0.0, deadline - time.monotonic()))
        return not any(thread.is_alive() for thread in self._threads)

    def _run(self) -> None:
        session = Session(self._file)
        while not isinstance(read := self._reads.get(), _Stop):
            if isinstance(read, _Get):
                if read.reply.wanted:
                    read.reply.settle(self._outcome(session, self._get, read))
            elif read.reply.wanted:
                read.reply.settle(self._outcome(session, self._page, read))
        session.close_quietly()

    def _get(self, session: Session, read: _Get) -> Entry | None:
        try:
            value = session.run(lambda connection: read_value(connection, read.key))
            return None if value is None else decode_stored(value, read.key)
        except DamagedEntryError as error:
            self._forget(read.key, error)
            return None

    def _page(self, session: Session, read: _Walk) -> Page:
        after = 0 if read.after is None else int(read.after)
        rows = session.run(lambda connection: read_values(connection, after, read.limit))
        entries = []
        for _, key, value in rows:
            try:
                entries.append(decode_stored(whole_value(value), key))
            except DamagedEntryError as error:
                self._forget(key, error)
        more = b"%d" % rows[-1][0] if len(rows) == read.limit else None
        return Page(entries, more)

    def _forget(self, key: bytes, error: DamagedEntryError) -> None:
        _log.warning("a damaged entry is forgotten: %s", error)
        self._damaged(key)

    def _outcome(
        self, session: Session, answer: Callable[[Session, R], T], read: R
    ) -> T | StoreError:
        try:
            return answer(session, read)
        except StoreError as error:
            return error
        except Exception as error:  # noqa: BLE001 - nobody may wait in vain
            _log.exception("the store's reader failed")
            return StoreError(f"reader failed: {type(error).__name__}")
