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

from embeddings.training.groups import Group
from embeddings.training.templates import generate

TEMPLATES: Final = 0.5
_MISSES_TO_SAME: Final = 1.4
_NEIGHBOURS_TO_SAME: Final = 0.2
_NEIGHBOURS: Final = 3
_LEAST_COSINE, _MOST_COSINE = 0.45, 0.9
"""Nearer ones of two groups may well be the same question; farther ones teach nothing."""
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
    ]
    rng.shuffle(pairs)
    return pairs


def careless(text: str, rng: Random) -> str:
    """Write a question now and then without capitals or its question mark, or politely."""
    drawn = rng.random()
    if drawn < 0.12:
        return text.lower()
    if drawn < 0.2:
        return text.rstrip("?.!")
    if drawn < 0.25:
        return f"please {text[0].lower()}{text[1:]}"
    if drawn < 0.28:
        return f"Hi, {text}"
    return text
