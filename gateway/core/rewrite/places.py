"""Where the values of a parsed JSON text stand in its bytes.

Law: a place is proved, not guessed. A key is found by its token only where that token stands once
and can be written in no other way; a value's end is known where the text goes on just as the value
prints, for strings, arrays and objects end in themselves. Everything else is walked, in order.
"""

import json
import re
from collections.abc import Sequence
from typing import Any

import orjson

Span = tuple[int, int]

_SPACE = re.compile(rb"[ \t\r\n]*+")
_TEXT_SPACE = re.compile(r"[ \t\r\n]*+")


def _unread(_: str) -> None:
    return None


_DECODER = json.JSONDecoder(parse_int=_unread, parse_float=_unread)
"""Finds ends; numbers are not read, since that may take long."""
_COLON, _COMMA, _BACKSLASH = b":,\\"
_OPENING = b'[{"'
_SELF_DELIMITING = (str, list, dict)


def member(raw: bytes, within: Span, holder: dict[str, Any], name: str) -> Span:
    """Return the place of a member's value in the object that stands ``within`` the bytes."""
    start = _after_key(raw, within, name)
    if start is None:
        return _walk_to(raw, within, name)
    return start, _end_of(raw, (start, within[1]), holder[name])


def start_of(raw: bytes, within: Span, name: str) -> int:
    """Return where a member's value begins in the object that stands ``within`` the bytes."""
    start = _after_key(raw, within, name)
    return _walk_to(raw, within, name)[0] if start is None else start


def compact_start(raw: bytes, body: dict[str, Any], name: str, value: bytes) -> int | None:
    """Return where a top-level value begins that stands in the bytes just as it is printed.

    None where it does not, or where the members that the body has before it, or behind it, do not
    stand there as they print: whichever are fewer are looked at.
    """
    names = list(body)
    at = names.index(name)
    key = b'"' + name.encode() + b'":'
    try:
        if 2 * at < len(names):
            before = orjson.dumps({each: body[each] for each in names[:at]})[:-1]
            start = len(before) + bool(at) + len(key)
            written = b"".join((before, b"," if at else b"", key, value))
            return start if raw.startswith(written) else None
        behind = orjson.dumps({each: body[each] for each in names[at + 1 :]})[1:]
    except TypeError:  # an integer of more than 64 bits
        return None
    written = b"".join((key, value, b"," if at + 1 < len(names) else b"", behind))
    start = len(raw) - len(written)
    # A quote behind a backslash would be inside a string; any other quote opens the key.
    if start < 1 or raw[start - 1] == _BACKSLASH or not raw.endswith(written):
        return None
    return start + len(key)


def top_level_start(raw: bytes, body: dict[str, Any], name: str) -> int:
    """Return where a top-level value begins."""
    names = list(body)
    at = names.index(name)
    try:
        before = orjson.dumps({each: body[each] for each in names[:at]})[:-1]
    except TypeError:  # an integer of more than 64 bits
        return start_of(raw, (0, len(raw)), name)
    written = b"".join((before, b"," if at else b"", b'"', name.encode(), b'":'))
    if raw.startswith(written) and raw[len(written)] in _OPENING:
        return len(written)
    return start_of(raw, (0, len(raw)), name)


def elements(raw: bytes, start: int, values: Sequence[Any]) -> list[Span]:
    """Return the places of all values of the array that begins at ``start``."""
    found: list[Span] = []
    at = after_space(raw, start + 1)
    for value in values:
        printed = _printed(value)
        if printed is None or not raw.startswith(printed, at):
            return found + _walk_elements(raw, at, len(values) - len(found))
        found.append((at, at + len(printed)))
        at = next_element(raw, at + len(printed))
    return found


def after_space(raw: bytes, at: int) -> int:
    """Return the place of the next byte that is no white space."""
    match = _SPACE.match(raw, at)
    return at if match is None else match.end()


def next_element(raw: bytes, at: int) -> int:
    """Return where the next value of an array begins, or its closing bracket stands."""
    if raw[at] != _COMMA:
        at = after_space(raw, at)
    if raw[at] != _COMMA:
        return at
    return after_space(raw, at + 1)


def _end_of(raw: bytes, within: Span, value: Any) -> int:
    """Return where the value that begins ``within`` the bytes ends, which is within them, too."""
    start, last = within
    printed = _printed(value)
    if printed is not None and raw.startswith(printed, start):
        return start + len(printed)
    text = raw[start:last].decode()
    _, end = _DECODER.raw_decode(text)
    return start + (end if text.isascii() else len(text[:end].encode()))


def _printed(value: Any) -> bytes | None:
    if not isinstance(value, _SELF_DELIMITING):
        return None
    try:
        return orjson.dumps(value)
    except TypeError:  # an integer of more than 64 bits
        return None


def _after_key(raw: bytes, within: Span, name: str) -> int | None:
    """Return where the value of the only member of this name begins; None if it is to be walked to.

    A quote behind a backslash is inside a string, any other opens or closes one; so a name between
    quotes is a string, and before a colon it is a key.
    """
    start, end = within
    if raw.find(b"\\u00", start, end) >= 0:  # a letter of the name may be written so
        return None
    token = b'"' + name.encode() + b'"'
    found: int | None = None
    at = raw.find(token, start, end)
    while at >= 0:
        behind = at + len(token)
        if raw[behind] != _COLON:
            behind = after_space(raw, behind)
        if raw[behind] == _COLON and raw[at - 1] != _BACKSLASH:
            if found is not None:
                return None
            found = behind + 1
        at = raw.find(token, at + len(token), end)
    return None if found is None else after_space(raw, found)


def _walk_to(raw: bytes, within: Span, name: str) -> Span:
    """Walk through the members of an object to the one of this name."""
    text = raw[slice(*within)].decode()
    at = _skip(text, _skip(text, 0) + 1)
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


def _skip(text: str, at: int) -> int:
    match = _TEXT_SPACE.match(text, at)
    return at if match is None else match.end()


def _bytes_before(text: str, at: int) -> int:
    return at if text.isascii() else len(text[:at].encode())
