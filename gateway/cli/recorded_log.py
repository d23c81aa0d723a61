"""A file of JSON lines, as the commands read it that try settings on what was recorded.

Law: it is read line by line; a line that cannot be used is told by file and line and passed over.
"""

import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, Generic, TypeVar

import orjson

from gateway.cli.terminal import say
from gateway.server.admin.recorded_request import Recorded, RecordedError, read_request

_TOLD = 10

T = TypeVar("T")


class Lines(Generic[T]):
    """What is read from the lines of files, behind their places; ``-`` is standard input."""

    def __init__(self, read: Callable[[Any], T], *files: Path) -> None:
        """``skipped`` counts the lines of which nothing could be read, as they are met."""
        self.skipped = 0
        self._read = read
        self._files = files

    def __iter__(self) -> Iterator[tuple[str, T]]:
        """Yield what ``read`` makes of each line's JSON, behind its place. Raises OSError."""
        for file in self._files:
            for number, line in enumerate(_lines(file), 1):
                if not line.strip():
                    continue
                place = f"{file}:{number}"
                try:
                    value = self._read(orjson.loads(line))
                except orjson.JSONDecodeError:
                    self._skip(f"{place}: expected JSON")
                except RecordedError as error:
                    self._skip(f"{place}: {error}")
                else:
                    yield place, value

    def _skip(self, told: str) -> None:
        self.skipped += 1
        if self.skipped <= _TOLD:
            say(told)


class RecordedLog(Lines[Recorded]):
    """The requests of a file."""

    def __init__(self, file: Path) -> None:
        super().__init__(read_request, file)


def _lines(file: Path) -> Iterator[bytes]:
    if str(file) == "-":
        yield from sys.stdin.buffer
        return
    with file.open("rb") as lines:
        yield from lines
