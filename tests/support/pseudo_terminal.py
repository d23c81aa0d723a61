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

    def wait_for(self, text: str, *, after: int = 0, unless: re.Pattern[str] | None = None) -> int:
        """Wait until a text is there behind a place; return the place behind it.

        Fails at once if ``unless`` is there instead.
        """

        def decided() -> bool:
            shown = self.text[after:]
            return text in shown or (unless is not None and unless.search(shown) is not None)

        with self._more:
            self._more.wait_for(decided, _SECONDS)
        shown = self.text
        assert text in shown[after:], shown
        return shown.index(text, after) + len(text)

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
