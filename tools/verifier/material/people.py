"""Pairs and single questions that people wrote, from a folder of public sets (README.md).

The folder is read in place, and nothing of it is copied. A tenth of the pairs by group, and two
sources whole, are held out: they measure, and are never trained on. Two more are a development
log: what their questions have in common is an intent, which the written log lacks.
"""

import gzip
import hashlib
import json
import re
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import accumulate
from math import sqrt
from pathlib import Path
from random import Random
from typing import Any, Final

from tools.verifier.material.pairs import Labelled
from tools.verifier.material.rewordings import is_held_out

HELD_OUT_SOURCES: Final = frozenset({"time-sensitive-qa", "nlupp"})
DEVELOPMENT_SOURCES: Final = frozenset({"dstc11", "hint3"})
_HELD_OUT_SHARE: Final = 10
_WORD: Final = re.compile(r"\w+")
_LARGEST_HELD_OUT: Final = 100
"""Pairs of a group. Larger groups are whole domains, of which a tenth would be none or all."""
_STATEMENTS: Final = frozenset(
    ["alex", "breaking-nli", "conjnli", "counterfactual-nli", "e2e", "negation-nli", "rnnlg"]
)
_STATEMENTS_WEIGH: Final = 0.5
_DOUBTFUL: Final[Mapping[tuple[str, int], float]] = {
    ("overnight", 1): 0.9,
    ("hint3", 1): 0.9,
    ("hwu64", 1): 0.9,
    ("dstc11", 1): 0.95,
    ("sgd", 1): 0.95,
    ("bitext", 1): 0.95,
    ("snips", 1): 0.95,
    ("nl2bash", 0): 0.03,
    ("sgd", 0): 0.03,
}
"""Targets in place of labels of which some are wrong, by the sets' README."""


class PeopleError(Exception):
    """A file of the folder is missing or cannot be read; the message says which."""


@dataclass(frozen=True, slots=True)
class Pair:
    """Two texts of a source; `same` says whether one answer fits both."""

    a: str
    b: str
    same: bool
    source: str


@dataclass(frozen=True, slots=True)
class People:
    """What a folder holds: pairs to train on, others, and single questions by source.

    `apart` are single questions that are not trained on.
    """

    pairs: list[Pair]
    development: list[Pair]
    held_out: list[Pair]
    questions: dict[str, list[str]]
    apart: list[str]

    @property
    def texts(self) -> Iterator[str]:
        """All texts, of whatever side."""
        for pair in (*self.pairs, *self.development, *self.held_out):
            yield from (pair.a, pair.b)
        yield from self.apart
        for some in self.questions.values():
            yield from some


def read_people(directory: Path) -> People:
    """Read `pairs_*.jsonl.gz` and `questions.jsonl.gz`. Raises PeopleError.

    A single question is left out if a pair that is not trained on has it, or if a held-out
    rewording is of it.
    """
    files = sorted(directory.glob("pairs_*.jsonl.gz"))
    if not files:
        raise PeopleError(f"{directory}: no pairs_*.jsonl.gz")
    pairs = [
        Pair(row["a"], row["b"], row["label"] == 1, row["source"].partition("/")[0])
        for file in files
        for row in _rows(file, "a", "b", "label", "source")
    ]
    train, development, held_out = split(pairs)
    kept_away = _texts((*development, *held_out))
    questions, apart = defaultdict(list), []
    for row in _rows(directory / "questions.jsonl.gz", "text", "source"):
        if plain(row["text"]) in kept_away or is_held_out(row["text"]):
            apart.append(row["text"])
        else:
            questions[row["source"]].append(row["text"])
    return People(train, development, held_out, dict(questions), apart)


