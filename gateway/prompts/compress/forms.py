"""Whether a piece of text is prose, or of a form in which each line may be asked for by itself.

Law: it errs towards form. Prose that is taken for a table is only sent whole; a table that is taken
for prose may lose the row that was asked for.
"""

import re
from collections import Counter
from collections.abc import Sequence

import orjson

from gateway.semantic.eligibility.tokens import holds_code

_JSON_STARTS = ("{", "[")
_FENCES = ("```", "~~~")
_KEY = r"[^\W_][\w .()/'-]{0,60}"
_ROW = re.compile(
    "|".join(
        (
            r"[^|]*\|[^|]*\|",  # a table of Markdown
            r"[^\t]*\S\t+\S",  # columns
            rf"\s*(?:[-*\u2022]\s+)?[\"'`*]*{_KEY}[\"'`*]*\s?(?::|=|=>|->|\u2192|\uff1a)\s*\S",
            r"\s*<[/\w!?]",  # markup
        )
    )
)
_COLUMNS = re.compile(r"\S {3,}\S")
_MOST_LINE = 400
_FEWEST_RECORDS = 4
_BEGINNING = 3
"""Words that records of one kind begin with, if they stand in blocks of their own."""
_LONG_VALUE = 200
"""A line that is longer than that is prose after a colon."""


def is_json(text: str) -> bool:
    """Tell whether all of a text is a JSON object or array, or one to each line."""
    stripped = text.strip()
    if not stripped.startswith(_JSON_STARTS):
        return False
    return _parses(stripped) or all(_parses(line) for line in stripped.splitlines() if line.strip())


def are_records(texts: Sequence[str]) -> bool:
    """Tell whether short texts are records of one kind: most begin with the same two words."""
    short = [text.split(None, 2)[:2] for text in texts if len(text) <= _LONG_VALUE]
    if len(short) < _FEWEST_RECORDS or 2 * len(short) < len(texts):
        return False
    (_, most), *_ = Counter(map(tuple, short)).most_common(1)
    return 2 * most >= len(texts)


def records_among(texts: Sequence[str]) -> list[bool]:
    """Tell which of many short texts are records of one kind: they begin with the same words."""
    begins = [
        tuple(text.split(None, _BEGINNING)[:_BEGINNING])
        if len(text) <= _LONG_VALUE and not text.rstrip().endswith("?")
        else ()
        for text in texts
    ]
    counts = Counter(begins)
    return [len(each) == _BEGINNING and counts[each] >= _FEWEST_RECORDS for each in begins]


def is_formed(text: str) -> bool:
    """Tell whether a paragraph is code, a table, keys with their values, or JSON."""
    if text.lstrip().startswith(_FENCES) or is_json(text):
        return True
    lines = [line for line in text.splitlines() if line.strip()]
    rows = sum(len(line) <= _LONG_VALUE and _ROW.match(line) is not None for line in lines)
    if 2 * rows >= len(lines) > 0 or _has_cells(lines) or are_records(lines):
        return True
    return any(holds_code(line[:_MOST_LINE]) for line in lines)


def _has_cells(lines: list[str]) -> bool:
    """Tell whether several lines have cells: columns, or as many commas or semicolons each."""
    if len(lines) < 2:
        return False
    if 2 * sum(_COLUMNS.search(line[:_MOST_LINE]) is not None for line in lines) >= len(lines):
        return True
    counts = [{line.count(mark) for line in lines} for mark in ",;"]
    return any(len(each) == 1 and max(each) > 1 for each in counts)


def _parses(text: str) -> bool:
    if not text.lstrip().startswith(_JSON_STARTS):
        return False
    try:
        orjson.loads(text)
    except (orjson.JSONDecodeError, RecursionError):
        return False
    return True
