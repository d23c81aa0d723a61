"""Which of the things that a story tells of it asks about in the end. Pure.

"Ann and Bill share $90. How much does Ann get?" and "... does Bill get?" have the same words and
the same numbers; what differs is which of them the question takes up. Only texts of the same words
are looked at: of a story told in other words this is not to be said.
"""

from typing import Final

from embeddings.verify.differences import Difference
from embeddings.verify.lists import words
from embeddings.verify.statement import Statement

_CLOSE: Final = 0.85
_COUNTS: Final = frozenset({("how", "many"), ("how", "much")})
_SKIPPED: Final = words("the a an of more other total")


def check_focus(a: Statement, b: Statement, apart: Difference) -> str | None:
    """Refuse texts whose questions take up different ones of the things that both tell of."""
    if apart.closeness < _CLOSE:
        return None
    left, right = _taken_up(a), _taken_up(b)
    if (left - right) & _told(b) and (right - left) & _told(a):
        return "question"
    head, other = _counted(a), _counted(b)
    if head and other and head != other and head in b.keys and other in a.keys:
        return "question"
    return None


def _taken_up(text: Statement) -> frozenset[str]:
    """Return what the last sentence speaks of."""
    return frozenset([item.word.key for item in text.items if item.place >= text.starts[-1]])


def _told(text: Statement) -> frozenset[str]:
    """Return what the sentences before it speak of."""
    return frozenset([item.word.key for item in text.items if item.place < text.starts[-1]])


def _counted(text: Statement) -> str | None:
    """Return of what a text with numbers asks how many or how much there is."""
    if not text.numbers:
        return None
    keys = {item.place: item.word.key for item in text.items}
    for place in range(len(text.words) - 2, -1, -1):
        if text.words[place : place + 2] in _COUNTS:
            after = place + 2
            while after < len(text.words) and text.words[after] in _SKIPPED:
                after += 1
            return keys.get(after)
    return None
