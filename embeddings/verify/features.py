"""What the cross-encoder reads of two texts; training and serving share it, so they cannot differ.

Laws: the order of the two texts makes no difference; a token's type says which text it is in and
whether the other text has it too. Pure.
"""

from collections.abc import Sequence
from typing import Final

# Each type is a place (first or second text), plus this for a token that the other text lacks.
_UNMATCHED: Final = 2
TOKEN_TYPES: Final = 4
SPECIAL_TOKENS: Final = 3


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