def split(pairs: Sequence[Pair]) -> tuple[list[Pair], list[Pair], list[Pair]]:
    """Return the pairs to train on, the development pairs, and the held-out ones.

    A group is all pairs that texts connect. No text of the first stands in the others, whatever its
    case and punctuation.
    """
    groups: dict[str, list[Pair]] = defaultdict(list)
    roots = _roots(pairs)
    for pair in pairs:
        groups[_find(roots, pair.a)].append(pair)
    train, away = list[Pair](), list[Pair]()
    for group in groups.values():
        sources = {pair.source for pair in group}
        small = len(group) <= _LARGEST_HELD_OUT and _drawn(group)
        never = sources & (HELD_OUT_SOURCES | DEVELOPMENT_SOURCES)
        (away if small or never else train).extend(group)
    trained = _texts(train)
    away = [pair for pair in away if not {plain(pair.a), plain(pair.b)} & trained]
    development = [pair for pair in away if pair.source in DEVELOPMENT_SOURCES]
    return train, development, [x for x in away if x.source not in DEVELOPMENT_SOURCES]


def plain(text: str) -> str:
    """Return a text without case and punctuation."""
    return " ".join(_WORD.findall(text.casefold()))


def _texts(pairs: Iterable[Pair]) -> set[str]:
    return {plain(text) for pair in pairs for text in (pair.a, pair.b)}


def _drawn(group: Sequence[Pair]) -> bool:
    """Tell whether a group is of the tenth: its first text decides."""
    name = min(text for pair in group for text in (pair.a, pair.b))
    digest = hashlib.sha256(name.encode()).digest()
    return int.from_bytes(digest[:4], "big") % _HELD_OUT_SHARE == 0


def people_pairs(pairs: Sequence[Pair], rng: Random) -> Iterator[Labelled]:
    """Yield pairs without end: both labels alike, sources by the square root of their rows."""
    drawers = [_Drawer([pair for pair in pairs if pair.same is same]) for same in (False, True)]
    while True:
        pair = drawers[rng.random() < 0.5].draw(rng)
        target = _DOUBTFUL.get((pair.source, int(pair.same)), float(pair.same))
        yield Labelled(pair.a, pair.b, target, "people")


def people_questions(people: People, rng: Random) -> Iterator[str]:
    """Yield single questions without end, sources by the square root of their rows.

    The texts of sources without a pair of the same question are among them, so that what keeps
    such a question is learned, too.
    """
    sources = dict(people.questions)
    both = {pair.source for pair in people.pairs if pair.same}
    for pair in people.pairs:
        if pair.source not in both:
            sources.setdefault(f"pairs of {pair.source}", []).append(pair.a)
    names = list(sources)
    weights = list(accumulate(sqrt(len(sources[name])) for name in names))
    while True:
        (name,) = rng.choices(names, cum_weights=weights)
        yield rng.choice(sources[name])


class _Drawer:
    """Draws pairs of one label."""

    def __init__(self, pairs: Sequence[Pair]) -> None:
        self._by_source: dict[str, list[Pair]] = defaultdict(list)
        for pair in pairs:
            self._by_source[pair.source].append(pair)
        self._names = list(self._by_source)
        self._weights = list(
            accumulate(
                sqrt(len(self._by_source[name])) * (_STATEMENTS_WEIGH if name in _STATEMENTS else 1)
                for name in self._names
            )
        )

    def draw(self, rng: Random) -> Pair:
        (name,) = rng.choices(self._names, cum_weights=self._weights)
        return rng.choice(self._by_source[name])


def _roots(pairs: Sequence[Pair]) -> dict[str, str]:
    """Return a forest (union-find) of the texts that pairs connect."""
    roots: dict[str, str] = {}
    for pair in pairs:
        roots[_find(roots, pair.a)] = _find(roots, pair.b)
    return roots


def _find(roots: dict[str, str], text: str) -> str:
    while roots.setdefault(text, text) != text:
        roots[text] = roots[roots[text]]
        text = roots[text]
    return text


def _rows(file: Path, *wanted: str) -> Iterator[dict[str, Any]]:
    """Yield the lines of a file, each an object with the members `wanted`."""
    try:
        with gzip.open(file, "rt", encoding="utf-8") as lines:
            for number, line in enumerate(lines, 1):
                row = json.loads(line)
                missing = [name for name in wanted if name not in row]
                if missing:
                    raise PeopleError(f"{file}:{number}: no {missing[0]!r}")
                yield row
    except (OSError, EOFError, ValueError) as error:
        raise PeopleError(f"{file}: {error}") from error
