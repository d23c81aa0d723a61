"""The index as it was before a restart: vectors of the store, in the rows of saved graphs.

Laws: the store says what there is, a saved graph only where it sat; a vector that has no row in one
is built in later; what cannot be indexed is named, so that it leaves the store.
"""

import logging
from collections.abc import Iterable, Iterator, Sequence
from itertools import islice
from typing import Final

import numpy as np

from embeddings.index.faiss import FaissIndex
from embeddings.index.graph import Graph
from embeddings.index.graph_files import SavedGraph, row_digest
from embeddings.index.partition import Seat
from embeddings.index.store import Put

_BATCH: Final = 1024
_PROGRESS: Final = 100 * _BATCH

_log = logging.getLogger(__name__)


def restore(index: FaissIndex, puts: Iterable[Put], saved: Sequence[SavedGraph]) -> list[bytes]:
    """Index what was stored, oldest first; return the keys that are not to stay in the store."""
    rows = _SavedRows(saved, index)
    unusable: list[bytes] = []
    read = 0
    for batch in _batches(puts):
        for put, seat in zip(batch, rows.seats(batch), strict=True):
            unusable.extend(_indexed(index, put, seat))
        read += len(batch)
        if read % _PROGRESS == 0:
            _log.info("vector store: %d vectors read", read)
    index.settle()
    return unusable


def _batches(puts: Iterable[Put]) -> Iterator[list[Put]]:
    rest = iter(puts)
    while batch := list(islice(rest, _BATCH)):
        yield batch


def _indexed(index: FaissIndex, put: Put, seat: Seat | None) -> list[bytes]:
    try:
        return index.add(put.partition, put.key, put.vector, put.expires_at, seat)
    except ValueError as error:
        _log.warning("vector store: dropped a vector: %s", error)
        return [put.key]


class _SavedRows:
    """Rows of saved graphs, found by their digests."""

    def __init__(self, saved: Sequence[SavedGraph], index: FaissIndex) -> None:
        self._graphs = [
            Graph(index.dimensions, index.sizes.graph, index.sizes.block, each.index)
            for each in saved
        ]
        for graph, each in zip(self._graphs, saved, strict=True):
            graph.name, graph.saved = each.name, len(each.rows)
        digests = np.concatenate([np.zeros(0, dtype="<u8"), *(each.rows for each in saved)])
        self._order = np.argsort(digests)
        self._digests = digests[self._order]
        self._starts = np.cumsum([0, *(len(each.rows) for each in saved)])

    def seats(self, puts: Sequence[Put]) -> Sequence[Seat | None]:
        """Return the row of each vector, None where it has none."""
        if not len(self._digests):
            return [None] * len(puts)
        with np.errstate(over="ignore"):
            halves = np.array([put.vector for put in puts]).astype(np.float16)
        wanted = np.frombuffer(
            b"".join(
                row_digest(put.partition, put.key, half)
                for put, half in zip(puts, halves, strict=True)
            ),
            dtype="<u8",
        )
        found = np.searchsorted(self._digests, wanted).clip(max=len(self._digests) - 1)
        rows = np.where(self._digests[found] == wanted, self._order[found], -1)
        graphs = np.searchsorted(self._starts, rows, side="right") - 1
        return [
            Seat(self._graphs[graph], row) if graph >= 0 else None
            for graph, row in zip(
                graphs.tolist(), (rows - self._starts[graphs]).tolist(), strict=True
            )
        ]
