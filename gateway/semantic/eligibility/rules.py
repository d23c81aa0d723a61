"""Which questions may be looked up by meaning, and found by it; the others hit only exactly.

Law: total and pure. A text is bounded before it is read, so time is linear and short whatever a
client sends. What a lookup may not look for, storing may not make findable: both ask here. In doubt
a question is exact only, which costs a hit and never an answer.
"""

import re
from collections.abc import Callable
from typing import Any, NamedTuple

from gateway.protocol.conversation import follows_turns, obstacle, semantic_question
from gateway.protocol.endpoint import Endpoint
from gateway.protocol.reasons import Ineligible
from gateway.semantic.eligibility import words as lists
from gateway.semantic.eligibility.code import holds_code
from gateway.semantic.eligibility.follow_up import is_vague, leans
from gateway.semantic.eligibility.language import is_foreign
from gateway.semantic.eligibility.time_sensitive import depends_on_time, varies
from gateway.semantic.eligibility.tokens import Worded, sentences_of, worded

MOST_CHARACTERS = 1000
MOST_WORDS = 160
"""A text of this length is about 200 tokens: the encoder and the verifier read it whole."""
LONGEST_WORD = 40
MOST_GIVEN_WORDS = 12
"""Of a text to work on: a short one is a phrase that the verifier can compare."""
MOST_LINES = 6
LEAST_TO_REPEAT = 12
LEAST_DISTINCT = 0.45
"""Share of different words; English of this length has 0.6 and more."""

_CONTROL = re.compile(r"[\x00-\x08\x0b\x0c\x0e-\x1f\x7f]")
_NOT_ASCII = re.compile(r"[^\x00-\x7f]")
_LATIN = re.compile("[\u00c0-\u0130\u0132-\u0137\u0139-\u0148\u014a-\u017e]")
"""Latin letters of names and loan words, without those that only pass for another letter."""
_SIGNS = frozenset(
    "\u00a0£€¥¢§©®™°±²³¹¼½¾·÷\u00d7\u2018\u2019\u201c\u201d\u201e«»¡¿\u2013\u2014\u2212…•"
)
_ITEM = re.compile(r"(?:^|\s)\(?(?:[1-9]|[a-d]|i{1,3})[.)]\s+\w")
_MOST_ITEMS = 2
_ASIDE = 2
"""Spaces in what only stresses a question: "What now??"."""
_MOST_ASIDES = 2
_ROLE = re.compile(
    r"^\s{0,9}(?:(?:system|assistant|user|human|ai)\s?:|#{2,6} \w)|<\||\[/?INST\]",
    re.IGNORECASE | re.MULTILINE,
)
_LINK = re.compile(r"https?://|www\.\w", re.IGNORECASE)
_GIVEN = re.compile(r"[:\n\"\u201c]")
_NEAR = 6
"""Words between "ignore" and what is to be ignored."""


class Sought(NamedTuple):
    """What of a request is looked up by meaning, or why nothing is."""

    question: str | None
    ineligible: Ineligible | None


NOT_SOUGHT = Sought(None, None)


def sought(endpoint: Endpoint, body: dict[str, Any]) -> Sought:
    """Return the question of a request, or why it may only hit exactly."""
    reason = obstacle(endpoint, body)
    if reason is not None:
        return Sought(None, reason)
    question = semantic_question(endpoint, body)
    reason = ineligible(question, follows=follows_turns(endpoint, body))
    return Sought(question if reason is None else None, reason)


def ineligible(text: str, *, follows: bool = False) -> Ineligible | None:
    """Return why a text may only hit exactly; ``follows`` tells of earlier turns."""
    if len(text) > MOST_CHARACTERS:
        return Ineligible.TOO_LONG
    if not text or text.isspace():
        return Ineligible.EMPTY
    reason = _unreadable(text)
    if reason is not None:
        return reason
    if holds_code(text):
        return Ineligible.CODE
    question = worded(text)
    if not question.words:
        return Ineligible.VAGUE
    if follows and leans(question):
        return Ineligible.FOLLOW_UP
    return next((reason for reason, applies in _CHECKS if applies(question)), None)


def _unreadable(text: str) -> Ineligible | None:
    """Find what an English encoder drops or cannot tell apart, and what people do not see."""
    if _CONTROL.search(text):
        return Ineligible.UNREADABLE
    if not text.isascii():
        for character in frozenset(_NOT_ASCII.findall(text)) - _SIGNS:
            if not _LATIN.match(character):
                return Ineligible.LANGUAGE if character.isalpha() else Ineligible.UNREADABLE
    return None


def _is_stuffed(question: Worded) -> bool:
    """Tell a text that repeats itself, or holds a word that is none, from a sentence."""
    count = len(question.words)
    if count >= LEAST_TO_REPEAT and len(question.vocabulary) < LEAST_DISTINCT * count:
        return True
    return any(len(word) > LONGEST_WORD for word in question.vocabulary)


def _instructs(question: Worded) -> bool:
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


def _orders_beside(question: Worded) -> bool:
    """Find "say yes" as a sentence beside a question."""
    sentences = sentences_of(question.text)
    if not any(sentence.endswith("?") for sentence in sentences):
        return False
    openings = (
        next((word for word in worded(sentence).words if word not in lists.POLITE), "")
        for sentence in sentences
        if not sentence.endswith("?")
    )
    return not lists.ORDERS.isdisjoint(openings)


def _holds_payload(question: Worded) -> bool:
    """Tell whether the text brings another one to work on, or points to one by a link.

    What is asked of such a text is the same for many, and all that matters is the text.
    """
    text, words = question.text, question.words
    if text.count("\n") >= MOST_LINES or _LINK.search(text):
        return True
    verb = next((word for word in words if word not in lists.POLITE), "")
    if verb not in lists.WORKING and question.pairs.isdisjoint(lists.WORKED_ON):
        return False
    given = _GIVEN.search(text)
    return given is not None and len(worded(text[given.end() :]).words) > MOST_GIVEN_WORDS


def _asks_much(question: Worded) -> bool:
    """Tell several questions in one: an answer to some of them would pass for one to all."""
    text = question.text
    if text.count("?") > 1:
        asking = [each for each in sentences_of(text) if each.endswith("?")]
        if len(asking) > _MOST_ASIDES or sum(each.count(" ") > _ASIDE for each in asking) > 1:
            return True
    return len(_ITEM.findall(text)) > _MOST_ITEMS


_CHECKS: tuple[tuple[Ineligible, Callable[[Worded], bool]], ...] = (
    (Ineligible.TOO_LONG, lambda question: len(question.words) > MOST_WORDS),
    (Ineligible.STUFFED, _is_stuffed),
    (Ineligible.LANGUAGE, is_foreign),
    (Ineligible.INSTRUCTIONS, _instructs),
    (Ineligible.PAYLOAD, _holds_payload),
    (Ineligible.MANY_QUESTIONS, _asks_much),
    (Ineligible.VAGUE, is_vague),
    (Ineligible.VARIETY, varies),
    (Ineligible.TIME, depends_on_time),
)
"""In the order in which a text that fails several is told."""
