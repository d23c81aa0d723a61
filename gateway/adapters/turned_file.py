"""A file that several processes append to, and that is turned over before it grows too large.

Law: what would take it beyond ``max_bytes`` goes into a new one; the full one becomes FILE.1, in
place of the one before. Nobody waits for the lock without a bound.
"""

import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from gateway.adapters.file_lock import Wait, held


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
