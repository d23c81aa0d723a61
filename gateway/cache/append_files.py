"""The lock of a file that several processes append to.

Law: who holds the lock may have been stopped, so nobody waits for it without a bound. Only who has
the lock of the file that is at the path now writes to it.

A file that several processes append to, and that is turned over before it grows too large.

Law: what would take it beyond ``max_bytes`` goes into a new one; the full one becomes FILE.1, in
place of the one before. Nobody waits for the lock without a bound.

Files that only grow, a JSON object a line: audit log, wrong hits.

Law: a line is on the disk before the call returns, and no line is ever mixed with another: several
workers append under a lock, which nobody waits for without a bound, and what a crash left
half-written is closed off by the next line.
"""

import asyncio
import errno
import fcntl
import os
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import orjson

LOCK_SECONDS = 5.0

_POLL_SECONDS = 0.01


class LockedError(TimeoutError):
    """Another process has the lock of a file for too long.

    A plain TimeoutError loses the file's name on its way from a thread: asyncio makes it anew.
    """


class Wait:
    """How long a lock is waited for, in all: LOCK_SECONDS unless told."""

    def __init__(
        self,
        seconds: float | None = None,
        *,
        clock: Callable[[], float] = time.monotonic,
        pause: Callable[[float], None] = time.sleep,
    ) -> None:
        self._clock = clock
        self._until = clock() + (LOCK_SECONDS if seconds is None else seconds)
        self._pause = pause

    def lock(self, descriptor: int, path: Path) -> None:
        """Lock an open file. Raises OSError, LockedError where another has it for longer."""
        while not _locked(descriptor):
            self.go_on(path)
            self._pause(_POLL_SECONDS)

    def go_on(self, path: Path) -> None:
        """Raise LockedError if the time is over."""
        if self._clock() >= self._until:
            raise LockedError(errno.ETIMEDOUT, "another process has its lock", str(path))


@contextmanager
def held(
    path: Path, access: int = os.O_WRONLY, wait: Wait | None = None
) -> Iterator[tuple[int, int]]:
    """Lock the file that is at the path; give a descriptor that appends, and its size.

    Raises OSError, LockedError where another has the lock for longer than ``wait``.
    """
    wait = wait or Wait()
    while True:
        descriptor = os.open(path, access | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC, 0o600)
        try:
            wait.lock(descriptor, path)
            mine = os.fstat(descriptor)
            # Another worker may have put another in its place while this one waited for the lock.
            if _is_at(path, mine):
                yield descriptor, mine.st_size
                return
        finally:
            os.close(descriptor)
        wait.go_on(path)


def _locked(descriptor: int) -> bool:
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True


def _is_at(path: Path, mine: os.stat_result) -> bool:
    try:
        return os.path.samestat(path.stat(), mine)
    except FileNotFoundError:
        return False


def before(path: Path) -> Path:
    """Return where a file is once it is turned over."""
    return path.with_name(path.name + ".1")


@contextmanager
def turned(
    path: Path, more: int, *, max_bytes: int, access: int = os.O_WRONLY
) -> Iterator[tuple[int, int]]:
    """Give a descriptor to append ``more`` bytes to, and the file's size.

    Raises OSError, LockedError where another has the lock for too long.
    """
    wait = Wait()
    while True:
        with held(path, access, wait) as (descriptor, size):
            if not size or size + more <= max_bytes:
                yield descriptor, size
                return
            path.replace(before(path))
        wait.go_on(path)


class Journal:
    """Appends to one file, made with mode 0600 when it is first needed."""

    def __init__(self, path: Path) -> None:
        self.path = path

    async def append(self, line: Mapping[str, Any]) -> None:
        """Write one line; see the port ``Cases``. Raises OSError."""
        await asyncio.to_thread(self._append, orjson.dumps(dict(line)) + b"\n")

    def _append(self, line: bytes) -> None:
        with held(self.path, os.O_RDWR) as (descriptor, size):
            if size and os.pread(descriptor, 1, size - 1) != b"\n":
                line = b"\n" + line
            os.write(descriptor, line)
            os.fsync(descriptor)
