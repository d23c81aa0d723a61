"""``quarantine.jsonl``: keys of entries that must not be semantic hits, one in a line.

Laws: the file is the truth, and each worker that shares it reads it again after a change. A key is
on the disk before ``add`` returns, or it raises. A key leaves KEEP_SECONDS after it was last added,
longer than nearly all entries live. The oldest leave where there are more than ``max_keys``.

The file is replaced as a whole, so a reader finds the old list or the new one. Each wait for the
lock is bounded, as its holder may be suspended; at start there is no wait.
"""

import asyncio
import logging
import os
import threading
import time
from collections.abc import Callable
from pathlib import Path

import orjson
from filelock import Timeout

from gateway.cache.append_files import open_locked, read_bytes, replace_file, write_line
from gateway.cache.folder_watch import Deliver, at_once

KEEP_SECONDS = 365 * 86_400.0
RENEW_SECONDS = 86_400.0
"""A key that is added again before that has no second line."""
MAX_KEYS = 20_000
MAX_BYTES = 4 * 2**20
"""Twice the size of the most keys."""

_NEVER = float("-inf")

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
        self._added: dict[bytes, float] = {}
        """When a key was last added."""
        self._read_at: tuple[int, int, int] | None = None
        self._last, self._last_at = b"", 0
        """The last line that was read, and where it begins."""
        self._failed: set[bytes] = set()
        """Keys that may be in the file and not on the disk."""
        self._unreadable = ""
        self._lock = threading.Lock()
        self.is_known: Callable[[], bool] = self.look
        """Tells whether the keys are as in the file; the default looks at the file."""

    def holds(self, key: bytes) -> bool:
        # If the file cannot be read, each entry has exact hits only.
        return not self.is_known() or self._is_within(KEEP_SECONDS, self._added.get(key, _NEVER))

    async def add(self, key: bytes) -> None:
        readable = await asyncio.to_thread(self.look)
        young = self._is_within(RENEW_SECONDS, self._added.get(key, _NEVER))
        if not (readable and young) or key in self._failed:
            await asyncio.to_thread(self._append, key)
            # In force before this returns: the watch may look a moment later.
            await asyncio.to_thread(self.look)

    def compact(self) -> None:
        """Write the file again if there are keys to leave out; for the start."""
        try:
            if self._path.exists():
                with open_locked(self._path, seconds=0.0) as (descriptor, size):
                    data = os.pread(descriptor, size, 0)
                    lines = self._lines(data)
                    if lines != data:
                        replace_file(self._path, lines)
        except Timeout:
            return  # another worker does it or is suspended: the next start will do it
        except OSError as error:
            _log.warning("%s cannot be written anew: %s", self._path, error.strerror or error)

    def _append(self, key: bytes) -> None:
        self._failed.add(key)
        line = _line(key, self._now())
        with open_locked(self._path) as (descriptor, size):
            if size + len(line) > self._max_bytes:
                replace_file(self._path, self._lines(os.pread(descriptor, size, 0) + b"\n" + line))
            else:
                write_line(descriptor, size, line)
        self._failed.discard(key)

    def _lines(self, data: bytes) -> bytes:
        added = _parse(data, self._now()).items()
        latest = [each for each in added if self._is_within(KEEP_SECONDS, each[1])]
        return b"".join(_line(key, added) for key, added in latest[-self._max_keys :])

    def _is_within(self, seconds: float, added: float) -> bool:
        return added > self._now() - seconds

    def look(self, deliver: Deliver = at_once) -> bool:  # noqa: ARG002 - one assignment
        """Read the file if it has changed; tell whether it could be read."""
        with self._lock:
            return self._look()

    def _look(self) -> bool:
        try:
            status = self._path.stat()
            # From before the read: lines written meanwhile are read the next time.
            state = status.st_ino, status.st_size, status.st_mtime_ns
            if state != self._read_at:
                self._read_new(status.st_size)
                self._read_at = state
        except FileNotFoundError:
            self._added, self._read_at, self._last, self._last_at = {}, None, b"", 0
        except OSError as error:
            reason = error.strerror or str(error)
            if reason != self._unreadable:
                _log.warning("%s cannot be read: %s", self._path, reason)
            self._unreadable = reason
            return False
        self._unreadable = ""
        return True

    def _read_new(self, size: int) -> None:
        """Read from the last line known on; all lines if the file does not have it there.

        Not beyond the size, because the path may name an endless device.
        """
        added = self._added
        data = read_bytes(self._path, offset=self._last_at)[: max(0, size - self._last_at)]
        if not self._last or not data.startswith(self._last):
            data = read_bytes(self._path)[:size]
            added, self._last_at = {}, 0
        # Whole: a question may come meanwhile.
        self._added = added | _parse(data, self._now())
        end = data.rfind(b"\n") + 1
        begin = data.rfind(b"\n", 0, max(0, end - 1)) + 1
        self._last = data[begin:end]
        self._last_at += begin


def _line(key: bytes, added: float) -> bytes:
    return orjson.dumps({"key": key.hex(), "time": added}) + b"\n"


def _parse(data: bytes, now: float) -> dict[bytes, float]:
    """Return when each key was last added, in the order of time: ``now`` where no time is given."""
    latest: dict[bytes, float] = {}
    for line in data.splitlines():
        try:
            match orjson.loads(line):
                case {"key": str(text)} as entry:
                    key, added = bytes.fromhex(text), entry.get("time")
                    latest.pop(key, None)
                    latest[key] = float(added) if isinstance(added, int | float) else now
        except ValueError:
            continue  # the half of a line that a crash left
    return latest
