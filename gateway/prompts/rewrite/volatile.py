"""Volatile values move out of the stable prefix, into one block that the model reads at its end.

Law: nothing is lost. Where a value stood there is a placeholder with its name and number, and the
block says what each stands for; nobody else has a say in that. Every occurrence has a number of its
own, so that placeholders depend on where values stand and never on what they are.
"""

import re
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import orjson

from gateway.prompts.outcome import NotRewritten, NotRewrittenError
from gateway.prompts.rewrite.detectors import PLACEHOLDER, Finder
from gateway.prompts.texts import BLOCK
from gateway.semantic.compare.fences import has_fences

MOST_VALUES = 64
MOST_BYTES = 4096
"""Of all values together."""
_SHARE = 2
"""One part in so many of the texts may move: what is left would not be worth a cache."""

_TAKEN = re.compile(PLACEHOLDER.encode())
_BETWEEN = "\0"
"""What no detector of ours finds, nor finds anything beyond."""


def refuse_placeholders(heard: Sequence[Any]) -> None:
    """Raise NotRewrittenError where a turn has what looks like a placeholder.

    A page that a tool has fetched could tell the model what the operator's words stand for.
    """
    try:
        written = orjson.dumps(heard)
    except TypeError:  # an integer of more than 64 bits, a lone surrogate
        raise NotRewrittenError(NotRewritten.UNREADABLE) from None
    if _TAKEN.search(written) is not None:
        raise NotRewrittenError(NotRewritten.PLACEHOLDERS)


def moved(pieces: Sequence[str], finder: Finder) -> tuple[list[str], str | None]:
    """Return the pieces with placeholders for values, and the text of the block.

    None is the block where nothing moved. Raises NotRewrittenError.
    """
    joined = _BETWEEN.join(pieces)
    try:
        written = joined.encode()
    except UnicodeEncodeError:  # a lone surrogate
        raise NotRewrittenError(NotRewritten.UNREADABLE) from None
    if _TAKEN.search(written) is not None:
        raise NotRewrittenError(NotRewritten.PLACEHOLDERS)
    moving = _Moving()
    if finder.is_ours and joined.count(_BETWEEN) == len(pieces) - 1 and not has_fences(joined):
        # A search costs microseconds, however short the text is.
        now = moving.without_values(written, finder).decode().split(_BETWEEN)
    else:
        now = [moving.without_values(piece.encode(), finder).decode() for piece in pieces]
    if not moving.values:
        return list(pieces), None
    if moving.moved * _SHARE > len(written):
        raise NotRewrittenError(NotRewritten.TOO_MUCH)
    return now, "\n".join((BLOCK, *(f"{name} = {value}" for name, value in moving.values)))


@dataclass(slots=True)
class _Moving:
    """The values of one request."""

    moved: int = 0
    """Bytes."""
    counts: dict[str, int] = field(default_factory=dict)
    values: list[tuple[str, str]] = field(default_factory=list)
    """Placeholders, and what they stand for."""

    def without_values(self, written: bytes, finder: Finder) -> bytes:
        """Return a text with placeholders for values. Raises NotRewrittenError."""
        if not written or written.isspace():
            return written
        kept: list[bytes] = []
        at = 0
        for start, end, label in finder.find(written):
            kept += (written[at:start], self._moved(written[start:end], label))
            at = end
        return b"".join((*kept, written[at:])) if kept else written

    def _moved(self, value: bytes, label: str) -> bytes:
        self.moved += len(value)
        if len(self.values) >= MOST_VALUES:
            raise NotRewrittenError(NotRewritten.TOO_MANY)
        if self.moved > MOST_BYTES:
            raise NotRewrittenError(NotRewritten.TOO_MUCH)
        self.counts[label] = number = self.counts.get(label, 0) + 1
        placeholder = f"[{label}-{number}]"
        try:
            self.values.append((placeholder, value.decode()))
        except UnicodeDecodeError:  # the operator's pattern cut a character in two
            raise NotRewrittenError(NotRewritten.UNREADABLE) from None
        return placeholder.encode()
