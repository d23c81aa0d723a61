"""A file that several processes append to, and that is turned over before it grows too large.

Law: only who holds the lock of the file that is at the path now writes to it. What would take it
beyond ``max_bytes`` goes into a new one; the full one becomes FILE.1, in place of the one before.
"""

import fcntl
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path


def before(path: Path) -> Path:
    """Return where a file is once it is turned over."""
    return path.with_name(path.name + ".1")


@contextmanager
def held(path: Path, access: int = os.O_WRONLY) -> Iterator[tuple[int, int]]:
    """Lock the file that is at the path; give a descriptor that appends, and its size.

    Raises OSError.
    """
    while True:
        descriptor = os.open(path, access | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC, 0o600)
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX)
            mine = os.fstat(descriptor)
            # Another worker may have put another in its place while this one waited for the lock.
            if _is_at(path, mine):
                yield descriptor, mine.st_size
                return
        finally:
            os.close(descriptor)


@contextmanager
def turned(
    path: Path, more: int, *, max_bytes: int, access: int = os.O_WRONLY
) -> Iterator[tuple[int, int]]:
    """Give a descriptor to append ``more`` bytes to, and the file's size. Raises OSError."""
    while True:
        with held(path, access) as (descriptor, size):
            if not size or size + more <= max_bytes:
                yield descriptor, size
                return
            path.replace(before(path))


def _is_at(path: Path, mine: os.stat_result) -> bool:
    try:
        return os.path.samestat(path.stat(), mine)
    except FileNotFoundError:
        return False
