"""Vectors of a partition in numbered rows, compared one by one: exact, for some thousands.

Vectors are kept as 16-bit floats, which halves the memory; a similarity is within 0.0005 of the
cosine (each number within 1/2048 of what it was). A removed vector's row is zeroed and used again.
"""

from collections.abc import Iterable, Sequence
from typing import Any, Final

import faiss
import numpy as np
from numpy.typing import NDArray

from embeddings.encoder.encoder import Vector

# Close the gaps once more than half of the rows, and at least so many, are unused.
_FEWEST_ROWS_TO_CLOSE: Final = 64
_WIDENING: Final = 4
_COPIED: Final = 1024


class Place:
    """Where a key's vector is. The partition's lock guards `row`."""

    __slots__ = ("expires_at", "key", "partition", "row")

    def __init__(self, key: bytes, partition: bytes, expires_at: float) -> None:
        self.key = key
        self.partition = partition
        self.expires_at = expires_at
        self.row = -1


Found = tuple[float, Place]
"""Similarity and place."""


class FlatRows:
    """`places[row]` is None where a row is free. Not thread-safe."""

    __slots__ = ("_free", "_index", "places")

    def __init__(self, dimensions: int) -> None:
        self._index = _fp16_index(dimensions)
        self.places: list[Place | None] = []
        self._free: list[int] = []

    @property
    def live(self) -> int:
        """Number of vectors."""
        return len(self.places) - len(self._free)

    @property
    def has_gaps(self) -> bool:
        """Whether `close_gaps` would free much."""
        return len(self._free) > max(self.live, _FEWEST_ROWS_TO_CLOSE)

    def put(self, places: Sequence[Place], vectors: NDArray[np.float32]) -> None:
        """Take vectors in, shape (places, dimensions)."""
        reused = min(len(places), len(self._free))
        for place, vector in zip(places[:reused], vectors, strict=False):
            place.row = self._free.pop()
            self._halves()[place.row] = vector
            self.places[place.row] = place
        if reused < len(places):
            self._index.add(np.ascontiguousarray(vectors[reused:]))
            for row, place in enumerate(places[reused:], len(self.places)):
                place.row = row
            self.places.extend(places[reused:])

    def clear(self, row: int) -> None:
        """Forget the vector of a row."""
        self._halves()[row] = 0.0
        self.places[row] = None
        self._free.append(row)

    def close_gaps(self) -> None:
        """Free the memory of unused rows. Vectors get other rows."""
        places = [place for place in self.places if place is not None]
        rows = [place.row for place in places]
        index = _fp16_index(self._index.d)
        for start in range(0, len(rows), _COPIED):
            index.add_sa_codes(self._halves()[rows[start : start + _COPIED]].view(np.uint8))
        self._index, self._free = index, []
        self.places = [*places]
        for row, place in enumerate(places):
            place.row = row

    def vectors(self, rows: Sequence[int] | NDArray[np.int64]) -> NDArray[np.float32]:
        """Return the vectors of some rows."""
        return self._halves()[rows].astype(np.float32)

    def nearest(self, vector: Vector, k: int, now: float) -> list[Found]:
        """Return the `k` nearest live vectors, nearest first."""
        wanted = k
        while self.live:
            similarities, rows = self._index.search(
                vector.reshape(1, -1), min(wanted, len(self.places))
            )
            found = self._living(zip(similarities[0].tolist(), rows[0].tolist(), strict=True), now)
            if len(found) >= k or wanted >= len(self.places):
                return found[:k]
            wanted *= _WIDENING
        return []

    def ranked(self, rows: NDArray[np.int64], vector: Vector, now: float) -> list[Found]:
        """Return what is live in some rows, nearest first."""
        # Not `@`: BLAS would share so little work among threads that wait for each other.
        similarities = np.einsum("ij,j->i", self.vectors(rows), vector)
        order = np.argsort(-similarities)
        pairs = zip(similarities[order].tolist(), rows[order].tolist(), strict=True)
        return self._living(pairs, now)

    def _living(self, pairs: Iterable[tuple[float, int]], now: float) -> list[Found]:
        found: list[Found] = []
        for similarity, row in pairs:
            place = self.places[row]
            if place is not None and now < place.expires_at:
                found.append((similarity, place))
        return found

    def _halves(self) -> NDArray[np.float16]:
        """Return a writable view, shape (rows, dimensions); valid until a row is appended."""
        codes = self._index.codes
        octets: NDArray[np.uint8] = faiss.rev_swig_ptr(codes.data(), codes.size())
        return octets.view(np.float16).reshape(len(self.places), self._index.d)


def _fp16_index(dimensions: int) -> Any:
    return faiss.IndexScalarQuantizer(
        dimensions, faiss.ScalarQuantizer.QT_fp16, faiss.METRIC_INNER_PRODUCT
    )
