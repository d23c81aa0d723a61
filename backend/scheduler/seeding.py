"""Seeds: which random numbers a choice draws.

Number i of a choice is a pure function of its seed and i; nothing is remembered between draws. So
the same seed gives the same text whatever else is in the batch, and a choice that is preempted, or
whose steps overlap, draws what it would have drawn anyway.
"""

_MASK = (1 << 64) - 1
GOLDEN = 0x9E3779B97F4A7C15
"""What SplitMix64 adds for each number; its finaliser's multipliers follow."""
MULTIPLIERS = (0xBF58476D1CE4E5B9, 0x94D049BB133111EB)


def choice_seed(seed: int, choice: int) -> int:
    """Return the seed, below 2**64, of one of the choices that share a request's ``seed``."""
    return _mix(_mix(seed & _MASK) + (choice + 1) * GOLDEN)


def _mix(value: int) -> int:
    value &= _MASK
    value = (value ^ (value >> 30)) * MULTIPLIERS[0] & _MASK
    value = (value ^ (value >> 27)) * MULTIPLIERS[1] & _MASK
    return value ^ (value >> 31)
