"""A block of context cut into passages, without the white space that says nothing.

The passages, joined again, are the text. What may be code, a table, keys with values or records is
never cut, because any line may be needed.
"""

import re
from collections import Counter, deque
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from itertools import pairwise

import orjson

from gateway.prompts.outcome import Step
from gateway.semantic.code import code_blocks, holds_code
from gateway.semantic.eligibility import is_prose, sentences_of

LONGEST = 300  # characters of a passage of prose

_PARAGRAPH = re.compile(r"\n(?:[ \t\r]*\n)+")
# Each run of white space is looked at once, from its beginning.
_LINE_END = re.compile(r"(?<![ \t])[ \t]++(?=\r?\n|\Z)|\r(?=\n)")
_RUN = re.compile(r"(?<=\S)  +(?=\S)")
_BLANK = re.compile(r"\n{3,}")
_JSON_SPACE = re.compile(r'("(?:[^"\\]++|\\.)*+")|[ \t\r\n]++', re.DOTALL)
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
_BEGINNING = 3  # words that records in separate blocks begin with
_LONG_VALUE = 200  # a line that is longer is prose after a colon


@dataclass(eq=False, slots=True)
class Passage:
    """A passage of a block with all white space behind it, and the part that stays."""

    sentences: Sequence[str]
    formed: bool = False  # code, a table, keys and values: never cut
    before: "Passage | None" = None  # the one that stands close before it
    rest: Sequence[str] = field(init=False)
    step: Step | None = None  # the step that shortened it

    def __post_init__(self) -> None:
        self.rest = self.sentences

    @property
    def text(self) -> str:
        return "".join(self.sentences)

    def keep(self, sentences: Sequence[str], step: Step | None) -> None:
        if len(sentences) != len(self.rest):
            self.rest, self.step = sentences, step


def passages_of(text: str, *, minify: bool) -> list[Passage]:
    """Cut a text at blank lines, long paragraphs of prose between sentences; JSON is one passage.

    With ``minify`` each is without the white space that says nothing.
    """
    if _is_json(text):
        return [Passage([_minify_json(text.strip()) if minify else text], formed=True)]
    found: list[Passage] = []
    for paragraph in _paragraphs(text):
        written = _LINE_END.sub("", paragraph) if minify else paragraph
        if _is_formed(paragraph):
            found.append(Passage([written], formed=True))
        else:
            found += _prose(_BLANK.sub("\n\n", _RUN.sub(" ", written)) if minify else written)
    for before, passage in pairwise(found):
        passage.before = before
    return found


def are_prose(source: str, passages: Sequence[Passage]) -> bool:
    """Tell whether a text is mostly prose, and its passages no records of one kind."""
    formed = sum(len(passage.text) for passage in passages if passage.formed)
    return 2 * formed < len(source) and not _are_records([passage.text for passage in passages])


def prose_among(texts: Sequence[str]) -> list[bool]:
    """Tell which of many texts are English sentences, and no records: these begin alike."""
    begins = [
        tuple(text.split(None, _BEGINNING)[:_BEGINNING])
        if len(text) <= _LONG_VALUE and not text.rstrip().endswith("?")
        else ()
        for text in texts
    ]
    counts = Counter(begins)
    return [
        not (len(begin) == _BEGINNING and counts[begin] >= _FEWEST_RECORDS) and is_prose(text)
        for begin, text in zip(begins, texts, strict=True)
    ]


def _paragraphs(text: str) -> Iterator[str]:
    """Cut at blank lines, but not within fences."""
    fenced = deque(code_blocks(text))
    at = 0
    for match in _PARAGRAPH.finditer(text):
        cut = match.end()
        while fenced and fenced[0].end < cut:
            fenced.popleft()
        if not (fenced and fenced[0].start < cut) and text[at:cut].strip():
            yield text[at:cut]
            at = cut
    if at < len(text):
        yield text[at:]


def _prose(text: str) -> Iterator[Passage]:
    group: list[str] = []
    for sentence in sentences_of(text):
        if group and sum(map(len, group)) + len(sentence) > LONGEST:
            yield Passage(group)
            group = []
        group.append(sentence)
    if group:
        yield Passage(group)


def _minify_json(text: str) -> str:
    """Return one JSON value, or one to a line, without white space outside its strings."""
    lines = _lines(text)
    values = lines if all(map(_parses, lines)) else [text]
    return "\n".join(_JSON_SPACE.sub(lambda found: found[1] or "", value) for value in values)


def _is_json(text: str) -> bool:
    if not text.lstrip().startswith(("{", "[")):
        return False
    return _parses(text.strip()) or all(map(_parses, _lines(text)))


def _parses(text: str) -> bool:
    try:
        return isinstance(orjson.loads(text), dict | list)
    except (orjson.JSONDecodeError, RecursionError):
        return False


def _lines(text: str) -> list[str]:
    return [line for line in text.splitlines() if line.strip()]


def _are_records(texts: Sequence[str]) -> bool:
    short = [text.split(None, 2)[:2] for text in texts if len(text) <= _LONG_VALUE]
    counts = Counter(map(tuple, short))
    return len(short) >= _FEWEST_RECORDS and 2 * max(counts.values()) >= len(texts)


def _is_formed(text: str) -> bool:
    if next(code_blocks(text), None) is not None or _is_json(text):
        return True
    lines = _lines(text)
    rows = sum(len(line) <= _LONG_VALUE and _ROW.match(line) is not None for line in lines)
    if 2 * rows >= len(lines) > 0 or _has_cells(lines) or _are_records(lines):
        return True
    return any(holds_code(line[:_MOST_LINE]) for line in lines)


def _has_cells(lines: list[str]) -> bool:
    columns = sum(_COLUMNS.search(line[:_MOST_LINE]) is not None for line in lines)
    counts = [{line.count(mark) for line in lines} for mark in ",;"]
    alike = any(len(each) == 1 and max(each) > 1 for each in counts)
    return len(lines) > 1 and (2 * columns >= len(lines) or alike)
