"""Which entries changed lately, in memory that the workers of one file share.

Each commit writes the keys that it changed into a ring, before its callers get their answers. The
other workers look at the ring whenever they look up a key, which costs one read of memory while
nothing has changed. So no worker answers from its memory what another one has replaced or purged.

Law: commits and their keys are in the same order. A lock is held around both. If a worker dies
between them, the next one to take the lock finds ``_COMMITTING`` set. It then tells all workers
that they may have missed changes, as a worker notices itself that fell too far behind.
"""

import fcntl
import mmap
import os
import secrets
import struct
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

from gateway.cache.ports import StoreError

RECORDS = 16_384
"""A worker that is further behind has missed changes."""

LOCK_SECONDS = 1.0
POLL_SECONDS = 0.001

_HEAD_BYTES = 64
_COUNT, _COMMITTING, _EVICTED = 0, 1, 2
"""Words of the head: changes ever announced; a commit is under way; entries evicted by all."""

_RECORD = struct.Struct("<QQB47s")
"""Number of the change, who made it, length of the key, key."""

_LONGEST_KEY = 47
_BYTES = _HEAD_BYTES + RECORDS * _RECORD.size


class SharedChanges:
    """The ring in the file at ``path``, which one of the workers makes.

    Without a path, it is in the memory of this process, for stores in this process.
    """

    def __init__(self, path: Path | None = None) -> None:
        """Raise OSError where the file cannot be made."""
        if path is None:
            self._file = os.memfd_create("changes")
        else:
            self._file = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        try:
            # A page without room on the disk would end the process at the first write.
            os.posix_fallocate(self._file, 0, _BYTES)
            self._memory = mmap.mmap(self._file, _BYTES)
        except OSError:
            os.close(self._file)
            raise
        self._words = memoryview(self._memory)[:_HEAD_BYTES].cast("Q")
        self._origin = secrets.randbits(64)
        self._seen = self._words[_COUNT]
        self._changed: Callable[[bytes], None] = lambda _: None
        self._lost: Callable[[], None] = lambda: None

    @property
    def evicted(self) -> int:
        return self._words[_EVICTED]

    def listen(self, changed: Callable[[bytes], None], lost: Callable[[], None]) -> None:
        """Call ``changed`` with each key that others changed, ``lost`` if some may be missing."""
        self._changed, self._lost = changed, lost

    def current(self, _: bytes = b"") -> bool:
        """Tell of all changes since the last call, which is always possible."""
        # Each hit comes here.
        if self._words[_COUNT] != self._seen:
            self._tell()
        return True

    def _tell(self) -> None:
        first, count = self._seen, self._words[_COUNT]
        self._seen = count
        if count - first > RECORDS:
            self._lost()
            return
        for number in range(first, count):
            told, origin, length, key = _RECORD.unpack_from(self._memory, _place(number))
            if told != number:
                # Overwritten meanwhile.
                self._lost()
                return
            if origin != self._origin:
                self._changed(key[:length])

    @contextmanager
    def commit(self, keys: Sequence[bytes]) -> Iterator[list[bytes]]:
        """Hold the lock around a commit that changes ``keys``, and announce them after it.

        Yields a list for the keys that the commit evicts. Raises StoreError if others hold the lock
        for longer than LOCK_SECONDS. Used by one thread.
        """
        deadline = time.monotonic() + LOCK_SECONDS
        while True:
            try:
                fcntl.flock(self._file, fcntl.LOCK_EX | fcntl.LOCK_NB)
                break
            except BlockingIOError:
                if time.monotonic() > deadline:
                    raise StoreError("another worker holds the lock of the changes") from None
                time.sleep(POLL_SECONDS)
        try:
            if self._words[_COMMITTING]:
                self._words[_COUNT] += RECORDS + 1
            self._words[_COMMITTING] = 1
            evicted: list[bytes] = []
            try:
                yield evicted
            finally:
                # If it failed, it is not sure that it had no effect.
                self._announce([*keys, *evicted])
                self._words[_EVICTED] += len(evicted)
                self._words[_COMMITTING] = 0
        finally:
            fcntl.flock(self._file, fcntl.LOCK_UN)

    def close(self) -> None:
        self._words.release()
        # Lookups after this find no more changes.
        self._words, self._seen = memoryview(bytes(_HEAD_BYTES)).cast("Q"), 0
        self._memory.close()
        os.close(self._file)

    def _announce(self, keys: Sequence[bytes]) -> None:
        count = self._words[_COUNT]
        if len(keys) > RECORDS or any(len(key) > _LONGEST_KEY for key in keys):
            self._words[_COUNT] = count + RECORDS + 1
            return
        for number, key in enumerate(keys, count):
            _RECORD.pack_into(self._memory, _place(number), number, self._origin, len(key), key)
        self._words[_COUNT] = count + len(keys)


def _place(number: int) -> int:
    return _HEAD_BYTES + number % RECORDS * _RECORD.size
