"""Nearest-neighbour index in memory: one FAISS flat inner-product index per partition.

Laws: a search sees its own partition only; an expired or removed vector is never returned; the
number of vectors is bounded, the oldest leave first. Time is an argument.

A flat index costs about 340 bytes beside its vectors (measured, see the README), so partitions of
one vector, the usual case, need no representation of their own. A removed vector's row is zeroed
and reused, because closing the gap would move every row after it.
"""

import heapq
from collections.abc import Iterator
from dataclasses import dataclass

import faiss
import numpy as np
from numpy.typing import NDArray

from embeddings.encoder import Vector
from embeddings.messages import Match
from embeddings.vector_index import require_vector

# Rebuild a partition once more than half its rows, and at least so many, are unused.
_FEWEST_ROWS_TO_REBUILD = 64
_WIDENING = 4


def search_on_one_core() -> None:
    """Keep FAISS from splitting searches made by the calling thread.

    One query is too little work to share: on busy cores, waiting for the slower half took 16 ms
    instead of 2.1 ms in 20,000 vectors.
    """
    faiss.omp_set_num_threads(1)


@dataclass(frozen=True, slots=True)
class _Place:
    partition: bytes
    row: int
    expires_at: float


class _Partition:
    """The rows of one partition; `keys[row]` is None where the row is free."""

    __slots__ = ("free", "index", "keys")

    def __init__(self, dimensions: int) -> None:
        self.index = faiss.IndexFlatIP(dimensions)
        self.keys: list[bytes | None] = []
        self.free: list[int] = []

    @property
    def live(self) -> int:
        return len(self.keys) - len(self.free)

    def rows(self) -> NDArray[np.float32]:
        """Return a writable view, shape (rows, dimensions); valid until the next `put`."""
        size = self.index.ntotal * self.index.d
        view: NDArray[np.float32] = faiss.rev_swig_ptr(self.index.get_xb(), size)
        return view.reshape(self.index.ntotal, self.index.d)

    def put(self, key: bytes, vector: Vector) -> int:
        if self.free:
            row = self.free.pop()
            self.rows()[row] = vector
            self.keys[row] = key
            return row
        self.index.add(vector.reshape(1, -1))
        self.keys.append(key)
        return len(self.keys) - 1

    def clear(self, row: int) -> None:
        self.rows()[row] = 0.0
        self.keys[row] = None
        self.free.append(row)

    def nearest(self, vector: Vector, k: int) -> Iterator[tuple[bytes, float]]:
        """Yield up to `k` (key, similarity), nearest first, free rows left out."""
        similarities, rows = self.index.search(vector.reshape(1, -1), min(k, len(self.keys)))
        for similarity, row in zip(similarities[0].tolist(), rows[0].tolist(), strict=True):
            key = self.keys[row]
            if key is not None:
                yield key, similarity


class FaissIndex:
    """Unit vectors by partition and key. Not thread-safe: one thread owns it.

    A key is in one partition at a time. Vectors are float32 of shape (dimensions,); times are
    seconds since the epoch; a vector is live while `now < expires_at`.
    """

    def __init__(self, dimensions: int, max_vectors: int) -> None:
        self._dimensions = dimensions
        self._max_vectors = max_vectors
        self._partitions: dict[bytes, _Partition] = {}
        # In order of insertion, so that its head is the oldest.
        self._places: dict[bytes, _Place] = {}
        # Holds stale pairs too: a pair counts only while the key's place has that very expiry.
        self._expiries: list[tuple[float, bytes]] = []

    def __len__(self) -> int:
        return len(self._places)

    @property
    def partitions(self) -> int:
        """Number of partitions that hold a vector."""
        return len(self._partitions)

    def add(self, partition: bytes, key: bytes, vector: Vector, expires_at: float) -> list[bytes]:
        """Put a vector in, in place of the key's former one. Return the keys that had to leave.

        Raises ValueError for a vector of another shape or with non-finite numbers, and for an
        expiry that is not a number.
        """
        require_vector(vector, self._dimensions, expires_at)
        self.remove(key)
        rows = self._partitions.get(partition)
        if rows is None:
            rows = self._partitions[partition] = _Partition(self._dimensions)
        row = rows.put(key, np.ascontiguousarray(vector, dtype=np.float32))
        self._places[key] = _Place(partition, row, expires_at)
        self._expect_expiry(expires_at, key)
        return self._evict()

    def remove(self, key: bytes) -> bool:
        """Take a vector out; return whether it was there."""
        place = self._places.pop(key, None)
        if place is None:
            return False
        rows = self._partitions[place.partition]
        rows.clear(place.row)
        if not rows.live:
            del self._partitions[place.partition]
        elif len(rows.free) > max(rows.live, _FEWEST_ROWS_TO_REBUILD):
            self._rebuild(place.partition, rows)
        return True

    def search(self, partition: bytes, vector: Vector, k: int, now: float) -> list[Match]:
        """Return the `k` nearest live vectors of a partition, nearest first."""
        rows = self._partitions.get(partition)
        if rows is None or k < 1:
            return []
        wanted = k
        while True:
            found = list(rows.nearest(vector, wanted))
            live = [pair for pair in found if now < self._places[pair[0]].expires_at]
            if len(live) >= k or wanted >= len(rows.keys):
                break
            wanted *= _WIDENING
        for key, _ in found:
            if self._places[key].expires_at <= now:
                self.remove(key)
        # Rounding takes the product of two unit vectors a hair beyond 1.
        return [Match(key, max(-1.0, min(1.0, similarity))) for key, similarity in live[:k]]

    def sweep(self, now: float, limit: int) -> list[bytes]:
        """Drop up to `limit` expired vectors, those longest expired first; return their keys."""
        dropped: list[bytes] = []
        while self._expiries and self._expiries[0][0] <= now and len(dropped) < limit:
            expires_at, key = heapq.heappop(self._expiries)
            place = self._places.get(key)
            if place is not None and place.expires_at == expires_at:
                self.remove(key)
                dropped.append(key)
        return dropped

    def _expect_expiry(self, expires_at: float, key: bytes) -> None:
        heapq.heappush(self._expiries, (expires_at, key))
        if len(self._expiries) > 2 * len(self._places) + _FEWEST_ROWS_TO_REBUILD:
            self._expiries = [(place.expires_at, key) for key, place in self._places.items()]
            heapq.heapify(self._expiries)

    def _evict(self) -> list[bytes]:
        evicted: list[bytes] = []
        while len(self._places) > self._max_vectors:
            oldest = next(iter(self._places))
            self.remove(oldest)
            evicted.append(oldest)
        return evicted

    def _rebuild(self, partition: bytes, rows: _Partition) -> None:
        dense = _Partition(self._dimensions)
        taken = [(row, key) for row, key in enumerate(rows.keys) if key is not None]
        dense.index.add(np.ascontiguousarray(rows.rows()[[row for row, _ in taken]]))
        dense.keys = [key for _, key in taken]
        for row, (_, key) in enumerate(taken):
            place = self._places[key]
            self._places[key] = _Place(partition, row, place.expires_at)
        self._partitions[partition] = dense
