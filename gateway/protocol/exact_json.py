"""JSON read strictly, and printed with every digit.

A request body has unique keys, and integers of more than 64 bits keep their digits. orjson alone
reads such an integer as a float and refuses to print it. Where there is none, this costs one search
for a long run of digits.

Law: a body costs no more time and memory than its size allows, whatever is in it. So it is refused
unparsed if it has too many values or escapes, and no number is written out longer than it came.
"""

import json
import re
from typing import Any

import orjson

_DIGITS = bytes(ord("0") if chr(byte).isdecimal() else ord(" ") for byte in range(128)) + b" " * 128
_LONG_NUMBER = b"0" * 19
_INTEGRAL = re.compile(rb"\.0[,}\]]")
_TOO_LARGE = "Integer exceeds 64-bit range"

MAX_STRUCTURE = 500_000
"""Structural characters: eighty thousand messages have fewer, and half a million token numbers.
Each takes up to a hundred bytes and a tenth of a microsecond."""
_STRUCTURE = b"{}[]:,"
"""The six structural characters (RFC 8259, 2)."""
MAX_ESCAPES = 8_000_000
"""Backslashes: an escape costs ten times as much as a plain character when it is printed again."""
MAX_LONG_INTEGERS = 10_000
"""Of more than 64 bits. One takes a hundred times as long as a short one."""
_SHORT = 2**63
_PIECE = 1 << 16
"""Bytes that are looked through at once: another thread can run in between."""
_MOST_NAMED = 1 << 20
"""Bytes of a body in which a duplicate key is sought: the search takes twenty times as many."""

_MOST_WRITTEN_OUT = 1e22
"""The largest power of ten that a double holds exactly. A larger one could take 309 digits."""


def loads(text: bytes) -> Any:
    """Return the value of the JSON text. Raises orjson.JSONDecodeError."""
    value = orjson.loads(text)
    if _LONG_NUMBER not in text.translate(_DIGITS):  # a tenth of a regular expression's time
        return value
    try:
        return json.loads(text)
    except (ValueError, RecursionError):  # thousands of digits, or of levels
        return value


def dumps(value: Any, *, sort_keys: bool = False) -> bytes:
    """Return the value as JSON. Raises TypeError if it is nested deeper than orjson prints."""
    option = orjson.OPT_SORT_KEYS if sort_keys else None
    try:
        return orjson.dumps(value, option=option)
    except TypeError as error:
        if str(error) != _TOO_LARGE:
            raise
    return orjson.dumps(_with_digits(value), option=option)


def _with_digits(value: Any) -> Any:
    match value:
        case int() if not -(2**63) <= value < 2**64:
            return orjson.Fragment(str(value))
        case dict():
            pairs = value.items()
            changed = {name: new for name, old in pairs if (new := _with_digits(old)) is not old}
            return {**value, **changed} if changed else value
        case list():
            items = [_with_digits(item) for item in value]
            same = all(new is old for new, old in zip(items, value, strict=True))
            return value if same else items
        case _:
            return value


class BodyError(ValueError):
    """The body is not one JSON object with unique keys."""


class BodyTooLargeError(BodyError):
    """The body has more parts than are read."""


class LoneSurrogateError(BodyError):
    """A string of the body is not Unicode; ``body`` is the parsed object."""

    def __init__(self, body: dict[str, Any]) -> None:
        super().__init__("The JSON body of your request has a lone surrogate in a string.")
        self.body = body


def parse_body(raw: bytes) -> dict[str, Any]:
    """Parse a request body; floats of integral value up to 10**22 come back as ints.

    A number without fraction and exponent keeps its digits, any other one is a double: that is how
    servers read them.

    Raises LoneSurrogateError for half of a surrogate pair, which JavaScript leaves of a cut emoji.
    Raises BodyTooLargeError for more values, escapes or long integers than are read. Raises
    BodyError for invalid JSON, anything but an object, a nesting of over 250 levels, and duplicate
    keys at any depth. Parsers differ on which duplicate wins, and the key must cover the values
    that the upstream reads.
    """
    if len(raw) > MAX_STRUCTURE:
        _check_cost(raw)
    try:
        return _parse_body(raw)
    except BodyError:
        raise
    except (TypeError, RecursionError):  # orjson prints fewer levels than it reads
        raise BodyError("The JSON body of your request is nested too deeply.") from None
    except ValueError as error:
        raise BodyError(f"We could not parse the JSON body of your request: {error}.") from None


def _check_cost(raw: bytes) -> None:
    """Raise BodyTooLargeError for a body that would take long for its size."""
    if raw.count(b"\\") > MAX_ESCAPES:
        raise BodyTooLargeError(f"Your request has more than {MAX_ESCAPES:,} backslashes.")
    if (
        sum(map(raw.count, _STRUCTURE)) > MAX_STRUCTURE
        and _count_outside_strings(raw, _STRUCTURE, MAX_STRUCTURE) > MAX_STRUCTURE
    ):
        raise BodyTooLargeError(
            f"Your request has more than {MAX_STRUCTURE:,} structural characters: brackets, braces,"
            " colons and commas outside its texts."
        )


