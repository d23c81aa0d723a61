"""Files that only grow, a JSON object a line: audit log, wrong hits.

Law: a line is on the disk before the call returns, and no line is ever mixed with another: several
workers append under a lock, which nobody waits for without a bound, and what a crash left
half-written is closed off by the next line.
"""

import asyncio
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import orjson

from gateway.adapters.file_lock import held


class Journal:
    """Appends to one file, made with mode 0600 when it is first needed."""

    def __init__(self, path: Path) -> None:
        self.path = path

    async def append(self, line: Mapping[str, Any]) -> None:
        """Write one line; see the port ``Cases``. Raises OSError."""
        await asyncio.to_thread(self._append, orjson.dumps(dict(line)) + b"\n")

    def _append(self, line: bytes) -> None:
        with held(self.path, os.O_RDWR) as (descriptor, size):
            if size and os.pread(descriptor, 1, size - 1) != b"\n":
                line = b"\n" + line
            os.write(descriptor, line)
            os.fsync(descriptor)
