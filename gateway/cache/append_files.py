"""Files that several processes append to or replace: audit log, wrong hits, journals.

Law: only the holder of FILE.lock opens FILE to write, so no process writes to a rotated file. The
holder may have been stopped, so every wait for the lock has a bound. No line is ever mixed
with another. A line is on the disk before ``write_line`` returns. The next line ends an incomplete
line of a crash. What a full disk took a part of is taken back.
"""

import asyncio
import errno
import os
import stat
import tempfile
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import orjson
from filelock import FileLock

LOCK_SECONDS = 5.0
MOST_BYTES = 256 * 2**20
"""Of a file that is read as a whole."""
MOST_BYTES_OF_A_DEVICE = 64 * 1024
"""There are endless ones."""

_POLL_SECONDS = 0.01


def read_bytes(path: Path, *, offset: int = 0, most: int = MOST_BYTES) -> bytes:
    """Return what a file has from ``offset`` on. Raises OSError, also for a pipe or too much.

    Who opens a pipe may wait for ever, and would never see the file that takes its place.
    """

    def without_wait(name: str, flags: int) -> int:
        return os.open(name, flags | os.O_NONBLOCK)

    with open(path, "rb", opener=without_wait) as file:
        mode = os.fstat(file.fileno()).st_mode
        if stat.S_ISCHR(mode):
            most = MOST_BYTES_OF_A_DEVICE
        elif not stat.S_ISREG(mode):
            raise OSError(errno.EINVAL, "it is no file")
        else:
            file.seek(offset)
        data = file.read(most + 1)
    if len(data) > most:
        raise OSError(errno.EFBIG, f"it has more than {most} bytes")
    return data


def previous_file(path: Path) -> Path:
    """Return where a file is once it is turned over."""
    return path.with_name(path.name + ".1")


@contextmanager
def open_locked(
    path: Path, more: int = 0, *, max_bytes: int | None = None, seconds: float | None = None
) -> Iterator[tuple[int, int]]:
    """Lock a file; give a descriptor to append ``more`` bytes to, and the file's size.

    A line that would take the file beyond ``max_bytes`` goes into a new file; the full one becomes
    FILE.1, in place of the one before. Raises OSError. Raises filelock.Timeout if another process
    has the lock for longer than ``seconds`` (LOCK_SECONDS by default).
    """
    timeout = LOCK_SECONDS if seconds is None else seconds
    lock = path.with_name(path.name + ".lock")
    with FileLock(lock, timeout, 0o600, poll_interval=_POLL_SECONDS):
        with _open(path) as (descriptor, size):
            if max_bytes is None or not size or size + more <= max_bytes:
                yield descriptor, size
                return
        path.replace(previous_file(path))
        with _open(path) as opened:
            yield opened


@contextmanager
def _open(path: Path) -> Iterator[tuple[int, int]]:
    descriptor = os.open(path, os.O_RDWR | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC, 0o600)
    try:
        yield descriptor, os.fstat(descriptor).st_size
    finally:
        os.close(descriptor)


def write_line(descriptor: int, size: int, line: bytes) -> None:
    """Append a line to a file that is ``held``, and wait for the disk. Raises OSError."""
    append_lines(descriptor, size, line)
    os.fsync(descriptor)


def append_lines(descriptor: int, size: int, lines: bytes) -> None:
    """Append whole lines to a file that is ``held``: all, or none. Raises OSError."""
    if size and os.pread(descriptor, 1, size - 1) != b"\n":
        lines = b"\n" + lines
    if os.write(descriptor, lines) < len(lines):
        os.ftruncate(descriptor, size)
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))


def replace_file(file: Path, data: bytes) -> None:
    """Replace a file whole, on the disk, with the mode and owner it had. Raises OSError."""
    descriptor, name = tempfile.mkstemp(dir=file.parent, prefix=f".{file.name}.")
    try:
        with os.fdopen(descriptor, "wb") as new:
            new.write(data)
            if file.exists():
                old = file.stat()
                os.fchmod(new.fileno(), old.st_mode & 0o777)
                with suppress(PermissionError):
                    os.fchown(new.fileno(), old.st_uid, old.st_gid)
            new.flush()
            os.fsync(new.fileno())
        Path(name).replace(file)
        folder = os.open(file.parent, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        try:
            os.fsync(folder)
        finally:
            os.close(folder)
    except BaseException:
        Path(name).unlink(missing_ok=True)
        raise


def last_lines(path: Path, most_bytes: int) -> list[dict[str, Any]]:
    """Return the objects in the last lines of a file and of the one before it. Raises OSError."""
    data = b""
    for each in (path, previous_file(path)):
        with suppress(FileNotFoundError):
            size = each.stat().st_size
            data = read_bytes(each, offset=max(0, size - most_bytes + len(data))) + data
        if len(data) >= most_bytes:
            break
    found = []
    for line in data.split(b"\n"):
        with suppress(orjson.JSONDecodeError):  # the first may be a part of a line
            if isinstance(value := orjson.loads(line), dict):
                found.append(value)
    return found


class Journal:
    """Appends to one file, made with mode 0600 when it is first needed."""

    def __init__(self, path: Path) -> None:
        self.path = path

    async def append(self, line: Mapping[str, Any]) -> None:
        """Write one line. Raises OSError."""
        await asyncio.to_thread(self._append, orjson.dumps(dict(line)) + b"\n")

    def _append(self, line: bytes) -> None:
        with open_locked(self.path) as (descriptor, size):
            write_line(descriptor, size, line)
