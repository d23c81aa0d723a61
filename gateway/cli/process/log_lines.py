"""Log lines: their form, and the thread that writes them, so that an unread log stops no loop.

A pipe holds 64 KiB, and a write into a full pipe blocks. The queue here is bounded. A line that
does not fit is dropped; the number of dropped lines is logged as soon as the log is read again.

Times are in UTC, so that lines of machines in several zones sort by their text.
Each package has an equal copy of this file; `tests/gateway/cli/test_log_lines.py` compares them.
"""

import json
import logging
import os
import queue
import re
import select
import threading
import time
import traceback
from collections.abc import Callable, Mapping
from contextlib import suppress
from functools import partial
from logging.handlers import QueueHandler
from types import TracebackType

FORMATS = ("auto", "text", "json")
"""``auto`` is text on a terminal, for people, and JSON elsewhere, for programs."""

MOST_LINES = 10_000
"""Lines that wait to be written; about 2 MB."""

LAST_SECONDS = 1.0
"""The longest wait at the end of the process for the remaining lines."""

STDERR = 2


_PLAIN = re.compile(r"[!#-<>-~]+")
"""Printable ASCII without space, quote and equals sign."""

ExceptionInfo = (
    tuple[type[BaseException], BaseException, TracebackType | None] | tuple[None, None, None]
)


class TextFormatter(logging.Formatter):
    """Lines for people: ``TIME LEVEL LOGGER: MESSAGE FIELD=VALUE [REQUEST ID]``.

    The fields come from ``extra={"fields": {…}}``. The text of an exception may quote what a
    client has sent. Without ``quotes_errors`` a traceback has frames and types alone.
    """

    def __init__(
        self, request_id: Callable[[], str] = lambda: "", *, quotes_errors: bool = False
    ) -> None:
        super().__init__("%(asctime)s %(levelname)-7s %(name)s: %(message)s")
        self._request_id = request_id
        self._quotes_errors = quotes_errors

    def format(self, record: logging.LogRecord) -> str:
        """Format, whatever another handler's formatter has left in the record."""
        left, record.exc_text = record.exc_text, None
        try:
            return super().format(record)
        finally:
            record.exc_text = left

    def formatTime(self, record: logging.LogRecord, datefmt: str | None = None) -> str:  # noqa: ARG002, N802 - the library's
        """Return date and time (ISO 8601, UTC)."""
        seconds = time.strftime("%Y-%m-%dT%H:%M:%S", time.gmtime(record.created))
        return f"{seconds}.{int(record.msecs):03d}Z"

    def formatMessage(self, record: logging.LogRecord) -> str:  # noqa: N802 - the library's name
        """Return the line without a traceback."""
        parts = [super().formatMessage(record)]
        # The kind of an event is for programs; people, and who reads the last word, have the text.
        fields = (pair for pair in _fields(record).items() if pair[0] != "event")
        parts += [f"{name}={_word(value)}" for name, value in fields]
        if request_id := self._request_id():
            parts.append(f"[{request_id}]")
        return " ".join(parts)

    def formatException(self, ei: ExceptionInfo) -> str:  # noqa: N802 - the library's name
        """Return the frames and types of an exception and of its causes."""
        if self._quotes_errors:
            return super().formatException(ei)
        parts: list[str] = []
        error = ei[1]
        seen: set[int] = set()
        while error is not None and id(error) not in seen:
            seen.add(id(error))
            frames = "".join(traceback.format_tb(error.__traceback__))
            parts.append(f"{frames}{type(error).__qualname__}")
            error = error.__cause__ or (None if error.__suppress_context__ else error.__context__)
        return "\nwhile handling\n".join(parts)


class JsonFormatter(TextFormatter):
    """Lines for programs: a JSON object each."""

    def format(self, record: logging.LogRecord) -> str:
        """Return the object, in one line of ASCII."""
        line: dict[str, object] = {
            "time": self.formatTime(record),
            "level": record.levelname.lower(),
            "logger": record.name,
            "message": record.getMessage(),
        }
        if request_id := self._request_id():
            line["request_id"] = request_id
        line |= _fields(record)
        if record.exc_info:
            line["exception"] = self.formatException(record.exc_info)
        return json.dumps(line, default=str)


def _word(value: object) -> str:
    """Return a value as one word; a text that could be taken for more is quoted."""
    text = str(value)
    return text if _PLAIN.fullmatch(text) else json.dumps(text)


def _fields(record: logging.LogRecord) -> Mapping[str, object]:
    fields: Mapping[str, object] = getattr(record, "fields", {})
    return fields


class QueuedLines(QueueHandler):
    """Queues formatted lines for a thread that writes them to a file descriptor."""

    def __init__(self, formatter: logging.Formatter, descriptor: int = STDERR) -> None:
        self._lines: queue.Queue[logging.LogRecord | None] = queue.Queue(MOST_LINES)
        super().__init__(self._lines)
        self.setFormatter(formatter)
        self._descriptor = descriptor
        self._dropped = 0
        self._writer = threading.Thread(target=self._write, name="log", daemon=True)
        self._writer.start()

    def enqueue(self, record: logging.LogRecord) -> None:
        """Queue a line, or count it as dropped; never wait."""
        try:
            self._lines.put_nowait(record)
        except queue.Full:
            self._dropped += 1

    def close(self) -> None:
        """Write the queued lines, for a bounded time."""
        with suppress(queue.Full):
            self._lines.put_nowait(None)
        self._writer.join(LAST_SECONDS)
        super().close()

    def _write(self) -> None:
        while (record := self._lines.get()) is not None:
            self._put(record.getMessage())
            if self._dropped and self._lines.empty():
                dropped, self._dropped = self._dropped, 0
                text = f"{dropped} log lines were dropped: nobody read the log in time"
                notice = logging.LogRecord(__name__, logging.WARNING, __file__, 0, text, None, None)
                self._put(self.format(notice))

    def _put(self, line: str) -> None:
        # Not through sys.stderr: a lock that this thread holds would make the interpreter's end
        # crash.
        data = f"{line}\n".encode("utf-8", "backslashreplace")
        with suppress(OSError):  # the reader has gone
            while data:
                try:
                    data = data[os.write(self._descriptor, data) :]
                except BlockingIOError:
                    select.select((), (self._descriptor,), ())


def log_to_stderr(
    form: str,
    level: int = logging.INFO,
    *,
    request_id: Callable[[], str] = lambda: "",
    quotes_errors: bool = False,
) -> None:
    """Make the root logger write lines of ``level`` and above to stderr, if it has no handler.

    ``form`` is one of ``FORMATS``; ``request_id`` returns the id of the present request.
    """
    root = logging.getLogger()
    if not root.handlers:
        is_text = form == "text" or (form == "auto" and os.isatty(STDERR))
        make = TextFormatter if is_text else JsonFormatter
        lines = QueuedLines(make(request_id, quotes_errors=quotes_errors))
        lines.addFilter(partial(_is_wanted, level))
        root.addHandler(lines)
        root.setLevel(level)


def _is_wanted(level: int, record: logging.LogRecord) -> bool:
    """Tell whether to write a line: another handler may take lines below ``level``."""
    has_own_level = logging.getLogger(record.name).level != logging.NOTSET
    return record.levelno >= level or has_own_level
