"""Retrieved documents between declared markers, in an order that does not depend on the retrieval.

Law: no document is lost, added or changed, and nothing but documents moves: those that stand one
behind the other, with only white space between, change places among themselves. Markers that do not
pair up leave all of it as it is.
"""

from collections.abc import Iterator, Mapping
from hashlib import blake2b
from typing import NamedTuple

from gateway.core.rewrite.outcome import DeclinedError, WhyNot
from policies.decide import DocumentOrder, DocumentSettings

MOST = 1024
"""Documents of one request."""
_DIGEST_BYTES = 16


class Piece(NamedTuple):
    """A document with its markers, or the text between two."""

    text: str
    is_document: bool


class Memory(NamedTuple):
    """What is known of the documents of others: who shares, and the rank of each that is shared."""

    owner: bytes
    ranks: Mapping[bytes, int]


NOTHING_KNOWN = Memory(b"", {})


def pieces(text: str, settings: DocumentSettings) -> list[Piece]:
    """Take a text apart. Raises DeclinedError where its markers do not pair up, or too many do."""
    begin, end = settings.begin, settings.end
    found: list[Piece] = []
    at = 0
    while (start := text.find(begin, at)) >= 0:
        if text.find(end, at, start) >= 0:
            raise DeclinedError(WhyNot.UNBALANCED_MARKERS)
        inside = start + len(begin)
        stop = text.find(end, inside)
        if stop < 0:
            raise DeclinedError(WhyNot.UNBALANCED_MARKERS)
        if text.find(begin, inside, stop) >= 0:
            raise DeclinedError(WhyNot.NESTED_MARKERS)
        if len(found) >= 2 * MOST:
            raise DeclinedError(WhyNot.TOO_MANY)
        found.append(Piece(text[at:start], is_document=False))
        found.append(Piece(text[start : stop + len(end)], is_document=True))
        at = stop + len(end)
    if text.find(end, at) >= 0:
        raise DeclinedError(WhyNot.UNBALANCED_MARKERS)
    found.append(Piece(text[at:], is_document=False))
    return found


def in_order(
    found: list[Piece], settings: DocumentSettings, memory: Memory
) -> tuple[list[Piece], list[bytes]]:
    """Return the pieces with the documents of each run in order, and the digests as they stand."""
    ordered = list(found)
    digests: list[bytes] = []
    for run in _runs(found):
        known = sorted((_rank(found[index].text, settings, memory), index) for index in run)
        for place, (_, index) in zip(run, known, strict=True):
            ordered[place] = found[index]
        digests += [rank[2] for rank, _ in known]
    return ordered, digests


def _runs(found: list[Piece]) -> Iterator[list[int]]:
    """Yield the places of documents that stand one behind the other."""
    run: list[int] = []
    for index, piece in enumerate(found):
        if piece.is_document:
            run.append(index)
        elif piece.text.strip() and run:
            yield run
            run = []
    if run:
        yield run


def _rank(text: str, settings: DocumentSettings, memory: Memory) -> tuple[bool, int, bytes]:
    """Return what a document is sorted by: shared ones by age, then the others by content."""
    written = text.encode("utf-8", "surrogatepass")
    digest = blake2b(written, digest_size=_DIGEST_BYTES, key=memory.owner).digest()
    rank = memory.ranks.get(digest) if settings.order is DocumentOrder.SHARED else None
    return rank is None, rank or 0, digest
