"""A pattern of one's own for what differs between prompts, made from the prompts themselves.

Law: a pattern is anchored by words that stand before the value in all of them, and stand there
once; it never reaches over the end of a line. Where prompts do not go on alike behind the value
there is none, for then they differ in more than a value.
"""

import re
from collections.abc import Sequence
from itertools import chain
from typing import Any

import re2

from gateway.prompts.rewrite.detectors import PLACEHOLDER

LONGEST_VALUE = 200
_LONGEST_LABEL = 40
_FEWEST_LETTERS = 2

_ENDS = " \t\r\n\f\v\"'`<>(){}[],;|"
_IN_A_VALUE = "[^" + re.escape(_ENDS) + "]"
_TOKEN = re.compile(_IN_A_VALUE + "+")
_NAMED = re.compile(r"[A-Za-z_][A-Za-z_-]+[:=]")
"""A name right before its value, as in ``ts=17``."""
_NEXT = re.compile(r"\n[^\n]?|[^\w\n]*[^\W\d_]*")
_PLACEHOLDER = re.compile(PLACEHOLDER)
_USUAL = frozenset(
    {"an", "and", "are", "as", "at", "be", "by", "for", "from", "has", "in", "is", "it", "of"}
    | {"on", "or", "that", "the", "this", "to", "was", "who", "with", "you"}
)
"""Words that may stand before anything."""
_OTHER_VALUE = re.compile(rf"{_IN_A_VALUE}*[0-9]{_IN_A_VALUE}*")
"""What stands before a value and looks like one may differ, too."""
_SPECIAL = re.compile(r"[\\.+*?()|\[\]{}^$]")

_NO_WORD = re.compile(r"^\W+")
_WORDS = re.compile(r"[^\W\d_]+")

_QUOTED = {'"': '"', "'": "'", "`": "`", "(": ")", "[": "]", "<": ">"}
_LINE_BEGINS = "(?m)^"
_REST_OF_LINE = ".+"
_NUMBER = "[0-9]+"
_WORD = r"[\w.:/@+-]*\w"
_ANY_WORD = r"[\pL\pN.:/@+_-]*[\pL\pN]"


def pattern(texts: Sequence[str], at: int) -> str | None:
    """Return an RE2 pattern whose group is the value that differs; None where there is none.

    The texts agree up to ``at`` and differ there.
    """
    first = texts[0]
    line = first.rfind("\n", 0, at) + 1
    start = _value_start(first, line, at)
    label = _label(first, line, start)
    if label is None:
        return None
    value = _value(texts, start, whole_lines=label.startswith(_LINE_BEGINS))
    if value is None:
        return None
    made = f"{label}({value})"
    compiled: Any = re2.compile(made)
    once = all(sum(1 for _ in compiled.finditer(text)) == 1 for text in texts)
    return made if once else None


def _value_start(text: str, line: int, at: int) -> int:
    """Return where the word begins that stands at a place, less a name before it."""
    start = at
    while start > line and text[start - 1] not in _ENDS:
        start -= 1
    name = _NAMED.match(text, start, at)
    start = start if name is None else name.end()
    while start < at and not text[start].isalnum():
        start += 1
    return start


def _label(text: str, line: int, start: int) -> str | None:
    """Return the beginning of a pattern: the words of a line that stand before a value."""
    least = line
    if start - line > _LONGEST_LABEL:
        space = text.find(" ", start - _LONGEST_LABEL, start)
        least = space if space >= 0 else start
    others = (each.finditer(text, least, start) for each in (_PLACEHOLDER, _OTHER_VALUE))
    begin = max((least, *(other.end() for other in chain(*others))))
    label = text[begin:start]
    words = {word for word in _WORDS.findall(label.lower()) if len(word) >= _FEWEST_LETTERS}
    is_telling = words - _USUAL or (begin == line and len(words) > 1)
    if not is_telling or not label.isprintable():
        return None
    if begin == line:
        return _LINE_BEGINS + _escaped(label)
    label = _NO_WORD.sub("", label)
    return (r"\b" if label[0].isascii() else "") + _escaped(label)


def _escaped(label: str) -> str:
    return _SPECIAL.sub(r"\\\g<0>", label)


def _value(texts: Sequence[str], start: int, *, whole_lines: bool) -> str | None:
    """Return what the values look like.

    All between quotes, all up to the end of the line, a number or a word.
    """
    ends = [_line_end(text, start) for text in texts]
    if (quote := _QUOTED.get(texts[0][start - 1])) is not None:
        closing = [text.find(quote, start, end) for text, end in zip(texts, ends, strict=True)]
        if _all_short(start, closing) and _go_on_alike(texts, closing):
            return rf"[^{re.escape(quote)}\r\n]+"
    words = [_word(text, start) for text in texts]
    inside = [start + len(word) for word in words]
    if all(words) and not (whole_lines and inside == ends) and _go_on_alike(texts, inside):
        for value in (_NUMBER, _WORD, _ANY_WORD):
            compiled: Any = re2.compile(value)
            if all(compiled.fullmatch(word) for word in words):
                return value
        return None
    if _all_short(start, ends) and _go_on_alike(texts, ends):
        return _REST_OF_LINE
    return None


def _all_short(start: int, ends: Sequence[int]) -> bool:
    return all(0 < end - start <= LONGEST_VALUE for end in ends)


def _word(text: str, start: int) -> str:
    """Return the word at a place, without what ends a sentence."""
    match = _TOKEN.match(text, start, start + LONGEST_VALUE)
    word = "" if match is None else match[0]
    while word and not word[-1].isalnum():
        word = word[:-1]
    return word


def _line_end(text: str, start: int) -> int:
    end = text.find("\n", start)
    return len(text) if end < 0 else end


def _go_on_alike(texts: Sequence[str], ends: Sequence[int]) -> bool:
    """Tell whether all texts go on with the same word, or end their line here."""
    following = {
        match[0] for text, end in zip(texts, ends, strict=True) if (match := _NEXT.match(text, end))
    }
    return len(following) == 1
