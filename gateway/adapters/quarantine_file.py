"""``quarantine.jsonl``: keys whose entries are not found by meaning any more, a line each.

Law: the file is the truth, and every worker that shares it reads it anew when it has changed. A key
is on the disk before ``add`` returns. A key leaves after KEEP_SECONDS, longer than nearly all
entries live, and the oldest leave where there are more than ``most``: what is left is written
beside the file and put in its place, so that whoever reads finds the former list or the new one,
whole.
"""

import asyncio
import logging
import os
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import orjson

from gateway.adapters.turned_file import held

KEEP_SECONDS = 365 * 86_400.0
MOST_KEYS = 20_000
MAX_BYTES = 4 * 2**20
"""Twice what the most keys take."""

_log = logging.getLogger(__name__)


class QuarantineFile:
    """See the port ``Quarantine``."""

    def __init__(
        self,
        path: Path,
        *,
        most: int = MOST_KEYS,
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
        self._end = 0
        """Of the last whole line that was read."""

    def holds(self, key: bytes) -> bool:
        """See the port."""
        try:
            self._read()
        except FileNotFoundError:
            self._forget()
        except OSError as error:
            # In doubt an entry is only found exactly.
            _log.warning("%s cannot be read: %s", self._path, error.strerror or error)
            return True
        return key in self._added and self._counts(self._added[key])

    async def add(self, key: bytes) -> None:
        """See the port."""
        if not self.holds(key):
            await asyncio.to_thread(self._append, key)

    def compact(self) -> None:
        """Write the file anew if there is something in it to leave out; for when it is loaded."""
        try:
            if self._path.exists():
                with held(self._path, os.O_RDWR) as (descriptor, size):
                    data = _read(descriptor, size)
                    kept = self._kept(data)
                    if kept != data:
                        self._replace(kept)
        except OSError as error:
            _log.warning("%s cannot be written anew: %s", self._path, error.strerror or error)

    def _append(self, key: bytes) -> None:
        line = _line(key, self._now())
        with held(self._path, os.O_RDWR) as (descriptor, size):
            if size + len(line) > self._max_bytes:
                self._replace(self._kept(_read(descriptor, size) + b"\n" + line))
                return
            if size and os.pread(descriptor, 1, size - 1) != b"\n":
                line = b"\n" + line
            os.write(descriptor, line)
            os.fsync(descriptor)

    def _kept(self, data: bytes) -> bytes:
        """Return the lines of the latest keys that count; who has no time yet begins now."""
        now = self._now()
        latest: dict[bytes, float] = {}
        for key, added in _keys(data):
            latest.pop(key, None)
            if self._counts(added):
                latest[key] = now if added is None else added
        return b"".join(_line(*each) for each in list(latest.items())[-self._most :])

    def _counts(self, added: float | None) -> bool:
        return added is None or added > self._now() - KEEP_SECONDS

    def _replace(self, data: bytes) -> None:
        """Put ``data`` in the file's place; the caller holds its lock."""
        fresh = self._path.with_name(self._path.name + ".new")
        flags = os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC
        with os.fdopen(os.open(fresh, flags, 0o600), "wb") as written:
            written.write(data)
            written.flush()
            os.fsync(written.fileno())
        fresh.replace(self._path)
        folder = os.open(self._path.parent, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        try:
            os.fsync(folder)
        finally:
            os.close(folder)

    def _read(self) -> None:
        if _state(self._path.stat()) == self._read_at:
            return
        with self._path.open("rb") as file:
            # The path may have another file by now.
            state = _state(os.fstat(file.fileno()))
            former = self._read_at
            if former is None or former[0] != state[0] or state[1] <= former[1]:
                self._forget()
            file.seek(self._end)
            data = file.read()
        self._added.update(_keys(data))
        self._end += data.rfind(b"\n") + 1
        self._read_at = state

    def _forget(self) -> None:
        self._added, self._read_at, self._end = {}, None, 0


def _read(descriptor: int, size: int) -> bytes:
    return os.pread(descriptor, size, 0)


def _state(status: os.stat_result) -> tuple[int, int, int]:
    return status.st_ino, status.st_size, status.st_mtime_ns


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
