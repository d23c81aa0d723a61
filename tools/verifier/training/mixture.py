"""The training mixture: groups, other people's pairs, rewordings, edits of questions, templates.

Endless and seeded. Templates teach a phenomenon in quantity; the others teach how people write.
Same and different stand about even in each part.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from itertools import accumulate, combinations, product
from random import Random
from typing import Final

from tools.verifier.material.groups import Group
from tools.verifier.material.neighbours import Encode, neighbours
from tools.verifier.material.pairs import Labelled
from tools.verifier.material.people import people_pairs, people_questions
from tools.verifier.material.reading import Material
from tools.verifier.material.rewordings import reworded_pairs
from tools.verifier.templates import generate
from tools.verifier.templates.transforms import altered, reworded

SHARES: Final[Mapping[str, float]] = {
    "groups": 0.48,
    "people": 0.20,
    "rewordings": 0.12,
    "edits": 0.06,
    "templates": 0.14,
}
_MISSES_TO_SAME: Final = 1.3
_NEIGHBOURS_TO_SAME: Final = 0.25
_EDITS_TO_SAME: Final = 0.3
"""Of these half are harmless. Written rewordings are mostly free and written misses mostly copies:
by themselves they would teach that alike wording asks something else."""
_GROUPS_AT_ONCE: Final = 600
_CARELESS: Final = 0.3
_HARMLESS: Final = 0.4
"""Share of harmless edits; of the others a third is of an unsure kind and left out."""
_WRITTEN: Final = frozenset({"groups", "people", "rewordings"})
_SURE: Final = frozenset({"number", "numbers swapped", "unit", "negation", "name", "opposite"})
"""Kinds of alteration that always ask something else."""
_MANY: Final = 10**12


def mixture(material: Material, rng: Random) -> Iterator[Labelled]:
    """Yield pairs without end, each part by its share."""
    people = material.people
    parts = {
        "groups": group_pairs(material.groups, material.near, material.taught, rng),
        "people": people_pairs(people.pairs, rng),
        "rewordings": reworded_pairs(material.rewordings, rng),
        "edits": edited_questions(people_questions(people, rng), rng),
        "templates": template_pairs(rng),
    }
    names = list(parts)
    shares = list(accumulate(SHARES[name] for name in names))
    while True:
        (name,) = rng.choices(names, cum_weights=shares)
        pair = next(parts[name])
        if name in _WRITTEN:
            pair = replace(pair, a=careless(pair.a, rng), b=careless(pair.b, rng))
        yield pair


def group_pairs(
    groups: Sequence[Group],
    near: Sequence[tuple[str, str]],
    taught: Sequence[Labelled],
    rng: Random,
) -> Iterator[Labelled]:
    """Yield pairs of groups and of neighbours, and taught ones, without end."""
    share = len(taught) / sum(len(group.same) for group in groups)
    while True:
        shuffled = rng.sample(groups, len(groups))
        for start in range(0, len(groups), _GROUPS_AT_ONCE):
            part = shuffled[start : start + _GROUPS_AT_ONCE]
            lines = sum(len(group.same) for group in part)
            pairs = _pairs(part, near, rng)
            pairs += rng.sample(taught, min(len(taught), int(share * lines)))
            rng.shuffle(pairs)
            yield from pairs


def template_pairs(rng: Random) -> Iterator[Labelled]:
    """Yield pairs of the templates without end."""
    for made in generate(rng, _MANY):
        yield Labelled(made.a, made.b, float(made.same), "templates")


def edited_questions(questions: Iterator[str], rng: Random) -> Iterator[Labelled]:
    """Yield questions beside edits of them: a harmless one, or one that surely asks for more."""
    for text in questions:
        if rng.random() < _HARMLESS:
            yield Labelled(text, reworded(text, rng), 1.0, "edits")
        elif (other := altered(text, rng)) is not None and other.kind in _SURE:
            yield Labelled(careless(text, rng), other.text, 0.0, "edits")


def unsure(
    groups: Sequence[Group], encode: Encode, rng: Random, count: int
) -> list[tuple[str, str, float | None]]:
    """Return pairs for a teacher, about `count`, each with its label or None where none is known.

    Half are of one question and known. The others are two near misses of a question, which are
    sometimes the same question, and near questions of two groups.
    """
    same = [(a, b, 1.0) for group in groups for a, b in combinations(group.same, 2)]
    other = [(a, b, 0.0) for group in groups for a, b in product(group.same, group.misses)]
    misses = [(*pair, None) for group in groups for pair in combinations(group.misses, 2)]
    near = [(*pair, None) for pair in neighbours(groups, encode, most=1.0)]
    quarter = count // 4
    return [
        pair
        for some in (same, other, misses, near)
        for pair in rng.sample(some, min(len(some), quarter))
    ]


def _pairs(groups: Sequence[Group], near: Sequence[tuple[str, str]], rng: Random) -> list[Labelled]:
    same = [Labelled(a, b, 1.0) for group in groups for a, b in combinations(group.same, 2)]
    misses = [Labelled(a, b, 0.0) for group in groups for a, b in product(group.same, group.misses)]
    share = len(same)
    close = rng.sample(near, min(len(near), int(share * _NEIGHBOURS_TO_SAME)))
    return [
        *same,
        *rng.sample(misses, min(len(misses), int(share * _MISSES_TO_SAME))),
        *(Labelled(a, b, 0.0) for a, b in close),
        *_edited(groups, int(share * _EDITS_TO_SAME), rng),
    ]


def _edited(groups: Sequence[Group], count: int, rng: Random) -> Iterator[Labelled]:
    """Yield written questions beside edits of them, harmless ones and others in turn."""
    for number in range(count):
        group = rng.choice(groups)
        text = rng.choice(group.same)
        if number % 2:
            yield Labelled(text, reworded(text, rng), 1.0)
        elif (other := altered(text, rng)) is not None and other.kind in _SURE:
            yield Labelled(text, other.text, 0.0)


def careless(text: str, rng: Random) -> str:
    """Write a question now and then in another of the ways that people have."""
    return reworded(text, rng) if rng.random() < _CARELESS else text
