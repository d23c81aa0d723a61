"""JSON of several megabytes, read in pieces.

Law: no step takes longer than a few milliseconds. A parser holds the interpreter's lock from the
first byte to the last, so in a thread it would stop the event loop all the same; between pieces the
loop gets its turn. What is read equals what the parser makes of the whole. How much of it there may
be is bounded, because to build, check and free a million small objects takes seconds.
"""

import re
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

MAX_VALUES = 2_000_000
"""Mostly numbers: tokens of prompts."""

MAX_CONTAINERS = 200_000
"""Arrays, objects and strings; 40,000 messages of a conversation have as many."""

PIECE = 32 * 1024
_MAX_DEPTH = 32
"""Of what is larger than a piece. What is smaller may be as deep as the parser takes."""

_SPACE = re.compile(rb"[ \t\n\r]{0,32768}+")
_SCALAR = re.compile(rb'[^,:"\[\]{} \t\n\r]{0,4096}+')
_TOKEN = re.compile(rb'["\[\]{}]|[^"\[\]{}]++')
# Ends neither within an escape nor between two that are one character.
_INSIDE = re.compile(
    rb'(?>[^"\\]++|\\[^u]|\\u(?![dD][89abAB])[0-9a-fA-F]{4}'
    rb"|\\u[dD][89abAB][0-9a-fA-F]{2}\\u[dD][c-fC-F][0-9a-fA-F]{2})*+"
)

Parse = Callable[[bytes], Any]


class TooMuchError(ValueError):
    """There is more in it than is read; the text says of what, and how much is."""


class RepeatedKeyError(ValueError):
    """An object has a key, the only argument, twice."""


def parse_in_pieces(raw: bytes, parse: Parse, *, piece: int = PIECE) -> Any:
    """Return the value in ``raw``; ``parse`` reads JSON of about ``piece`` bytes.

    Raises TooMuchError, RepeatedKeyError where pieces of one object share a key, ValueError for
    what is no JSON, and what ``parse`` raises.
    """
    reader = _Reader(raw, parse, piece)
    value, end = reader.value(reader.past_space(0), 0)
    end = reader.past_space(end)
    if end != len(raw):
        raise ValueError(f"unexpected content after the end: byte {end}")
    return value


@dataclass(slots=True)
class _Extent:
    """How much of a container one piece holds: up to its ``end``, or to one of its commas."""

    end: int
    is_last: bool
    num_values: int
    num_containers: int


