"""A question cut into words, for judgements that look at nothing else of it."""

import re
from itertools import pairwise
from typing import NamedTuple

_WORD = re.compile(r"[^\W_]+")
_SENTENCE = re.compile(r"(?<=[.!?;])\s+|\n+")
_UNSTRESSED = frozenset({"s", "is", "are", "the", "a", "an", "re"})
"""Left out of pairs: "what's the time" and "what time is it" are alike then."""
_RUN_TOGETHER = {
    "whats": "what",
    "wheres": "where",
    "whos": "who",
    "hows": "how",
    "whens": "when",
    "whys": "why",
}
_PLAIN = str.maketrans(
    {
        letter: plain
        for letters, plain in (
            ("àáâãäåāăą", "a"),
            ("çćčĉċ", "c"),
            ("ďđð", "d"),
            ("èéêëēĕėęě", "e"),
            ("ĝğġģ", "g"),
            ("ìíîïĩīĭį", "i"),
            ("ĺļľł", "l"),
            ("ñńņň", "n"),
            ("òóôõöøōŏő", "o"),
            ("ŕŗř", "r"),
            ("śŝşš", "s"),
            ("ţťŧþ", "t"),
            ("ùúûüũūŭůűų", "u"),
            ("ýÿŷ", "y"),
            ("źżž", "z"),
            ("ß", "ss"),
            ("æ", "ae"),
            ("œ", "oe"),
        )
        for letter in letters
    }
)


class Worded(NamedTuple):
    """Words in lower case, without accents, cut at apostrophes: "what's" is two of them.

    ``pairs`` are neighbours among them without articles and "is".
    """

    text: str
    words: list[str]
    vocabulary: frozenset[str]
    pairs: frozenset[tuple[str, str]]


def worded(text: str) -> Worded:
    """Cut a text into words."""
    lower = text.lower()
    if not lower.isascii():
        lower = lower.translate(_PLAIN)
    words = [_RUN_TOGETHER.get(word, word) for word in _WORD.findall(lower)]
    pairs = frozenset(pairwise(word for word in words if word not in _UNSTRESSED))
    return Worded(text, words, frozenset(words), pairs)


def sentences_of(text: str) -> list[str]:
    """Return the sentences of a text, with their ends."""
    return _SENTENCE.split(text.strip())


def asking_part(question: Worded) -> Worded:
    """Return the sentences that ask, where others only tell what led to it."""
    sentences = sentences_of(question.text)
    if len(sentences) == 1:
        return question
    asking = [sentence for sentence in sentences if sentence.endswith("?")]
    asked = worded(" ".join(asking))
    # A lone "?" is a sentence without a word: "What is 1.5! ?"
    return asked if asked.words else question
