"""Word lists of the guards: general English, written from general knowledge or from WordNet.

Nothing here comes from evaluation data. A word that is missing from a list costs little: what is
not known is left to the verifier.
"""

from collections.abc import Sequence


def words(text: str) -> frozenset[str]:
    """Return the words of a list."""
    return frozenset(text.split())


def entries(text: str) -> Sequence[str]:
    """Return what stands between the semicolons of a list."""
    return [entry.strip() for entry in text.split(";") if entry.strip()]
