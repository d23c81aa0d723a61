"""Times and sizes as people write them: 500ms, 30s, 5m, 512MiB, 1GB."""

import re
from contextlib import suppress
from decimal import Decimal
from math import isfinite
from typing import Final

SECONDS: Final = {"w": 604_800, "d": 86_400, "h": 3600, "m": 60, "s": 1, "ms": 0.001}
"""The units of times, the largest first."""

TIME: Final = r"[0-9]+(\.[0-9]+)? ?(ms|s|m|h|d|w)?"
SIZE: Final = r"[0-9]+(\.[0-9]+)? ?([kKmMgGtT][iI]?)?[bB]?"
"""Patterns of both, which editors check, too."""

_POWERS: Final = ("", "k", "m", "g", "t")
_NAMES: Final = {"s": "seconds", "m": "minutes", "ms": "milliseconds"}


def read_time(text: str, bare: str = "s") -> float:
    """Return the seconds of a time; ``bare`` is the unit of a plain number. Raises ValueError."""
    with suppress(ValueError):
        if isfinite(number := float(text)):
            return number * SECONDS[bare]
    written = text.strip()
    if re.fullmatch(TIME, written, re.ASCII) is None:
        raise ValueError(f"expected a time such as 500ms, 30s, 10m or a number of {_NAMES[bare]}")
    digits = written.rstrip("mshdw ")
    return float(digits) * SECONDS[written.removeprefix(digits).strip()]


def read_size(text: str) -> int:
    """Return the bytes of a size: 512MiB and 2G are of 1024, 1GB is of 1000. Raises ValueError."""
    with suppress(ValueError):
        return int(text)
    written = text.strip().lower()
    if re.fullmatch(SIZE, written, re.ASCII) is None:
        raise ValueError("expected a size such as 512MiB, 1GB or a number of bytes")
    digits = written.rstrip("kmgtib ")
    unit = written.removeprefix(digits).strip()
    base = 1000 if unit.endswith("b") and not unit.endswith("ib") else 1024
    return int(Decimal(digits) * base ** _POWERS.index(unit.rstrip("ib")))


def time_text(seconds: float) -> str:
    """Write a time so that it is read as the same number, with the largest whole unit."""
    for unit, size in SECONDS.items():
        count = round(seconds / size)
        if count and count * size == seconds and (unit != "ms" or seconds < 1):
            return f"{count}{unit}"
    return f"{Decimal(repr(seconds)):f}s" if seconds else "0s"


def size_text(count: int) -> str:
    """Write a size with the largest unit of 1024 of which it is a whole number."""
    power = max(each for each in range(len(_POWERS)) if count % 1024**each == 0) if count else 0
    return f"{count // 1024**power}{_POWERS[power].upper()}{'iB' if power else 'B'}"
