"""One way of writing for what has several: x^2, 20 \u00b0C, (1,2), gate no. 5. Pure.

For the guards only, which leave the decision to the verifier; in code and in quotations, and where
a text is about how something is written, the ways are different things.
"""

import re
from typing import Final

_EXACT: Final = re.compile(
    r"""[`"\u201c\u00ab]|(?<![\w'])'|\b(?:in|for|with)\ C\b
    |\b(?i:python|java\w*|typescript|rust|golang|ruby|php|perl|git|head|latex|tex|word|excel|sheets
    |regex\w*|unicode|ascii|html|types?|typed|typing|keyboard|symbols?|characters?|print\w*|returns?
    |operators?|bash|shell|sql|matlab|strings?|syntax|writ\w+|spell\w*|split|parse\w*|notation
    |grep|code\w*|sign|signs|xor|caret|compil\w+|programming|font|superscript\w*)\b|[cC](?:\+\+|\#)
    """,
    re.VERBOSE,
)
_REWRITTEN: Final = re.compile("[\u00b0\u00b2\u00b3^([]|\\s:\\s|[Nn]o\\.")
_NUMBERED: Final = (
    "(gate|room|flight|phone|telephone|order|ticket|invoice|account|serial|model|part|tracking"
    "|passport|policy|reference|registration|roll|seat|house|platform|bus|train|question|exercise"
    "|problem|symphony|sonata|concerto|opus|chanel)"
)
_PLAIN: Final = (
    (
        re.compile(rf"\b((?i:{_NUMBERED})) (?:[Nn]o\.(?=\s?\#?\d)|no\.(?= (?:for|of) [a-z]))"),
        r"\1 number",
    ),
    (re.compile("(?<=\\d) ?\u00b0 ?C\\b"), " celsius"),
    (re.compile("(?<=\\d) ?\u00b0 ?F\\b"), " fahrenheit"),
    (re.compile("\u00b0 ?C\\b"), "Celsius"),
    (re.compile("\u00b0 ?F\\b"), "Fahrenheit"),
    (re.compile("(?<=[\\w)])(?:\\^2(?![\\w.^])|\u00b2(?![\\w^]))"), " squared"),
    (re.compile("(?<=[\\w)])(?:\\^3(?![\\w.^])|\u00b3(?![\\w^]))"), " cubed"),
    (re.compile("(?<=\\d) : (?=\\d(?!\\d))"), ":"),
)
_LISTED: Final = re.compile(r"(?<=[(\[])[-+]?\d+(?:\.\d+)?(?:,[-+]?\d+(?:\.\d+)?)+(?=[)\]])")
_THOUSANDS: Final = re.compile(r"\d{1,3}(?:,\d{3})+(?:\.\d+)?")


def plain(text: str) -> str:
    """Return a text in the one way of writing."""
    if not _REWRITTEN.search(text) or _EXACT.search(text):
        return text
    for pattern, written in _PLAIN:
        text = pattern.sub(written, text)
    return _LISTED.sub(_spaced, text)


def _spaced(found: re.Match[str]) -> str:
    listed = found[0]
    return listed if _THOUSANDS.fullmatch(listed) else listed.replace(",", ", ")
