"""Fewer of the pairs that a small network is already sure of: there a large one learns little.

Law: what is left out is made up for by the weight of what is kept, in part. Weights that made up
for all of it would let the few easy pairs drown the others.
"""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from itertools import islice
from random import Random
from typing import Final

from tools.verifier.material.pairs import Labelled

Guess = Callable[[Sequence[tuple[str, str]]], Sequence[float]]
"""Gives each pair a probability that one answer fits both."""

_AT_ONCE: Final = 256
_SURE: Final = 0.02
_KEPT: Final = 0.25
_WEIGHT: Final = 2.0


def screened(pairs: Iterator[Labelled], guess: Guess, rng: Random) -> Iterator[Labelled]:
    """Yield the pairs whose target `guess` misses; of the others a quarter, at twice the weight."""
    while some := list(islice(pairs, _AT_ONCE)):
        for pair, said in zip(some, guess([(each.a, each.b) for each in some]), strict=True):
            # A softened target says that the label may be wrong, not that it is doubted here.
            if abs(said - round(pair.target)) > _SURE:
                yield pair
            elif rng.random() < _KEPT:
                yield replace(pair, weight=_WEIGHT)
