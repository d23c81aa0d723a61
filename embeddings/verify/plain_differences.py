"""Texts that differ in one place only: the dangerous pairs. Pure.

Where two texts say the same but for a word that one has more, or for a word in the place of
another, that word is the difference. Where they differ more widely nothing is concluded.
"""

import re
from collections.abc import Iterable, Sequence
from typing import Final

from embeddings.verify.differences import Difference
from embeddings.verify.entities import is_name
from embeddings.verify.frames import HOW_TO, frame
from embeddings.verify.lists import words
from embeddings.verify.lists.grammar import ADDABLE, AUXILIARIES, HARMLESS
from embeddings.verify.polarity import flips
from embeddings.verify.statement import Item, Statement

_LATIN: Final = "\u024f"
# Words that a rewording changes freely.
_FREE: Final = (
    AUXILIARIES
    | HARMLESS
    | words("the a an i my me we our us you your it its this that there to of")
)

_COSTS: Final = words("cost costs")
_HOW_MUCH: Final = re.compile(" how much (?:is|are|do|does) ")
# "Is DDT still used?" may have another answer than "Is DDT used?".
_DEGREES: Final = words(
    "still usually normally typically generally widely commonly mostly mainly often already ever "
    "again always sometimes rarely frequently largely partly primarily"
)
_ASKS_WHETHER: Final = words("is are was were do does did has have")
_EQUAL: Final = 0.99


def check_words(a: Statement, b: Statement, apart: Difference) -> str | None:
    """Refuse a word added or replaced."""
    if any(_is_foreign(item.text) for item in (*apart.left, *apart.right)):
        return "words"
    left, right = (
        [item for item in items if not item.word.harmless and not is_name(item)]
        for items in (apart.left, apart.right)
    )
    if apart.closeness >= _EQUAL and _otherwise_often(a, b):
        return "added"
    if not (left or right) or not (apart.shared or apart.framed) or flips(apart):
        return None
    if left and right:
        if _is_replaced(left, right, a.items, b.items):
            return "replaced"
        # "What is the way to cancel it", "how do I change it": the way is none of the words.
        x, y = _how_to(a), _how_to(b)
        told = _from(x, left), _from(y, right), _from(x, a.items), _from(y, b.items)
        return "replaced" if _is_replaced(*told) else None
    if all(item.text in ADDABLE or _said_anyway(item.text, a, b) for item in (*left, *right)):
        return None
    long, short = (_skeleton(a), _skeleton(b)) if left else (_skeleton(b), _skeleton(a))
    return "added" if _is_within(short, long) else None


def _otherwise_often(a: Statement, b: Statement) -> bool:
    """Tell whether both ask for yes or no, and only one of them for "still" or "often"."""
    return all(text.words[0] in _ASKS_WHETHER for text in (a, b)) and (
        a.vocabulary & _DEGREES != b.vocabulary & _DEGREES
    )


def _said_anyway(text: str, a: Statement, b: Statement) -> bool:
    """Tell whether both texts ask what the word says: "how much is it", "what does it cost"."""
    return text in _COSTS and all(_HOW_MUCH.search(each.joined) for each in (a, b))


def _is_foreign(text: str) -> bool:
    """Tell whether a word is of a script that neither lists nor verifier know."""
    return not text.isascii() and any(char > _LATIN and char.isalpha() for char in text)


def _skeleton(text: Statement) -> list[str]:
    keys = {item.place: item.word.key for item in text.items}
    return [keys.get(place, word) for place, word in enumerate(text.words) if word not in _FREE]


def _is_within(short: Iterable[str], long: Iterable[str]) -> bool:
    """Tell whether all of `short` occurs in `long`, in order."""
    rest = iter(long)
    return all(word in rest for word in short)


def _is_replaced(
    left: Sequence[Item], right: Sequence[Item], a: Sequence[Item], b: Sequence[Item]
) -> bool:
    """Tell whether one word stands in the place of one: around them all is the same, in order."""
    return len(left) == len(right) == 1 and _around(left[0], a) == _around(right[0], b)


def _around(x: Item, items: Sequence[Item]) -> tuple[list[str], list[str]]:
    before = [i.word.key for i in items if i.place < x.place and not i.word.harmless]
    return before, [i.word.key for i in items if i.place > x.place and not i.word.harmless]


def _how_to(text: Statement) -> int:
    """Return how many words are "how do I", "what is the way to"."""
    asked = frame(text.joined.strip())
    return asked.words if asked.question == HOW_TO else 0


def _from(place: int, items: Iterable[Item]) -> list[Item]:
    return [item for item in items if item.place >= place]
