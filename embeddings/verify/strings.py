"""Do two texts hold the same quotations, code, addresses and formulas? Pure."""

from collections import Counter

from embeddings.verify.differences import Difference
from embeddings.verify.statement import Statement


def check_strings(a: Statement, b: Statement, apart: Difference) -> str | None:
    """Refuse a string or symbol that only one text has."""
    del apart
    if a.symbols != b.symbols and Counter(a.symbols) != Counter(b.symbols):
        return "symbol"
    if a.strings == b.strings:
        return None
    for mine, theirs in ((a, b), (b, a)):
        for text in mine.strings:
            if text not in theirs.strings and not _written_plainly(text, theirs):
                return "quoted"
    return None


def _written_plainly(text: str, other: Statement) -> bool:
    plain = " ".join("".join(x if x.isalnum() else " " for x in text.casefold()).split())
    return bool(plain) and f" {plain} " in other.joined.replace("-", " ")
