"""The training mixture: pairs from groups, near neighbours of other groups, and templates.

Endless and seeded. About half of it comes from templates, which teach a phenomenon in quantity; the
groups teach how people write. Same and different stand about even in each part.
"""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from itertools import combinations, product
from random import Random
from typing import Final

import numpy as np
from numpy.typing import NDArray

from tools.verifier.groups import Group
from tools.verifier.templates import generate
from tools.verifier.templates.transforms import altered, reworded

TEMPLATES: Final = 0.5
_MISSES_TO_SAME: Final = 1.2
_NEIGHBOURS_TO_SAME: Final = 0.35
_EDITS_TO_SAME: Final = 0.3
"""Of these half are harmless. Written rewordings are mostly free and written misses mostly copies:
by themselves they would teach that alike wording asks something else."""
_NEIGHBOURS: Final = 3
_LEAST_COSINE, _MOST_COSINE = 0.45, 0.9
"""Nearer ones of two groups may well be the same question; farther ones teach nothing."""
_CARELESS: Final = 0.3
_SURE: Final = frozenset({"number", "numbers swapped", "unit", "negation", "name", "opposite"})
"""Kinds of alteration that always ask something else."""
_MANY: Final = 10**12

Encode = Callable[[Sequence[str]], NDArray[np.float32]]


@dataclass(frozen=True, slots=True)
class Labelled:
    """Two questions, whether one answer fits both, and whether a template made them."""

    a: str
    b: str
    same: bool
    made: bool = False


def neighbours(groups: Sequence[Group], encode: Encode) -> list[Labelled]:
    """Return for each question its nearest ones of other groups: different, though alike.

    ``encode`` gives unit vectors, shape (texts, dimensions).
    """
    texts = [text for group in groups for text in group.same]
    owner = np.array([number for number, group in enumerate(groups) for _ in group.same])
    vectors = encode(texts)
    found = []
    for place, text in enumerate(texts):
        cosine = vectors @ vectors[place]
        cosine[owner == owner[place]] = -1
        nearest = np.argpartition(-cosine, _NEIGHBOURS)[:_NEIGHBOURS]
        found += [
            Labelled(text, texts[other], same=False)
            for other in nearest
            if _LEAST_COSINE < cosine[other] < _MOST_COSINE
        ]
    return found


def mixture(groups: Sequence[Group], near: Sequence[Labelled], rng: Random) -> Iterator[Labelled]:
    """Yield pairs without end."""
    made = generate(rng, _MANY)
    while True:
        for pair in _round(groups, near, rng):
            while rng.random() < TEMPLATES:
                template = next(made)
                yield Labelled(template.a, template.b, template.same, made=True)
            yield Labelled(careless(pair.a, rng), careless(pair.b, rng), pair.same)


def _edited(groups: Sequence[Group], count: int, rng: Random) -> Iterator[Labelled]:
    """Yield written questions beside edits of them, harmless ones and others in turn."""
    for number in range(count):
        group = rng.choice(groups)
        text = rng.choice(group.same)
        if number % 2:
            yield Labelled(text, reworded(text, rng), same=True)
        elif (other := altered(text, rng)) is not None and other.kind in _SURE:
            yield Labelled(text, other.text, same=False)


def _round(groups: Sequence[Group], near: Sequence[Labelled], rng: Random) -> list[Labelled]:
    same = [Labelled(a, b, same=True) for group in groups for a, b in combinations(group.same, 2)]
    misses = [
        Labelled(a, b, same=False) for group in groups for a, b in product(group.same, group.misses)
    ]
    share = len(same)
    pairs = [
        *same,
        *rng.sample(misses, min(len(misses), int(share * _MISSES_TO_SAME))),
        *rng.sample(near, min(len(near), int(share * _NEIGHBOURS_TO_SAME))),
        *_edited(groups, int(share * _EDITS_TO_SAME), rng),
    ]
    rng.shuffle(pairs)
    return pairs


def careless(text: str, rng: Random) -> str:
    """Write a question now and then in another of the ways that people have."""
    return reworded(text, rng) if rng.random() < _CARELESS else text
