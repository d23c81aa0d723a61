"""How a pair becomes a score: what the network reads of it, and what its score is weighed with.

Training and serving share it, so they cannot differ.
Laws: the order of the two texts makes no difference; a token's type says which text it is in and
whether the other text has it too. Pure.
"""

import math
from collections.abc import Sequence
from typing import Final

# Each type is a place (first or second text), plus this for a token that the other text lacks.
_UNMATCHED: Final = 2
TOKEN_TYPES: Final = 4
SPECIAL_TOKENS: Final = 3
# The network reads words; how near two questions are as a whole the encoder knows better. How the
# weight was found: benchmarks/LOG.md.
WEIGHT: Final = 8.0
"""In units of the logit, for a whole unit of cosine."""
MIDDLE: Final = 0.85
"""The cosine at which a score stays as it is."""


def pair_features(
    a: Sequence[int], b: Sequence[int], cls: int, sep: int
) -> tuple[list[int], list[int]]:
    """Return token ids and token types of `[CLS] first [SEP] second [SEP]`.

    `a` and `b` are the texts' tokens without special ones, whose types count as matched. First is
    the text whose tokens sort first.
    """
    first, second = sorted((list(a), list(b)))
    in_first, in_second = frozenset(first), frozenset(second)
    ids = [cls, *first, sep, *second, sep]
    types = [
        0,
        *(0 if token in in_second else _UNMATCHED for token in first),
        0,
        *(1 if token in in_first else 1 + _UNMATCHED for token in second),
        1,
    ]
    return ids, types


def weighed(score: float, cosine: float, weight: float = WEIGHT) -> float:
    """Return a score of 0 to 1 from both; whatever is no number makes none."""
    if not 0 < score < 1:
        return score
    if math.isnan(cosine):
        return cosine
    near = max(-1.0, min(1.0, cosine))
    # By odds and not by logits, so that no score is too small for an exponential.
    odds = score / (1.0 - score) * math.exp(weight * (near - MIDDLE))
    return odds / (1.0 + odds)
