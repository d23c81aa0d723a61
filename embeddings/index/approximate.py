"""Candidates for the nearest vectors of a large partition: an inverted file of FAISS.

Each vector stands in the list of the centroid that is nearest to it, as a code of four bits for two
numbers; a search reads the codes in the lists nearest to the query (Jegou, Douze, Schmid: "Product
quantization for nearest neighbor search", 2011; Andre, Kermarrec, Le Scouarnec: "Cache locality is
not enough", 2015, for how FAISS reads them).

Law: it proposes rows and nothing else. The caller compares the vectors of these rows, so an entry
that is out of date costs time, and never makes an answer wrong. That is why nothing is removed: an
index with too many entries out of date is worn, and another is built.

Another index of FAISS, one on a GPU say, would stand behind the same methods.
"""

import math
from collections.abc import Iterator
from typing import Any, Final

import faiss
import numpy as np
from numpy.typing import NDArray

from embeddings.encoder.encoder import Vector

_faiss: Any = faiss  # its types lack what is used here

# benchmarks/LOG.md says what these were chosen by.
_LISTS_A_ROOT: Final = 4
_LISTS_READ: Final = 256
_SAMPLE_A_LIST: Final = 32
_ROUNDS: Final = 4
_CODE_SAMPLE: Final = 4096
_SPREAD: Final = 1e-3
_ONE_QUERY: Final = 10
_MOST_GROWTH: Final = 4
_MOST_ENTRIES: Final = 1.5
_FAR_TOO_MANY: Final = 4


class ApproximateIndex:
    """Row numbers of a partition by their vectors. Not thread-safe; `train` it first."""

    def __init__(self, dimensions: int, vectors: int) -> None:
        """`vectors`: about how many there will be."""
        self._lists = math.ceil(_LISTS_A_ROOT * math.sqrt(vectors))
        self._most = _MOST_GROWTH * vectors
        numbers_a_code = 2 if dimensions % 2 == 0 else 1
        # It frees the centroids' index with itself.
        self._centroids = _faiss.IndexFlatIP(dimensions)
        self._index = _faiss.IndexIVFPQFastScan(
            self._centroids,
            *(dimensions, self._lists, dimensions // numbers_a_code),
            *(4, faiss.METRIC_INNER_PRODUCT),
        )
        # The way to read lists that is made for one query at a time.
        self._index.implem = _ONE_QUERY
        self._reading = _faiss.SearchParametersIVF(nprobe=min(self._lists, _LISTS_READ))

    @property
    def sample_size(self) -> int:
        """How many vectors `train` does well with."""
        return _SAMPLE_A_LIST * self._lists

    def train(self, sample: NDArray[np.float32]) -> Iterator[None]:
        """Learn centroids and codes, a step at a time."""
        if len(sample) < self._lists:  # in tests; a partition of this kind has more
            sample = np.resize(sample, (self._lists, sample.shape[1]))
        kmeans = faiss.Kmeans(
            *(sample.shape[1], self._lists),
            niter=1,
            spherical=True,
            min_points_per_centroid=1,
            max_points_per_centroid=len(sample),
        )
        for _ in range(_ROUNDS):
            kmeans.train(sample, init_centroids=kmeans.centroids)
            yield
        self._centroids.add(kmeans.centroids)
        some = np.resize(sample[:_CODE_SAMPLE], (_CODE_SAMPLE, sample.shape[1]))
        # Codes learned from vectors that are all equal could not be compared.
        some += np.random.default_rng(0).normal(0, _SPREAD, some.shape).astype(np.float32)
        self._index.train(some)
        yield

    def add(self, rows: NDArray[np.int64], vectors: NDArray[np.float32]) -> None:
        """Take vectors in, shape (rows, dimensions), also in place of former ones."""
        self._index.add_with_ids(vectors, rows)

    def candidates(self, vector: Vector, count: int) -> NDArray[np.int64]:
        """Return rows of about the `count` nearest entries, each row once."""
        _, rows = self._index.search(vector.reshape(1, -1), count, params=self._reading)
        found: NDArray[np.int64] = np.unique(rows)
        return found[found >= 0]

    def worn(self, live: int) -> bool:
        """Whether to build another, for so many live vectors."""
        return live > self._most or self._index.ntotal > _MOST_ENTRIES * live

    def overgrown(self, live: int) -> bool:
        """Whether entries out of date are so many that no index is better: no build succeeds."""
        return bool(self._index.ntotal > _FAR_TOO_MANY * live)
