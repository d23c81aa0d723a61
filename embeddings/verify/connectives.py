"""Small words on which an answer hangs: only, except, at least, and or or, he or she, was or is.

Pure. Most of them count only between texts that are otherwise the same.
"""

import re
from typing import Final

from embeddings.verify.differences import Difference, reverses
from embeddings.verify.lists import words
from embeddings.verify.lists.grammar import HE, SHE
from embeddings.verify.lists.people import FEMALE, MALE
from embeddings.verify.statement import Statement

_CLOSE: Final = 0.6
_NEAR: Final = 0.75
_EQUAL: Final = 0.99
# A limit, and by what else a text may account for it.
_ONLY: Final = """
just|alone|sole|single|nothing (?:but|else)|no other|nobody else|limit\\w*|restrict\\w*|other than
|unless|until|but|pure\\w*|one|exclusive
"""
_LEAST: Final = "min\\w*|or more|not (?:less|fewer)|least|lowest|smallest|if|enough"
_MOST: Final = """
max\\w*|no more|not more|up to|or less|or fewer|limit\\w*|most|within|more than|highest|top
"""
_BUT: Final = """
except\\w*|exclud\\w*|apart|aside|besides|others?|but|without|not|unless|ignor\\w*|leav\\w*|minus
|skip\\w*
"""
_UNLESS: Final = "not|without|except\\w*|otherwise|only|no|never|until"
_LIMITS: Final = tuple(
    (re.compile(f" (?:{says}) "), re.compile(f" (?:{says}|{accounts.strip()}) ".replace("\n", "")))
    for says, accounts in (
        ("only|solely|merely|exclusively", _ONLY),
        ("at least|no (?:less|fewer) than", _LEAST),
        ("at most|no more than", _MOST),
        ("except|excluding|apart from|aside from", _BUT),
        ("unless", _UNLESS),
    )
)
# Only what differs in nothing but time: "does it end" and "will it end" may ask the same.
_TENSES: Final = (
    (frozenset({"is", "are", "am"}), frozenset({"was", "were"})),
    (frozenset({"do", "does"}), frozenset({"did", "had"})),
    (frozenset({"is", "are", "am"}), frozenset({"will", "shall"})),
    (frozenset({"was", "were", "did"}), frozenset({"will", "shall"})),
)
_PLACED: Final = (
    (frozenset({"on", "turn-on", "switch-on"}), frozenset({"off", "turn-off", "switch-off"})),
    (frozenset({"near", "nearby"}), frozenset({"far"})),
    (frozenset({"up"}), frozenset({"down"})),
)
# Between texts that are the same but for this word.
_LINKS: Final = frozenset(
    frozenset(pair.split("-"))
    for pair in words(
        """
        near-at near-in from-to from-until from-by from-for to-by until-by for-against with-without
        for-by under-over above-below since-until before-after at-from at-after at-before in-near
        in-under behind-before inside-outside with-for with-against on-under on-off in-out
        """
    )
)
_MINE: Final = frozenset({"my", "your"})
_AUXILIARY: Final = {
    **dict.fromkeys(("did", "was", "were"), "past"),
    **dict.fromkeys(("can", "could", "should", "must", "may"), "modal"),
}
_WHO_IS: Final = re.compile(" (?:explain |tell |me |please )*who (?:is|was) (\\S+) (\\S+) $")
_HEADS: Final = ({"past", "modal"},)
_PERFECT: Final = frozenset({"have", "has", "been", "would", "could", "being", "going"})
_MODALS: Final = (
    (frozenset({"should", "ought"}), "should"),
    (frozenset({"must"}), "must"),
    (frozenset({"can", "could", "may"}), "can"),
)
_LIMITING: Final = words(
    """
    only solely merely exclusively least most no except excluding apart aside unless some several
    few all every each both either neither
    """
)
_HAS_SOME: Final = (
    (frozenset({"some", "several", "few"}), frozenset({"all", "every", "each"})),
    (frozenset({"both"}), frozenset({"either", "neither"})),
    (frozenset({"either"}), frozenset({"neither"})),
)
_TIMES: Final = (
    frozenset({"before", "until", "till", "prior"}),
    frozenset({"after", "since", "following"}),
    frozenset({"during", "while"}),
)


