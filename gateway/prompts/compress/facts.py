"""The content of a text: its words, its facts that must not be lost, and its repetitions.

What may be a number, a name, an identifier or a denial counts as one.
"""

import re
from collections.abc import Iterable, Iterator
from typing import NamedTuple

from gateway.semantic.eligibility import tokenize_question
from gateway.semantic.plain_text import find_names
from gateway.semantic.words import ENGLISH
from policies.decision import Protected

SAME_SHINGLES = 0.8  # Jaccard index of the runs of three words of passages that are alike
FEWEST_WORDS = 6  # shorter passages cost little and may be asked for by their place
MOST_COMPARED = 20_000  # pairs of passages; passages beyond count as new

_SHORTEST_PLURAL = 4
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
_FEW_WORDS = re.compile(r"\s*(?:[^\s.!?;,]+[\s,]*){0,5}")


def words_of(text: str) -> list[str]:
    """Return the words of a text in lower case, without accents."""
    return tokenize_question(text).words


def content_words(words: Iterable[str]) -> frozenset[str]:
    """Return the content words, singular and plural as one."""
    return frozenset(_stem(word) for word in words if word not in ENGLISH)


def names_in(text: str) -> frozenset[str]:
    """Return the words of the names that capital letters tell."""
    return frozenset(word for name in find_names(text).names for word in words_of(name))


class Facts(NamedTuple):
    """The facts of a text that must not be lost."""

    numbers: tuple[str, ...]
    ids: frozenset[str]
    names: frozenset[str]
    denials: int


def facts_of(text: str) -> Facts:
    """Return the facts of a text."""
    return Facts(
        tuple(match[0].casefold() for match in _NUMBER.finditer(text)),
        frozenset(token.casefold() for token in _ids(text)),
        find_names(text).names,
        sum(1 for _ in _NEGATION.finditer(text)),
    )


def holds(text: str, kinds: frozenset[Protected]) -> bool:
    """Tell whether a text has a fact of one of these kinds."""
    return (
        (Protected.NUMBERS in kinds and _NUMBER.search(text) is not None)
        or (Protected.NEGATION in kinds and _NEGATION.search(text) is not None)
        or (Protected.IDS in kinds and any(_ids(text)))
    )


def denials(text: str) -> list[frozenset[str]]:
    """Return the content words behind each denial."""
    behind = (_FEW_WORDS.match(text, match.end()) for match in _NEGATION.finditer(text))
    found = (content_words(words_of(match[0])) for match in behind if match is not None)
    return [words for words in found if words]


_Shingle = tuple[str, str, str]
_Content = tuple[frozenset[_Shingle], frozenset[str], Facts]


def duplicates(passages: Iterable[str]) -> list[bool]:
    """Tell for each passage whether an earlier passage says the same.

    Then it adds no content word, has nearly the same word order, and has equal facts.
    """
    new: list[_Content] = []
    by_shingle: dict[_Shingle, list[int]] = {}
    found = []
    compared = 0
    for passage in passages:
        words = words_of(passage)
        if len(words) < FEWEST_WORDS:
            found.append(False)
            continue
        shingles = frozenset(zip(words, words[1:], words[2:], strict=False))
        one = (shingles, content_words(words), facts_of(passage))
        # A passage that shares enough shingles shares at least one of these.
        rare = sorted(shingles)[: len(shingles) - int(SAME_SHINGLES * len(shingles)) + 1]
        candidates = {index for shingle in rare for index in by_shingle.get(shingle, ())}
        compared += len(candidates)
        again = compared <= MOST_COMPARED and any(_covers(new[i], one) for i in candidates)
        found.append(again)
        if not again:
            for shingle in shingles:
                by_shingle.setdefault(shingle, []).append(len(new))
            new.append(one)
    return found


def _covers(first: _Content, second: _Content) -> bool:
    (ours, content, facts), (theirs, other_content, other_facts) = first, second
    if not other_content <= content or facts != other_facts:
        return False
    return len(ours & theirs) >= SAME_SHINGLES * len(ours | theirs)


def _stem(word: str) -> str:
    plural = len(word) >= _SHORTEST_PLURAL and word.endswith("s") and not word.endswith("ss")
    return word[:-1] if plural else word


def _ids(text: str) -> Iterator[str]:
    """Yield the tokens that look like identifiers: digits in words, underscores, paths, links."""
    for match in _TOKEN.finditer(text):
        token = match[0].strip(".:*-_")
        mixed = _LETTER.search(token) is not None and _DIGIT.search(token) is not None
        if mixed or "_" in token or "@" in token or "://" in token or token.count("/") > 1:
            yield token
