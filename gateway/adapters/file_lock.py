"""The lock of a file that several processes append to.

Law: who holds the lock may have been stopped, so nobody waits for it without a bound. Only who has
the lock of the file that is at the path now writes to it.
"""

import errno
import fcntl
import os
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

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
