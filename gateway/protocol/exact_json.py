"""JSON that keeps the digits of integers of more than 64 bits, which orjson alone does not.

orjson reads such an integer as a float and refuses to print it. Where there is none, this costs one
search for a long run of digits.
"""

import json
from typing import Any

import orjson

_DIGITS = bytes(ord("0") if chr(byte).isdecimal() else ord(" ") for byte in range(128)) + b" " * 128
_LONG_NUMBER = b"0" * 19
_TOO_LARGE = "Integer exceeds 64-bit range"


def loads(text: bytes) -> Any:
    """Return what the JSON says. Raises orjson.JSONDecodeError."""
    value = orjson.loads(text)
    if _LONG_NUMBER not in text.translate(_DIGITS):  # a tenth of a regular expression's time
        return value
    try:
        return json.loads(text)
    except (ValueError, RecursionError):  # thousands of digits, or of levels
        return value


def dumps(value: Any, *, sort_keys: bool = False) -> bytes:
    """Return the value as JSON. Raises TypeError for what is nested deeper than orjson prints."""
    try:
        return orjson.dumps(value, option=orjson.OPT_SORT_KEYS if sort_keys else None)
    except TypeError as error:
        if str(error) != _TOO_LARGE:
            raise
    plain = json.dumps(value, ensure_ascii=False, separators=(",", ":"), sort_keys=sort_keys)
    return plain.encode()
