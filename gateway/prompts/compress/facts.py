"""What of a text must not be lost or changed: numbers, names, identifiers, yes and no.

Law: what may be one of them counts as one.
"""

import re
from collections.abc import Iterator
from dataclasses import dataclass

from gateway.semantic.compare.text_forms import named

_NUMBER_WORDS = (
    "two|three|four|five|six|seven|eight|nine|ten|eleven|twelve|twenty|thirty|forty|fifty|sixty"
    "|seventy|eighty|ninety|hundred|thousand|million|billion|half|twice|double|dozen"
)
_NUMBER = re.compile(rf"\d+(?:[.,:/]\d+)*|\b(?:{_NUMBER_WORDS})s?\b", re.IGNORECASE)
_TOKEN = re.compile(r"[^\s\"'`()\[\]{}<>,;!?]+")
_LETTER = re.compile(r"[A-Za-z]")
_DIGIT = re.compile(r"\d")
_NEGATION = re.compile(
    r"\b(?:not|no|never|none|nor|neither|nobody|nothing|nowhere|without|cannot|hardly|barely"
    r"|except|unless|nicht|kein\w*|nie|niemals|ohne|weder|pas|jamais|sans|aucune?|ni|nunca|sin"
    r"|ning\u00fan|ninguna|nada)\b|\bn't\b|n['\u2019]t\b|[\u4e0d\u6ca1\u6c92\u65e0\u7121\u975e]",
    re.IGNORECASE,
)


_DENIED = re.compile(r"\s*(?:[^\s.!?;,]+[\s,]*){0,5}")


@dataclass(frozen=True, slots=True)
class Facts:
    """The facts of a text. Names are those that its capital letters tell."""

    numbers: tuple[str, ...]
    ids: frozenset[str]
    names: frozenset[str]
    negations: int


def facts_of(text: str) -> Facts:
    """Return what of a text must not be lost."""
    return Facts(
        tuple(match[0].casefold() for match in _NUMBER.finditer(text)),
        frozenset(token.casefold() for token in _ids(text)),
        named(text).names,
        sum(1 for _ in _NEGATION.finditer(text)),
    )


def _ids(text: str) -> Iterator[str]:
    """Yield what is written like an identifier: letters with digits, underscores, paths, links."""
    for match in _TOKEN.finditer(text):
        token = match[0].strip(".:*-_")
        mixed = _LETTER.search(token) is not None and _DIGIT.search(token) is not None
        if mixed or "_" in token or "@" in token or "://" in token or token.count("/") > 1:
            yield token


def has_number(text: str) -> bool:
    """Tell whether a text has a number, in digits or in words."""
    return _NUMBER.search(text) is not None


def has_id(text: str) -> bool:
    """Tell whether a text has an identifier, an address, a path or a link."""
    return any(True for _ in _ids(text))


def has_negation(text: str) -> bool:
    """Tell whether a text denies something."""
    return _NEGATION.search(text) is not None


def denials(text: str) -> Iterator[str]:
    """Yield the few words behind each denial."""
    for match in _NEGATION.finditer(text):
        found = _DENIED.match(text, match.end())
        yield "" if found is None else found[0]
