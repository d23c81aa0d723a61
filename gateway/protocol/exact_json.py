"""JSON read strictly, and printed with every digit.

A request body has unique keys, and integers of more than 64 bits keep their digits. orjson alone
reads such an integer as a float and refuses to print it. Where there is none, this costs one search
for a long run of digits.
"""

import json
from collections import Counter
from typing import Any

import orjson

_DIGITS = bytes(ord("0") if chr(byte).isdecimal() else ord(" ") for byte in range(128)) + b" " * 128
_LONG_NUMBER = b"0" * 19
_TOO_LARGE = "Integer exceeds 64-bit range"


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
    try:
        return orjson.dumps(value, option=orjson.OPT_SORT_KEYS if sort_keys else None)
    except TypeError as error:
        if str(error) != _TOO_LARGE:
            raise
    plain = json.dumps(value, ensure_ascii=False, separators=(",", ":"), sort_keys=sort_keys)
    return plain.encode()


class BodyError(ValueError):
    """The body is not one JSON object with unique keys."""


class LoneSurrogateError(BodyError):
    """A string of the body is not Unicode; ``body`` is the parsed object."""

    def __init__(self, body: dict[str, Any]) -> None:
        super().__init__("The JSON body of your request has a lone surrogate in a string.")
        self.body = body


def parse_body(raw: bytes) -> dict[str, Any]:
    """Parse a request body; floats of integral value come back as ints, of any size.

    Raises LoneSurrogateError for half of a surrogate pair, which JavaScript leaves of a cut emoji.
    Raises BodyError for invalid JSON, anything but an object, a nesting of over 250 levels, and
    duplicate keys at any depth. Parsers differ on which duplicate wins, and the key must cover the
    values that the upstream reads.
    """
    try:
        return _parse_body(raw)
    except BodyError:
        raise
    except (TypeError, RecursionError):  # orjson prints fewer levels than it reads
        raise BodyError("The JSON body of your request is nested too deeply.") from None
    except ValueError as error:
        raise BodyError(f"We could not parse the JSON body of your request: {error}.") from None


def _parse_body(raw: bytes) -> dict[str, Any]:
    try:
        body = _check_object(orjson.loads(raw))
    except orjson.JSONDecodeError as error:
        if "surrogate" not in str(error):
            raise
        raise LoneSurrogateError(_check_object(_parse_exactly(raw.decode()))) from None
    printed = orjson.dumps(body)
    # Proof that no key was dropped, without a slow parse: the reprint is the same text; or, if no
    # colon is escaped, both have the same number of colons, of members and inside strings.
    proven_unique = raw == printed or (
        raw.count(b":") == printed.count(b":") and b"\\u003" not in raw
    )
    if proven_unique and not _has_integral_float(printed):
        return body
    return _check_object(_parse_exactly(raw))


def _check_object(body: Any) -> dict[str, Any]:
    if not isinstance(body, dict):
        raise BodyError("The JSON body of a request must be an object.")
    return body


def _has_integral_float(printed: bytes) -> bool:
    """Look for the forms in which orjson prints a float of integral value; may err on a string.

    Such a number may have been written 1, 1.0 or 1e0, or have been an integer of more than 64
    bits that was rounded to a float on reading.
    """
    # Few texts have a plus sign, and one byte is found much faster than two.
    return (b"+" in printed and b"e+" in printed) or (
        b".0" in printed and (b".0," in printed or b".0}" in printed or b".0]" in printed)
    )


def _parse_exactly(text: str | bytes) -> Any:
    """Parse with every digit. Raises ValueError, BodyError for a duplicate key."""
    return json.loads(
        text,
        object_pairs_hook=_unique_keys,
        parse_float=_fold_number,
        parse_constant=_refuse_constant,
    )


def _refuse_constant(name: str) -> float:
    raise ValueError(f"{name} is not a JSON number")


def _unique_keys(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    members = dict(pairs)
    if len(members) != len(pairs):
        [(key, _)] = Counter(key for key, _ in pairs).most_common(1)
        raise BodyError(f"The JSON body of your request has the key {key[:80]!r} more than once.")
    return members


def _fold_number(lexeme: str) -> int | float:
    number = float(lexeme)
    return int(number) if number.is_integer() else number
