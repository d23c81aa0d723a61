"""Which words of two texts stand against each other, and which a text has alone. Pure."""

import unicodedata
from collections.abc import Iterable, Sequence
from itertools import pairwise
from operator import ne
from typing import Final, NamedTuple

from embeddings.verify.lists.grammar import ADDABLE
from embeddings.verify.statement import Item, Statement
from embeddings.verify.stems import told_apart
from embeddings.verify.vocabulary import related


class Difference(NamedTuple):
    """What is left of two texts when equal and related words are taken away.

    `shared`: keys in both.
    `closeness`: the share of meaningful words that are accounted for, 1 when all are.
    `framed`: they are the same word for word but for one place.
    """

    left: tuple[Item, ...]
    right: tuple[Item, ...]
    shared: frozenset[str]
    closeness: float
    framed: bool


def difference(a: Statement, b: Statement) -> Difference:
    """Compare the meaningful words of two texts, wherever they stand."""
    left = [item for item in a.items if item.word.key not in b.keys]
    right = [item for item in b.items if item.word.key not in a.keys]
    if not left and not right:
        return Difference((), (), a.keys & b.keys, 1.0, framed=_framed(a, b))
    only_left = _unaccounted(left, b, right)
    only_right = _unaccounted(right, a, left)
    framed = _framed(a, b)
    total, apart = _weight(a.items) + _weight(b.items), _weight(only_left) + _weight(only_right)
    closeness = 1 - apart / total if total else 1.0
    return Difference(
        tuple(only_left),
        tuple(only_right),
        a.keys & b.keys,
        max(closeness, _FRAMED) if framed else closeness,
        framed,
    )


# Texts that are the same but for one word are close, however short they are.
_FRAMED: Final = 0.9
# As long as this, words that differ in a letter are rather one word than two.
_LONG_WORD: Final = 8
_MOST: Final = 40


def _framed(a: Statement, b: Statement) -> bool:
    return 0 < len(a.words) == len(b.words) and sum(map(ne, a.words, b.words)) < 2


def _weight(items: Iterable[Item]) -> int:
    return sum(not item.word.harmless and item.text not in ADDABLE for item in items)


def reverses(a: Statement, b: Statement, apart: Difference) -> bool:
    """Tell whether what both texts name stands in one of them the other way round."""
    left = [item.word.key for item in a.items if item.word.key in apart.shared]
    right = [item.word.key for item in b.items if item.word.key in apart.shared]
    if len(left) < 2 or left == right:
        return False
    return (left[0] == right[-1] and left[-1] == right[0]) or _names_reversed(a, b, apart)


def _names_reversed(a: Statement, b: Statement, apart: Difference) -> bool:
    left, right = ([x.word.key for x in text.items if x.named or x.word.name] for text in (a, b))
    return len(left) == 2 and left == right[::-1] and apart.shared.issuperset(left)


def _unaccounted(items: Sequence[Item], other: Statement, alone: Sequence[Item]) -> list[Item]:
    if not items:
        return []
    groups = frozenset().union(*[x.word.synonyms for x in alone])
    prefixes: dict[str, list[Item]] = {}
    for x in other.items:
        prefixes.setdefault(x.text[:3], []).append(x)
    # What costs a look at every word of the other text is done for some words only.
    few, some = alone[:_MOST], len(items) <= _MOST
    joined = {x + y for x, y in pairwise(other.words)} if some else frozenset()
    return [
        item
        for item in items
        if item.word.synonyms.isdisjoint(groups)
        and not any(_kin(item, x) for x in prefixes.get(item.text[:3], ())[:_MOST])
        # The other text may write it in two words.
        and item.text.replace("-", "") not in joined
        and not any(_misspelt(item, x) for x in few)
    ]


def _unaccented(text: str) -> str:
    if text.isascii():
        return text
    return "".join(x for x in unicodedata.normalize("NFD", text) if not unicodedata.combining(x))


def _kin(x: Item, y: Item) -> bool:
    return related(x.word, y.word) and (
        not told_apart(x.text, y.text) or not x.word.synonyms.isdisjoint(y.word.synonyms)
    )


def _misspelt(x: Item, y: Item) -> bool:
    """Tell whether one letter more, less, other or two exchanged make one word of the other."""
    a, b = x.text, y.text
    if x.named and y.named and _unaccented(a) == _unaccented(b):
        return min(len(a), len(b)) >= 5
    if a[0] != b[0] or min(len(a), len(b)) < 5 or abs(len(a) - len(b)) > 1:
        return False
    # Two words that are both known, or both acronyms, are two words; so are Manet and Monet.
    if (x.word.ordinary and y.word.ordinary) or x.acronym or y.acronym:
        return False
    if told_apart(a, b):
        return False
    start = 0
    while start < min(len(a), len(b)) and a[start] == b[start]:
        start += 1
    rest_a, rest_b = a[start:], b[start:]
    known = x.word.ordinary or y.word.ordinary
    if rest_a[1:] == rest_b[1:]:
        # "Dysphagia", "dysphasia": terms of art are long, and a letter apart.
        return known
    if rest_a[1:] == rest_b or rest_a == rest_b[1:]:
        long = max(a, b, key=len)
        return known or len(a) >= _LONG_WORD or long[start] == long[start - 1]
    return rest_a[:2] == rest_b[1::-1] and rest_a[2:] == rest_b[2:]
