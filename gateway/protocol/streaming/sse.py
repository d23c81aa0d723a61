"""Server-sent events as chat completions use them: an incremental decoder and an encoder.

Follows the WHATWG event stream grammar where servers use it: any of LF, CRLF and CR ends a line,
several data lines join with LF, comments and other fields are kept in the raw bytes only. Where an
event ends does not depend on how the stream was cut into reads.
"""

import re
from dataclasses import dataclass

DONE = b"[DONE]"
END_OF_EVENT = b"\n\n"
# Atomic, so that CRLF is never taken for two ends of line.
_END_OF_EVENT = re.compile(rb"(?>\r\n|\n|\r){2}")
_LINE = re.compile(rb"\r\n|\n|\r")
_BOM = b"\xef\xbb\xbf"


class EventTooLargeError(ValueError):
    """An event did not end within the limit."""


@dataclass(frozen=True, slots=True)
class Event:
    """One event: its data (None where it has none, or nothing in it) and the bytes it came in."""

    data: bytes | None
    raw: bytes


class Decoder:
    """Cuts a byte stream into events, however the stream was split into reads."""

    def __init__(self, *, max_event_bytes: int = 16 * 2**20) -> None:
        self._buffer = bytearray()
        self._max_event_bytes = max_event_bytes

    def feed(self, chunk: bytes) -> list[Event]:
        """Return the events that ``chunk`` completes.

        Raises EventTooLargeError when an unfinished event outgrows the limit.
        """
        buffer = self._buffer
        events = []
        start = 0
        # An event's end may straddle two reads: look again at the last three bytes.
        search = max(0, len(buffer) - 3)
        buffer += chunk
        while (end := _END_OF_EVENT.search(buffer, search)) is not None:
            if end.end() == len(buffer) and buffer.endswith(b"\r"):
                break  # the LF of a CRLF may be in the next read
            events.append(_event(bytes(buffer[start : end.end()])))
            start = search = end.end()
        del buffer[:start]
        if len(buffer) > self._max_event_bytes:
            raise EventTooLargeError(f"an event of over {self._max_event_bytes} bytes")
        return events

    def end(self) -> Event | None:
        """Return what the stream ended with if that is no whole event, else None.

        The standard drops such a rest; but servers exist that leave out the last blank line.
        """
        raw = bytes(self._buffer)
        self._buffer.clear()
        return _event(raw) if raw else None


def _is_one_line(raw: bytes) -> bool:
    return raw.find(b"\n") == len(raw) - 2 and b"\r" not in raw


def _event(raw: bytes) -> Event:
    if raw.startswith(b"data: ") and raw.endswith(b"\n\n") and _is_one_line(raw):
        return Event(raw[6:-2] or None, raw)
    data = []
    for line in _LINE.split(raw.removeprefix(_BOM)):
        name, _, value = line.partition(b":")
        if name == b"data":
            data.append(value.removeprefix(b" "))
    return Event(b"\n".join(data) or None, raw)


def encode(data: bytes) -> bytes:
    """Return one event; ``data`` is JSON on one line, or DONE."""
    return b"data: " + data + b"\n\n"
