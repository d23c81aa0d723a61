"""Edits of a JSON text in its bytes: where a value stands, and how it is replaced.

Law: a place is proved, not guessed. However a text is written, it has as many quotes, brackets and
braces as its print has, except those written as escapes. So the text before a place is skipped by
counting the bytes that close it. If such an escape occurs, or an integer that does not print, the
text is walked through in order. Every byte outside an edit stays as it came.
"""

import json
import re
from collections.abc import Iterable, Sequence
from typing import Any, NamedTuple

import orjson

from gateway.prompts.texts import Path

Span = tuple[int, int]

_SPACE = re.compile(rb"[ \t\r\n]*+")
_TEXT_SPACE = re.compile(r"[ \t\r\n]*+")
_SCALAR = re.compile(rb"[^,\]} \t\r\n]*+")
_HIDDEN = re.compile(rb"\\u00(?:22|5[Dd]|7[Dd])")
"""A quote, a bracket or a brace, written as an escape."""
_CLOSING: dict[type, bytes] = {str: b'"', list: b"]", dict: b"}"}
_QUOTE = b'"'
_COMMA, _BLANK = b", "


def _unread(_: str) -> None:
    return None


_DECODER = json.JSONDecoder(parse_int=_unread, parse_float=_unread)
"""Finds ends; numbers are not read, since that may take long."""


class Places:
    """Where the values of one body stand in its bytes; arrays are looked for once."""

    def __init__(self, raw: bytes, body: dict[str, Any]) -> None:
        self.raw = raw
        self.body = body
        self._arrays: dict[Path, Elements] = {}

    def of(self, path: Path) -> Span:
        """Return where the value at a path stands."""
        if not path:
            return after_space(self.raw, 0), len(self.raw)
        step = path[-1]
        if isinstance(step, int):
            return self._array(path[:-1]).span(step)
        at, holder = self._object(path[:-1])
        start = member_start(self.raw, at, holder, step)
        end = None if start is None else end_of(self.raw, start, holder[step])
        return self._walked(path) if start is None or end is None else (start, end)

    def start(self, path: Path) -> int:
        """Return where the value at a path begins."""
        if not path:
            return after_space(self.raw, 0)
        step = path[-1]
        if isinstance(step, int):
            return self._array(path[:-1]).start(step)
        start = member_start(self.raw, *self._object(path[:-1]), step)
        return self._walked(path)[0] if start is None else start

    def _object(self, path: Path) -> tuple[int, dict[str, Any]]:
        """Return where the object at a path begins, and the object."""
        if not path or isinstance(path[-1], str):
            return self.start(path), _at(self.body, path)
        array = self._array(path[:-1])
        return array.start(path[-1]), array.values[path[-1]]

    def _array(self, path: Path) -> "Elements":
        found = self._arrays.get(path)
        if found is None:
            found = Elements(self.raw, self.start(path), _at(self.body, path))
            self._arrays[path] = found
        return found

    def _walked(self, path: Path) -> Span:
        return walk_to(self.raw, self.of(path[:-1]), str(path[-1]))


class Elements:
    """Where the values of one array stand; to ask for them in order takes one pass."""

    def __init__(self, raw: bytes, start: int, values: Sequence[Any]) -> None:
        self.values = values
        self._raw = raw
        self._first = after_space(raw, start + 1)
        self._known = (0, self._first)
        self._walked: list[Span] = []

    def start(self, index: int) -> int:
        """Return where a value begins."""
        if self._walked:
            return self._walked[index][0]
        known, at = self._known if self._known[0] <= index else (0, self._first)
        if known < index:
            end = _end_of_group(self._raw, at, self.values[known:index])
            if end is None:
                return self._walk()[index][0]
            at = next_element(self._raw, end)
        self._known = (index, at)
        return at

    def span(self, index: int) -> Span:
        """Return where a value stands."""
        start = self.start(index)
        if self._walked:
            return self._walked[index]
        end = end_of(self._raw, start, self.values[index])
        return self._walk()[index] if end is None else (start, end)

    def _walk(self) -> list[Span]:
        self._walked = _walk_elements(self._raw, self._first, len(self.values))
        return self._walked


def end_of(raw: bytes, start: int, value: Any) -> int | None:
    """Return where a value ends that begins at ``start``, None if it has to be walked through."""
    closing = _CLOSING.get(type(value))
    if closing is None:
        scalar = _SCALAR.match(raw, start)
        return None if scalar is None else scalar.end()
    try:
        printed = orjson.dumps(value)
    except TypeError:  # an integer of more than 64 bits
        return None
    return end_of_printed(raw, start, printed, closing)


def end_of_printed(raw: bytes, start: int, printed: bytes, closing: bytes) -> int | None:
    """Return where a text ends that prints so, and whose last byte is ``closing``.

    None if a byte as that may be hidden in it.
    """
    if raw.startswith(printed, start):
        return start + len(printed)
    count = printed.count(closing)
    size = 2 * len(printed) + 64
    most = 64 * size
    while len(pieces := raw[start : start + size].split(closing, count)) <= count:
        if start + size >= len(raw) or size > most:
            return None
        size *= 4
    end = min(start + size, len(raw)) - len(pieces[-1])
    if raw.find(b"\\", start, end) < 0 or _HIDDEN.search(raw, start, end) is None:
        return end
    return None


