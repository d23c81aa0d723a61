"""A pseudo terminal, and what a program has written to it."""

import fcntl
import os
import pty
import re
import struct
import termios
import threading
from collections.abc import Iterator
from contextlib import contextmanager

_CODES = re.compile(r"\x1b\[[0-9;?]*[A-Za-z]|\r")
_SECONDS = 60.0


class Screen:
    """The side of a person: reads what is written, and types."""

    def __init__(self, columns: int, lines: int = 40) -> None:
        self._master, self.slave = pty.openpty()
        fcntl.ioctl(self.slave, termios.TIOCSWINSZ, struct.pack("HHHH", lines, columns, 0, 0))
        self._raw = b""
        self._more = threading.Condition()
        threading.Thread(target=self._read, daemon=True).start()

    @property
    def raw(self) -> str:
        return self._raw.decode(errors="replace")

    @property
    def text(self) -> str:
        """What was written so far, without codes for colour and cursor."""
        return _CODES.sub("", self.raw)

    def wait_for(self, text: str, *, after: int = 0) -> int:
        """Wait until a text is there behind a place; return the place behind it."""
        with self._more:
            assert self._more.wait_for(lambda: text in self.text[after:], _SECONDS), self.text
        return self.text.index(text, after) + len(text)

    def type(self, keys: str) -> None:
        os.write(self._master, keys.encode())

    def _read(self) -> None:
        while True:
            try:
                piece = os.read(self._master, 65_536)
            except OSError:  # the last writer has closed it
                return
            with self._more:
                self._raw += piece
                self._more.notify_all()


@contextmanager
def pseudo_terminal(columns: int) -> Iterator[Screen]:
    screen = Screen(columns)
    try:
        yield screen
    finally:
        os.close(screen.slave)
