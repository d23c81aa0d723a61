"""Words by which passages are compared with one another and with a question."""

from collections.abc import Iterable

from gateway.semantic.eligibility.tokens import tokenize_question
from gateway.semantic.eligibility.words import ENGLISH

_SHORTEST_PLURAL = 4


def words_of(text: str) -> list[str]:
    """Return the words of a text in lower case, without accents."""
    return tokenize_question(text).words


def content_words(words: Iterable[str]) -> frozenset[str]:
    """Return what words are about something, singular and plural as one."""
    return frozenset(_stem(word) for word in words if word not in ENGLISH)


def _stem(word: str) -> str:
    if len(word) >= _SHORTEST_PLURAL and word.endswith("s") and not word.endswith("ss"):
        return word[:-1]
    return word
