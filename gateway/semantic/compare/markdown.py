"""A text without the marks of markdown, and its code, of which every letter counts.

Law: a mark vanishes only where markdown gives it a meaning: emphasis that is opened and closed
around words, a heading, a bullet, a number that counts a list's items, a quoted line, a table's
frame, a rule across the page. Anywhere else, above all inside a word (``2*3``, ``a_b``) and before
a number (``- 5``), it is a letter like others; and so is what strikes words out. Time is linear in
the text, whatever is in it.

Lists without what begins their items.

Law: a number vanishes only where it counts: from 1 on, one by one, two items at least (``5. May``
is a date, and a lone ``2. Paris`` a choice). ``-`` and ``+`` vanish only where there are several of
them, ``*`` anywhere; none before a number, which they belong to.
"""

import re
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from gateway.semantic.compare.fences import code_blocks
from gateway.semantic.compare.text_forms import compatible

_ITEM = re.compile(
    r"(?P<indent>[^\S\n]*+)(?:(?P<bullet>[-+*\u2022])|(?P<number>\d{1,2})[.)])[^\S\n]++"
)
_NUMBER = re.compile(r"[^\w\n]*+\d")
_MONTHS = {
    *("january", "february", "march", "april", "may", "june", "july", "august", "september"),
    *("october", "november", "december", "januar", "februar", "m\u00e4rz", "mai", "juni", "juli"),
    *("oktober", "dezember"),
}
_WORD = re.compile(r"[^\W\d_]++")


def without_list_marks(text: str) -> str:
    """Return the text without the marks of its lists' items."""
    lines = text.split("\n")
    items = [(at, item) for at, line in enumerate(lines) if (item := _ITEM.match(line))]
    for at, end in (*_bulleted(items), *_counted(items)):
        rest = lines[at][end:]
        if not _belongs(lines[at][:end].strip(), rest):
            lines[at] = rest
    return "\n".join(lines)


def _bulleted(items: Sequence[tuple[int, re.Match[str]]]) -> Iterator[tuple[int, int]]:
    """Yield the lines that begin with a bullet, and where what it stands before begins."""
    often = Counter(item["bullet"] for _, item in items)
    for at, item in items:
        if (bullet := item["bullet"]) and (bullet not in "-+" or often[bullet] > 1):
            yield at, item.end()


def _counted(items: Sequence[tuple[int, re.Match[str]]]) -> Iterator[tuple[int, int]]:
    """Yield the lines that begin with a number of a list, by how far they are indented."""
    lists: dict[int, list[tuple[int, int]]] = {}
    for at, item in items:
        if not item["number"]:
            continue
        indent, number = len(item["indent"]), int(item["number"])
        found = lists.setdefault(indent, [])
        if number != len(found) + 1:
            yield from _list(found)
            found.clear()
        if number == len(found) + 1:
            found.append((at, item.end()))
    for found in lists.values():
        yield from _list(found)


def _list(found: Sequence[tuple[int, int]]) -> Sequence[tuple[int, int]]:
    return tuple(found) if len(found) > 1 else ()


def _belongs(mark: str, rest: str) -> bool:
    """Tell whether a mark is part of what follows: a number's sign, a day of a month."""
    if mark == "\u2022":
        return False
    word = _WORD.match(rest)
    return _NUMBER.match(rest) is not None or (
        word is not None and mark[0].isdigit() and word[0].casefold() in _MONTHS
    )


_INLINE = re.compile(r"(?<!`)(`{1,3})(?!`)([^`\n]+)\1(?!`)")
_CODE = "\x00"
"""Stands for a piece of code while marks are removed."""

_RULE = re.compile(r"(?m)^[^\S\n]*([-*_=])(?:[^\S\n]*\1){2,}[^\S\n]*$")
_FRAME = re.compile(r"(?m)^[^\S\n]*\|(?:[^\S\n]*:?-+:?[^\S\n]*\|)+[^\S\n]*$")
_ROW = re.compile(r"(?m)^[^\S\n]*\|([^\S\n][^\n]*[^\S\n])\|[^\S\n]*$")
"""``|x|`` may be an absolute value."""
_QUOTE = re.compile(r"(?m)^[^\S\n]*(?:>[^\S\n]?)++(?![^\S\n]*\d)")
"""``> 5`` may be more than five."""
_HEADING = re.compile(r"(?m)^[^\S\n]*#{1,6}[^\S\n]+")

_RUN = re.compile(r"\*+|_+")
_EMPHASIS = {"*", "**", "***", "_"}
"""``__init__`` is a name more often than it is bold; what ``~~`` is around is taken back."""

_QUOTES = str.maketrans("\u2018\u2019\u201c\u201d\u2013\u2014", "''\"\"--")


@dataclass(frozen=True, slots=True)
class Unmarked:
    """A text as it reads; ``folded`` is without case, but for its code."""

    text: str
    folded: str
    blocks: tuple[str, ...]
    inline: frozenset[str]


def unmarked(text: str) -> Unmarked:
    """Take the marks out of a text, and tell what of it is code."""
    code: list[str] = []
    blocks: list[str] = []
    inline: set[str] = set()

    def held(found: re.Match[str]) -> str:
        code.append(found[2])
        inline.add(found[2])
        return _CODE

    prose: list[str] = []
    for part, is_code in _parts(text.replace(_CODE, " ")):
        if is_code:
            code.append(part)
            blocks.append(part)
            prose.append(_CODE)
        else:
            prose.append(_INLINE.sub(held, part))
    words = _without_marks("\n".join(prose))
    return Unmarked(
        _with_code(words, code),
        _with_code(words.casefold(), code),
        tuple(blocks),
        frozenset(inline),
    )


def _parts(text: str) -> Iterator[tuple[str, bool]]:
    """Yield prose and blocks of code in turn."""
    at = 0
    for block in code_blocks(text, loose=True):
        yield text[at : block.start], False
        lines = [line.rstrip() for line in text[block.code : block.behind_code].split("\n")]
        yield "\n".join(lines if lines[-1] else lines[:-1]), True
        at = block.end
    yield text[at:], False


def _without_marks(prose: str) -> str:
    """Return prose, its code held back, without what markdown lays around it."""
    text = compatible(prose).translate(_QUOTES)
    for mark in (_RULE, _FRAME, _QUOTE, _HEADING):
        text = mark.sub("", text)
    text = without_list_marks(text)
    text = _ROW.sub(lambda row: row[1].replace("|", " "), text)
    return "\n".join(map(_without_emphasis, text.split("\n")))


def _without_emphasis(line: str) -> str:
    """Return a line without the marks that open and close around words."""
    opened: dict[str, int] = {}
    gone: set[int] = set()
    runs = [run for run in _RUN.finditer(line) if run[0] in _EMPHASIS]
    for run in runs:
        before = line[run.start() - 1] if run.start() else " "
        after = line[run.end()] if run.end() < len(line) else " "
        start = opened.get(run[0])
        if start is not None and not before.isspace() and not after.isalnum():
            gone |= {start, run.start()}
            del opened[run[0]]
        elif not after.isspace() and not before.isalnum():
            opened[run[0]] = run.start()
    return _RUN.sub(lambda run: "" if run.start() in gone else run[0], line)


def _with_code(words: str, code: Sequence[str]) -> str:
    first, *rest = words.split(_CODE)
    return first + "".join(map("".join, zip(code, rest, strict=True)))
