"""Sizes and times as settings write them: a plain number, or one with its unit."""

import re
from contextlib import suppress
from math import isfinite
from typing import Annotated

from pydantic import BeforeValidator

_SIZE = re.compile(r"([0-9]+(?:\.[0-9]+)?) ?([kmgt]?)(i?)(b?)", re.IGNORECASE | re.ASCII)
_POWERS = {"": 0, "k": 1, "m": 2, "g": 3, "t": 4}
_TIME = re.compile(r"([0-9]+(?:\.[0-9]+)?) ?(ms|s|m|h|d|w)?", re.ASCII)
_SECONDS = {"ms": 0.001, "s": 1, "m": 60, "h": 3600, "d": 86_400, "w": 604_800}


def read_size(value: object) -> object:
    """Return bytes for a text such as 512MiB, 2G (both of 1024) or 1GB (of 1000).

    What is no text is returned as it is. Raises ValueError.
    """
    if not isinstance(value, str):
        return value
    with suppress(ValueError):
        return int(value)
    written = _SIZE.fullmatch(value.strip())
    if written is None or (written[3] and not written[2]):
        raise ValueError("expected a size such as 512MiB, 1GB or a number of bytes")
    decimal = bool(written[4]) and not written[3]
    return int(float(written[1]) * (1000 if decimal else 1024) ** _POWERS[written[2].lower()])


def read_seconds(value: object) -> object:
    """Return seconds for a text such as 50ms, 30s, 10m or 24h.

    What is no text is returned as it is. Raises ValueError.
    """
    if not isinstance(value, str):
        return value
    with suppress(ValueError):
        if isfinite(number := float(value)):
            return number
    written = _TIME.fullmatch(value.strip())
    if written is None:
        raise ValueError("expected a time such as 50ms, 30s, 10m or a number of seconds")
    return float(written[1]) * _SECONDS[written[2] or "s"]


Size = Annotated[int, BeforeValidator(read_size)]
Seconds = Annotated[float, BeforeValidator(read_seconds)]
