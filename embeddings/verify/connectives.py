"""Small words on which an answer hangs: only, except, at least, and or or, he or she, was or is.

Pure. Most of them count only between texts that are otherwise the same.
"""

import re
from typing import Final

from embeddings.verify.differences import Difference
from embeddings.verify.lists.grammar import HE, SHE
from embeddings.verify.statement import Statement

_CLOSE: Final = 0.6
_NEAR: Final = 0.75
_EQUAL: Final = 0.99
# A limit, and all that may say it.
_LIMITS: Final = (
    (
        re.compile(r" (?:only|solely|merely|exclusively) "),
        re.compile(
            r" (?:only|just|solely|merely|exclusively|alone|sole|single|nothing (?:but|else)|no other|nobody else"
            r"|limit\w*|restrict\w*|other than|unless|until|but|pure\w*|one|exclusive) "
        ),
    ),
    (
        re.compile(r" (?:at least|no (?:less|fewer) than) "),
        re.compile(
            r" (?:at least|min\w*|no (?:less|fewer) than|or more|not (?:less|fewer)|least|lowest|smallest|if|enough) "
        ),
    ),
    (
        re.compile(r" (?:at most|no more than) "),
        re.compile(
            r" (?:at most|max\w*|no more|not more|up to|or less|or fewer|limit\w*|most|within|more than|highest|top) "
        ),
    ),
    (
        re.compile(r" (?:except|excluding|apart from|aside from) "),
        re.compile(
            r" (?:except\w*|exclud\w*|apart|aside|besides|other|others|but|without|not|unless|ignor\w*|leav\w*|minus|skip\w*) "
        ),
    ),
    (
        re.compile(r" unless "),
        re.compile(r" (?:unless|not|without|except\w*|otherwise|only|no|never|until) "),
    ),
)
_PAST: Final = frozenset({"was", "were", "did", "had"})
_PRESENT: Final = frozenset({"is", "are", "am", "do", "does"})
_FUTURE: Final = frozenset({"will", "shall"})
_PERFECT: Final = frozenset({"have", "has", "been", "would", "could", "being"})
_MODALS: Final = (
    (frozenset({"should", "ought"}), "should"),
    (frozenset({"must"}), "must"),
    (frozenset({"can", "could", "may"}), "can"),
)


def check_limits(a: Statement, b: Statement, apart: Difference) -> str | None:
    """Refuse an "only", "except", "at least" that the other text has not."""
    if apart.closeness < _NEAR:
        return None
    for says, accounts in _LIMITS:
        if says.search(a.joined):
            if not accounts.search(b.joined):
                return "quantifier"
        elif says.search(b.joined) and not accounts.search(a.joined):
            return "quantifier"
    return None


def check_small_words(a: Statement, b: Statement, apart: Difference) -> str | None:
    """Refuse another person; between texts that are otherwise equal, another tense or link."""
    if apart.closeness < _CLOSE:
        return None
    left, right = frozenset(a.words), frozenset(b.words)
    if (left & HE and right & SHE and not left & SHE and not right & HE) or (
        left & SHE and right & HE and not left & HE and not right & SHE
    ):
        return "person"
    if apart.closeness < _EQUAL:
        return None
    if (
        ("or" in left) != ("or" in right)
        and ("and" in left) != ("and" in right)
        and ("or" in left) != ("and" in left)
    ):
        return "relation"
    if _tense(left) * _tense(right) < 0:
        return "tense"
    modals = {_modal(left), _modal(right)}
    if None not in modals and len(modals) > 1:
        return "modality"
    return None


def _tense(words: frozenset[str]) -> int:
    """Return -1 for past, 1 for present or future, 0 where that is not plain."""
    past, present = not words.isdisjoint(_PAST), not words.isdisjoint(_PRESENT | _FUTURE)
    if past == present or not words.isdisjoint(_PERFECT):
        return 0
    return -1 if past else 1


def _modal(words: frozenset[str]) -> str | None:
    return next((name for found, name in _MODALS if not words.isdisjoint(found)), None)
