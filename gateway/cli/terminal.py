"""What several commands take on their command lines.

What a command that takes long shows of how far it is.

A file of recorded requests, as the commands read it that try settings on them.

Law: it is read line by line; a line that holds no request is told by file and line and passed over.
"""

import argparse
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from urllib.parse import urlsplit

from gateway.cli.recorded_requests import Recorded, RecordedError, parse_recorded

RECORDED_LOG = """\
A LOG holds JSON lines: a gateway's decision log with whole requests (decision_log_requests: true),
{"body": {...}} as in OpenAI's batch files, or the bodies alone. - is standard input.\
"""


def gateway_url(text: str) -> str:
    """Return the address of a running gateway; argparse tells what is wrong with another text."""
    try:
        parts = urlsplit(text)
        usable = parts.scheme in ("http", "https") and bool(parts.hostname) and parts.port != 0
    except ValueError:
        usable = False
    if not usable:
        raise argparse.ArgumentTypeError(
            f"expected a URL such as http://127.0.0.1:8080, got {text!r}"
        )
    return text


def number_from(least: int) -> Callable[[str], int]:
    """Return what reads a whole number that is not less; argparse tells what is wrong with it."""

    def read(text: str) -> int:
        try:
            number = int(text)
        except ValueError:
            number = least - 1
        if number < least:
            raise argparse.ArgumentTypeError(f"expected a number from {least} on, got {text!r}")
        return number

    return read


def add_recorded_log(parser: argparse.ArgumentParser, *, limit: int, least: int, of: str) -> None:
    """Let a command take a log of recorded requests, and how many of them it looks at."""
    parser.add_argument("log", type=Path, metavar="LOG", help="recorded requests; - is stdin")
    parser.add_argument(
        "--limit",
        type=number_from(least),
        default=limit,
        metavar="N",
        help=f"{of} (default: %(default)s)",
    )


def show_progress(text: str) -> None:
    """Write over the last line of a terminal; to a file or a pipe nothing is written."""
    if sys.stderr.isatty():
        print(f"\r\x1b[K{text}", end="", file=sys.stderr, flush=True)


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
            print(f"refrain: {told}", file=sys.stderr)

    def _lines(self) -> Iterator[bytes]:
        if str(self._file) == "-":
            yield from sys.stdin.buffer
            return
        with self._file.open("rb") as lines:
            yield from lines
