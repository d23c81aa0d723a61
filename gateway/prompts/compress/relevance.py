"""Which passages bear on the question, and what of the others stays all the same.

Only what is far below the best goes. A passage with rare words of the question stays whole. Of a
passage that goes, sentences with protected facts stay, or with a name that the question has.
"""

from collections import Counter
from collections.abc import Sequence
from itertools import pairwise
from math import log, sqrt
from statistics import median

from gateway.prompts.compress.context import Question
from gateway.prompts.compress.facts import content_words, holds, words_of
from gateway.prompts.compress.passages import Passage
from gateway.prompts.outcome import Step
from policies.decision import CompressSettings, Protected

Vector = Sequence[float]

FAR = 0.25  # less near, a passage without a word of the question is about another thing
RARE = 0.2  # share of the passages that have a word, up to which it tells them apart
MARGIN = 1.1  # how far below the best a passage stays where all is kept; it shrinks with ``keep``
LEAST, MOST = 0.6, 1.5  # of the share to keep: what stays however far it is, and what may stay
FLAT = 0.7  # of the margin: where more may not stay and is as near, none is told from the others
APART = 0.3  # how far the best is above most passages where these are about other things
TELLING = 0.25  # share of the question's weight in rare words, from which on a passage stays
LEXICAL_WEIGHT = 0.15  # of sharing all words of the question, beside a cosine similarity of 1


def drop_unrelated(
    question: Question,
    passages: Sequence[Passage],
    vectors: Sequence[Vector],
    settings: CompressSettings,
) -> bool:
    """Let go what does not bear on the question; False where it may need all.

    ``vectors`` are the question's and those of the passages.
    """
    similarities = _similarities(passages, vectors)
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
        return False
    stays = _near(scores, [len(passage.text) for passage in passages], settings.keep)
    if stays is None:
        return False
    most = max(shared) or 1.0
    names = frozenset(word for word in question.names if 2 * met[word] <= len(passages))
    for index, passage in enumerate(passages):
        telling = sum(weights[word] for word in words[index] & rare) >= TELLING * whole
        named = bool(words[index] & question.names & rare)
        if index in stays or telling or named or shared[index] >= most:
            continue
        far = similarities[index] < FAR and not words[index] & question.words
        # An identifier says nothing of what it stands for: it is far from all questions.
        kinds = settings.protect & {Protected.IDS} if far else settings.protect
        left = [
            sentence
            for sentence in passage.sentences
            if holds(sentence, kinds) or (not far and content_words(words_of(sentence)) & names)
        ]
        passage.keep(left, Step.UNRELATED)
    return True


def _similarities(passages: Sequence[Passage], vectors: Sequence[Vector]) -> list[float]:
    """Return how near the passages are to the question.

    What stands beside a passage that is nearer is lifted: it may be what that one leans on.
    """
    asked, *given = vectors
    near = [sum(a * b for a, b in zip(asked, each, strict=True)) for each in given]
    lifted = list(near)
    for at, (one, other) in enumerate(pairwise(passages)):
        ends_paragraph = one.text[len(one.text.rstrip()) :].count("\n") > 1
        if other.before is one and not ends_paragraph:
            between = (near[at] + near[at + 1]) / 2
            lifted[at] = max(lifted[at], between)
            lifted[at + 1] = max(lifted[at + 1], between)
    return lifted


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
