"""Texts that differ in one place only: the dangerous pairs. Pure.

Where two texts say the same but for a word that one has more, or for a word in the place of
another, that word is the difference. Where they differ more widely nothing is concluded.
"""

from typing import Final

from embeddings.verify.differences import Difference
from embeddings.verify.lists.grammar import ADDABLE
from embeddings.verify.statement import Item, Statement

# Texts less close than this differ in more than a word.
_CLOSE: Final = 0.75


def check_words(a: Statement, b: Statement, apart: Difference) -> str | None:
    """Refuse a word added or replaced."""
    left, right = (
        [item for item in items if not item.word.harmless] for items in (apart.left, apart.right)
    )
    if not left and not right:
        return None
    if not apart.shared:
        return None
    if not left or not right:
        if all(item.text in ADDABLE for item in (*left, *right)):
            return None
        return "added" if apart.loose == 0 and apart.closeness >= _CLOSE else None
    if len(left) == len(right) == 1 and _same_place(left[0], right[0], a, b):
        return "replaced"
    return None


def _same_place(x: Item, y: Item, a: Statement, b: Statement) -> bool:
    """Tell whether all meaningful words around the two are the same, in order."""
    before_x = [i.word.key for i in a.items if i.place < x.place and not i.word.harmless]
    before_y = [i.word.key for i in b.items if i.place < y.place and not i.word.harmless]
    after_x = [i.word.key for i in a.items if i.place > x.place and not i.word.harmless]
    after_y = [i.word.key for i in b.items if i.place > y.place and not i.word.harmless]
    return before_x == before_y and after_x == after_y
