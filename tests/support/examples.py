"""How many examples the tests try that set a number of their own: `make test` tries a part."""

from hypothesis import settings

FULL = 100
"""The examples of a test that sets no number, in a run of all tests."""


def some(full: int) -> int:
    """Return the profile's part of ``full``: at least one, and no more in the profile for long."""
    return max(1, full * min(settings().max_examples, FULL) // FULL)
