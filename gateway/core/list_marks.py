"""Lists without what begins their items.

Law: a number vanishes only where it counts: from 1 on, one by one, two items at least (``5. May``
is a date, and a lone ``2. Paris`` a choice). ``-`` and ``+`` vanish only where there are several of
them, ``*`` anywhere; none before a number, which they belong to.
"""

import re
from collections import Counter
from collections.abc import Iterator, Sequence

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
