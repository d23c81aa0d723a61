"""Questions of two groups that are alike, and still ask something else."""

from collections.abc import Callable, Sequence
from typing import Final

import numpy as np
from numpy.typing import NDArray

from tools.verifier.material.groups import Group

_NEIGHBOURS: Final = 3
_ROWS: Final = 256
_LEAST_COSINE, _MOST_COSINE = 0.45, 0.9
"""Nearer ones of two groups may well be the same question; farther ones teach nothing."""

Encode = Callable[[Sequence[str]], NDArray[np.float32]]


def neighbours(
    groups: Sequence[Group], encode: Encode, most: float = _MOST_COSINE
) -> list[tuple[str, str]]:
    """Return pairs of a question and its nearest ones of other groups, up to a cosine of `most`.

    ``encode`` gives unit vectors, shape (texts, dimensions).
    """
    texts = [text for group in groups for text in group.same]
    owner = np.array([number for number, group in enumerate(groups) for _ in group.same])
    vectors = encode(texts)
    many = min(_NEIGHBOURS, len(texts) - 1)
    found = []
    for start in range(0, len(texts), _ROWS):
        cosines = vectors[start : start + _ROWS] @ vectors.T
        for place, cosine in enumerate(cosines, start):
            cosine[owner == owner[place]] = -1
            nearest = np.argpartition(-cosine, many)[:many]
            found += [
                (texts[place], texts[other])
                for other in nearest
                if _LEAST_COSINE < cosine[other] < most
            ]
    return found
