"""Which follow-ups may get an answer to the same question as the first turn of a conversation.

Laws: only answers that had no earlier turns are found this way, so no answer carries what another
conversation said. System prompt, tools, parameters and scope stay equal. In doubt a follow-up is
looked up in its own conversation alone: that costs a hit, and never gives a wrong answer.

Rules see words, and no meaning. So a complete turn must name its subject in full ("Mike Gravel"),
and must hold no word that may stand for something else. A surname alone may be another person's.
"""

import re
from itertools import takewhile
from typing import Any

from gateway.protocol.endpoints.spec import Body, Question
from gateway.protocol.http.cache_status import Reason
from gateway.semantic import words as lists
from gateway.semantic.eligibility import (
    depends_on_earlier_turns,
    ineligible,
    sentences_of,
    tokenize_question,
)

MAX_TURNS = 40
"""Earlier turns that are read; in a longer conversation something else may be agreed."""
_INSTRUCTING = frozenset({"system", "developer"})
_WORD = re.compile(r"[^\W_]+(?:['\u2019][^\W_]+)*")
_LOWER = lists.ENGLISH - lists.IN_NAMES
_NO_NAMES = lists.ENGLISH | lists.PERIODS | lists.TITLES
_HARMLESS = frozenset({None, Reason.VAGUE, Reason.TIME, Reason.MANY_QUESTIONS})
"""Verdicts on an earlier turn that orders nothing and brings no text to work on."""
_STANDARD = 4
"""Words behind "the" among which "of" says which one is meant."""


def as_opening(question: Question) -> Body | Reason:
    """Return what must be equal of a follow-up as a first turn, or why it stays with its history.

    The question must be eligible.
    """
    *earlier, last = question.rest["messages"]
    instructions = [*takewhile(lambda turn: turn["role"] in _INSTRUCTING, earlier)]
    if not is_complete(question.text):
        return Reason.FOLLOW_UP
    turns = earlier[len(instructions) :]
    if len(turns) > MAX_TURNS or not all(map(_leaves_open, turns)):
        return Reason.EARLIER_TURNS
    return {**question.rest, "messages": [*instructions, last]}


def is_complete(text: str) -> bool:
    """Tell whether a turn is understood without the turns before it."""
    turn = tokenize_question(text)
    return (
        bool(turn.words)
        and turn.vocabulary.isdisjoint(lists.REFERRING)
        and ("than" in turn.vocabulary or turn.vocabulary.isdisjoint(lists.COMPARING))
        and not depends_on_earlier_turns(turn)
        and _names_subject(text)
    )


def _names_subject(text: str) -> bool:
    """Tell whether there is a full name, and each "the" says which one it means.

    A place or time behind "in" is no subject: "What happened in New York?".
    """
    words = _WORD.findall(text)
    if _is_title_case(words):
        return False
    named = False
    before = ""
    for at, word in enumerate(words):
        lower = word.lower()
        if lower == "the" and not _is_definite(words[at + 1 : at + 1 + _STANDARD]):
            return False
        if not _is_name(word):
            before = before if lower == "the" else lower
        elif at > 1 and _is_name(words[at - 1]):
            named = named or before == "of" or before not in lists.PREPOSITIONS
    return named


def _is_title_case(words: list[str]) -> bool:
    """Tell whether capitals mark no names here: "Which Albums Did Well", "WHAT WAS IT"."""
    return any(word[0].isupper() and word.lower() in _LOWER for word in words[1:])


def _is_name(word: str) -> bool:
    return word[0].isupper() and word.lower() not in _NO_NAMES


def _is_definite(rest: list[str]) -> bool:
    """Tell whether "the" stands before a name, or before what "of" or "between" explains."""
    return bool(rest) and (_is_name(rest[0]) or not {"of", "between"}.isdisjoint(rest[1:]))


def _leaves_open(turn: dict[str, Any]) -> bool:
    """Tell whether an earlier turn is plain text and, of the user, asks and sets no rule."""
    match turn:
        case {"role": "assistant", "content": str(), **more} if not more:
            return True
        case {"role": "user", "content": str(text), **more} if not more:
            return ineligible(text) in _HARMLESS and _only_asks(text)
        case _:
            return False


def _only_asks(text: str) -> bool:
    turn = tokenize_question(text)
    if not turn.vocabulary.isdisjoint(lists.STANDING):
        return False
    if not turn.pairs.isdisjoint(lists.STANDING_PAIRS):
        return False
    # Without "I" or "my" a question says nothing of the user, however it begins.
    impersonal = turn.vocabulary.isdisjoint(lists.OWN)
    for sentence in filter(str.strip, sentences_of(text, clauses=True)):
        words = tokenize_question(sentence).words
        asks = not words or words[0] in lists.ASKING
        if not (asks or (impersonal and sentence.rstrip().endswith("?"))):
            return False
    return True
