"""Which documents several requests had, so that those can go first.

Law: memory is bounded, and the order of what is shared never changes while it is remembered: a
document keeps the rank that it got when it was met for the second time.
"""

from collections import OrderedDict
from collections.abc import Iterable, Mapping

MOST = 65_536
"""Documents that are remembered; the one not met for longest is forgotten."""


class SharedDocuments:
    """Digests of the documents that were sent. Not for several threads at a time."""

    def __init__(self, most: int = MOST) -> None:
        self._most = most
        self._met: OrderedDict[bytes, None] = OrderedDict()
        self._ranks: dict[bytes, int] = {}
        self._next = 1

    @property
    def ranks(self) -> Mapping[bytes, int]:
        """Of each document that was met more than once; the lower one is the older."""
        return self._ranks

    def note(self, digests: Iterable[bytes]) -> None:
        """Remember the documents of one request, in the order in which they were sent."""
        for digest in dict.fromkeys(digests):
            if digest in self._met:
                self._met.move_to_end(digest)
                if digest not in self._ranks:
                    self._ranks[digest] = self._next
                    self._next += 1
            else:
                self._met[digest] = None
        while len(self._met) > self._most:
            forgotten, _ = self._met.popitem(last=False)
            self._ranks.pop(forgotten, None)
