"""What the commands share: arguments, exit codes, error messages, log lines, files of JSON lines.

A command returns 0 where it is done. It raises ``CommandError`` with 1 where it failed, and with 2
where its usage or a file is wrong.

Law: the message of an exception is not logged. It may quote a prompt, an answer or a header with a
key. Its type and the lines of code that it came through say where to look.
"""

import argparse
import asyncio
import logging
import pkgutil
import sys
import time
import traceback
from collections.abc import Awaitable, Callable, Iterator, Sequence
from pathlib import Path
from types import TracebackType
from typing import Any, Generic, TypeVar
from urllib.parse import urlsplit

import orjson

from gateway.cli.log_queue import log_to_stderr
from gateway.telemetry.request_id import IdFormatter

_log = logging.getLogger(__name__)

_PROGRESS_SECONDS = 1.0

_MOST_FAULTS = 10
"""Lines that cannot be read are named one by one up to here."""

T = TypeVar("T")
Run = Callable[[argparse.Namespace], int] | str
"""What does a command: a function, or ``module:function`` of one that is imported when it runs."""
Commands = Any
"""What argparse calls a set of commands, of a type without a name."""


class CommandError(Exception):
    """A command cannot go on; the message is for the operator, ``code`` is its exit code."""

    def __init__(self, message: str, code: int = 2) -> None:
        super().__init__(message)
        self.code = code


def unreadable(file: Path | str, error: OSError) -> CommandError:
    """Return what a command ends with where it cannot read a file."""
    return CommandError(f"{file}: cannot be read: {error.strerror or error}")


def say(message: str) -> None:
    """Tell the operator something beside the result, on standard error."""
    for line in message.splitlines():
        print(f"refrain: {line}", file=sys.stderr)


def add_command(
    commands: Commands, name: str, run: Run, *, summary: str, description: str, epilog: str = ""
) -> argparse.ArgumentParser:
    """Register a command; ``summary`` is its line in the list. Other texts keep their lines."""
    parser: argparse.ArgumentParser = commands.add_parser(
        name,
        help=summary,
        description=description,
        epilog=epilog,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.set_defaults(run=run)
    return parser


def run_command(parser: argparse.ArgumentParser, argv: Sequence[str]) -> int:
    """Run the command that the arguments name; return the exit code."""
    options = parser.parse_args(argv)
    if "run" not in options:
        parser.print_help(sys.stderr)
        return 2
    try:
        run = pkgutil.resolve_name(options.run) if isinstance(options.run, str) else options.run
        return int(run(options))
    except CommandError as error:
        say(str(error))
        return error.code


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


class Lines(Generic[T]):
    """The values read from files of JSON lines, behind their places; ``-`` is standard input.

    Files are read line by line. A line that cannot be used is named by file and line, and skipped.
    """

    def __init__(self, read: Callable[[Any], T], *files: Path) -> None:
        """``skipped`` counts the lines of which nothing could be read, as they are met."""
        self.skipped = 0
        self._read = read
        self._files = files

    def __iter__(self) -> Iterator[tuple[str, T]]:
        """Yield what ``read`` makes of each line's JSON, behind its place. Raises OSError."""
        for file in self._files:
            for number, line in enumerate(_raw_lines(file), 1):
                if not line.strip():
                    continue
                place = f"{file}:{number}"
                try:
                    value = self._read(orjson.loads(line))
                except orjson.JSONDecodeError:
                    self._skip(f"{place}: expected JSON")
                except ValueError as error:
                    self._skip(f"{place}: {error}")
                else:
                    yield place, value

    def _skip(self, message: str) -> None:
        self.skipped += 1
        if self.skipped <= _MOST_FAULTS:
            say(message)


def _raw_lines(file: Path) -> Iterator[bytes]:
    if str(file) == "-":
        yield from sys.stdin.buffer
        return
    with file.open("rb") as lines:
        yield from lines


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


class PrivateFormatter(IdFormatter):
    """Formats tracebacks without what the exceptions say."""

    def format(self, record: logging.LogRecord) -> str:
        """Format, whatever another handler's formatter has left in the record."""
        left, record.exc_text = record.exc_text, None
        try:
            return super().format(record)
        finally:
            record.exc_text = left

    def formatException(  # noqa: N802 - the library's name
        self,
        ei: tuple[type[BaseException], BaseException, TracebackType | None]
        | tuple[None, None, None],
    ) -> str:
        """Return the frames and types of an exception and of those that led to it."""
        parts: list[str] = []
        error = ei[1]
        seen: set[int] = set()
        while error is not None and id(error) not in seen:
            seen.add(id(error))
            frames = "".join(traceback.format_tb(error.__traceback__))
            parts.append(f"{frames}{type(error).__qualname__}")
            error = error.__cause__ or (None if error.__suppress_context__ else error.__context__)
        return "\nwhile handling\n".join(parts)


def configure_logging(level: str) -> None:
    """Write log lines for people to stderr."""
    layout = "%(asctime)s %(levelname)-7s %(name)s: %(message)s"
    formatter = PrivateFormatter(layout, datefmt="%H:%M:%S")
    log_to_stderr(formatter, logging.getLevelNamesMapping()[level.upper()])


def log_stray(_loop: asyncio.AbstractEventLoop, context: dict[str, Any]) -> None:
    """Log what nobody awaited: an event loop's exception handler that quotes no values."""
    # "Exception in callback f(<what it was called with>)" goes on with values.
    message = str(context.get("message", "")).partition(" callback")[0]
    _log.error("event loop: %s", message, exc_info=context.get("exception"))
