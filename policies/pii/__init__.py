"""Personal data and secrets in text: the scan, and a detector for each kind.

A detector reads text in normal form (``readings.normalise``), is asked only when the text holds the
digits that it needs (``digits_in``), and validates what its patterns propose: checksums, issued
ranges, context. Patterns take linear time: they run on RE2, or leave nothing to backtrack into.
"""

import re
from collections.abc import Iterator
from enum import IntEnum
from typing import Protocol

import re2

_ANY = re.compile(r"[0-9]")
# Seven digits make the shortest phone number; cards and social security numbers have more.
_RUN = re2.compile(r"[0-9](?:[ ().\-/\[\]]{0,4}[0-9]){6}")
_NAME = re.compile(
    r"(?i)(?:\b(?:order|invoice|ticket|case|tracking|shipment|parcel|serial|sku|isbn(?:-?1[03])?|issn"
    r"|ean|upc|gtin|asin|imei|pmid|lot|batch|part|item|article|product|po|ref|reference|id|routing"
    r"|account|acct|transaction|booking|confirmation|job|build|commit|version|port|pid"
    r"|customer(?=[ _-]?(?:no|nr|number|id)))"
    r"|(?-i:[a-z]Id)|_id)"
    r"(?:[ _-]?(?:no|nr|number|num|id|code))?[\"']?[ \t.:#=]{0,4}[\"'(\[]?$"
)
_PARAMETER = re.compile(r"[?&][\w.-]{1,16}=$")
"""Of an address: app.js?v=4155552671."""
_REACH = 32


class Digits(IntEnum):
    """What a text holds, and what a detector needs; more includes less."""

    NONE = 0
    SOME = 1
    RUN = 2
    """Seven or more, with nothing but separators in between."""


class Detector(Protocol):
    """Finds one kind of personal data."""

    @property
    def kind(self) -> str:
        """The word for it in headers, metrics and logs."""
        ...

    @property
    def needs(self) -> Digits:
        """What text must hold for anything to be found in it."""
        ...

    def find(self, text: str) -> Iterator[tuple[int, int]]:
        """Yield (start, end) of each finding in normalised text; they may overlap."""
        ...


def digits_in(text: str) -> Digits:
    """Tell what normalised text holds."""
    if _ANY.search(text) is None:
        return Digits.NONE
    return Digits.SOME if _RUN.search(text) is None else Digits.RUN


def is_named_otherwise(text: str, start: int) -> bool:
    """Tell whether the word before ``start`` says that the number there is no person's.

    A bare run of digits is taken at its word (order number 4155552671, ISBN 0306406152): nothing
    else tells it from what it looks like.
    """
    reach = max(0, start - _REACH)
    return any(name.search(text, reach, start) is not None for name in (_NAME, _PARAMETER))