def _count_outside_strings(raw: bytes, characters: bytes, most: int) -> int:
    """Count these characters outside the strings of JSON, until there are more than ``most``."""
    others = bytes(byte for byte in range(256) if byte not in characters + b'"')
    count = inside = start = 0
    while start < len(raw) and count <= most:
        piece = raw[start : start + _PIECE]
        if (len(piece) - len(piece.rstrip(b"\\"))) % 2:  # it ends within an escape
            piece = raw[start : start + _PIECE + 1]
        start += len(piece)
        unescaped = piece.replace(b"\\\\", b"").replace(b'\\"', b"")
        texts = unescaped.translate(None, others).split(b'"')
        count += sum(map(len, texts[inside::2]))
        inside ^= (len(texts) - 1) % 2
    return count


def _parse_body(raw: bytes) -> dict[str, Any]:
    try:
        body = _check_object(orjson.loads(raw))
    except orjson.JSONDecodeError as error:
        if "surrogate" not in str(error):
            raise
        body = _check_object(_parse_exactly(raw.decode()))
        _check_unique(raw, body)
        raise LoneSurrogateError(body) from None
    printed = orjson.dumps(body)
    # Proof that no key was dropped, without a look at each: the reprint is the same text; or, if no
    # colon is escaped, both have the same number of colons, of members and inside strings.
    if raw != printed and (raw.count(b":") != printed.count(b":") or b"\\u003" in raw):
        _check_unique(raw, body)
    if not _has_integral_float(printed):
        return body
    del printed  # what follows may take as much
    if _LONG_NUMBER not in raw.translate(_DIGITS):
        _fold_floats(body)
        return body
    del body
    return _check_object(_parse_exactly(raw))


def _check_object(body: Any) -> dict[str, Any]:
    if not isinstance(body, dict):
        raise BodyError("The JSON body of a request must be an object.")
    return body


def _check_unique(raw: bytes, body: dict[str, Any]) -> None:
    """Raise BodyError if a key of the text is not in ``body``, which was parsed from it."""
    members = 0
    stack: list[Any] = [body]
    while stack:
        match stack.pop():
            case dict() as inner:
                members += len(inner)
                stack.extend(inner.values())
            case list() as items:
                stack.extend(items)
    if members == _count_outside_strings(raw, b":", members):
        return
    if len(raw) <= _MOST_NAMED:
        json.loads(raw, object_pairs_hook=_name_duplicate)
    raise BodyError("An object in the JSON body of your request has a key more than once.")


def _name_duplicate(pairs: list[tuple[str, Any]]) -> None:
    seen = set[str]()
    for key, _ in pairs:
        if key in seen:
            raise BodyError(
                f"The JSON body of your request has the key {key[:80]!r} more than once."
            )
        seen.add(key)


def _has_integral_float(printed: bytes) -> bool:
    """Look for the forms in which orjson prints a float of integral value; may err on a string.

    Such a number may have been written 1, 1.0 or 1e0, or have been an integer of more than 64
    bits that was rounded to a float on reading.
    """
    # Few texts have a plus sign, and one byte is found much faster than two.
    in_exponent = b"+" in printed and b"e+" in printed
    return in_exponent or _INTEGRAL.search(printed) is not None


def _parse_exactly(text: str | bytes) -> Any:
    """Parse with every digit. Raises ValueError, BodyTooLargeError."""
    fold = _Fold()
    return json.loads(
        text,
        parse_float=lambda lexeme: fold(float(lexeme)),
        parse_int=lambda lexeme: fold.checked(int(lexeme)),
        parse_constant=_refuse_constant,
    )


def _fold_floats(body: dict[str, Any]) -> None:
    """Put integers in the place of floats with their value. Raises BodyTooLargeError."""
    fold = _Fold()
    stack: list[Any] = [body]
    while stack:
        holder = stack.pop()
        for place, value in holder.items() if type(holder) is dict else enumerate(holder):
            kind = type(value)
            if kind is float:
                holder[place] = fold(value)
            elif kind is dict or kind is list:
                stack.append(value)


class _Fold:
    """Makes integers of floats that are small enough, and bounds the number of long integers."""

    def __init__(self) -> None:
        self._long = 0

    def __call__(self, number: float) -> int | float:
        if number.is_integer() and abs(number) <= _MOST_WRITTEN_OUT:
            return self.checked(int(number))
        return number

    def checked(self, number: int) -> int:
        if not -_SHORT <= number < _SHORT:
            self._long += 1
            if self._long > MAX_LONG_INTEGERS:
                raise BodyTooLargeError(
                    f"Your request has more than {MAX_LONG_INTEGERS:,} integers of over 64 bits."
                )
        return number


def _refuse_constant(name: str) -> float:
    raise ValueError(f"{name} is not a JSON number")
