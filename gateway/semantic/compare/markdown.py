"""A text without the marks of markdown, and its code, of which every letter counts.

Law: a mark vanishes only where markdown gives it a meaning: emphasis that opens and closes around
words, a heading, a bullet, a number that counts a list's items, a quoted line, a table's frame, a
rule across the page. Anywhere else it stays, above all inside a word (``2*3``, ``a_b``), before a
number (``- 5``) and around words that are struck out. Time is linear in the text.

A number vanishes only where it counts: from 1 on, one by one, at least two items (``5. May`` is a
date, and a lone ``2. Paris`` a choice). ``-`` and ``+`` vanish only if there are several of them,
``*`` anywhere. None vanishes before a number, as it belongs to it.

A CommonMark parser removes most of these marks.
"""

import re
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from gateway.semantic.code import code_blocks
from gateway.semantic.compare.text_forms import compatible

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
"""Not ``__``: ``__init__`` is a name more often than it is bold."""

_QUOTES = str.maketrans("\u2018\u2019\u201c\u201d\u2013\u2014", "''\"\"--")

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


@dataclass(frozen=True, slots=True)
class PlainText:
    """A text as it reads; ``folded`` has no case, except in its code."""

    text: str
    folded: str
    blocks: tuple[str, ...]
    inline: frozenset[str]


def strip_markdown(text: str) -> PlainText:
    """Take the marks out of a text, and find its code."""
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
    return PlainText(
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
    """Return prose, its code held back, without the marks."""
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


def without_list_marks(text: str) -> str:
    """Return the text without the marks of its lists' items."""
    lines = text.split("\n")
    items = [(at, item) for at, line in enumerate(lines) if (item := _ITEM.match(line))]
    for at, end in (*_bulleted(items), *_numbered(items)):
        rest = lines[at][end:]
        if not _belongs(lines[at][:end].strip(), rest):
            lines[at] = rest
    return "\n".join(lines)


def _bulleted(items: Sequence[tuple[int, re.Match[str]]]) -> Iterator[tuple[int, int]]:
    """Yield the lines that begin with a bullet, and where their text begins."""
    often = Counter(item["bullet"] for _, item in items)
    for at, item in items:
        if (bullet := item["bullet"]) and (bullet not in "-+" or often[bullet] > 1):
            yield at, item.end()


def _numbered(items: Sequence[tuple[int, re.Match[str]]]) -> list[tuple[int, int]]:
    """Return the lines that begin with a number of a list, and where their text begins."""
    by_indent: dict[int, list[list[tuple[int, int]]]] = {}
    for at, item in items:
        if item["number"]:
            runs = by_indent.setdefault(len(item["indent"]), [[]])
            number = int(item["number"])
            if number != len(runs[-1]) + 1:
                runs.append([])
            if number == len(runs[-1]) + 1:
                runs[-1].append((at, item.end()))
    return [line for runs in by_indent.values() for run in runs if len(run) > 1 for line in run]


def _belongs(mark: str, rest: str) -> bool:
    """Tell whether a mark is part of what follows: a number's sign, a day of a month."""
    if mark == "\u2022":
        return False
    word = _WORD.match(rest)
    return _NUMBER.match(rest) is not None or (
        word is not None and mark[0].isdigit() and word[0].casefold() in _MONTHS
    )
