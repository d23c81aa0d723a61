"""The words of a question, the passages relevant to it, and the others that stay anyway.

A question that counts, compares or sums up may need all passages, so none goes for it. Only what is
far below the best goes. A passage with rare words of the question stays whole. Of a passage that
goes, sentences with protected facts stay, or with a name that the question has.
"""

import re
from collections import Counter
from collections.abc import Sequence
from itertools import pairwise
from math import log, sqrt
from statistics import median
from typing import NamedTuple

from gateway.prompts.compress.facts import content_words, holds, names_in, words_of
from gateway.prompts.compress.passages import Passage
from gateway.prompts.outcome import NotRewritten, Step
from gateway.semantic.eligibility import (
    depends_on_earlier_turns,
    is_english,
    is_vague,
    sentences_of,
    tokenize_question,
)
from policies.decision import CompressSettings, Protected

MOST_PIECES = 240  # of words: the encoder reads 256 with its marks
MOST_CHARACTERS = 600

_LABEL = re.compile(
    r"^\s*(?:(?:user |my |the )?(?:question|query|q|task|request))\s*[:\-]\s*", re.IGNORECASE
)
_OF_CONTEXT = re.compile(
    r"\b(?:documents?|contexts?|passages?|excerpts?|snippets?|attachments?)\b"
    r"|\b(?:the|these|this|following|above|given|provided|attached|search|tool) "
    r"(?:texts?|articles?|pages?|files?|materials?|reports?|sources?|results?|information)\b"
    r"|\b(?:above|below|the following|attached)\W*$"
    r"|^\W*(?:read|remember|keep in mind|i (?:will ask|attach))\b",
    re.IGNORECASE,
)
_INSTRUCTS = re.compile(
    r"^\W*(?:here (?:is|are)|this is|these are)\b"
    r"|^\W*(?:please )?(?:answer|respond|reply|use (?:only|just)|be (?:brief|concise|short))\b"
    r"|^\W*(?:do not|don't|if you|if it|if they|if none|if nothing"
    r"|if (?:the|no|there is no) answer)\b[^?]*$",
    re.IGNORECASE,
)
_OF_INSTRUCTIONS = frozenset(
    {"answer", "reply", "respond", "use", "using", "base", "based", "refer", "consult", "provide"}
    | {"provided", "question", "carefully", "please", "only", "following", "below", "above"}
    | {"given", "attached"}
)
_LEAST_ASKED = 2  # words beyond those about the context, of a sentence that may ask something
_CONDITION = re.compile(r"^\W*(?:if|when|unless)\b[^,?]*(?:,|$)", re.IGNORECASE)
_NEEDS_ALL = re.compile(
    r"\b(?:summar(?:y|ies|i[sz]\w+)|tl;?dr|recap|overview|outline|gist|synops[ie]s|take-?aways?"
    r"|(?:key|main) (?:point|fact|finding|insight|idea|topic|theme|argument)s?|in a nutshell"
    r"|translat\w+|rewrite|rephrase|paraphrase|proofread|reformat|transcribe|classif(?:y|ies)"
    r"|categori[sz]e|tabulate|extract|enumerate|(?:rank|sort)(?! of\b)"
    r"|compare|contrast|reconcile|deduplicate"
    r"|(?:make|create|draw|build|write|give|show) (?:me )?(?:up )?(?:an? |the )?"
    r"(?:\w+ )?(?:table|list|timeline|index|glossary)"
    r"|(?:list|name|find|give|show|tell|identify|collect|mention|quote|count)(?: me| us| up| out)?"
    r" (?:all|each|every|any)|(?:list|name|identify|count) (?:the )?"
    r"(?!(?:is|was|has|does|as|this)\b)\w+s"
    r"|(?:which|how many|who|what|any|each|all|every|some|none|most|one|two|several|number|count)"
    r" of (?:the|these|those|them)\b"
    r"|(?:how many|which|what|number of|any|all|every|each)(?: the| other)? (?:documents?"
    r"|passages?|entries|entry|records?|items?|rows?|lines?|paragraphs?|sentences?|texts?"
    r"|excerpts?)"
    r"|(?:add|sum) up|(?:order|group|arrange) (?:\w+ ){0,3}by|(?:what is|what are|what's) missing"
    r"|(?:what|who|which) (?:are |is )?all|(?:texts?|reports?|sources?) (?:dis)?agree|disagree"
    r"|different things|chang\w+ between|duplicates?|contradict\w*|inconsisten\w*|in common"
    r"|differences? (?:between|among)"
    r"|(?:what|who) (?:is|are) (?:it|this|that|these|they)(?: all)? about"
    r"|(?:first|second|third|last|next) (?:document|passage|paragraph|sentence|line|word|entry))\b",
    re.IGNORECASE,
)
_SOFT = re.compile(
    r"\b(?:maximum|minimum|max|min|(?:has|have|had|with) no|(?:first|last) to"
    r"|how (?:many|much|often)|number of|amount of|counts?|totals?|sum|average|mean|median"
    r"|percent\w*|share of|most|least|fewest|(?:more|fewer|less) than|highest|lowest|biggest"
    r"|largest|smallest|longest|shortest|oldest|youngest|newest|latest|earliest|cheapest"
    r"|fastest|slowest|worst|greatest|heaviest|lightest|tallest|richest"
    r"|all|each|every|every(?:one|body|thing)|any(?:one|body|thing)|none|nobody|no one|entire|whole"
    r"|overall|altogether|except|besides|excluding|other than|apart from|mention\w*|which \w+s"
    r"|(?:who|which(?: \w+){0,2}|what \w+|whose(?: \w+)?) (?:\w+ )?"
    r"(?:isn|aren|wasn|weren|hasn|haven|hadn|doesn|don|didn|can|couldn|won|wouldn|not|never"
    r"|cannot|without|lacks?)(?:['\u2019]t)?)\b",
    re.IGNORECASE,
)
_COUNTED = re.compile(
    r"\b(?:how (?:many|often)|(?:number|share|percentage|proportion|fraction|count) of)\b(.*)",
    re.IGNORECASE | re.DOTALL,
)
_DIGIT = re.compile(r"\d")
_PIECE = re.compile(r"([A-Za-z]+)|[^\sA-Za-z]")


