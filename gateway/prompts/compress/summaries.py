"""Which summaries are known, are being written, or were found wanting.

Law: memory is bounded, and holds nothing but digests and summaries; what was found wanting is not
asked for again while it is remembered.
"""

from collections import OrderedDict

from gateway.prompts.compress.outcome import Refusal

MOST = 1024
MOST_CHARACTERS = 4 * 2**20

Known = str | Refusal
"""A summary, or why there is none."""


class Summaries:
    """By the digest of tenant, model and turns; the one not asked for longest is forgotten."""

    def __init__(self, most: int = MOST, most_characters: int = MOST_CHARACTERS) -> None:
        self._most = most
        self._most_characters = most_characters
        self._known: OrderedDict[bytes, Known] = OrderedDict()
        self._characters = 0

    def find(self, digest: bytes) -> Known | None:
        """Return what is known of a summary, None where it was never asked for."""
        known = self._known.get(digest)
        if known is not None:
            self._known.move_to_end(digest)
        return known

    def note(self, digest: bytes, known: Known) -> None:
        """Remember a summary, or why there is none."""
        self.forget(digest)
        self._known[digest] = known
        self._characters += _size(known)
        while len(self._known) > self._most or self._characters > self._most_characters:
            _, forgotten = self._known.popitem(last=False)
            self._characters -= _size(forgotten)

    def forget(self, digest: bytes) -> None:
        """Know nothing of it any more, so that it may be asked for again."""
        former = self._known.pop(digest, None)
        self._characters -= _size(former) if former is not None else 0


def _size(known: Known) -> int:
    return 0 if isinstance(known, Refusal) else len(known)
