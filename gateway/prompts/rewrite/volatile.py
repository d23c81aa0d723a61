"""Volatile values: how they are found, and how they move into one block near the prompt's end.

Laws: nothing is lost. A placeholder with a name and a number replaces a value, and the block gives
the value of each placeholder. A text that has placeholders already is refused. Each occurrence has
its own number, so placeholders depend on the places of values and never on the values.

The patterns that find them are the policy's (``policies.volatile``).
"""

import re
from collections import Counter, deque
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from functools import lru_cache
from typing import Any

import orjson

from gateway.prompts.outcome import NotRewritten, NotRewrittenError
from gateway.prompts.rewrite.text_rules import BLOCK
from gateway.semantic.code import code_blocks, has_fences
from policies.decision import VolatileKind
from policies.volatile import LABELS, OWN_LABEL, detectors

MAX_VALUES = 64
MAX_BYTES = 4096
"""Of all values together."""
_SHARE = 2
"""One part in ``_SHARE`` of the texts may move: the rest would not be worth a cache."""

_BETWEEN = "\0"
"""No built-in detector matches it, or across it."""

_PLACEHOLDER = re.compile(
    rb"\[(?:" + "|".join((*LABELS.values(), OWN_LABEL)).encode() + rb")-[0-9]+\]"
)


class Finder:
    """Finds the values of these detectors and patterns."""

    def __init__(self, kinds: tuple[VolatileKind, ...], patterns: tuple[str, ...]) -> None:
        self.is_ours = not patterns
        """Whether all patterns are built in: an operator's may depend on a text's ends."""
        self._detectors = detectors(kinds, patterns)

    def find(self, text: bytes) -> Iterator[tuple[int, int, str]]:
        """Yield where in a text's UTF-8 volatile values begin and end, in order, and their labels.

        Built-in detectors pass over what is there to be copied: code and the middle of paths.
        """
        # With a character for each byte, places in the text are places in the bytes.
        blocks = deque(b for b in code_blocks(text.decode("latin-1")) if b.closed)
        for match in self._detectors.all.finditer(text):
            start, end = match.span()
            if start == end:
                continue
            start, end, label = self._value(text, start, end)
            while blocks and blocks[0].end <= start:
                blocks.popleft()
            in_code = blocks and blocks[0].start <= start
            # A slash before it belongs to a path, unless it belongs to a date.
            in_path = text[start - 1 : start] == b"/" and not text[start - 2 : start - 1].isdigit()
            if label == OWN_LABEL or not (in_code or in_path):
                yield start, end, label

    def _value(self, text: bytes, start: int, end: int) -> tuple[int, int, str]:
        piece = text[start:end]
        for index in sorted(self._detectors.which.Match(piece) or ()):
            label, pattern = self._detectors.each[index]
            if pattern is not None and (match := pattern.fullmatch(piece)) is not None:
                first, last = match.span(1)
                if 0 <= first < last:
                    return start + first, start + last, label
            return start, end, label
        return start, end, OWN_LABEL  # it matched by its surroundings


@lru_cache(maxsize=64)
def finder(kinds: tuple[VolatileKind, ...], patterns: tuple[str, ...]) -> Finder:
    """Return the finder of a rule."""
    return Finder(kinds, patterns)


def refuse_placeholders(turns: Any) -> None:
    """Raise NotRewrittenError where a turn contains something like a placeholder.

    Else a page that a tool fetched could say what the operator's placeholders stand for.
    """
    try:
        written = orjson.dumps(turns)
    except TypeError:  # an integer of more than 64 bits
        raise NotRewrittenError(NotRewritten.UNREADABLE) from None
    if _PLACEHOLDER.search(written) is not None:
        raise NotRewrittenError(NotRewritten.PLACEHOLDERS)


def move_values(pieces: Sequence[str], finder: Finder) -> tuple[list[str], str | None]:
    """Return the pieces with placeholders, and the block's text, None where nothing moved.

    Raises NotRewrittenError.
    """
    joined = _BETWEEN.join(pieces)
    written = joined.encode()
    if _PLACEHOLDER.search(written) is not None:
        raise NotRewrittenError(NotRewritten.PLACEHOLDERS)
    moving = _Moving(finder)
    if finder.is_ours and joined.count(_BETWEEN) == len(pieces) - 1 and not has_fences(joined):
        # A search costs microseconds, however short the text is.
        stable = moving.without_values(written).decode().split(_BETWEEN)
    else:
        stable = [moving.without_values(piece.encode()).decode() for piece in pieces]
    if not moving.values:
        return list(pieces), None
    if moving.size * _SHARE > len(written):
        raise NotRewrittenError(NotRewritten.TOO_MUCH)
    return stable, "\n".join((BLOCK, *(f"{name} = {value}" for name, value in moving.values)))


@dataclass(slots=True)
class _Moving:
    finder: Finder
    size: int = 0
    """Bytes of all values."""
    counts: Counter[str] = field(default_factory=Counter)
    """Values by label."""
    values: list[tuple[str, str]] = field(default_factory=list)
    """Placeholders and their values."""

    def without_values(self, text: bytes) -> bytes:
        """Return a text with placeholders for values. Raises NotRewrittenError."""
        if not text or text.isspace():
            return text
        pieces: list[bytes] = []
        at = 0
        for start, end, label in self.finder.find(text):
            self.size += end - start
            if len(self.values) >= MAX_VALUES:
                raise NotRewrittenError(NotRewritten.TOO_MANY)
            if self.size > MAX_BYTES:
                raise NotRewrittenError(NotRewritten.TOO_MUCH)
            self.counts[label] += 1
            placeholder = f"[{label}-{self.counts[label]}]"
            try:
                self.values.append((placeholder, text[start:end].decode()))
            except UnicodeDecodeError:  # the operator's pattern cut a character in two
                raise NotRewrittenError(NotRewritten.UNREADABLE) from None
            pieces += (text[at:start], placeholder.encode())
            at = end
        return b"".join((*pieces, text[at:]))
