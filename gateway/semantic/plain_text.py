"""Two answers made comparable: without the marks of markdown, in one Unicode form, their names.

Law of ``strip_markdown``: a mark vanishes only where markdown gives it a meaning: emphasis that
opens and closes around words, a heading, a bullet, a number that counts a list's items, a quoted
line, a table's frame, a rule across the page. Anywhere else it stays, above all inside a word
(``2*3``, ``a_b``), before a number (``- 5``) and around words that are struck out. A number
vanishes only where it counts: from 1 on, one by one, at least two items (``5. May`` is a date, and
a lone ``2. Paris`` a choice). ``-`` and ``+`` vanish only if there are several of them, ``*``
anywhere. None vanishes before a number, as it belongs to it. Every letter of code counts.

Law of ``compatible``: NFKC, but a superscript, subscript, circled figure or fraction stays apart
from the figures beside it (``10⁶`` is ``10^6``, not ``106``).

Law of ``names_differ``: a capital is a weak sign of a name, as German nouns, headings, buttons and
shouting have it too. So names that only one text has are a doubt. They are a contradiction only
if the rest is English and nearly the same, and neither name is a kind (``a Swede``), shouted, or a
spelling of the other.

Time is linear in the text.
"""

import re
import unicodedata
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from difflib import SequenceMatcher
from itertools import groupby

from gateway.semantic.code import code_blocks

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
_LETTERS = re.compile(r"[^\W\d_]++")


@dataclass(frozen=True, slots=True)
class PlainText:
    """A text without marks; ``folded`` has no case, except in its code."""

    text: str
    folded: str
    blocks: tuple[str, ...]
    inline: frozenset[str]


def strip_markdown(text: str) -> PlainText:
    """Take the marks out of a text, and find its code."""
    code: list[str] = []
    blocks: list[str] = []
    inline: set[str] = set()

    def replace_code(found: re.Match[str]) -> str:
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
            prose.append(_INLINE.sub(replace_code, part))
    words = _without_marks("\n".join(prose))
    return PlainText(
        _with_code(words, code),
        _with_code(words.casefold(), code),
        tuple(blocks),
        frozenset(inline),
    )


def _parts(text: str) -> Iterator[tuple[str, bool]]:
    at = 0
    for block in code_blocks(text, loose=True):
        yield text[at : block.start], False
        lines = [line.rstrip() for line in text[block.code : block.behind_code].split("\n")]
        yield "\n".join(lines if lines[-1] else lines[:-1]), True
        at = block.end
    yield text[at:], False


def _without_marks(prose: str) -> str:
    text = compatible(prose).translate(_QUOTES)
    for mark in (_RULE, _FRAME, _QUOTE, _HEADING):
        text = mark.sub("", text)
    text = without_list_marks(text)
    text = _ROW.sub(lambda row: row[1].replace("|", " "), text)
    return "\n".join(map(_without_emphasis, text.split("\n")))


def _without_emphasis(line: str) -> str:
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
    word = _LETTERS.match(rest)
    return _NUMBER.match(rest) is not None or (
        word is not None and mark[0].isdigit() and word[0].casefold() in _MONTHS
    )


_STRETCH = re.compile(r"\S{1,256}|\s+")
"""Bounded, as the marks of a letter are sorted in time that is quadratic in their number."""
_HIGH, _LOW, _FRACTION, _OTHER = "<super>", "<sub>", "<fraction>", "<compat>"
_PLAIN = {"", "<wide>", "<narrow>", "<font>", "<noBreak>"}
_ONE_TERM = re.compile(r"[+\u2212-]?\w+")
_SLASH = str.maketrans("\u2044", "/")


def compatible(text: str) -> str:
    """Return the text with one form for each letter."""
    if text.isascii():
        return text
    written: list[str] = []
    before, former = "", ""
    for kind, letters in groupby(text, _kind):
        plain = _written("".join(letters), kind)
        written += _between(before, plain[:1], former, kind), plain
        before, former = plain[-1:], kind
    return "".join(written)


def _kind(letter: str) -> str:
    """Return the form of a letter, empty for an ordinary one."""
    tag = unicodedata.decomposition(letter).partition(">")[0]
    kind = f"{tag}>" if tag.startswith("<") else ""
    if kind in _PLAIN:
        return ""
    if kind in (_HIGH, _LOW, _FRACTION):
        return kind
    plain = unicodedata.normalize("NFKC", letter)
    return _OTHER if any(map(str.isdigit, plain)) else ""