class Question(NamedTuple):
    """The question: its words, and the names among them."""

    text: str
    words: frozenset[str]
    names: frozenset[str]
    counted: str | None  # of what it asks how many; empty where it does not say
    counts: bool  # it counts, adds up, compares or denies, so that all may be needed
    refusal: NotRewritten | None  # why no passage may go for it


def question_of(text: str, *, follows: bool) -> Question:
    """Read the user's own words; ``follows`` tells of earlier turns."""
    focus = _focus(text)
    words = content_words(words_of(focus))
    counted = _COUNTED.search(focus)
    behind = words_of(counted[1] if counted else "")
    after = (each for word in behind for each in content_words([word]))
    return Question(
        focus,
        words,
        content_words(names_in(focus)) | {word for word in words if _DIGIT.search(word)},
        next(after, "") if counted else None,
        any(pattern.search(focus) for pattern in (_COUNTED, _SOFT, _NEEDS_ALL)),
        _refusal(text, focus, words, follows=follows),
    )


def _focus(text: str) -> str:
    """Return the question in the user's words, with its introduction if the encoder reads both.

    What the user says of the context itself ("answer from the documents below") is no part of it.
    """
    sentences = [_LABEL.sub("", each).strip() for each in sentences_of(text, clauses=True)]
    whole = " ".join(s for s in sentences if s.endswith("?") or not _is_of_context(s))
    if readable(whole) == whole.strip():
        return whole
    return " ".join(sentence for sentence in sentences if sentence.endswith("?"))


def _is_of_context(sentence: str) -> bool:
    """Tell whether a sentence only describes the context or the form of the answer."""
    if _INSTRUCTS.search(sentence):
        return True
    if not _OF_CONTEXT.search(sentence):
        return False
    left = content_words(words_of(_OF_CONTEXT.sub(" ", sentence)))
    return len(left - _OF_INSTRUCTIONS) < _LEAST_ASKED


