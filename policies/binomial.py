"""Exact bounds on a share, from so many found among so many looked at (Clopper and Pearson 1934).

Law: one-sided, each at its own confidence; two of them at 97.5 % make an interval of 95 %. Nothing
looked at tells nothing: the bounds are 0 and 1.
"""

import math
from collections.abc import Callable

_STEPS = 60
"""Halvings of the interval: more than a float can tell apart."""


def upper_bound(found: int, of: int, confidence: float) -> float:
    """Return the greatest share under which so few would still be found now and then."""
    if of <= 0 or found >= of:
        return 1.0
    return _solved(lambda share: at_most(found, of, share) <= 1 - confidence)


def lower_bound(found: int, of: int, confidence: float) -> float:
    """Return the least share under which so many would still be found now and then."""
    return 1 - upper_bound(of - found, of, confidence) if found > 0 else 0.0


def at_most(found: int, of: int, share: float) -> float:
    """Return how likely at most ``found`` of ``of`` are, where each is with probability share."""
    if found >= of or share <= 0:
        return 1.0
    if share >= 1:
        return 0.0
    # The shorter tail, in logarithms: the terms of thousands underflow.
    if found <= of * share:
        return min(1.0, sum(_terms(0, found, of, share)))
    return max(0.0, 1 - sum(_terms(found + 1, of, of, share)))


def _terms(first: int, last: int, of: int, share: float) -> list[float]:
    for_each, against = math.log(share), math.log1p(-share)
    whole = math.lgamma(of + 1)
    return [
        math.exp(
            whole
            - math.lgamma(found + 1)
            - math.lgamma(of - found + 1)
            + found * for_each
            + (of - found) * against
        )
        for found in range(first, last + 1)
    ]


def _solved(too_much: Callable[[float], bool]) -> float:
    low, high = 0.0, 1.0
    for _ in range(_STEPS):
        middle = (low + high) / 2
        if too_much(middle):
            high = middle
        else:
            low = middle
    return high
