"""Files that several processes append to: audit log, wrong hits, journals.

Law: only who holds FILE.lock opens FILE to write, so nobody writes to a file that was turned over.
Who holds it may have been stopped, so nobody waits for it without a bound. No line is ever mixed
with another. A journal's line is on the disk before the call returns, and the half of a line that
a crash left is closed off by the next one.
"""

import asyncio
import os
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import orjson
from filelock import BaseFileLock, FileLock

LOCK_SECONDS = 5.0

_POLL_SECONDS = 0.01


def _lock(path: Path, seconds: float | None = None) -> BaseFileLock:
    return FileLock(
        path.with_name(path.name + ".lock"),
        LOCK_SECONDS if seconds is None else seconds,
        0o600,
        poll_interval=_POLL_SECONDS,
    )


@contextmanager
def held(
    path: Path, access: int = os.O_WRONLY, seconds: float | None = None
) -> Iterator[tuple[int, int]]:
    """Lock a file; give a descriptor that appends, and its size.

    Raises OSError, filelock.Timeout where another has the lock for longer than ``seconds``, which
    are LOCK_SECONDS unless told.
    """
    with _lock(path, seconds), _opened(path, access) as opened:
        yield opened


def before(path: Path) -> Path:
    """Return where a file is once it is turned over."""
    return path.with_name(path.name + ".1")


@contextmanager
def turned(
    path: Path, more: int, *, max_bytes: int, access: int = os.O_WRONLY
) -> Iterator[tuple[int, int]]:
    """Give a descriptor to append ``more`` bytes to, and the file's size.

    What would take the file beyond ``max_bytes`` goes into a new one; the full one becomes FILE.1,
    in place of the one before. Raises OSError, filelock.Timeout where another has the lock for too
    long.
    """
    with _lock(path):
        with _opened(path, access) as (descriptor, size):
            if not size or size + more <= max_bytes:
                yield descriptor, size
                return
        path.replace(before(path))
        with _opened(path, access) as opened:
            yield opened


@contextmanager
def _opened(path: Path, access: int) -> Iterator[tuple[int, int]]:
    descriptor = os.open(path, access | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC, 0o600)
    try:
        yield descriptor, os.fstat(descriptor).st_size
    finally:
        os.close(descriptor)


class Journal:
    """Appends to one file, made with mode 0600 when it is first needed."""

    def __init__(self, path: Path) -> None:
        self.path = path

    async def append(self, line: Mapping[str, Any]) -> None:
        """Write one line. Raises OSError."""
        await asyncio.to_thread(self._append, orjson.dumps(dict(line)) + b"\n")

    def _append(self, line: bytes) -> None:
        with held(self.path, os.O_RDWR) as (descriptor, size):
            if size and os.pread(descriptor, 1, size - 1) != b"\n":
                line = b"\n" + line
            os.write(descriptor, line)
            os.fsync(descriptor)
