"""Which words of two texts stand against each other, and which a text has alone. Pure."""

from collections.abc import Sequence
from typing import NamedTuple

from embeddings.verify.statement import Item, Statement
from embeddings.verify.vocabulary import related


class Difference(NamedTuple):
    """What is left of two texts when equal and related words are taken away.

    `loose`: how many words found a related one, not an equal one. `shared`: keys in both.
    `closeness`: the share of meaningful words that are accounted for, 1 when all are.
    """

    left: tuple[Item, ...]
    right: tuple[Item, ...]
    shared: frozenset[str]
    loose: int
    closeness: float


def difference(a: Statement, b: Statement) -> Difference:
    """Compare the meaningful words of two texts, wherever they stand."""
    left = [item for item in a.items if item.word.key not in b.keys]
    right = [item for item in b.items if item.word.key not in a.keys]
    if not left and not right:
        return Difference((), (), a.keys & b.keys, 0, 1.0)
    only_left = _unaccounted(left, b, right)
    only_right = _unaccounted(right, a, left)
    loose = len(left) + len(right) - len(only_left) - len(only_right)
    total = sum(not item.word.harmless for item in (*a.items, *b.items))
    apart = sum(not item.word.harmless for item in (*only_left, *only_right))
    closeness = 1 - apart / total if total else 1.0
    return Difference(tuple(only_left), tuple(only_right), a.keys & b.keys, loose, closeness)


def _unaccounted(items: Sequence[Item], other: Statement, alone: Sequence[Item]) -> list[Item]:
    return [
        item
        for item in items
        if not any(related(item.word, x.word) for x in alone)
        and not any(related(item.word, x.word) for x in other.items)
        and not _joined(item, other)
        and not any(_misspelt(item.text, x.text) for x in alone)
    ]


def _joined(item: Item, other: Statement) -> bool:
    """Tell whether the other text writes this word in two, or as a part of one."""
    return len(item.text) > 5 and item.text in other.joined.replace(" ", "").replace("-", "")


def _misspelt(a: str, b: str) -> bool:
    """Tell whether one letter more, less, other or two exchanged make one word of the other."""
    if min(len(a), len(b)) < 5 or abs(len(a) - len(b)) > 1 or a[0] != b[0]:
        return False
    start = 0
    while start < min(len(a), len(b)) and a[start] == b[start]:
        start += 1
    rest_a, rest_b = a[start:], b[start:]
    return (
        rest_a[1:] == rest_b[1:]
        or rest_a[1:] == rest_b
        or rest_a == rest_b[1:]
        or (rest_a[:2] == rest_b[1::-1] and rest_a[2:] == rest_b[2:])
    )
