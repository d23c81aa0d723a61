"""What every command says and how: exit codes, results, error messages, log lines.

Laws:
- Names come from clients, upstreams and files. No character of them moves the cursor of a terminal,
  hides a text or forges a line.
- The message of an exception is not logged. It may quote a prompt, an answer or a header with a
  key. Its type and the lines of code that it came through say where to look.
"""

import sys
from collections.abc import Iterable
from pathlib import Path
from typing import Any


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


def printable(text: str) -> str:
    """Return a text of one line, with escapes for what a terminal would obey."""
    if text.isprintable():
        return text
    return "".join(
        each if each.isprintable() else each.encode("unicode_escape").decode() for each in text
    )


def show(lines: Iterable[str]) -> None:
    """Print the lines of a result."""
    print("\n".join(map(printable, lines)))


def show_json(value: Any) -> None:
    """Print a result as JSON."""
    import json

    import orjson

    text = orjson.dumps(value).decode()
    # JSON escapes some of what a terminal obeys, and not all.
    print(text if text.isprintable() else json.dumps(orjson.loads(text)))


def say(message: str) -> None:
    """Tell the operator something beside the result, on standard error."""
    for line in message.splitlines():
        print(f"refrain: {printable(line)}", file=sys.stderr)


def configure_logging(level: str, form: str) -> None:
    """Write log lines to stderr; ``form`` is ``text``, ``json`` or ``auto``."""
    # Imported here, since a command that only says something needs none of it.
    import logging

    from gateway.cli.process.log_lines import log_to_stderr
    from gateway.telemetry.request_id import CURRENT

    number = logging.getLevelNamesMapping()[level.upper()]
    log_to_stderr(form, number, request_id=CURRENT.get)
    # The list of events has lines of level info, whatever the log has.
    logging.getLogger("gateway").setLevel(min(number, logging.INFO))


def log_stray(_loop: object, context: dict[str, Any]) -> None:
    """Log an exception that no task awaited: an event loop's handler that quotes no values."""
    import logging

    # "Exception in callback f(<what it was called with>)" goes on with values.
    message = str(context.get("message", "")).partition(" callback")[0]
    logging.getLogger(__name__).error("event loop: %s", message, exc_info=context.get("exception"))