def member_start(raw: bytes, start: int, holder: dict[str, Any], name: str) -> int | None:
    """Return where a member's value begins in the object that begins at ``start``.

    None if it has to be walked to.
    """
    at = after_space(raw, start + 1)
    before: dict[str, Any] = {}
    try:
        for key, value in holder.items():
            if key == name:
                break
            before[key] = value
            # Quotes are many; what closes an array or an object is rare.
            if isinstance(value, list | dict):
                end = end_of_printed(raw, at, orjson.dumps(before)[1:-1], _CLOSING[type(value)])
                if end is None:
                    return None
                at, before = next_element(raw, end), {}
        written = orjson.dumps({**before, name: None})[1:-6]  # without :null}
    except TypeError:  # an integer of more than 64 bits
        return None
    end = end_of_printed(raw, at, written, _QUOTE)
    return None if end is None else after_space(raw, after_space(raw, end) + 1)


def after_space(raw: bytes, at: int) -> int:
    """Return the place of the next byte that is no white space."""
    if raw[at] > _BLANK:
        return at
    match = _SPACE.match(raw, at)
    return at if match is None else match.end()


def next_element(raw: bytes, at: int) -> int:
    """Return where the next value begins behind one, or the closing byte stands."""
    if raw[at] != _COMMA:
        at = after_space(raw, at)
    if raw[at] != _COMMA:
        return at
    return after_space(raw, at + 1)


def walk_to(raw: bytes, within: Span, name: str) -> Span:
    """Walk through the members of the object that stands ``within`` the bytes to one of them."""
    text = raw[slice(*within)].decode()
    at = _skip(text, 1)
    while text[at] != "}":
        key, at = _DECODER.raw_decode(text, at)
        start = _skip(text, _skip(text, at) + 1)
        _, end = _DECODER.raw_decode(text, start)
        if key == name:
            first = within[0] + _bytes_before(text, start)
            return first, first + len(text[start:end].encode())
        at = _skip(text, end)
        if text[at] == ",":
            at = _skip(text, at + 1)
    raise KeyError(name)


def _end_of_group(raw: bytes, start: int, values: Sequence[Any]) -> int | None:
    """Return where the last of several elements ends, the first of which begins at ``start``."""
    closing = _CLOSING.get(type(values[-1]))
    if closing is None:
        return None
    try:
        printed = orjson.dumps(values)[1:-1]
    except TypeError:  # an integer of more than 64 bits
        return None
    return end_of_printed(raw, start, printed, closing)


def _walk_elements(raw: bytes, start: int, count: int) -> list[Span]:
    """Walk through ``count`` values of an array, the first of which begins at ``start``."""
    text = raw[start:].decode()
    wide = not text.isascii()
    found = []
    place, at = start, 0
    for _ in range(count):
        _, end = _DECODER.raw_decode(text, at)
        size = len(text[at:end].encode()) if wide else end - at
        found.append((place, place + size))
        behind = _skip(text, end)
        if text[behind : behind + 1] == ",":
            behind = _skip(text, behind + 1)
        place += size + behind - end  # white space and the comma, a byte each
        at = behind
    return found


def _at(value: Any, path: Path) -> Any:
    for step in path:
        value = value[step]
    return value


def _skip(text: str, at: int) -> int:
    match = _TEXT_SPACE.match(text, at)
    return at if match is None else match.end()


def _bytes_before(text: str, at: int) -> int:
    return at if text.isascii() else len(text[:at].encode())


class Edit(NamedTuple):
    """What takes the place of the bytes from ``start`` to ``end``."""

    start: int
    end: int
    text: bytes


def spliced(raw: bytes, edits: Sequence[Edit]) -> bytes:
    """Return the text with all edits made, which are in order and do not overlap."""
    pieces: list[bytes] = []
    at = 0
    for start, end, text in edits:
        pieces += (raw[at:start], text)
        at = end
    return b"".join((*pieces, raw[at:]))


def replaced(body: dict[str, Any], path: Path, new: Any) -> dict[str, Any]:
    """Return a copy of a body in which ``new`` stands at the path; what is not on it is shared."""
    return all_replaced(body, ((path, new),))


def all_replaced(body: dict[str, Any], values: Iterable[tuple[Path, Any]]) -> dict[str, Any]:
    """Return a copy of a body in which these values stand at their paths.

    What holds several of them is copied once: a request may have 100,000 turns.
    """
    copies: dict[Path, Any] = {(): body.copy()}
    for path, new in values:
        for depth, step in enumerate(path[:-1]):
            inner = path[: depth + 1]
            if inner not in copies:
                holder = copies[path[:depth]]
                holder[step] = copies[inner] = holder[step].copy()
        copies[path[:-1]][path[-1]] = new
    changed: dict[str, Any] = copies[()]
    return changed


def printed(value: Any) -> bytes:
    """Return the JSON of a value of ours."""
    return orjson.dumps(value)
