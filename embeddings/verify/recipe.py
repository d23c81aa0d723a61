"""How a pair becomes a score: what the network reads of it, and what its score is weighed with.

Training and serving share it, so they cannot differ.
Laws: the order of the two texts makes no difference; a token's type says which text it is in and
whether the other text has it too. Pure.
"""

import math
import re
from collections.abc import Sequence
from typing import Final

# Each type is a place (first or second text), plus this for a token that the other text lacks.
_UNMATCHED: Final = 2
TOKEN_TYPES: Final = 4
SPECIAL_TOKENS: Final = 3
# The network reads words; how near two questions are as a whole the encoder knows better. Of two
# questions in the same words the cosine says little, of two in other words it says much. How the
# weights were found: benchmarks/LOG.md.
WEIGHT: Final = 8.0
"""In units of the logit, for a whole unit of cosine."""
WORDING: Final = 0.0
"""What is added to the weight where the questions have no word in common."""
MIDDLE: Final = 0.85
"""The cosine at which a score stays as it is."""

REFUSED: Final = 40.0
"""Taken from the logit of a pair that a second network does not read: no cosine makes up for it."""

_WORD: Final = re.compile(r"\w+")


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


def overlap(a: str, b: str) -> float:
    """Return the share of the words of both texts that stand in both, 0 to 1 (Jaccard 1901)."""
    one, other = (frozenset(_WORD.findall(text.lower())) for text in (a, b))
    return len(one & other) / max(1, len(one | other))


def weighed(
    score: float, cosine: float, shared: float, weight: float = WEIGHT, wording: float = WORDING
) -> float:
    """Return a score of 0 to 1 from all three; whatever is no number makes none.

    `shared` is the texts' overlap. A higher score or cosine never makes the result lower.
    """
    if not 0 < score < 1:
        return score
    if math.isnan(cosine):
        return cosine
    near = max(-1.0, min(1.0, cosine)) - MIDDLE
    # By odds and not by logits, so that no score is too small for an exponential.
    odds = score / (1.0 - score) * math.exp((weight + wording * (1.0 - shared)) * near)
    return odds / (1.0 + odds)
