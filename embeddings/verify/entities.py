"""Are two texts about the same names and things of one kind? Pure.

A name that only one text has is another entity, unless it is a part of the other's ("Obama",
"Barack Obama"), its initials, or another word for it ("US", "America"). Two members of one kind,
one in each text ("dog", "cat"), are two things.
"""

from collections.abc import Iterator
from typing import Final

from embeddings.verify.differences import Difference
from embeddings.verify.statement import Item, Statement

# Texts less close than this may mention a name by the way.
_CLOSE: Final = 0.6
_MOST: Final = 20
_NO_MEMBERS: Final[frozenset[str]] = frozenset()
# Less close than this they may mention two things of a kind for two reasons.
_NEAR: Final = 0.4
_LONG: Final = 50


def check_names(a: Statement, b: Statement, apart: Difference) -> str | None:
    """Refuse a name that only one text has."""
    left, right = (
        any(
            is_name(item)
            # Letters are compared by themselves.
            and len(item.text) > 1
            and not _is_part(item, mine, apart, others)
            and not _initials(item, mine, theirs)
            for item in alone[:_MOST]
        )
        for mine, theirs, alone, others in (
            (a, b, apart.left, apart.right),
            (b, a, apart.right, apart.left),
        )
    )
    if (left and right) or ((left or right) and apart.closeness >= _CLOSE):
        return "name"
    return None


def is_name(item: Item) -> bool:
    """Tell whether a word is the name of someone or something."""
    # An acronym may stand for plain words.
    return item.word.name or (item.named and not item.word.ordinary and not item.acronym)


def _is_part(item: Item, mine: Statement, apart: Difference, others: tuple[Item, ...]) -> bool:
    """Tell whether the name stands beside one that both texts have, and nothing stands for it."""
    return not any(is_name(x) for x in others) and any(
        x.word.key in apart.shared and is_name(x) for x in _beside(item, mine)
    )


def _beside(item: Item, text: Statement) -> Iterator[Item]:
    return (x for x in text.items if abs(x.place - item.place) == 1)


def _initials(item: Item, mine: Statement, theirs: Statement) -> bool:
    """Tell whether the name is an acronym of words in the other text, or the other way round."""
    if item.text in "".join(word[0] for word in theirs.words) and 2 <= len(item.text) <= 5:
        return True
    near = [x.text[0] for x in mine.items if abs(x.place - item.place) <= 3]
    return any(x.named and 2 <= len(x.text) <= 5 and x.text in "".join(near) for x in theirs.items)


def check_kinds(a: Statement, b: Statement, apart: Difference) -> str | None:
    """Refuse two things of one kind, one in each text."""
    long = len(a.words) + len(b.words) > _LONG
    if apart.closeness < (_CLOSE if long else _NEAR):
        return None
    members: dict[str, set[str]] = {}
    for y in apart.right:
        for kind in y.word.kinds:
            members.setdefault(kind.partition(":")[0], set()).add(kind)
    for x in apart.left:
        for kind in x.word.kinds:
            if members.get(kind.partition(":")[0], _NO_MEMBERS) - x.word.kinds:
                return "kind"
    return None
