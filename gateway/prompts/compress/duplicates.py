"""Passages that say what an earlier one has said, nearly to the word.

Law: of two the first is kept. One goes only where it has no word of its own but those that say
nothing, in nearly the same order, and where numbers, names, identifiers and negations are equal.
"""

from collections.abc import Sequence
from itertools import pairwise
from typing import NamedTuple

from gateway.prompts.compress.facts import Facts, facts_of
from gateway.prompts.compress.words import content_words, words_of

SAME_SHINGLES = 0.8
"""Jaccard index of the runs of three words from which on two passages are alike."""
FEWEST_WORDS = 6
"""Shorter passages are left: they cost little and may be asked for by their place."""
MOST_COMPARED = 20_000
"""Pairs of passages that are looked at; what is left by then is taken for new."""

_Shingle = tuple[str, ...]


class _Known(NamedTuple):
    shingles: frozenset[_Shingle]
    content: frozenset[str]
    facts: Facts


def duplicates(passages: Sequence[str]) -> list[bool]:
    """Tell of each passage whether one before it says the same."""
    kept: list[_Known] = []
    by_shingle: dict[_Shingle, list[int]] = {}
    found = []
    compared = 0
    for passage in passages:
        words = words_of(passage)
        if len(words) < FEWEST_WORDS:
            found.append(False)
            continue
        one = _Known(_shingles(words), content_words(words), facts_of(passage))
        # Whoever shares so many shingles shares one of these, whichever they are.
        telling = sorted(one.shingles)[
            : len(one.shingles) - int(SAME_SHINGLES * len(one.shingles)) + 1
        ]
        candidates = dict.fromkeys(
            index for shingle in telling for index in by_shingle.get(shingle, ())
        )
        compared += len(candidates)
        same = compared <= MOST_COMPARED and any(_says(kept[i], one) for i in candidates)
        found.append(same)
        if not same:
            for shingle in one.shingles:
                by_shingle.setdefault(shingle, []).append(len(kept))
            kept.append(one)
    return found


def _says(first: _Known, second: _Known) -> bool:
    """Tell whether the first passage says all that the second one does."""
    if not second.content <= first.content or first.facts != second.facts:
        return False
    common = len(first.shingles & second.shingles)
    return common >= SAME_SHINGLES * (len(first.shingles) + len(second.shingles) - common)


def _shingles(words: Sequence[str]) -> frozenset[_Shingle]:
    return frozenset((a, b, c) for (a, b), (_, c) in pairwise(pairwise(words)))
