"""Names that look alike, in questions of every kind: no name gets another's answer.

A section has frames, each in several wordings, and pairs of names written by hand:

    [drugs]
    ? What are the side effects of {}? | Which side effects does {} have?
    prednisone, prednisolone

Every pair stands in every second frame. A frame `~` has two names in their order. A line `! A / B`
is a pair of questions as it is.
"""

from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

from quality.trial import Trial, pairs

ANOTHER, SAME = "another name", "same name"
_FRAMES = 2


class Section(NamedTuple):
    """Frames in several wordings, with one place or two, and the pairs of names for them."""

    frames: tuple[tuple[str, ...], ...]
    names: tuple[tuple[str, str], ...]
    questions: tuple[tuple[str, str], ...]


def lookalikes(name: str, file: Path) -> Trial:
    """Make a trial of a file's sections, each pair of questions by itself."""
    rows = [row for section in sections(file) for row in (*_another(section), *_same(section))]
    return pairs(name, dict.fromkeys(rows))


def sections(file: Path) -> list[Section]:
    """Read a file."""
    blocks = file.read_text(encoding="utf-8").strip().split("\n\n")
    return [_section(block.splitlines()[1:]) for block in blocks]


def _section(lines: list[str]) -> Section:
    frames = [line[2:].replace("{}", "{0}").split(" | ") for line in lines if line[0] in "?~"]
    questions = [line[2:].split(" / ") for line in lines if line[0] == "!"]
    names = [line.split(", ") for line in lines if line[0] not in "?~!"]
    return Section(
        tuple(map(tuple, frames)),
        tuple((one, other) for one, other in names),
        tuple((one, other) for one, other in questions),
    )


def _wordings(section: Section) -> Iterator[tuple[list[str], list[str]]]:
    """Yield the wordings of a question, once with one name and once with the other.

    Every second time in lower case.
    """
    for number, (one, other) in enumerate(section.names):
        for place in range(_FRAMES):
            frame = section.frames[(number + place) % len(section.frames)]
            asked = [_filled(each, one, other) for each in frame]
            others = [_filled(each, other, one) for each in frame]
            if place:
                asked, others = ([x.lower() for x in some] for some in (asked, others))
            yield asked, others


def _filled(frame: str, one: str, other: str) -> str:
    text = frame.format(one, other)
    return text[0].upper() + text[1:] if frame.startswith("{") and frame.endswith("?") else text


def _another(section: Section) -> Iterator[tuple[str, str, bool, str]]:
    for asked, others in _wordings(section):
        yield asked[0], others[0], False, ANOTHER
        yield others[0], asked[0], False, ANOTHER
        yield asked[0], others[-1], False, ANOTHER
        yield others[1 % len(others)], asked[0], False, ANOTHER
    for one, other in section.questions:
        yield one, other, False, ANOTHER
        yield other, one, False, ANOTHER


def _same(section: Section) -> Iterator[tuple[str, str, bool, str]]:
    for asked, others in _wordings(section):
        yield asked[0], asked[1 % len(asked)], True, SAME
        yield others[-1], others[0], True, SAME
