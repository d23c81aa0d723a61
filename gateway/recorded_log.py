"""A file of recorded requests, as the commands read it that try settings on them.

Law: it is read line by line; a line that holds no request is told by file and line and passed over.
"""

import sys
from collections.abc import Iterator
from pathlib import Path

from gateway.core.recorded_request import Recorded, RecordedError, parse_recorded

_TOLD = 10


class RecordedLog:
    """The requests of a file, with their places; ``-`` is standard input."""

    def __init__(self, file: Path) -> None:
        """``skipped`` counts the lines that held no request, as they are met."""
        self.skipped = 0
        self._file = file

    def __iter__(self) -> Iterator[tuple[str, Recorded]]:
        """Yield each request behind its place. Raises OSError."""
        for number, line in enumerate(self._lines(), 1):
            if not line.strip():
                continue
            place = f"{self._file}:{number}"
            try:
                yield place, parse_recorded(line)
            except RecordedError as error:
                self._skip(f"{place}: {error}")

    def _skip(self, told: str) -> None:
        self.skipped += 1
        if self.skipped <= _TOLD:
            print(f"refrain: {told}", file=sys.stderr)  # noqa: T201

    def _lines(self) -> Iterator[bytes]:
        if str(self._file) == "-":
            yield from sys.stdin.buffer
            return
        with self._file.open("rb") as lines:
            yield from lines
