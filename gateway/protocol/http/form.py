"""A form as clients upload it (RFC 7578), read as it comes: its fields, and where they stand.

Law: a form that two readers may take differently counts as broken. Nothing is guessed.
"""

import re
from typing import NamedTuple

MOST_HEAD_BYTES = 8_192
"""Of one part."""
MOST_PARTS = 1_000

_PARAMETER = re.compile(
    r"""\s*;\s*([a-z]+)(\*?)=(?:"([^"\\\r\n]*)"|([^\s;,"]+))(?=\s*(?:;|$))""", re.IGNORECASE
)
_NAME = re.compile(r"[a-z0-9-]+")
_LONGEST_BOUNDARY = 70
_AS_THEY_ARE = frozenset({"7bit", "8bit", "binary"})


class Part(NamedTuple):
    """One field; its value stands from ``start`` to ``end``, which is -1 while it is under way."""

    name: str
    is_file: bool
    start: int
    end: int = -1


class Form:
    """What has come of a form."""

    def __init__(self, boundary: bytes) -> None:
        self.data = bytearray()
        self.parts: list[Part] = []
        self.is_over = False
        self.is_broken = False
        self._line = b"--" + boundary
        self._at = 0
        """Up to here it is read."""

    def feed(self, data: bytes) -> None:
        self.data += data
        while not self.is_over and not self.is_broken and self._read():
            pass

    def value(self, part: Part) -> str:
        """Return the text of a complete field; bytes that are not UTF-8 are replaced."""
        return bytes(self.data[part.start : part.end]).decode(errors="replace")

    def _read(self) -> bool:
        """Read one value and the head behind it; tell whether more may be there."""
        if not self.parts and self._at == 0:
            if len(self.data) < len(self._line) + 2:
                return False
            end, rest = 0, len(self._line)
            self.is_broken = not self.data.startswith(self._line)
        else:
            end = self.data.find(b"\r\n" + self._line, self._at)
            if end < 0:
                # The rest of a value is not searched again.
                start = self.parts[-1].start - 2
                self._at = max(start, self._at, len(self.data) - len(self._line) - 2)
                return False
            rest = end + 2 + len(self._line)
        if len(self.data) < rest + 2:
            return False
        self.is_over = self.data.startswith(b"--", rest)
        head = -1 if self.is_over else self.data.find(b"\r\n\r\n", rest, rest + MOST_HEAD_BYTES)
        if not self.is_over and head < 0:
            self.is_broken = len(self.data) >= rest + MOST_HEAD_BYTES
            return False
        if self.parts:
            self.parts[-1] = self.parts[-1]._replace(end=max(end, self.parts[-1].start))
        if self.is_over:
            return False
        part = _part(bytes(self.data[rest:head]), head + 4)
        self.is_broken = self.is_broken or part is None or len(self.parts) >= MOST_PARTS
        if part is not None:
            self.parts.append(part)
        self._at = head + 2  # an empty value has no separate line end
        return not self.is_broken


def boundary_of(content_type: str) -> bytes | None:
    """Return the boundary of a form's type, None for another type, or a broken one."""
    kind, mark, rest = content_type.partition(";")
    parameters = _parameters(mark + rest)
    if kind.strip().lower() != "multipart/form-data" or parameters is None:
        return None
    if "boundary*" in parameters:  # some readers prefer it
        return None
    boundary = parameters.get("boundary", "").rstrip()
    return boundary.encode() if 0 < len(boundary) <= _LONGEST_BOUNDARY else None


def is_form(content_type: str) -> bool:
    """Tell whether a body's type names a form, of whatever kind."""
    return content_type.strip().lower().startswith("multipart/")


def _part(head: bytes, start: int) -> Part | None:
    """Read the head of a part, which begins with the end of the line before it."""
    try:
        first, *lines = head.decode().split("\r\n")
    except UnicodeDecodeError:
        return None
    fields = [
        (name.lower(), value.strip()) for name, _, value in (line.partition(":") for line in lines)
    ]
    named = dict(fields)
    kind, mark, rest = named.get("content-disposition", "").partition(";")
    parameters = _parameters(mark + rest)
    if (
        first
        or len(named) < len(fields)
        or not all(_NAME.fullmatch(name) for name in named)
        or kind.strip().lower() != "form-data"
        or parameters is None
        or "name" not in parameters
        or named.get("content-transfer-encoding", "binary").lower() not in _AS_THEY_ARE
    ):
        return None
    return Part(parameters["name"], "filename" in parameters or "filename*" in parameters, start)


def _parameters(text: str) -> dict[str, str] | None:
    """Return the parameters behind a value by lower-case name; None if one is odd or repeated."""
    found: dict[str, str] = {}
    at, text = 0, text.rstrip()
    while at < len(text):
        given = _PARAMETER.match(text, at)
        name = "" if given is None else (given[1] + given[2]).lower()
        if given is None or name in found or name == "name*":
            return None
        found[name] = given[4] if given[3] is None else given[3]
        at = given.end()
    return found
