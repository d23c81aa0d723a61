"""``quarantine.jsonl``: keys whose entries are not found by meaning any more, one in a line.

Laws: the file is the truth, and each worker that shares it reads it again after a change. A key is
on the disk before ``add`` returns, or it raises. A key leaves KEEP_SECONDS after it was last added,
longer than nearly all entries live. The oldest leave where there are more than ``max_keys``.

The file is replaced as a whole, so a reader finds the old list or the new one. No two lists have
the same first line, because an inode number may be used again. Each wait for the lock is bounded,
as its holder may be suspended; at start there is no wait.
"""

import asyncio
import errno
import logging
import os
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import orjson
from filelock import Timeout

from gateway.cache.append_files import held

KEEP_SECONDS = 365 * 86_400.0
RENEW_SECONDS = 86_400.0
"""A key that is added again before that has no second line."""
MAX_KEYS = 20_000
MAX_BYTES = 4 * 2**20
"""Twice the size of the most keys."""

_HEAD_BYTES = 128
"""More than the length of the first line."""
_GENERATION = b'{"generation":'

_log = logging.getLogger(__name__)


class QuarantineFile:
    """The ``Quarantine`` of workers that share a data directory."""

    def __init__(
        self,
        path: Path,
        *,
        max_keys: int = MAX_KEYS,
        max_bytes: int = MAX_BYTES,
        now: Callable[[], float] = time.time,
    ) -> None:
        self._path = path
        self._max_keys = max_keys
        self._max_bytes = max_bytes
        self._now = now
        self._added: dict[bytes, float | None] = {}
        """When; None where the line has no time."""
        self._read_at: tuple[int, int, int] | None = None
        self._head = b""
        """The first bytes of the file."""
        self._end = 0
        """Of the last complete line that was read."""
        self._failed: set[bytes] = set()
        """Keys that may be in the file and not on the disk."""

    def holds(self, key: bytes) -> bool:
        # If the file cannot be read, each entry has exact hits only.
        return not self._readable() or (key in self._added and self._counts(self._added[key]))

    async def add(self, key: bytes) -> None:
        if not self._readable() or key in self._failed or not self._is_young(key):
            await asyncio.to_thread(self._append, key)

    def compact(self) -> None:
        """Write the file again if there are keys to leave out; for the start."""
        try:
            if self._path.exists():
                with held(self._path, os.O_RDWR, seconds=0.0) as (descriptor, size):
                    data = _read(descriptor, size)
                    kept = self._kept(data)
                    if kept != _without_generation(data):
                        self._replace(kept)
        except Timeout:
            return  # another worker does it or is suspended: the next start will do it
        except OSError as error:
            _log.warning("%s cannot be written anew: %s", self._path, error.strerror or error)

    def _append(self, key: bytes) -> None:
        self._failed.add(key)
        line = _line(key, self._now())
        with held(self._path, os.O_RDWR) as (descriptor, size):
            if size + len(line) > self._max_bytes:
                self._replace(self._kept(_read(descriptor, size) + b"\n" + line))
            else:
                if size and os.pread(descriptor, 1, size - 1) != b"\n":
                    line = b"\n" + line
                if os.write(descriptor, line) < len(line):
                    raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
                os.fsync(descriptor)
        self._failed.discard(key)

    def _kept(self, data: bytes) -> bytes:
        """Return the lines of the latest keys that count; one without a time gets the present."""
        now = self._now()
        latest: dict[bytes, float] = {}
        for key, added in _keys(data):
            latest.pop(key, None)
            if self._counts(added):
                latest[key] = now if added is None else added
        return b"".join(_line(*each) for each in list(latest.items())[-self._max_keys :])

    def _is_young(self, key: bytes) -> bool:
        added = self._added.get(key)
        return added is not None and added > self._now() - RENEW_SECONDS

    def _counts(self, added: float | None) -> bool:
        return added is None or added > self._now() - KEEP_SECONDS

    def _replace(self, data: bytes) -> None:
        """Replace the file by ``data``; the caller holds its lock."""
        fresh = self._path.with_name(self._path.name + ".new")
        flags = os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC
        with os.fdopen(os.open(fresh, flags, 0o600), "wb") as written:
            written.write(_generation() + data)
            written.flush()
            os.fsync(written.fileno())
        fresh.replace(self._path)
        folder = os.open(self._path.parent, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        try:
            os.fsync(folder)
        finally:
            os.close(folder)

    def _readable(self) -> bool:
        """Read the new lines of the file; tell whether it could be read."""
        try:
            self._read()
        except FileNotFoundError:
            self._forget()
        except OSError as error:
            _log.warning("%s cannot be read: %s", self._path, error.strerror or error)
            return False
        return True

    def _read(self) -> None:
        if _state(self._path.stat()) == self._read_at:
            return
        with self._path.open("rb") as file:
            # Another file may be at the path by now.
            state = _state(os.fstat(file.fileno()))
            head = file.read(min(state[1], _HEAD_BYTES))
            if not self._is_grown(state, head):
                self._forget()
            file.seek(self._end)
            data = file.read(state[1] - self._end)
        self._added.update(_keys(data))
        self._end += data.rfind(b"\n") + 1
        self._read_at, self._head = state, head

    def _is_grown(self, state: tuple[int, int, int], head: bytes) -> bool:
        """Tell whether it is the file that was read, with more lines."""
        former = self._read_at
        if former is None or former[0] != state[0] or state[1] <= former[1]:
            return False
        return head.startswith(self._head)

    def _forget(self) -> None:
        self._added, self._read_at, self._head, self._end = {}, None, b"", 0


def _read(descriptor: int, size: int) -> bytes:
    return os.pread(descriptor, size, 0)


def _state(status: os.stat_result) -> tuple[int, int, int]:
    return status.st_ino, status.st_size, status.st_mtime_ns


def _generation() -> bytes:
    return _GENERATION + b'"%s"}\n' % os.urandom(16).hex().encode()


def _without_generation(data: bytes) -> bytes:
    first, _, rest = data.partition(b"\n")
    return rest if first.startswith(_GENERATION) else data


def _line(key: bytes, added: float) -> bytes:
    return orjson.dumps({"key": key.hex(), "time": added}) + b"\n"


def _keys(data: bytes) -> Iterator[tuple[bytes, float | None]]:
    for line in data.splitlines():
        try:
            match orjson.loads(line):
                case {"key": str(key), "time": int() | float() as added}:
                    yield bytes.fromhex(key), float(added)
                case {"key": str(key)}:
                    yield bytes.fromhex(key), None
        except ValueError:
            continue  # the half of a line that a crash left
