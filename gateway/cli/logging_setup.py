"""What our processes share: the format of log lines, and how a child learns that it is to stop.

Law: the message of an exception is not logged. It may quote a prompt, an answer or a header with a
key. Its type and the lines of code that it came through say where to look.
"""

import asyncio
import logging
import os
import signal
import sys
import traceback
from types import TracebackType
from typing import Any

from gateway.cli.log_queue import log_to_stderr
from gateway.telemetry.request_id import IdFormatter

PYTHON = (sys.executable, "-P")
"""Starts a child. ``python -m`` alone would import what lies in the folder one stands in."""

PARENT_PIPE = "REFRAIN_PARENT_PIPE"
"""Set to 1 where stdin is a pipe that the parent holds: its end means that the parent is gone."""


WORKER_SETTINGS = "REFRAIN_WORKER_SETTINGS"
"""Carries a worker's settings as JSON: unlike a command line, an environment is private."""


_log = logging.getLogger(__name__)


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


def stop_event() -> asyncio.Event:
    """Return an event that is set by SIGTERM, SIGINT or the parent's end."""
    stop = asyncio.Event()
    loop = asyncio.get_running_loop()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, stop.set)
    if os.environ.get(PARENT_PIPE) == "1":
        descriptor = sys.stdin.fileno()

        def readable() -> None:
            if not os.read(descriptor, 4096):
                loop.remove_reader(descriptor)
                stop.set()

        loop.add_reader(descriptor, readable)
    return stop
