"""``quarantine.jsonl``: keys whose entries are not found by meaning any more, a line each.

Law: the file is the truth, and every worker that shares it reads it anew when it has changed. A key
is on the disk before ``add`` returns, or it raises. A key leaves KEEP_SECONDS after it was last
added, longer than nearly all entries live, and the oldest leave where there are more than ``most``:
what is left is written beside the file and put in its place, so that whoever reads finds the former
list or the new one, whole. No two lists begin alike: the number of a file may be given again. Who
holds the lock may have been stopped, so nobody waits for it without a bound, and at start not at
all.
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
"""A key that is added again before has no second line."""
MAX_KEYS = 20_000
MAX_BYTES = 4 * 2**20
"""Twice what the most keys take."""

_HEAD_BYTES = 128
"""More than the first line has."""
_GENERATION = b'{"generation":'

_log = logging.getLogger(__name__)


class QuarantineFile:
    """See the port ``Quarantine``."""

    def __init__(
        self,
        path: Path,
        *,
        most: int = MAX_KEYS,
        max_bytes: int = MAX_BYTES,
        now: Callable[[], float] = time.time,
    ) -> None:
        self._path = path
        self._most = most
        self._max_bytes = max_bytes
        self._now = now
        self._added: dict[bytes, float | None] = {}
        """When; None where the line does not tell."""
        self._read_at: tuple[int, int, int] | None = None
        self._head = b""
        """What the file began with."""
        self._end = 0
        """Of the last whole line that was read."""
        self._failed: set[bytes] = set()
        """Keys that may be in the file, but not on the disk."""

    def holds(self, key: bytes) -> bool:
        # In doubt an entry is only found exactly.
        return not self._readable() or (key in self._added and self._counts(self._added[key]))

    async def add(self, key: bytes) -> None:
        if not self._readable() or key in self._failed or not self._is_young(key):
            await asyncio.to_thread(self._append, key)

    def compact(self) -> None:
        """Write the file anew if there is something in it to leave out; for when it is loaded."""
        try:
            if self._path.exists():
                with held(self._path, os.O_RDWR, seconds=0.0) as (descriptor, size):
                    data = _read(descriptor, size)
                    kept = self._kept(data)
                    if kept != _without_generation(data):
                        self._replace(kept)
        except Timeout:
            return  # another worker is at it, or is stopped: the next start does it
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
        """Return the lines of the latest keys that count; who has no time yet begins now."""
        now = self._now()
        latest: dict[bytes, float] = {}
        for key, added in _keys(data):
            latest.pop(key, None)
            if self._counts(added):
                latest[key] = now if added is None else added
        return b"".join(_line(*each) for each in list(latest.items())[-self._most :])

    def _is_young(self, key: bytes) -> bool:
        added = self._added.get(key)
        return added is not None and added > self._now() - RENEW_SECONDS

    def _counts(self, added: float | None) -> bool:
        return added is None or added > self._now() - KEEP_SECONDS

    def _replace(self, data: bytes) -> None:
        """Put ``data`` in the file's place; the caller holds its lock."""
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
        """Take what is new in the file; tell whether it could be read."""
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
            # The path may have another file by now.
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
        """Tell whether a file is the one that was read, with more at its end."""
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
