"""What kind of answer a text asks for, and whether two texts ask for different kinds. Pure.

Only what is sure is said: a request ("explain ..."), an open "what" and a choice fit everything.
"""

import re
from collections.abc import Sequence
from itertools import pairwise
from typing import Final

from embeddings.verify.differences import Difference
from embeddings.verify.lists import words
from embeddings.verify.lists.grammar import AUXILIARIES, FUNCTION
from embeddings.verify.statement import Statement

_WH: Final = words("who whom whose what which when where why how")
_LEAD: Final = words(
    """
    so and but well ok okay hi hello hey please by at in on for from since until till to then also
    now or sorry quick question the of just dear thanks actually if
    """
)
_TELLS: Final = words(
    """
    tell know wondering wonder explain show see find out figure understand ask asking remember say
    curious sure idea clue check describe advise inform clarify learn hear me us about wonders
    """
)
_HOW: Final = {
    "much": "amount", "many": "amount", "long": "duration", "old": "age", "far": "distance",
    "often": "frequency", "frequently": "frequency", "come": "why", "soon": "when", "late": "when",
    "early": "when", "tall": "size", "big": "size", "high": "size", "deep": "size", "wide": "size",
    "large": "size", "heavy": "weight", "fast": "speed", "hot": "temperature",
    "cold": "temperature",
}  # fmt: skip
_NOUNS: Final = {
    noun: kind
    for kind, nouns in {
        "when": "time date day year month hour week deadline hours",
        "where": "place location address city country spot birthplace",
        "amount": "price cost amount number fee sum total percentage percent count rate",
        "population": "population",
        "why": "reason reasons cause causes makes made caused purpose explains point",
        "how": "way ways method steps process procedure do best",
        "who": "person name inventor author founder",
        "duration": "duration length",
        "size": "height size",
        "age": "age",
        "distance": "distance",
        "frequency": "frequency",
        "speed": "speed",
        "weight": "weight",
        "temperature": "temperature",
    }.items()
    for noun in words(nouns)
}
_COUNTED: Final = {
    **dict.fromkeys(words("time seconds minutes hours days weeks months years"), "duration"),
    **dict.fromkeys(words("miles kilometers kilometres km"), "distance"),
    **dict.fromkeys(words("times"), "frequency"),
}
# Kinds of which one answer may do for the other.
_AKIN: Final = frozenset(
    frozenset(pair)
    for pair in (
        ("when", "duration"), ("where", "how"), ("count", "amount"),
        ("age", "when"), ("age", "amount"), ("distance", "amount"), ("distance", "duration"),
        ("size", "amount"), ("weight", "amount"), ("speed", "amount"), ("temperature", "amount"),
        ("size", "distance"), ("frequency", "amount"), ("frequency", "when"), ("speed", "duration"),
        ("where", "who"),
    )
)  # fmt: skip
_ASKED_IN_OTHER_WORDS: Final = words(
    "differ differs different difference distinguish say translate called spell pronounce written"
)
# An open question that may have any of the others for its meaning.
_OPEN: Final = words("amount duration age distance frequency size weight speed temperature how")
_INHABITED: Final = re.compile("how many people live in (?:the )?(\\S+)(?: (\\S+))?")
_CLOSE: Final = 0.75
_LEAD_LENGTH: Final = 12


def check_question(a: Statement, b: Statement, apart: Difference) -> str | None:
    """Refuse texts that ask for answers of different kinds."""
    if "population" in a.vocabulary ^ b.vocabulary and _other_people(a, b):
        return "question"
    if apart.closeness < _CLOSE:
        return None
    left, right = asked(a), asked(b)
    if not left or not right or left & right:
        return None
    if any("what" in x and y & _OPEN for x, y in ((left, right), (right, left))):
        return None
    if any(frozenset((x, y)) in _AKIN for x in left for y in right):
        return None
    return "question"


def asked(text: Statement) -> frozenset[str]:
    """Return the kinds of answer that may be asked for; none when that is open."""
    bounds = [*text.starts, len(text.words)]
    for start, end in reversed(list(pairwise(bounds))):
        kinds = _asked_by(text.words[start:end])
        if kinds is not None:
            return kinds
    return frozenset()


def _asked_by(sentence: Sequence[str]) -> frozenset[str] | None:
    """Return what a sentence asks for, None when it asks nothing."""
    start = 0
    while start < len(sentence) and sentence[start] in _LEAD:
        start += 1
    if start == len(sentence):
        return None
    first = sentence[start]
    if first in _WH:
        return _wh(sentence, start)
    for place in range(start + 1, min(start + _LEAD_LENGTH, len(sentence))):
        if sentence[place] in _WH and sentence[place - 1] in _TELLS:
            return _wh(sentence, place)
    if sentence[-1] in {"how", "why", "when", "where"}:
        return _wh(sentence, len(sentence) - 1)
    if first in AUXILIARIES and len(sentence) > start + 1:
        return _yes_no(sentence, start)
    return None


def _yes_no(sentence: Sequence[str], start: int) -> frozenset[str]:
    second = sentence[start + 1]
    if second == "you" or "or" in sentence:
        return frozenset()
    if second == "there":
        return frozenset({"yes-no", "how"})
    return frozenset({"yes-no"})


def _wh(sentence: Sequence[str], place: int) -> frozenset[str]:
    word = sentence[place]
    following = sentence[place + 1] if place + 1 < len(sentence) else ""
    if word in {"how", "what", "which"} and not _ASKED_IN_OTHER_WORDS.isdisjoint(sentence):
        return frozenset()
    if word == "how":
        if following in {"many", "much"} and place + 2 < len(sentence):
            kind = "count" if following == "many" else "amount"
            kinds = frozenset({_COUNTED.get(sentence[place + 2], kind)})
            return kinds | {"population"} if _is_population(sentence[place:]) else kinds
        return frozenset({_HOW.get(following, "how")})
    if word in {"who", "whom", "whose"}:
        return frozenset({"who"})
    if word in {"what", "which"}:
        near = sentence[place + 1 : place + 6]
        return (
            frozenset({"what", *(_NOUNS[x] for x in near if x in _NOUNS)}) if near else frozenset()
        )
    # "When I move, will ..." asks something else.
    if word in {"when", "where"} and place + 1 < len(sentence) and following not in AUXILIARIES:
        return frozenset()
    return frozenset({word})


def _is_population(sentence: Sequence[str]) -> bool:
    """Tell whether a sentence asks how many people live in a place, and no more."""
    found = _INHABITED.fullmatch(" ".join(sentence))
    return found is not None and FUNCTION.isdisjoint(found.groups())


def _other_people(a: Statement, b: Statement) -> bool:
    """Tell whether one asks how many people live somewhere in some way, so not for all of them."""
    return any(
        " how many people live " in text.joined and "population" not in asked(text)
        for text in (a, b)
    )
