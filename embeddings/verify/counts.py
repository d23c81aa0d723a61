"""Do two texts speak of the same numbers, of the same units? Pure."""

from collections import Counter
from typing import Final

from embeddings.verify.differences import Difference
from embeddings.verify.statement import Statement

_LONG: Final = 25
# Texts less close than this may mention a number by the way.
_CLOSE: Final = 0.6


def check_numbers(a: Statement, b: Statement, apart: Difference) -> str | None:
    """Refuse a number or a unit that the other text has not."""
    if not a.numbers and not b.numbers:
        return None
    left_values, right_values = {x.value for x in a.numbers}, {x.value for x in b.numbers}
    alone_left = any(not x.weak and x.value not in right_values for x in a.numbers)
    alone_right = any(not x.weak and x.value not in left_values for x in b.numbers)
    if alone_left and alone_right:
        return "number"
    if alone_left or alone_right:
        return "number" if apart.closeness >= _CLOSE else None
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
