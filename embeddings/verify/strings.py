"""Do two texts hold the same quotations, code, addresses and formulas? Pure."""

from collections import Counter
from typing import Final

from embeddings.verify.differences import Difference
from embeddings.verify.statement import Statement

# Texts less close than this may write out in words what the other has in signs.
_CLOSE: Final = 0.6
_EQUAL: Final = 0.99
_OPERATORS: Final = frozenset("+*^=<>|\u00d7\u00f7\u2264\u2265\u2260\u221a%")


def check_strings(a: Statement, b: Statement, apart: Difference) -> str | None:
    """Refuse a string or symbol that only one text has."""
    if not (a.symbols or b.symbols or a.strings or b.strings):
        return None
    left, right = (
        Counter(x for x in text.symbols if x in _OPERATORS or x.isalnum()) for text in (a, b)
    )
    if left != right:
        return "symbol" if (left and right) or apart.closeness >= _EQUAL else None
    if a.strings == b.strings:
        return None
    for mine, theirs in ((a, b), (b, a)):
        for text in mine.strings:
            if text not in theirs.strings and not _written_plainly(text, theirs):
                return "quoted" if apart.closeness >= _CLOSE else None
    return None


def _written_plainly(text: str, other: Statement) -> bool:
    plain = " ".join("".join(x if x.isalnum() else " " for x in text.casefold()).split())
    return bool(plain) and f" {plain} " in other.joined.replace("-", " ")


def check_formulas(a: Statement, b: Statement, apart: Difference) -> str | None:
    """Refuse formulas in which brackets, signs or powers stand in other places."""
    other_shape = a.formula and b.formula and a.formula != b.formula
    return "symbol" if other_shape and apart.closeness >= _EQUAL else None
