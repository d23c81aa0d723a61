"""Log lines are written by their own thread, so that an unread log stops no event loop.

A pipe holds 64 KiB, and a write into a full pipe blocks. The queue here is bounded. A line that
does not fit is dropped; the number of dropped lines is logged as soon as the log is read again.
"""

import logging
import os
import queue
import select
import threading
from contextlib import suppress
from logging.handlers import QueueHandler

MOST_LINES = 10_000
"""Lines that wait to be written; about 2 MB."""

LAST_SECONDS = 1.0
"""The longest wait at the end of the process for the remaining lines."""

STDERR = 2


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


def log_to_stderr(formatter: logging.Formatter, level: int = logging.INFO) -> None:
    """Make the root logger write lines of ``level`` and above to stderr, if it has no handler."""
    root = logging.getLogger()
    if not root.handlers:
        root.addHandler(QueuedLines(formatter))
        root.setLevel(level)
