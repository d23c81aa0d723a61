"""Vectors of a partition that are searched one by one: exact, and quickest while they are few.

Vectors are kept as 16-bit floats, which halves the memory; a similarity is within 0.0005 of the
cosine (each number within 1/2048 of what it was). A removed vector's row is zeroed and reused,
because closing the gap would move every row after it.
"""

from collections.abc import Sequence
from itertools import islice
from typing import Any, Protocol

import faiss
import numpy as np
from numpy.typing import NDArray

from embeddings.encoder.encoder import Vector

Half = NDArray[np.float16]

# Rebuild a block once more than half its rows, and at least so many, are unused.
_FEWEST_ROWS_TO_REBUILD = 64
_WIDENING = 4


class Rows(Protocol):
    """Where vectors are: a block or a graph."""

    @property
    def live(self) -> int:
        """Number of vectors."""
        ...

    def clear(self, row: int) -> None:
        """Forget the vector of a row."""
        ...

    def first(self, count: int) -> "list[Place]":
        """Return up to `count` places."""
        ...

    def vectors(self, rows: list[int]) -> NDArray[np.float32]:
        """Return the vectors of some rows."""
        ...

    def nearest(self, vector: Vector, k: int, now: float) -> "list[Found]":
        """Return the `k` nearest live vectors, nearest first."""
        ...


class Place:
    """Where a key's vector is. `rows` and `row` are guarded by the partition's lock."""

    __slots__ = ("expires_at", "key", "partition", "row", "rows")

    def __init__(self, key: bytes, partition: bytes, expires_at: float) -> None:
        self.key = key
        self.partition = partition
        self.expires_at = expires_at
        self.rows: Rows
        self.row: int


Found = tuple[float, Place]
"""Similarity and place."""


def first_places(places: Sequence[Place | None], count: int, start: int = 0) -> list[Place]:
    """Return up to `count` of them, from row `start` on."""
    return list(islice(filter(None, map(places.__getitem__, range(start, len(places)))), count))


def halves_of(index: Any) -> Half:
    """Return a writable view, shape (rows, dimensions); valid until a row is appended."""
    octets: NDArray[np.uint8] = faiss.rev_swig_ptr(index.codes.data(), index.codes.size())
    return octets.view(np.float16).reshape(index.ntotal, index.d)


class FlatBlock:
    """Rows of one partition; `places[row]` is None where the row is free. Not thread-safe."""

    __slots__ = ("free", "index", "places")

    def __init__(self, dimensions: int) -> None:
        self.index = faiss.IndexScalarQuantizer(
            dimensions, faiss.ScalarQuantizer.QT_fp16, faiss.METRIC_INNER_PRODUCT
        )
        self.places: list[Place | None] = []
        self.free: list[int] = []

    @property
    def live(self) -> int:
        """Number of vectors."""
        return len(self.places) - len(self.free)

    def put(self, place: Place, vector: Vector) -> None:
        """Take a vector in."""
        if self.free:
            place.row = self.free.pop()
            halves_of(self.index)[place.row] = vector
            self.places[place.row] = place
        else:
            place.row = len(self.places)
            self.index.add(vector.reshape(1, -1))
            self.places.append(place)
        place.rows = self

    def clear(self, row: int) -> None:
        """Forget the vector of a row. Rows may move."""
        halves_of(self.index)[row] = 0.0
        self.places[row] = None
        self.free.append(row)
        if len(self.free) > max(self.live, _FEWEST_ROWS_TO_REBUILD):
            self._close_gaps()

    def first(self, count: int) -> list[Place]:
        """Return up to `count` places."""
        return first_places(self.places, count)

    def vectors(self, rows: list[int]) -> NDArray[np.float32]:
        """Return the vectors of some rows."""
        return halves_of(self.index)[rows].astype(np.float32)

    def nearest(self, vector: Vector, k: int, now: float) -> list[Found]:
        """Return the `k` nearest live vectors, nearest first."""
        wanted = k
        while self.live:
            similarities, rows = self.index.search(
                vector.reshape(1, -1), min(wanted, len(self.places))
            )
            found: list[Found] = []
            for similarity, row in zip(similarities[0].tolist(), rows[0].tolist(), strict=True):
                place = self.places[row]
                if place is not None and now < place.expires_at:
                    found.append((similarity, place))
            if len(found) >= k or wanted >= len(self.places):
                return found[:k]
            wanted *= _WIDENING
        return []

    def _close_gaps(self) -> None:
        places = [place for place in self.places if place is not None]
        kept = self.vectors([place.row for place in places])
        self.index.reset()
        self.index.codes.clear()
        self.index.add(kept)
        for row, place in enumerate(places):
            place.row = row
        self.places, self.free = list(places), []
