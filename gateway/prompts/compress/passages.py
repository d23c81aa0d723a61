"""A block of context cut into passages, and these into sentences.

Law: nothing is lost by cutting: what stands in a text, joined again, is the text.
"""

import re
from typing import NamedTuple

from gateway.prompts.compress.forms import is_formed
from gateway.prompts.compress.minify import formed_minified, prose_minified

LONGEST = 300
"""Characters of a passage of prose; longer paragraphs are cut between sentences."""

_PARAGRAPH = re.compile(r"\n(?:[ \t\r]*\n)+")
_FENCE = re.compile(r"^[ \t]{0,3}(?:```|~~~)", re.MULTILINE)
_ENDS = re.compile(
    r"(?<![A-Z]\.)(?<!\b[A-Z][a-z]\.)(?<!\b[A-Z][a-z]{2}\.)(?<!\be\.g\.)(?<!\bi\.e\.)(?<!\bNo\.)"
    r"(?<!\bvs\.)(?<=[.!?])[\"'\u201d\u2019)\]]*\s+(?=\S)"
    r"|(?<=[\u3002\uff01\uff1f])|\n+"
)


class Passage(NamedTuple):
    """A passage of a block with all white space behind it."""

    text: str
    formed: bool
    """Code, a table, keys and values: never cut."""
    sentences: tuple[str, ...]
    """Of prose; together they are the text."""


def passages_of(text: str, *, minify: bool) -> list[Passage]:
    """Cut a text at blank lines, long paragraphs of prose between sentences.

    With ``minify`` each is without the white space that says nothing.
    """
    found: list[Passage] = []
    for written in _paragraphs(text):
        if is_formed(written):
            paragraph = formed_minified(written) if minify else written
            found.append(Passage(paragraph, formed=True, sentences=(paragraph,)))
        else:
            found += _prose(sentences_of(prose_minified(written) if minify else written))
    return found


def sentences_of(text: str) -> list[str]:
    """Cut prose between sentences and lines."""
    found, at = [], 0
    for match in _ENDS.finditer(text):
        if match.end() > at:
            found.append(text[at : match.end()])
            at = match.end()
    if at < len(text):
        found.append(text[at:])
    return found


def _paragraphs(text: str) -> list[str]:
    """Cut at blank lines, but not within fences."""
    fences = [match.start() for match in _FENCE.finditer(text)]
    fenced = [
        (start, fences[index + 1] if index + 1 < len(fences) else len(text))
        for index, start in enumerate(fences)
        if index % 2 == 0
    ]
    cuts = [match.end() for match in _PARAGRAPH.finditer(text)]
    within = 0
    found, at = [], 0
    for cut in cuts:
        while within < len(fenced) and fenced[within][1] < cut:
            within += 1
        if within < len(fenced) and fenced[within][0] < cut <= fenced[within][1]:
            continue
        if cut > at and text[at:cut].strip():
            found.append(text[at:cut])
            at = cut
    if at < len(text):
        found.append(text[at:])
    return found


def _prose(sentences: list[str]) -> list[Passage]:
    found: list[Passage] = []
    group: list[str] = []
    size = 0
    for sentence in sentences:
        if group and size + len(sentence) > LONGEST:
            found.append(Passage("".join(group), formed=False, sentences=tuple(group)))
            group, size = [], 0
        group.append(sentence)
        size += len(sentence)
    if group:
        found.append(Passage("".join(group), formed=False, sentences=tuple(group)))
    return found
