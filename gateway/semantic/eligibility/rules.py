"""Whether a text is in another language than English, by its letters and its function words.

Law: pure and total; a few words without any function word are English unless marked otherwise.

Whether a turn is understood only by the turns before it, or says too little by itself.

Law: pure, and of one text. That the earlier turns are equal is the fingerprint's to say. But how
near two texts are, and whether one answer fits both, cannot be told of words that stand for others.

Which questions may be looked up by meaning, and found by it; the others hit only exactly.

Law: total and pure. A text is bounded before it is read, so time is linear and short whatever a
client sends. What a lookup may not look for, storing may not make findable: both ask here. In doubt
a question is exact only, which costs a hit and never an answer.
"""

import re
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

from gateway.protocol.endpoint import Endpoint
from gateway.protocol.endpoints.spec import Question
from gateway.protocol.endpoints.table import SPECS
from gateway.protocol.reasons import Reason
from gateway.semantic.eligibility import words as lists
from gateway.semantic.eligibility.time_sensitive import depends_on_time, varies
from gateway.semantic.eligibility.tokens import (
    TokenizedQuestion,
    holds_code,
    sentences_of,
    tokenize_question,
)

MAX_WITHOUT_FUNCTION_WORDS = 9
"""Twice as many with one of them, and so on."""
OTHER_LETTERS = 0.1
"""Share of letters that are not Latin, from which on a text is written in another script."""

_LOWER_ACCENTED = re.compile(r"\b[a-z]*[\u00df-\u00f6\u00f8-\u00ff][a-z]*\b")
_LATIN_ENDS = "\u024f"


def is_foreign(text: TokenizedQuestion) -> bool:
    """Judge a text in Latin letters by its function words."""
    vocabulary = text.vocabulary
    english = len(vocabulary & lists.ENGLISH)
    foreign = len(vocabulary & lists.FOREIGN)
    perhaps = len(vocabulary & lists.PERHAPS_FOREIGN)
    if foreign and (foreign + perhaps) * 2 > english:
        return True
    if len(text.words) > MAX_WITHOUT_FUNCTION_WORDS * (english + 1):
        return True
    if english:
        return perhaps > english + 1
    return perhaps > 1 or (
        not text.text.isascii() and _LOWER_ACCENTED.search(text.text) is not None
    )


def is_prose(text: str) -> bool:
    """Tell whether a text is English sentences: rows of data have no function words."""
    return is_english(text) and not tokenize_question(text).vocabulary.isdisjoint(lists.ENGLISH)


def is_english(text: str) -> bool:
    """Tell whether an English encoder makes sense of a text."""
    if not text.isascii():
        letters = [character for character in text if character.isalpha()]
        if sum(letter > _LATIN_ENDS for letter in letters) > OTHER_LETTERS * len(letters):
            return False
    return not is_foreign(tokenize_question(text))


_FRAGMENT = 2
"""Words of an answer or a hint, such as "the second" or "in Canada"."""
_SHORT = 5
_LONG = 10
"""Words from which on a sentence says itself what "the other one" is."""
_CLOSE = 3
_ENOUGH_BEFORE = 4
"""Words of content before a pronoun, which is then taken to stand for one of them."""


def is_vague(turn: TokenizedQuestion) -> bool:
    """Tell whether a text says so little that its sense must come from elsewhere."""
    return len(turn.words) <= _FRAGMENT and turn.vocabulary <= lists.VAGUE


def depends_on_earlier_turns(turn: TokenizedQuestion) -> bool:
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


def _is_fragment(turn: TokenizedQuestion) -> bool:
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


MAX_CHARACTERS = 1000
MAX_WORDS = 160
"""A text of this length is about 200 tokens: the encoder and the verifier read it whole."""
LONGEST_WORD = 40
MAX_GIVEN_WORDS = 12
"""Of a text to work on: a short one is a phrase that the verifier can compare."""
MAX_LINES = 6
MIN_STUFFED_WORDS = 12
MIN_DISTINCT = 0.45
"""Share of different words; English of this length has 0.6 and more."""

_CONTROL = re.compile(r"[\x00-\x08\x0b\x0c\x0e-\x1f\x7f]")
_NOT_ASCII = re.compile(r"[^\x00-\x7f]")
_LATIN = re.compile("[\u00c0-\u0130\u0132-\u0137\u0139-\u0148\u014a-\u017e]")
"""Latin letters of names and loan words, without those that only pass for another letter."""
_SIGNS = frozenset(
    "\u00a0£€¥¢§©®™°±²³¹¼½¾·÷\u00d7\u2018\u2019\u201c\u201d\u201e«»¡¿\u2013\u2014\u2212…•"
)
_ITEM = re.compile(r"(?:^|\s)\(?(?:[1-9]|[a-d]|i{1,3})[.)]\s+\w")
_MAX_ITEMS = 2
_ASIDE = 2
"""Spaces in what only stresses a question: "What now??"."""
_MAX_ASIDES = 2
_ROLE = re.compile(
    r"^\s{0,9}(?:(?:system|assistant|user|human|ai)\s?:|#{2,6} \w)|<\||\[/?INST\]",
    re.IGNORECASE | re.MULTILINE,
)
_LINK = re.compile(r"https?://|www\.\w", re.IGNORECASE)
_GIVEN = re.compile(r"[:\n\"\u201c]")
_NEAR = 6
"""Words between "ignore" and what is to be ignored."""


