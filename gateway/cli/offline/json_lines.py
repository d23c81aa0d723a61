"""Files of JSON lines, read line by line: logs, known questions, labelled pairs."""

import gzip
import re
import sys
import zlib
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import IO, Any, Generic, TypeVar, cast

import orjson

from gateway.cli.terminal import CommandError, say, unreadable

_YAML = re.compile(rb"\s*(?:---|%YAML|#|- |[\w.-]+:(?:\s|$))")
MOST_NAMED_LINES = 10
"""Lines that cannot be read are named one by one up to here."""

T = TypeVar("T")


@contextmanager
def open_log(file: Path) -> Iterator[IO[bytes]]:
    """Open a file to read its bytes: ``-`` is standard input, and ``.gz`` is gzip.

    Raises CommandError, also while the file is read.
    """
    try:
        if str(file) == "-":
            yield sys.stdin.buffer
        else:
            is_packed = file.suffix == ".gz"
            with cast("IO[bytes]", gzip.open(file)) if is_packed else file.open("rb") as opened:
                yield opened
    except (gzip.BadGzipFile, EOFError, zlib.error):
        raise CommandError(f"{file}: cannot be read: it is no whole gzip file") from None
    except OSError as error:
        raise unreadable(file, error) from None


def refuse_yaml(file: Path | str, text: bytes, expected: str) -> None:
    """Raise CommandError if a text that is not JSON begins as YAML does."""
    if _YAML.match(text):
        raise CommandError(f"{file}: this is YAML, and {expected} was expected; policies are YAML")


class Lines(Generic[T]):
    """The values read from files of JSON lines, behind their places; ``-`` is standard input.

    Files are read line by line, a file that ends in ``.gz`` as gzip. A line that cannot be used is
    named by file and line, and skipped.
    """

    def __init__(self, read: Callable[[Any], T], *files: Path) -> None:
        """``skipped`` counts the lines of which nothing could be read, as they are met."""
        self.skipped = 0
        self._read = read
        self._files = files

    def __iter__(self) -> Iterator[tuple[str, T]]:
        """Yield the place of each line and the value that ``read`` returns. Raises CommandError."""
        for file in self._files:
            with open_log(file) as lines:
                yield from self.read_from(file, lines)

    def read_from(self, file: Path, lines: Iterable[bytes]) -> Iterator[tuple[str, T]]:
        """Yield the same of an open file; ``file`` is its name in messages."""
        for number, line in enumerate(lines, 1):
            place = f"{file}:{number}"
            try:
                if line.strip():
                    yield place, self._read(orjson.loads(line))
            except ValueError as error:
                is_json = not isinstance(error, orjson.JSONDecodeError)
                if not is_json and number == self.skipped + 1:
                    refuse_yaml(file, line, "lines of JSON")
                self.skipped += 1
                if self.skipped <= MOST_NAMED_LINES:
                    say(f"{place}: {error if is_json else 'expected JSON'}")
