"""Exact bounds on a share, from so many found among so many looked at (Clopper and Pearson 1934).

Law: one-sided, each at its own confidence; two of them at 97.5 % make an interval of 95 %. Nothing
looked at tells nothing: the bounds are 0 and 1.
"""

import math
from collections.abc import Callable

_STEPS = 60
"""Halvings of the interval: more than a float can tell apart."""
_NOTHING = 1e-18
"""Of a sum: the smaller terms that follow do not change it."""


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
    if share >= 1 or found < 0:
        return 0.0
    # The tail away from the mean, from its greatest term on.
    if found <= of * share:
        return min(1.0, _tail(found, of, share))
    return max(0.0, 1 - _tail(of - found - 1, of, 1 - share))


def _tail(found: int, of: int, share: float) -> float:
    """Return how likely ``found`` or fewer are, where the mean is not less."""
    odds = math.log(share) - math.log1p(-share)
    # In logarithms: the first term of thousands may underflow.
    term = math.lgamma(of + 1) - math.lgamma(found + 1) - math.lgamma(of - found + 1)
    term += found * odds + of * math.log1p(-share)
    total = 0.0
    for number in range(found, -1, -1):
        likely = math.exp(term)
        total += likely
        if likely <= total * _NOTHING:
            break
        if number:
            term += math.log(number / (of - number + 1)) - odds
    return total


def _solved(too_much: Callable[[float], bool]) -> float:
    low, high = 0.0, 1.0
    for _ in range(_STEPS):
        middle = (low + high) / 2
        if too_much(middle):
            high = middle
        else:
            low = middle
    return high
