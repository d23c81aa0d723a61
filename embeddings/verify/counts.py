"""Do two texts speak of the same numbers, of the same units? Pure."""

from collections import Counter

from embeddings.verify.differences import Difference
from embeddings.verify.statement import Statement

_LONG: int = 25
_AGES = frozenset({"old", "aged", "age"})


def check_numbers(a: Statement, b: Statement, apart: Difference) -> str | None:
    """Refuse a number or a unit that the other text has not."""
    del apart
    if not a.numbers and not b.numbers:
        return None
    for mine, theirs in ((a, b), (b, a)):
        values = {x.value for x in theirs.numbers}
        if any(not x.weak and x.value not in values for x in mine.numbers):
            return "number"
    left = Counter(x.value for x in a.numbers if not x.weak)
    right = Counter(x.value for x in b.numbers if not x.weak)
    more, fewer = left - right, right - left
    if more and fewer:
        return "number"
    if (more or fewer) and max(len(a.words), len(b.words)) < _LONG:
        weak = {x.value for x in (*a.numbers, *b.numbers) if x.weak}
        if not set(more | fewer) <= weak:
            return "number"
    for x in a.numbers:
        units = {y.unit for y in b.numbers if y.value == x.value}
        if x.unit and units and x.unit not in units and None not in units:
            return "unit"
    return None
