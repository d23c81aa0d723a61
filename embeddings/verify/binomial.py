"""Exact bounds on a share, from so many found among so many looked at (Clopper and Pearson 1934).

Law: one-sided, each at its own confidence; two of them at 97.5 % make an interval of 95 %. Nothing
looked at tells nothing: the bounds are 0 and 1.
"""

import math

_STEPS = 60
"""Halvings of the interval: more than a float can tell apart."""
_NOTHING = 1e-18
"""Of a sum: the smaller terms that follow do not change it."""


def upper_bound(found: int, of: int, confidence: float) -> float:
    """Return the greatest share under which so few would still be found now and then."""
    if of <= 0 or found >= of:
        return 1.0
    low, high = 0.0, 1.0
    for _ in range(_STEPS):
        middle = (low + high) / 2
        if at_most(found, of, middle) <= 1 - confidence:
            high = middle
        else:
            low = middle
    return high


def lower_bound(found: int, of: int, confidence: float) -> float:
    """Return the least share under which so many would still be found now and then."""
    return 1 - upper_bound(of - found, of, confidence) if found > 0 else 0.0


def at_most(found: int, of: int, share: float) -> float:
    """Return how likely at most ``found`` of ``of`` are, where each is with probability share."""
    if found >= of or share <= 0:
        return 1.0
    if share >= 1 or found < 0:
        return 0.0
    # The tail away from the mean, in logarithms: a term of thousands may underflow.
    if found > of * share:
        return max(0.0, 1 - at_most(of - found - 1, of, 1 - share))
    total = 0.0
    for number in range(found, -1, -1):
        choices = math.lgamma(of + 1) - math.lgamma(number + 1) - math.lgamma(of - number + 1)
        odds = number * math.log(share) + (of - number) * math.log1p(-share)
        total += (likely := math.exp(choices + odds))
        if likely <= total * _NOTHING:
            break
    return min(1.0, total)
