"""Retrieved documents between declared markers, in an order that does not depend on the retrieval.

Law: no document is lost, added or changed, and nothing but documents moves: those that stand one
behind the other, with only white space between, change places among themselves. Markers that do not
pair up leave all of it as it is.
"""

from collections.abc import Iterator, Mapping
from hashlib import blake2b
from typing import NamedTuple

from gateway.core.outcome import NotRewritten, NotRewrittenError
from policies.decide import DocumentOrder, DocumentSettings

MOST = 1024
"""Documents of one request."""
_DIGEST_BYTES = 16


class Memory(NamedTuple):
    """What is known of the documents of others: who shares, and the rank of each that is shared."""

    owner: bytes
    ranks: Mapping[bytes, int]


NOTHING_KNOWN = Memory(b"", {})


def pieces(text: str, settings: DocumentSettings) -> list[str]:
    """Take a text apart: documents with their markers are the second piece, the fourth and so on.

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
        if len(found) >= 2 * MOST:
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

    Shared ones go by age, the others behind them by content.
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
    """Yield the places of documents that stand one behind the other."""
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
