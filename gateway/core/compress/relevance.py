"""Which passages bear on the question, and what of the others stays all the same.

Law: order is kept, and nothing is written anew. A passage with a rare word of the question stays
whole. Of a passage that goes, the sentences with what must not be lost stay (numbers, negations,
identifiers, what the question names), unless the passage has not one word of the question and is
far from it by meaning.
"""

import re
from collections import Counter
from collections.abc import Sequence
from math import log
from typing import NamedTuple

from gateway.core.compress.facts import has_id, has_negation, has_number
from gateway.core.compress.passages import Passage
from gateway.core.compress.words import content_words, words_of
from gateway.core.proper_names import named
from policies.decide import Protected

FAR = 0.25
"""Cosine similarity below which a passage without a word of the question is about another thing."""
RARE = 0.2
"""Share of the passages that have a word, up to which it tells them apart."""
NEAREST = 0.2
"""Share of the passages, the highest ranked, that stay however little room there is."""
LEXICAL_WEIGHT = 0.25
"""What sharing all words of the question counts for, beside a cosine similarity of 1."""

_TESTS = {
    Protected.NUMBERS: has_number,
    Protected.NEGATION: has_negation,
    Protected.IDS: has_id,
}
_DIGIT = re.compile(r"\d")


class Question(NamedTuple):
    """What is asked: its words, and those among them that name something."""

    text: str
    words: frozenset[str]
    names: frozenset[str]


def question_of(text: str) -> Question:
    """Read a question."""
    words = content_words(words_of(text))
    names = content_words(words_of(" ".join(named(text).names)))
    return Question(text, words, names | {word for word in words if _DIGIT.search(word)})


def related(
    question: Question,
    passages: Sequence[Passage],
    similarities: Sequence[float],
    room: int,
    protected: frozenset[Protected],
) -> list[tuple[str, ...]]:
    """Return what stays of each passage; ``room`` is how many characters there are for them.

    What must stay stays even if there is no room for it.
    """
    words = [content_words(words_of(passage.text)) for passage in passages]
    met = Counter(word for each in words for word in each & question.words)
    few = max(1, int(RARE * len(passages)))
    rare = frozenset(word for word, count in met.items() if count <= few)
    weights = {word: log(1 + len(passages) / met[word]) for word in met}
    whole = sum(weights.values()) or 1.0
    scores = [
        near + LEXICAL_WEIGHT * sum(weights[word] for word in each & question.words) / whole
        for near, each in zip(similarities, words, strict=True)
    ]
    names = frozenset(word for word in question.names if 2 * met[word] <= len(passages))
    without = [
        ()
        if similarities[index] < FAR and not words[index] & question.words
        else _protected(passage, names, protected)
        for index, passage in enumerate(passages)
    ]
    gains = [
        len(passage.text) - sum(map(len, left))
        for passage, left in zip(passages, without, strict=True)
    ]
    ranked = sorted(range(len(passages)), key=lambda index: (-scores[index], index))
    stays = set(ranked[: max(1, int(NEAREST * len(passages)))])
    stays |= {index for index, each in enumerate(words) if each & rare}
    left = room - sum(len(passage.text) for passage in passages)
    left += sum(gain for index, gain in enumerate(gains) if index not in stays)
    for index in ranked:
        if index not in stays:
            left -= gains[index]
            if left < 0:
                break
            stays.add(index)
    return [
        passage.sentences if index in stays else without[index]
        for index, passage in enumerate(passages)
    ]


def _protected(
    passage: Passage, names: frozenset[str], protected: frozenset[Protected]
) -> tuple[str, ...]:
    return tuple(
        sentence
        for sentence in passage.sentences
        if any(_TESTS[kind](sentence) for kind in protected)
        or content_words(words_of(sentence)) & names
    )