def check_limits(a: Statement, b: Statement, apart: Difference) -> str | None:
    """Refuse an "only", "except", "at least", "all" that the other text has not."""
    if apart.closeness < _CLOSE:
        return None
    if a.vocabulary.isdisjoint(_LIMITING) and b.vocabulary.isdisjoint(_LIMITING):
        return None
    for says, accounts in _LIMITS if apart.closeness >= _NEAR else _LIMITS[1:]:
        if says.search(a.joined):
            if not accounts.search(b.joined):
                return "quantifier"
        elif says.search(b.joined) and not accounts.search(a.joined):
            return "quantifier"
    if apart.closeness >= _NEAR:
        left, right = a.vocabulary, b.vocabulary
        if any(_against(left, right, x, y) for x, y in _HAS_SOME):
            return "quantifier"
    return None


def _against(
    left: frozenset[str], right: frozenset[str], some: frozenset[str], others: frozenset[str]
) -> bool:
    """Tell whether one text has only the one sort of word, and the other text only the other."""
    has = [(bool(text & some), bool(text & others)) for text in (left, right)]
    return has in ([(True, False), (False, True)], [(False, True), (True, False)])


def check_small_words(a: Statement, b: Statement, apart: Difference) -> str | None:
    """Refuse another person; between texts that are otherwise equal, another tense or link."""
    if apart.closeness < _CLOSE:
        return None
    left, right = a.vocabulary, b.vocabulary
    if _against(left, right, HE, SHE):
        return "person"
    if apart.closeness >= _NEAR and any(_against(left, right, x, y) for x, y in _PLACED):
        return "antonym"
    if apart.framed and (link := _link(a, b)):
        if link in _LINKS:
            return "relation"
        if link == _MINE:
            return "person"
    return _otherwise_equal(a, b, apart) if apart.closeness >= _EQUAL else None


def _otherwise_equal(a: Statement, b: Statement, apart: Difference) -> str | None:
    left, right = a.vocabulary, b.vocabulary
    if _against(left, right, frozenset({"i"}), frozenset({"he", "she"})):
        return "person"
    if {_head(a), _head(b)} in _HEADS:
        return "tense"
    genders = [[word in HE for word in text.words if word in HE | SHE] for text in (a, b)]
    if genders[0] == [not he for he in genders[1]] and genders[0]:
        return "person"
    if _against(left, right, frozenset({"and"}), frozenset({"or"})):
        return "relation"
    times = [{place for place, x in enumerate(_TIMES) if text & x} for text in (left, right)]
    if times[0] and times[1] and not times[0] & times[1] and not reverses(a, b, apart):
        return "relation"
    if _known(a, b):
        return None
    if _PERFECT.isdisjoint(left | right) and any(_against(left, right, x, y) for x, y in _TENSES):
        return "tense"
    modals = {_modal(left), _modal(right)}
    return "modality" if None not in modals and len(modals) > 1 else None


def _known(a: Statement, b: Statement) -> bool:
    """Tell whether both ask who somebody is or was: by first and last name, so no office."""
    if ("born" in a.vocabulary) != ("born" in b.vocabulary):
        return "birthplace" in a.vocabulary | b.vocabulary
    left, right = _WHO_IS.fullmatch(a.joined), _WHO_IS.fullmatch(b.joined)
    if not left or not right or left.groups() != right.groups():
        return False
    first, last = left.groups()
    named = {x.text for text in (a, b) for x in text.items if x.named and not x.acronym}
    return first in FEMALE | MALE and last in named


def _link(a: Statement, b: Statement) -> frozenset[str]:
    return frozenset(
        x for pair in zip(a.words, b.words, strict=True) for x in pair if pair[0] != pair[1]
    )


def _head(text: Statement) -> str | None:
    """Return the sort of the auxiliary that the question starts with."""
    return next((_AUXILIARY[x] for x in text.words[:3] if x in _AUXILIARY), None)


def _modal(text: frozenset[str]) -> str | None:
    return next((name for found, name in _MODALS if not text.isdisjoint(found)), None)
