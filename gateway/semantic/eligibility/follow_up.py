"""Whether a turn is understood only by the turns before it, or says too little by itself.

Law: pure, and of one text. That the earlier turns are equal is the fingerprint's to say. But how
near two texts are, and whether one answer fits both, cannot be told of words that stand for others.
"""

from collections.abc import Sequence

from gateway.semantic.eligibility import words as lists
from gateway.semantic.eligibility.tokens import Worded

_FRAGMENT = 2
"""Words of an answer or a hint, such as "the second" or "in Canada"."""
_SHORT = 5
_LONG = 10
"""Words from which on a sentence says itself what "the other one" is."""
_CLOSE = 3
_ENOUGH_BEFORE = 4
"""Words of content before a pronoun, which is then taken to stand for one of them."""


def is_vague(turn: Worded) -> bool:
    """Tell whether a text says so little that its sense must come from elsewhere."""
    return len(turn.words) <= _FRAGMENT and turn.vocabulary <= lists.VAGUE


def leans(turn: Worded) -> bool:
    """Tell whether a turn after others may lean on them."""
    words, vocabulary, pairs = turn.words, turn.vocabulary, turn.pairs
    return (
        len(words) <= _FRAGMENT
        or words[0] in lists.LEANING_OPENINGS
        or (len(words) <= _SHORT and _is_fragment(turn))
        or not vocabulary.isdisjoint(lists.LEANING_ANYWHERE)
        or (len(words) <= _LONG and words[-1] in lists.LEANING_ENDS)
        or (len(words) <= _LONG and not pairs.isdisjoint(lists.LEANING_PAIRS))
        or _refers_back(words, vocabulary)
    )


def _is_fragment(turn: Worded) -> bool:
    first = turn.words[0]
    return first in lists.PREPOSITIONS or turn.vocabulary.isdisjoint(lists.ASKING)


def _refers_back(words: Sequence[str], vocabulary: frozenset[str]) -> bool:
    """Tell whether a pronoun has nothing before it in its own text that it could stand for."""
    if vocabulary.isdisjoint(lists.PRONOUNS):
        return False
    content = 0
    before = ""
    for at, word in enumerate(words):
        if word not in lists.PRONOUNS:
            new = word not in lists.ENGLISH
            content += _ENOUGH_BEFORE if new and before in lists.INTRODUCING else new
        elif not _stands_for_nothing(word, before, words[at + 1 :]):
            return content < _ENOUGH_BEFORE
        before = word
    return False


def _stands_for_nothing(word: str, before: str, rest: Sequence[str]) -> bool:
    match word:
        case "it":
            return not lists.AFTER_EMPTY_IT.isdisjoint(rest[:-1][:_CLOSE])
        case "there":
            return before in lists.BEING or not lists.BEING.isdisjoint(rest[:1])
        case "that":
            return before in lists.BEFORE_CLAUSE or bool(before and before not in lists.ENGLISH)
        case "this":
            return not lists.PERIODS.isdisjoint(rest[:1])
        case _:
            return False
