"""Retrieved documents between declared markers, in an order independent of the retrieval.

Laws: no document is lost, added or changed, and only documents move: neighbours, with only white
space between, change places among themselves. If markers do not pair up, nothing moves.

Documents that several requests share go first, in an order that never changes while they are
remembered: a document keeps the rank of its second use. The memory is bounded.
"""

from collections import OrderedDict
from collections.abc import Iterable, Iterator, Mapping
from hashlib import blake2b
from typing import NamedTuple

from gateway.prompts.outcome import NotRewritten, NotRewrittenError
from policies.decision import DocumentOrder, DocumentSettings

MAX_DOCUMENTS = 1024
"""Documents of one request."""
_DIGEST_BYTES = 16


class Memory(NamedTuple):
    """The owner of the documents, and the rank of each that its requests share."""

    owner: bytes
    ranks: Mapping[bytes, int]


NOTHING_KNOWN = Memory(b"", {})


def pieces(text: str, settings: DocumentSettings) -> list[str]:
    """Cut a text at its documents: each second piece is a document with its markers.

    Raises NotRewrittenError where the markers do not pair up, or too many do.
    """
    begin, end = settings.begin, settings.end
    if begin not in text and end not in text:
        return [text]
    found: list[str] = []
    at = 0
    while (start := text.find(begin, at)) >= 0:
        if text.find(end, at, start) >= 0:
            raise NotRewrittenError(NotRewritten.UNBALANCED_MARKERS)
        inside = start + len(begin)
        stop = text.find(end, inside)
        if stop < 0:
            raise NotRewrittenError(NotRewritten.UNBALANCED_MARKERS)
        if text.find(begin, inside, stop) >= 0:
            raise NotRewrittenError(NotRewritten.NESTED_MARKERS)
        if len(found) >= 2 * MAX_DOCUMENTS:
            raise NotRewrittenError(NotRewritten.TOO_MANY)
        behind = stop + len(end)
        found += (text[at:start], text[start:behind])
        at = behind
    if text.find(end, at) >= 0:
        raise NotRewrittenError(NotRewritten.UNBALANCED_MARKERS)
    found.append(text[at:])
    return found


def in_order(
    found: list[str], settings: DocumentSettings, memory: Memory
) -> tuple[list[str], list[bytes]]:
    """Return the pieces with the documents of each run in order, and the digests as they stand.

    Shared documents go first, the oldest before the others; the rest go by content.
    """
    ranks = memory.ranks if settings.order is DocumentOrder.SHARED else {}
    ordered = list(found)
    digests: list[bytes] = []
    for run in _runs(found):
        known = []
        for index in run:
            digest = _digest(found[index], memory.owner)
            rank = ranks.get(digest)
            known.append((rank is None, rank or 0, digest, index))
        known.sort()
        for place, (_, _, digest, index) in zip(run, known, strict=True):
            ordered[place] = found[index]
            digests.append(digest)
    return ordered, digests


def _runs(found: list[str]) -> Iterator[list[int]]:
    """Yield the places of neighbouring documents."""
    run: list[int] = []
    for index in range(1, len(found), 2):
        run.append(index)
        behind = found[index + 1]
        if behind and not behind.isspace():
            yield run
            run = []
    if run:
        yield run


def _digest(text: str, owner: bytes) -> bytes:
    written = text.encode("utf-8", "surrogatepass")
    return blake2b(written, digest_size=_DIGEST_BYTES, key=owner).digest()


MAX_REMEMBERED = 65_536
"""Documents; the least recently used one is forgotten."""


class SharedDocuments:
    """Digests of the documents that were sent. Not thread-safe."""

    def __init__(self, most: int = MAX_REMEMBERED) -> None:
        self._most = most
        self._met: OrderedDict[bytes, None] = OrderedDict()
        self._ranks: dict[bytes, int] = {}
        self._next = 1

    @property
    def ranks(self) -> Mapping[bytes, int]:
        """Of each document that was sent more than once; lower is older."""
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
