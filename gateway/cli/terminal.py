"""Shared parts of the commands: exit codes, error messages, log lines, files of JSON lines.

Law: the message of an exception is not logged. It may quote a prompt, an answer or a header with a
key. Its type and the lines of code that it came through say where to look.
"""

import asyncio
import gzip
import logging
import sys
import time
import zlib
from collections.abc import Awaitable, Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import IO, Any, Generic, TypeVar, cast

import orjson

from gateway.cli.log_lines import log_to_stderr
from gateway.telemetry.request_id import CURRENT

_log = logging.getLogger(__name__)

_PROGRESS_SECONDS = 1.0

MOST_NAMED_LINES = 10
"""Lines that cannot be read are named one by one up to here."""

T = TypeVar("T")


class CommandError(Exception):
    """A command's usage or a file is wrong; the message is for the operator."""

    code = 2
    """The exit code of the command."""


class FailedError(CommandError):
    """A command failed, though its usage is right."""

    code = 1


def unreadable(file: Path | str, error: OSError) -> CommandError:
    """Return the error of a command that cannot read a file."""
    return CommandError(f"{file}: cannot be read: {error.strerror or error}")


def say(message: str) -> None:
    """Tell the operator something beside the result, on standard error."""
    for line in message.splitlines():
        print(f"refrain: {line}", file=sys.stderr)


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


class Lines(Generic[T]):
    """The values read from files of JSON lines, behind their places; ``-`` is standard input.

    Files are read line by line, those that end in ``.gz`` as gzip. A line that cannot be used is
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
                self.skipped += 1
                if self.skipped <= MOST_NAMED_LINES:
                    say(f"{place}: {error if is_json else 'expected JSON'}")


async def for_each(
    items: Sequence[T], work: Callable[[T], Awaitable[None]], *, at_a_time: int, what: str
) -> None:
    """Do the work on each item, and say from time to time how far it is. Raises CommandError."""
    queue = iter(items)
    done, last = 0, time.monotonic()

    async def worker() -> None:
        nonlocal done, last
        for item in queue:
            await work(item)
            done += 1
            if time.monotonic() - last > _PROGRESS_SECONDS:
                last = time.monotonic()
                say(f"{done:,} of {len(items):,} {what}")

    try:
        async with asyncio.TaskGroup() as workers:
            for _ in range(at_a_time):
                workers.create_task(worker())
    except* CommandError as errors:
        raise errors.exceptions[0] from None


def configure_logging(level: str, form: str) -> None:
    """Write log lines to stderr; ``form`` is ``text``, ``json`` or ``auto``."""
    number = logging.getLevelNamesMapping()[level.upper()]
    log_to_stderr(form, number, request_id=CURRENT.get)


def log_stray(_loop: asyncio.AbstractEventLoop, context: dict[str, Any]) -> None:
    """Log an exception that no task awaited: an event loop's handler that quotes no values."""
    # "Exception in callback f(<what it was called with>)" goes on with values.
    message = str(context.get("message", "")).partition(" callback")[0]
    _log.error("event loop: %s", message, exc_info=context.get("exception"))
