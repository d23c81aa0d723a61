"""A question cut into words, for judgements that look at nothing else of it.

Whether a text holds code: a program, a query, a payload, a command, a pattern, a trace.

Law: code is exact to the character, and a sentence's meaning says nothing of it. A name or a word
of a programming language in prose is no code. Each pattern reads a bounded stretch.
"""

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


class TokenizedQuestion(NamedTuple):
    """Words in lower case, without accents, cut at apostrophes: "what's" is two of them.

    ``pairs`` are neighbours among them without articles and "is".
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

    With ``clauses`` it is cut behind semicolons and abbreviations, too: for who must not overlook
    that a sentence begins.
    """
    ends = (found.end() for found in (_CLAUSE if clauses else _SENTENCE).finditer(text))
    cuts = pairwise((0, *ends, len(text)))
    return [text[start:end] for start, end in cuts if start < end]


def asking_part(question: TokenizedQuestion) -> TokenizedQuestion:
    """Return the sentences that ask, where others only tell what led to it."""
    sentences = sentences_of(question.text.strip(), clauses=True)
    if len(sentences) == 1:
        return question
    asking = [sentence for sentence in sentences if sentence.rstrip().endswith("?")]
    asked = tokenize_question(" ".join(asking))
    # A lone "?" is a sentence without a word: "What is 1.5! ?"
    return asked if asked.words else question


_ANY_MARK = re.compile(r"[`{}<>=;|\\$#\[\]@(\n]|--|\.\*|Error|Exception|SELECT|select|&&|\b-[a-z]")
"""Without one of these no pattern below can match."""

_COMMANDS = (
    "git|docker|kubectl|helm|npm|npx|yarn|pip3?|python3?|node|curl|wget|ssh|scp|rsync|chmod|chown"
    "|apt(?:-get)?|brew|systemctl|tar|grep|sed|awk|find|ls|cd|mkdir|rm|cp|mv|cargo|make|terraform"
    "|aws|gcloud|az|psql|mysql|ffmpeg|openssl"
)

_CODE = re.compile(
    "|".join(
        (
            r"`[^`]{1,400}`|``",  # fenced or inline
            r"</?[a-zA-Z][\w:-]{0,40}(?:\s[^<>]{0,200})?/?>",  # HTML, XML
            r"[{\[]\s*[\"'][^\"']{0,100}[\"']\s*[:,]",  # JSON
            r"\[\s*-?\d[\d.]{0,20}\s*,",
            r"\{[^{}]{0,200}[:;][^{}]{0,200}\}",  # blocks, CSS
            r"[\w)\]]\s?(?:===?|!==?|:=|\+=|&&|\|\|)\s?(?:[\d(\"'!]|\w\b|\w{1,60}[_.(\[])",
            r"\b(?:let|const|var)\s+\w{1,60}\s?=|\bdef\s+\w{1,60}\(",
            r"\bfunction\s?\w{0,60}\([^)]{0,99}\)\s?\{",
            r"\b\w{1,60}\([^()]{0,99}[\"'=\[{][^()]{0,99}\)",  # a call with its arguments
            r"\b\w{1,60}\.\w{1,60}\([^()\s][^()]{0,99}\)",
            r"#include\b|\bpublic static\b|=>\s?[{(]|;[ \t]*\n",
            r"^[ \t]*(?:import \w[\w.]{0,60}$|from \w[\w.]{0,60} import\b)",
            r"Traceback \(|^\s{0,20}at [\w.$<>]{1,99}\(|\bFile \"[^\"]{1,99}\", line",
            r"\b\w{0,60}(?:Error|Exception): \S",
            r"^(?:@@ |\+\+\+ |--- \S|diff --git)",
            r"\bSELECT\s[^?]{1,200}\sFROM\b",
            r"\bselect\s+(?:\*|[\w.]{1,60}(?:,\s?[\w.]{1,60}){1,9})\s+from\b",
            r"\b(?:INSERT INTO|DELETE FROM) \w",
            r"\b(?:CREATE TABLE \w{1,60}\s?\(|UPDATE \w{1,60} SET \w)",
            r"^\s{0,20}\$ \S",
            rf"(?:^|:\s{{0,3}})(?:sudo )?(?:{_COMMANDS}) [^?\n]{{0,200}}(?<=\s)--?[a-zA-Z]",
            rf"^\s{{0,9}}sudo \w|(?<=\s)\|\s?(?:{_COMMANDS}|xargs|sort|wc|head|tail|jq|sh|bash)\b",
            r"\\[dwsbDWSB][+*?{\\.\[(]|\[\^?(?:a-z|A-Z|0-9)|\(\?[:=!<P]|\.\*[?$)]|\\[a-zA-Z]{2,40}\{",
            r"\n(?: {4}|\t)\S",  # an indented block
        )
    ),
    re.MULTILINE,
)


def holds_code(text: str) -> bool:
    """Tell whether a text of bounded length holds code."""
    return _ANY_MARK.search(text) is not None and _CODE.search(text) is not None