def _refusal(text: str, focus: str, words: frozenset[str], *, follows: bool) -> NotRewritten | None:
    if not words or readable(focus) != focus.strip():
        return NotRewritten.UNCLEAR
    if not is_english(focus):
        return NotRewritten.LANGUAGE
    turn = tokenize_question(focus)
    if is_vague(turn) or (follows and depends_on_earlier_turns(turn)):
        return NotRewritten.UNCLEAR
    text = " ".join(_CONDITION.sub("", each) for each in sentences_of(text, clauses=True))
    return NotRewritten.NEEDS_ALL if _NEEDS_ALL.search(text) else None


def readable(text: str) -> str:
    """Return as much of a text as the encoder surely reads.

    A text that it cannot read whole has no vector, and one without fails all. So what counts is
    the most pieces that a word may be cut into, three letters each.
    """
    beginning = text.strip()[:MOST_CHARACTERS]
    count = 0
    for found in _PIECE.finditer(beginning):
        count += -(-len(found[1] or "-") // 3)
        if count > MOST_PIECES:
            return beginning[: found.start()]
    return beginning or "-"


Vector = Sequence[float]

FAR = 0.25  # less near, a passage without a word of the question is about another thing
RARE = 0.2  # share of the passages that have a word, up to which it tells them apart
MARGIN = 1.1  # how far below the best a passage stays where all is kept; it shrinks with ``keep``
LEAST, MOST = 0.6, 1.5  # of the share to keep: what stays however far it is, and what may stay
FLAT = 0.7  # of the margin: where more may not stay and is as near, none stands out
APART = 0.3  # how far the best is above most passages where these are about other things
TELLING = 0.25  # share of the question's weight in rare words, from which on a passage stays
LEXICAL_WEIGHT = 0.15  # of sharing all words of the question, beside a cosine similarity of 1


def drop_unrelated(
    question: Question,
    passages: Sequence[Passage],
    vectors: Sequence[Vector],
    settings: CompressSettings,
) -> bool:
    """Drop the passages that are not relevant to the question; return False if it may need all.

    ``vectors`` has the question's vector, then one for each passage.
    """
    similarities = _similarities(passages, vectors)
    words = [content_words(words_of(passage.text)) for passage in passages]
    matches = Counter(word for each in words for word in each & question.words)
    few = max(1, int(RARE * len(passages)))
    rare = frozenset(word for word, count in matches.items() if count <= few)
    weights = {word: log(1 + len(passages) / matches[word]) for word in matches}
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
    names = frozenset(word for word in question.names if 2 * matches[word] <= len(passages))
    for index, passage in enumerate(passages):
        telling = sum(weights[word] for word in words[index] & rare) >= TELLING * whole
        named = bool(words[index] & question.names & rare)
        if index in stays or telling or named or shared[index] >= most:
            continue
        far = similarities[index] < FAR and not words[index] & question.words
        # The vector of an identifier says nothing about its meaning: it is far from all questions.
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
    question, *others = vectors
    near = [sum(a * b for a, b in zip(question, each, strict=True)) for each in others]
    lifted = list(near)
    for at, (one, other) in enumerate(pairwise(passages)):
        ends_paragraph = one.text[len(one.text.rstrip()) :].count("\n") > 1
        if other.before is one and not ends_paragraph:
            between = (near[at] + near[at + 1]) / 2
            lifted[at] = max(lifted[at], between)
            lifted[at + 1] = max(lifted[at + 1], between)
    return lifted


def _near(scores: Sequence[float], sizes: Sequence[int], keep: float) -> set[int] | None:
    """Return the passages not far below the best, None where none stands out."""
    best = max(scores)
    margin = MARGIN * keep * sqrt(max(best, 0.0))
    size, total = sum(sizes), 0
    stays = set[int]()
    for index in sorted(range(len(scores)), key=lambda index: (-scores[index], index)):
        total += sizes[index]
        if stays and total > LEAST * keep * size:
            below = best - scores[index]
            if total > MOST * keep * size:
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
    """Tell whether the passages that the question is about stand out.

    A question about a missing identifier may be about its absence.
    """
    anywhere = frozenset[str]().union(*words)
    if any(name not in anywhere for name in question.names if any(map(str.isdigit, name))):
        return False
    if not question.counts or question.names & rare:
        return True
    if question.counted is not None and question.counted not in anywhere:
        return False
    return max(scores) - median(scores) >= APART