def _written(letters: str, kind: str) -> str:
    if kind in (_FRACTION, _OTHER):
        parts = (unicodedata.normalize("NFKC", letter) for letter in letters)
        return "_".join(parts).translate(_SLASH)
    stretches = _STRETCH.findall(letters)
    plain = "".join(unicodedata.normalize("NFKC", stretch) for stretch in stretches)
    if kind != _HIGH:
        return plain
    return f"^{plain}" if _ONE_TERM.fullmatch(plain) else f"^({plain})"


def _between(before: str, after: str, former: str, kind: str) -> str:
    if former == _HIGH and after.isalnum():
        return " "
    if before.isdigit() and after.isdigit() and (former or kind):
        return " " if kind == _FRACTION else "_"
    return ""


_WORD = re.compile(r"[^\W_]+(?:'[^\W_]+)*")
_BEGINS = re.compile(r"[.!?:;\u2026\n\"\u201e\u00ab(\[|>]|\s-+\s")
"""Between two words: the second has a capital in any case."""
_TITLES = {"mr", "mrs", "ms", "dr", "prof", "st"}
_ENGLISH = {
    *("the", "is", "are", "it", "of", "by", "and", "to", "from", "with", "that", "this", "has"),
    *("have", "you", "your", "we", "they", "their", "its", "called", "named", "wrote", "written"),
}
"""None is a German word: German alone gives nouns a capital."""
_ARTICLES = {"a", "an"}

SAME_REST = 0.6
"""Share of other words in common, from which on two texts differ in the names alone."""
SAME_SPELLING = 0.6
"""Kiev and Kyiv, Jon and John."""
MAX_LETTERS = 64
MAX_PAIRS = 64
"""Longest name of which spellings are compared; the time is cubic in the letters."""


@dataclass(frozen=True, slots=True)
class Names:
    """The words of a text, folded, and its names."""

    words: frozenset[str]
    ordinary: frozenset[str]
    """Written in lower case somewhere."""
    names: frozenset[str]
    surely: frozenset[str]
    """Names that are neither shouted nor kinds."""


def find_names(text: str) -> Names:
    """Find the capitalised words that do not begin a sentence."""
    words: set[str] = set()
    ordinary: set[str] = set()
    names: set[str] = set()
    surely: set[str] = set()
    before, end = "", 0
    for found in _WORD.finditer(text):
        word = found[0].removesuffix("'s")
        folded = word.casefold()
        words.add(folded)
        if word[0].islower():
            ordinary.add(folded)
        elif _is_capital(word) and before and not _begins(text[end : found.start()], before):
            names.add(folded)
            if not word.isupper() and before.casefold() not in _ARTICLES:
                surely.add(folded)
        before, end = found[0], found.end()
    return Names(frozenset(words), frozenset(ordinary), frozenset(names), frozenset(surely))


def _is_capital(word: str) -> bool:
    if len(word) == 1 or word.startswith("I'") or word.casefold() in _TITLES:
        return False
    return word[0].isupper()


def _begins(between: str, before: str) -> bool:
    if between.strip() == "." and (before.casefold() in _TITLES or len(before) == 1):
        return False
    return _BEGINS.search(between) is not None


def names_differ(text: str, other_text: str) -> bool | None:
    """Return True where two texts name different things, False in doubt, None where they agree."""
    one, other = find_names(text), find_names(other_text)
    ordinary = one.ordinary | other.ordinary
    ours, theirs = one.names - ordinary, other.names - ordinary
    if ours <= other.words and theirs <= one.words:
        return None
    if not ours or not theirs or ours & other.words or theirs & one.words:
        return False
    if not (ours <= one.surely and theirs <= other.surely):
        return False
    rest, other_rest = one.words - ours, other.words - theirs
    if not rest & other_rest & _ENGLISH:
        return False
    if len(rest & other_rest) < SAME_REST * len(rest | other_rest):
        return False
    if len(ours) * len(theirs) > MAX_PAIRS:
        return False
    return not any(_alike(mine, yours) for mine in ours for yours in theirs)


def _alike(one: str, other: str) -> bool:
    if max(len(one), len(other)) > MAX_LETTERS:
        return True  # too long to compare
    return SequenceMatcher(None, one, other, autojunk=False).ratio() >= SAME_SPELLING
