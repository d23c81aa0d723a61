"""Files that only grow, a JSON object a line: audit log, wrong hits, quarantine.

Law: a line is on the disk before the call returns, and no line is ever mixed with another: several
workers append under a lock, and what a crash left half-written is closed off by the next line.
"""

import asyncio
import fcntl
import logging
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import orjson

_log = logging.getLogger(__name__)


class Journal:
    """Appends to one file, made with mode 0600 when it is first needed."""

    def __init__(self, path: Path) -> None:
        self.path = path

    async def append(self, line: Mapping[str, Any]) -> None:
        """Write one line; see the port ``Cases``. Raises OSError."""
        await asyncio.to_thread(self._append, orjson.dumps(dict(line)) + b"\n")

    def _append(self, line: bytes) -> None:
        flags = os.O_RDWR | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC
        descriptor = os.open(self.path, flags, 0o600)
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX)
            size = os.fstat(descriptor).st_size
            if size and os.pread(descriptor, 1, size - 1) != b"\n":
                line = b"\n" + line
            os.write(descriptor, line)
            os.fsync(descriptor)
        finally:
            os.close(descriptor)


class QuarantineFile:
    """See the port ``Quarantine``: read anew whenever another worker has added to the file."""

    def __init__(self, path: Path) -> None:
        self._journal = Journal(path)
        self._keys: frozenset[bytes] = frozenset()
        self._read_at: tuple[int, int] | None = None

    def holds(self, key: bytes) -> bool:
        """See the port."""
        path = self._journal.path
        try:
            status = path.stat()
            state = (status.st_size, status.st_mtime_ns)
            if state != self._read_at:
                self._keys = frozenset(_keys(path.read_bytes()))
                self._read_at = state
        except FileNotFoundError:
            return False
        except OSError as error:
            # In doubt an entry is only found exactly.
            _log.warning("%s cannot be read: %s", path, error.strerror or error)
            return True
        return key in self._keys

    async def add(self, key: bytes) -> None:
        """See the port."""
        if not self.holds(key):
            await self._journal.append({"key": key.hex()})


def _keys(data: bytes) -> list[bytes]:
    keys = []
    for line in data.splitlines():
        try:
            keys.append(bytes.fromhex(orjson.loads(line)["key"]))
        except (orjson.JSONDecodeError, KeyError, TypeError, ValueError):
            continue  # the half of a line that a crash left
    return keys