class _Reader:
    """What reads takes where to begin, and returns the value and where it ended."""

    def __init__(self, raw: bytes, parse: Parse, piece: int) -> None:
        self._raw = raw
        self._parse = parse
        self._piece = piece
        self._num_values = 0
        self._num_containers = 0

    def past_space(self, start: int) -> int:
        """Return where something begins."""
        while (end := _end(_SPACE, self._raw, start)) > start:
            start = end
        return start

    def value(self, start: int, depth: int) -> tuple[Any, int]:
        """Read a value of any size."""
        if depth > _MAX_DEPTH:
            raise ValueError("it is nested too deeply")
        match self._raw[start : start + 1]:
            case b'"':
                self._count(0, 1)
                return self._string(start + 1)
            case b"[":
                self._count(0, 1)
                return self._array(start + 1, depth)
            case b"{":
                self._count(0, 1)
                return self._object(start + 1, depth)
        end = _end(_SCALAR, self._raw, start)
        return self._parse(self._raw[start:end]), end

    def _string(self, start: int) -> tuple[str, int]:
        parts = []
        while True:
            end = self._inside(start, start + self._piece)
            closes = self._raw[end : end + 1] == b'"'
            # A character is not cut in two.
            while not closes and end > start and self._raw[end : end + 1] in _CONTINUATIONS:
                end -= 1
            if not closes and end == start:
                raise ValueError(f"a string does not end or has a wrong escape: byte {start}")
            parts.append(self._parse(b'"' + self._raw[start:end] + b'"'))
            if closes:
                return "".join(parts), end + 1
            start = end

    def _array(self, start: int, depth: int) -> tuple[list[Any], int]:
        items: list[Any] = []
        while True:
            start = self.past_space(start)
            extent = self._extent(start, b"]")
            if extent is None:
                item, end = self.value(start, depth + 1)
                items.append(item)
                is_last, end = self._separator(end, b"]")
            else:
                items += self._members(b"[", start, extent, b"]", may_be_empty=not items)
                is_last, end = extent.is_last, extent.end
            if is_last:
                return items, end + 1
            start = end + 1

    def _object(self, start: int, depth: int) -> tuple[dict[str, Any], int]:
        members: dict[str, Any] = {}
        while True:
            start = self.past_space(start)
            extent = self._extent(start, b"}")
            if extent is None:
                key, end = self._key(start)
                value, end = self.value(self.past_space(end), depth + 1)
                new = {key: value}
                is_last, end = self._separator(end, b"}")
            else:
                new = self._members(b"{", start, extent, b"}", may_be_empty=not members)
                is_last, end = extent.is_last, extent.end
            for key in members.keys() & new.keys():
                raise RepeatedKeyError(key)
            members.update(new)
            if is_last:
                return members, end + 1
            start = end + 1

    def _key(self, start: int) -> tuple[str, int]:
        if self._raw[start : start + 1] != b'"':
            raise ValueError(f"expected a key: byte {start}")
        key, end = self._string(start + 1)
        end = self.past_space(end)
        if self._raw[end : end + 1] != b":":
            raise ValueError(f"expected a colon: byte {end}")
        return key, end + 1

    def _separator(self, start: int, closing: bytes) -> tuple[bool, int]:
        """Return whether a container ends after a member, and where that is told."""
        start = self.past_space(start)
        told = self._raw[start : start + 1]
        if told not in (b",", closing):
            raise ValueError(f"expected a comma or the end of an array or object: byte {start}")
        return told == closing, start

    def _members(
        self, opening: bytes, start: int, extent: _Extent, closing: bytes, *, may_be_empty: bool
    ) -> Any:
        self._count(extent.num_values, extent.num_containers)
        members = self._parse(opening + self._raw[start : extent.end] + closing)
        if not members and not (may_be_empty and extent.is_last):
            raise ValueError(f"expected a value or key: byte {extent.end}")
        return members

    def _extent(self, start: int, closing: bytes) -> _Extent | None:
        """Return what of a container's rest one piece holds; None if its first member is larger."""
        raw, limit = self._raw, start + self._piece
        found: _Extent | None = None
        depth = num_values = num_containers = 0
        at = start
        while (match := _TOKEN.match(raw, at, limit)) is not None:
            token, at = match[0], match.end()
            if token == b'"':
                num_containers += 1
                at = self._inside(at, limit)
                if raw[at : at + 1] != b'"':
                    break  # it is longer, or wrong
                at += 1
            elif token in (b"[", b"{"):
                num_containers += 1
                depth += 1
            elif token not in (b"]", b"}"):
                num_values += token.count(b",")
                if depth == 0 and (comma := token.rfind(b",")) >= 0:
                    found = _Extent(match.start() + comma, False, num_values, num_containers)
            elif depth:
                depth -= 1
            elif token == closing:
                return _Extent(match.start(), True, num_values + 1, num_containers)
            else:
                raise ValueError(f"an array or object ends wrongly: byte {match.start()}")
        return found

    def _inside(self, start: int, limit: int) -> int:
        """Return where a string's inside ends, at the latest at ``limit``."""
        quote = self._raw.find(b'"', start, limit)
        end = min(limit, len(self._raw)) if quote < 0 else quote
        if self._raw.find(b"\\", start, end) < 0:
            return end
        return _end(_INSIDE, self._raw, start, limit)

    def _count(self, num_values: int, num_containers: int) -> None:
        self._num_values += num_values
        self._num_containers += num_containers
        if self._num_values > MAX_VALUES:
            raise TooMuchError(f"{MAX_VALUES} values")
        if self._num_containers > MAX_CONTAINERS:
            raise TooMuchError(f"{MAX_CONTAINERS} arrays, objects and strings")


_CONTINUATIONS = frozenset(bytes([byte]) for byte in range(0x80, 0xC0))


def _end(pattern: re.Pattern[bytes], raw: bytes, start: int, limit: int | None = None) -> int:
    match = pattern.match(raw, start, len(raw) if limit is None else limit)
    return start if match is None else match.end()