class SemanticQuery(NamedTuple):
    """What of a request is looked up by meaning, or why nothing is."""

    question: Question | None
    ineligible: Reason | None


NO_QUERY = SemanticQuery(None, None)


def semantic_query(endpoint: Endpoint, body: dict[str, Any]) -> SemanticQuery:
    """Return the question of a request, or why it may only hit exactly."""
    find = SPECS[endpoint].find_question
    found = Reason.ENDPOINT if find is None else find(body)
    if not isinstance(found, Question):
        return SemanticQuery(None, found)
    reason = ineligible(found.text, follows=found.follows)
    return SemanticQuery(found if reason is None else None, reason)


def ineligible(text: str, *, follows: bool = False) -> Reason | None:
    """Return why a text may only hit exactly; ``follows`` tells of earlier turns."""
    if len(text) > MAX_CHARACTERS:
        return Reason.TEXT_TOO_LONG
    if not text or text.isspace():
        return Reason.EMPTY_TEXT
    reason = _unreadable(text)
    if reason is not None:
        return reason
    if holds_code(text):
        return Reason.CODE
    question = tokenize_question(text)
    if not question.words:
        return Reason.VAGUE
    if follows and depends_on_earlier_turns(question):
        return Reason.FOLLOW_UP
    return next((reason for reason, applies in _CHECKS if applies(question)), None)


def _unreadable(text: str) -> Reason | None:
    """Find what an English encoder drops or cannot tell apart, and what people do not see."""
    if _CONTROL.search(text):
        return Reason.UNREADABLE_TEXT
    if not text.isascii():
        for character in frozenset(_NOT_ASCII.findall(text)) - _SIGNS:
            if not _LATIN.match(character):
                return Reason.LANGUAGE if character.isalpha() else Reason.UNREADABLE_TEXT
    return None


def _is_stuffed(question: TokenizedQuestion) -> bool:
    """Tell a text that repeats itself, or holds a word that is none, from a sentence."""
    count = len(question.words)
    if count >= MIN_STUFFED_WORDS and len(question.vocabulary) < MIN_DISTINCT * count:
        return True
    return any(len(word) > LONGEST_WORD for word in question.vocabulary)


def _instructs(question: TokenizedQuestion) -> bool:
    """Tell a text that gives orders of its own to the model, or to what reads it before.

    Beside a harmless question such orders make a stored answer that others would be served.
    """
    vocabulary, words = question.vocabulary, question.words
    if not question.pairs.isdisjoint(lists.MACHINERY) or _ROLE.search(question.text):
        return True
    if not vocabulary.isdisjoint(lists.ORDERS) and _orders_beside(question):
        return True
    if vocabulary.isdisjoint(lists.DISREGARD) or vocabulary.isdisjoint(lists.DISREGARDED):
        return False
    return any(
        word in lists.DISREGARD and not lists.DISREGARDED.isdisjoint(words[at + 1 : at + _NEAR])
        for at, word in enumerate(words)
    )


def _orders_beside(question: TokenizedQuestion) -> bool:
    """Find "say yes" as a sentence beside a question."""
    sentences = [each.rstrip() for each in sentences_of(question.text, clauses=True)]
    if not any(sentence.endswith("?") for sentence in sentences):
        return False
    openings = (
        next((word for word in tokenize_question(sentence).words if word not in lists.POLITE), "")
        for sentence in sentences
        if not sentence.endswith("?")
    )
    return not lists.ORDERS.isdisjoint(openings)


def _holds_payload(question: TokenizedQuestion) -> bool:
    """Tell whether the text brings another one to work on, or points to one by a link.

    What is asked of such a text is the same for many, and all that matters is the text.
    """
    text, words = question.text, question.words
    if text.count("\n") >= MAX_LINES or _LINK.search(text):
        return True
    verb = next((word for word in words if word not in lists.POLITE), "")
    if verb not in lists.WORKING and question.pairs.isdisjoint(lists.WORKED_ON):
        return False
    given = _GIVEN.search(text)
    return given is not None and len(tokenize_question(text[given.end() :]).words) > MAX_GIVEN_WORDS


def _asks_much(question: TokenizedQuestion) -> bool:
    """Tell several questions in one: an answer to some of them would pass for one to all."""
    text = question.text
    if text.count("?") > 1:
        sentences = (each.strip() for each in sentences_of(text, clauses=True))
        asking = [each for each in sentences if each.endswith("?")]
        if len(asking) > _MAX_ASIDES or sum(each.count(" ") > _ASIDE for each in asking) > 1:
            return True
    return len(_ITEM.findall(text)) > _MAX_ITEMS


_CHECKS: tuple[tuple[Reason, Callable[[TokenizedQuestion], bool]], ...] = (
    (Reason.TEXT_TOO_LONG, lambda question: len(question.words) > MAX_WORDS),
    (Reason.STUFFED, _is_stuffed),
    (Reason.LANGUAGE, is_foreign),
    (Reason.INSTRUCTIONS, _instructs),
    (Reason.PAYLOAD, _holds_payload),
    (Reason.MANY_QUESTIONS, _asks_much),
    (Reason.VAGUE, is_vague),
    (Reason.VARIETY, varies),
    (Reason.TIME, depends_on_time),
)
"""In the order in which a text that fails several is told."""
