"""Edits of a JSON text in its bytes: where a value stands, and how it is replaced.

Law: a place is proved, not guessed. However a text is written, it has as many quotes, brackets and
braces as its print has, except those written as escapes, and these are counted, too. So the text
before a place is skipped by counting the bytes that close it. Every byte outside an edit stays.
"""

import json
import re
from collections.abc import Iterable, Sequence
from typing import Any, NamedTuple

import orjson

Path = tuple[str | int, ...]
Span = tuple[int, int]

_SPACE = re.compile(rb"[ \t\r\n]*+")
_SCALAR = re.compile(rb"[^,\]} \t\r\n]*+")
_HIDDEN = re.compile(rb"\\u00(?:22|5[Dd]|7[Dd])")
"""A quote, a bracket or a brace, written as an escape; the backslash may be escaped itself."""
_SHOWN = (
    (b"\\\\", b"  "),  # first of all, so that each other backslash begins an escape
    (b"\\u0022", b'\\"    '),
    *((b"\\u005" + letter, b"]     ") for letter in (b"D", b"d")),
    *((b"\\u007" + letter, b"}     ") for letter in (b"D", b"d")),
)
"""Escapes of these characters, and the characters themselves, as long as their escapes are."""
_FEW = 4096
"""Bytes that are split to find a place in them."""
_CLOSING: dict[type, bytes] = {str: b'"', list: b"]", dict: b"}"}
_QUOTE = b'"'
_COMMA, _BLANK = b", "


class Text(NamedTuple):
    """One text of a request, and where it stands in the body."""

    path: Path
    text: str


class Edit(NamedTuple):
    """The replacement of the bytes from ``start`` to ``end``."""

    start: int
    end: int
    text: bytes


class Places:
    """Where the values of one body stand in its bytes; arrays are passed through in order."""

    def __init__(self, raw: bytes, body: dict[str, Any]) -> None:
        self.raw = raw
        self.body = body
        self._arrays: dict[Path, tuple[int, int]] = {}
        """An element of each array that was looked into, and where it begins."""

    def span(self, path: Path) -> Span:
        start = self.start(path)
        return start, end_of(self.raw, start, _at(self.body, path))

    def start(self, path: Path) -> int:
        if not path:
            return after_space(self.raw, 0)
        above, step = path[:-1], path[-1]
        if isinstance(step, str):
            return self._member(self.start(above), _at(self.body, above), step)
        index, at = self._arrays.get(above, (step + 1, 0))
        if index > step:
            index, at = 0, after_space(self.raw, self.start(above) + 1)
        if index < step:
            at = self._after(at, _at(self.body, above)[index:step])
        self._arrays[above] = (step, at)
        return at

    def _member(self, start: int, holder: dict[str, Any], name: str) -> int:
        """Return where a member's value begins in the object that begins at ``start``."""
        raw, at = self.raw, after_space(self.raw, start + 1)
        before: dict[str, Any] = {}
        for key, value in holder.items():
            if key == name:
                break
            before[key] = value
            # Quotes are many; what closes an array or an object is rare.
            if isinstance(value, list | dict):
                written = _dump(before)[1:-1]
                end = end_of_printed(raw, at, written, _CLOSING[type(value)])
                at, before = next_element(raw, end), {}
        written = _dump({**before, name: None})[1:-6]  # without :null}
        end = end_of_printed(raw, at, written, _QUOTE)
        return after_space(raw, after_space(raw, end) + 1)

    def _after(self, at: int, values: list[Any]) -> int:
        """Return where the element behind these begins, the first of which begins at ``at``."""
        count = len(values)
        while count and type(values[count - 1]) not in _CLOSING:
            count -= 1
        if count:
            written = _dump(values[:count])[1:-1]
            closing = _CLOSING[type(values[count - 1])]
            at = next_element(self.raw, end_of_printed(self.raw, at, written, closing))
        for value in values[count:]:
            at = next_element(self.raw, end_of(self.raw, at, value))
        return at


def end_of(raw: bytes, start: int, value: Any) -> int:
    """Return where a value ends that begins at ``start``."""
    closing = _CLOSING.get(type(value))
    if closing is not None:
        return end_of_printed(raw, start, _dump(value), closing)
    scalar = _SCALAR.match(raw, start)
    return start if scalar is None else scalar.end()


def end_of_printed(raw: bytes, start: int, printed: bytes, closing: bytes) -> int:
    """Return the end of a text with this print and the last byte ``closing``."""
    if raw.startswith(printed, start):
        return start + len(printed)
    count = printed.count(closing)
    size = 2 * len(printed) + 64
    while True:
        part = raw[start : start + size]
        if part.find(b"\\") >= 0 and _HIDDEN.search(part) is not None:
            for hidden, shown in _SHOWN:
                part = part.replace(hidden, shown)
        end = _end_of_nth(part, closing, count)
        if end is not None:
            return start + end
        if start + size >= len(raw):
            raise ValueError("these bytes are not the JSON of this value")
        size *= 4


def _end_of_nth(text: bytes, byte: bytes, number: int) -> int | None:
    """Return the end of the n-th such byte of a text, None if there are fewer."""
    start, end = 0, len(text)
    while end - start > _FEW:  # to split all of it may take a hundred times its size
        middle = (start + end) // 2
        before = text.count(byte, start, middle)
        if before < number:
            start, number = middle, number - before
        else:
            end = middle
    pieces = text[start:end].split(byte, number)
    return end - len(pieces[-1]) if len(pieces) > number else None


def _dump(value: Any) -> bytes:
    """Return JSON with the brackets and quotes of the value, whatever else it is."""
    try:
        return orjson.dumps(value)
    except TypeError:  # an integer of more than 64 bits, half of a surrogate pair
        return json.dumps(value, separators=(",", ":")).encode()


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


def _at(value: Any, path: Path) -> Any:
    for step in path:
        value = value[step]
    return value


def splice(raw: bytes, edits: Sequence[Edit]) -> bytes:
    """Return the text with all edits made, which are in order and do not overlap."""
    pieces: list[bytes] = []
    at = 0
    for start, end, text in edits:
        pieces += (raw[at:start], text)
        at = end
    return b"".join((*pieces, raw[at:]))


def with_values(body: dict[str, Any], values: Iterable[tuple[Path, Any]]) -> dict[str, Any]:
    """Return a copy of a body in which these values stand at their paths.

    What holds several of them is copied once: a request may have 100,000 turns. All else is shared.
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


def with_field(
    body: dict[str, Any], raw: bytes, name: str, value: Any
) -> tuple[dict[str, Any], bytes]:
    """Return body and bytes with a top-level field set; ``raw`` is the JSON of ``body``."""
    return {**body, name: value}, splice(raw, [field_edit(body, raw, name, value)])


def field_edit(body: dict[str, Any], raw: bytes, name: str, value: Any) -> Edit:
    """Return the edit that sets a top-level field."""
    text = orjson.dumps(value)
    if name in body:
        return Edit(*Places(raw, body).span((name,)), text)
    end = raw.rindex(b"}")
    return Edit(end, end, (b"," if body else b"") + b'"' + name.encode() + b'":' + text)
