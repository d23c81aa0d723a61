"""What the commands share: arguments, exit codes, error messages, files of JSON lines.

A command returns 0 where it is done. It raises ``CommandError`` with 1 where it failed, and with 2
where its usage or a file is wrong.
"""

import argparse
import pkgutil
import sys
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any, Generic, TypeVar
from urllib.parse import urlsplit

import orjson

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
