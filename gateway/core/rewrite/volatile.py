"""Volatile values move out of the stable prefix, into one block that the model reads at its end.

Law: nothing is lost. Where a value stood there is a placeholder with its name and number, and the
block says what each stands for; nobody else has a say in that. Every occurrence has a number of its
own, so that placeholders depend on where values stand and never on what they are.
"""

from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any

import orjson
import re2

from gateway.core.rewrite.detectors import PLACEHOLDER, Finder, Found
from gateway.core.rewrite.outcome import DeclinedError, WhyNot
from gateway.core.rewrite.texts import BLOCK

MOST_VALUES = 64
MOST_BYTES = 4096
"""Of all values together."""
_SHARE = 2
"""One part in so many of the texts may move: what is left would not be worth a cache."""

_TAKEN: Any = re2.compile(PLACEHOLDER.encode())


def refuse_placeholders(heard: Iterable[Any]) -> None:
    """Raise DeclinedError where a turn has what looks like a placeholder.

    A page that a tool has fetched could tell the model what the operator's words stand for.
    """
    for turn in heard:
        try:
            written = orjson.dumps(turn)
        except TypeError:  # an integer of more than 64 bits, a lone surrogate
            raise DeclinedError(WhyNot.UNREADABLE) from None
        if _TAKEN.search(written) is not None:
            raise DeclinedError(WhyNot.PLACEHOLDERS)


@dataclass(slots=True)
class Moving:
    """The values of one request."""

    finder: Finder
    seen: int = 0
    moved: int = 0
    counts: Counter[str] = field(default_factory=Counter)
    values: list[tuple[str, str]] = field(default_factory=list)
    """Placeholders, and what they stand for."""

    def without_values(self, text: str) -> str:
        """Return a text with placeholders for values. Raises DeclinedError."""
        if not text or text.isspace():
            return text
        try:
            written = text.encode()
        except UnicodeEncodeError:  # a lone surrogate
            raise DeclinedError(WhyNot.UNREADABLE) from None
        self.seen += len(written)
        if b"-" in written and b"[" in written and _TAKEN.search(written) is not None:
            raise DeclinedError(WhyNot.PLACEHOLDERS)
        kept: list[bytes] = []
        at = 0
        for found in self.finder.find(written):
            kept += [written[at : found.start], self._moved(written, found)]
            at = found.end
        return b"".join((*kept, written[at:])).decode() if kept else text

    def _moved(self, written: bytes, found: Found) -> bytes:
        start, end, label = found
        self.moved += end - start
        if len(self.values) >= MOST_VALUES:
            raise DeclinedError(WhyNot.TOO_MANY)
        if self.moved > MOST_BYTES:
            raise DeclinedError(WhyNot.TOO_MUCH)
        self.counts[label] += 1
        placeholder = f"[{label}-{self.counts[label]}]"
        try:
            self.values.append((placeholder, written[start:end].decode()))
        except UnicodeDecodeError:  # the operator's pattern cut a character in two
            raise DeclinedError(WhyNot.UNREADABLE) from None
        return placeholder.encode()

    def block(self) -> str | None:
        """Return the text of the block, None where nothing moved. Raises DeclinedError."""
        if not self.values:
            return None
        if self.moved * _SHARE > self.seen:
            raise DeclinedError(WhyNot.TOO_MUCH)
        return "\n".join((BLOCK, *(f"{name} = {value}" for name, value in self.values)))
