"""Which passages bear on the question, and what of the others stays all the same.

Law: order is kept, and nothing is written anew. Only what is far below the best goes: where many
are nearly as near, more stays than was asked for, or all. A passage with rare words of the question
stays whole. Of a passage that goes, the sentences with what must not be lost stay (numbers,
negations, identifiers, what the question names); but identifiers alone of one that has not one
word of the question and is far from it by meaning.
"""

from collections import Counter
from collections.abc import Sequence
from math import log, sqrt
from statistics import median

from gateway.prompts.compress.asking import Question
from gateway.prompts.compress.facts import has_id, has_negation, has_number
from gateway.prompts.compress.passages import Passage
from gateway.prompts.compress.words import content_words, words_of
from policies.decision import Protected

FAR = 0.25
"""Cosine similarity below which a passage without a word of the question is about another thing."""
RARE = 0.2
"""Share of the passages that have a word, up to which it tells them apart."""
MARGIN = 1.1
"""How far below the best a passage stays where all is kept; less is kept of what is less alike."""
LEAST, MOST = 0.6, 1.5
"""Of the share that is to be kept: what stays however far below the best it is, and what may."""
FLAT = 0.7
"""Of that margin: where more than may stay is as near as that, none is told from the others."""
APART = 0.3
"""How far the best is above most passages where these are about other things."""
TELLING = 0.25
"""Share of the question's weight that a passage has in rare words, from which on it stays."""
LEXICAL_WEIGHT = 0.15
"""What sharing all words of the question counts for, beside a cosine similarity of 1."""

_TESTS = {
    Protected.NUMBERS: has_number,
    Protected.NEGATION: has_negation,
    Protected.IDS: has_id,
}


def related(
    question: Question,
    passages: Sequence[Passage],
    similarities: Sequence[float],
    keep: float,
    protected: frozenset[Protected],
) -> list[tuple[str, ...]] | None:
    """Return what stays of each passage, None where the question may need all of them.

    ``keep`` is the share of their characters that there is room for.
    """
    words = [content_words(words_of(passage.text)) for passage in passages]
    met = Counter(word for each in words for word in each & question.words)
    few = max(1, int(RARE * len(passages)))
    rare = frozenset(word for word, count in met.items() if count <= few)
    weights = {word: log(1 + len(passages) / met[word]) for word in met}
    whole = sum(weights.values()) or 1.0
    shared = [sum(weights[word] for word in each & question.words) / whole for each in words]
    scores = [
        near + LEXICAL_WEIGHT * share for near, share in zip(similarities, shared, strict=True)
    ]
    if not _is_found(question, words, rare, scores):
        return None
    stays = _near(scores, [len(passage.text) for passage in passages], keep)
    if stays is None:
        return None
    named = question.names & rare
    most = max(shared) or 1.0
    stays |= {
        index
        for index, each in enumerate(words)
        if each & named
        or shared[index] >= most
        or sum(weights[word] for word in each & rare) >= TELLING * whole
    }
    names = frozenset(word for word in question.names if 2 * met[word] <= len(passages))
    left = []
    for index, passage in enumerate(passages):
        far = similarities[index] < FAR and not words[index] & question.words
        # An identifier says nothing of what it stands for: by meaning it is far from all questions.
        kinds = protected & {Protected.IDS} if far else protected
        kept = _protected(passage, frozenset() if far else names, kinds)
        left.append(passage.sentences if index in stays else kept)
    return left


def _near(scores: Sequence[float], sizes: Sequence[int], keep: float) -> set[int] | None:
    """Return the passages not far below the best, None where none can be told from the others."""
    best = max(scores)
    margin = MARGIN * keep * sqrt(max(best, 0.0))
    size, taken = sum(sizes), 0
    stays = set[int]()
    for index in sorted(range(len(scores)), key=lambda index: (-scores[index], index)):
        taken += sizes[index]
        if stays and taken > LEAST * keep * size:
            below = best - scores[index]
            if taken > MOST * keep * size:
                return None if below < FLAT * margin else stays
            if below > margin:
                return stays
        stays.add(index)
    return stays


def _is_found(
    question: Question,
    words: Sequence[frozenset[str]],
    rare: frozenset[str],
    scores: Sequence[float],
) -> bool:
    """Tell whether the passages that are asked about can be told from the others.

    An identifier that stands nowhere may be asked for because it stands nowhere.
    """
    anywhere = frozenset[str]().union(*words)
    if any(name not in anywhere for name in question.names if any(map(str.isdigit, name))):
        return False
    if not question.counts or question.names & rare:
        return True
    if question.counted is not None and question.counted not in anywhere:
        return False
    return max(scores) - median(scores) >= APART


def _protected(
    passage: Passage, names: frozenset[str], protected: frozenset[Protected]
) -> tuple[str, ...]:
    return tuple(
        sentence
        for sentence in passage.sentences
        if any(_TESTS[kind](sentence) for kind in protected)
        or content_words(words_of(sentence)) & names
    )
