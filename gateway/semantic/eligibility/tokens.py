"""A text cut into sentences, and a question into words."""

import re
from itertools import pairwise
from typing import NamedTuple

_WORD = re.compile(r"[^\W_]+")
_SENTENCE = re.compile(
    r"(?<![A-Z]\.)(?<!\b[A-Z][a-z]\.)(?<!\b[A-Z][a-z]{2}\.)(?<!\be\.g\.)(?<!\bi\.e\.)(?<!\bNo\.)"
    r"(?<!\bvs\.)(?<=[.!?])[\"'\u201d\u2019)\]]*\s+(?=\S)"
    r"|(?<=[\u3002\uff01\uff1f])|\n+"
)
"""Not behind what may be an abbreviation."""
_CLAUSE = re.compile(r"(?<=[.!?;])\s+|\n+")
_UNSTRESSED = frozenset({"s", "is", "are", "the", "a", "an", "re"})
"""Left out of pairs: "what's the time" and "what time is it" are alike then."""
_RUN_TOGETHER = {f"{word}s": word for word in ("what", "where", "who", "how", "when", "why")}
_ACCENTED = (
    "aàáâãäåāăą cçćčĉċ dďđð eèéêëēĕėęě gĝğġģ iìíîïĩīĭį lĺļľł nñńņň oòóôõöøōŏő"
    " rŕŗř sśŝşš tţťŧþ uùúûüũūŭůűų yýÿŷ zźżž"
)
"""Each letter with its accented forms."""
_PLAIN = str.maketrans(
    {accented: forms[0] for forms in _ACCENTED.split() for accented in forms[1:]}
    | {"ß": "ss", "æ": "ae", "œ": "oe"}
)


class TokenizedQuestion(NamedTuple):
    """Words in lower case, without accents, cut at apostrophes: "what's" is two words.

    ``pairs`` are neighbours, articles and "is" left out.
    """

    text: str
    words: list[str]
    vocabulary: frozenset[str]
    pairs: frozenset[tuple[str, str]]


def tokenize_question(text: str) -> TokenizedQuestion:
    """Cut a text into words."""
    lower = text.lower()
    if not lower.isascii():
        lower = lower.translate(_PLAIN)
    words = [_RUN_TOGETHER.get(word, word) for word in _WORD.findall(lower)]
    pairs = frozenset(pairwise(word for word in words if word not in _UNSTRESSED))
    return TokenizedQuestion(text, words, frozenset(words), pairs)


def sentences_of(text: str, *, clauses: bool = False) -> list[str]:
    """Cut a text between sentences and lines; joined again, they are the text.

    ``clauses`` also cuts behind semicolons and abbreviations, so that no sentence is overlooked.
    """
    ends = (found.end() for found in (_CLAUSE if clauses else _SENTENCE).finditer(text))
    cuts = pairwise((0, *ends, len(text)))
    return [text[start:end] for start, end in cuts if start < end]
