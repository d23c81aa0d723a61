"""The edits of a rewritten request as a person reads them: where, what went, what came.

Law: bytes are told as they are; only what is the same on both sides may be left out, never what
differs.
"""

import re
from collections.abc import Iterator, Sequence
from difflib import SequenceMatcher
from itertools import takewhile
from typing import NamedTuple

from gateway.prompts.json_splice import Edit

CONTEXT = 24
"""Bytes that are shown before and behind a difference."""
_MOST_WORDS = 2000
"""Of an edit; of longer ones only what both sides begin and end with is left out."""
_WORD = re.compile(rb"\w+(?:[.:+-]\w+)*|[\x80-\xff]+|\s+|.", re.DOTALL)


class Hunk(NamedTuple):
    """One difference: the bytes from ``at`` on that went, and those that came in their place."""

    at: int
    went: bytes
    came: bytes
    before: bytes
    behind: bytes


def hunks(raw: bytes, edits: Sequence[Edit]) -> Iterator[Hunk]:
    """Yield what the edits change in the bytes that came, in order."""
    for edit in edits:
        for start, end, came in _differences(raw[edit.start : edit.end], edit.text):
            at, to = edit.start + start, edit.start + end
            before = raw[max(0, at - CONTEXT) : at]
            yield Hunk(at, raw[at:to], came, before, raw[to : to + CONTEXT])


def _differences(went: bytes, came: bytes) -> Iterator[tuple[int, int, bytes]]:
    """Yield places in ``went`` and what stands there in ``came``."""
    old, new = _WORD.findall(went), _WORD.findall(came)
    first = _same(old, new)
    last = _same(old[:first:-1], new[:first:-1])
    at = sum(map(len, old[:first]))
    old, new = old[first : len(old) - last], new[first : len(new) - last]
    if max(len(old), len(new)) > _MOST_WORDS:
        yield at, at + sum(map(len, old)), b"".join(new)
        return
    places = [at]
    for word in old:
        places.append(places[-1] + len(word))
    for tag, start, end, new_start, new_end in SequenceMatcher(
        None, old, new, autojunk=False
    ).get_opcodes():
        if tag != "equal":
            yield places[start], places[end], b"".join(new[new_start:new_end])


def _same(one: list[bytes], other: list[bytes]) -> int:
    """Return how many words both begin with."""
    pairs = zip(one, other, strict=False)
    return sum(1 for _ in takewhile(lambda pair: pair[0] == pair[1], pairs))
