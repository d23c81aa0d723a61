"""The port that vector indexes implement.

`conformance.check_index` holds an index to the port.
"""

import math
from collections.abc import Sequence
from typing import Final, Protocol

import numpy as np
from numpy.typing import NDArray

from embeddings.encoder.encoder import Vector
from embeddings.messages import Match, Reason

_LARGEST: Final = 2.0


class VectorIndexError(Exception):
    """The index found, stored or removed nothing; `reason` is the word to show and count."""

    def __init__(self, reason: Reason, message: str) -> None:
        super().__init__(message)
        self.reason = reason


class IndexLostError(VectorIndexError):
    """The index cannot be reached or has lost its place: to ask again at once is in vain."""


class VectorIndex(Protocol):
    """Unit vectors by partition and key; belongs to one event loop.

    A key is in one partition at a time. Vectors are finite float32 of shape (dimensions,); times
    are seconds since the epoch; a vector is live while `now < expires_at`.
    """

    @property
    def name(self) -> str:
        """Where the vectors are: one word for people."""
        ...

    @property
    def fault(self) -> str | None:
        """Why the index is not asked at present, else None."""
        ...

    @property
    def size(self) -> int:
        """The latest known number of vectors, without I/O."""
        ...

    async def search(self, partition: bytes, vector: Vector, k: int, now: float) -> list[Match]:
        """Return the `k` nearest live vectors of a partition, nearest first.

        A similarity is within 0.0005 of the cosine. In a large partition an index may miss a few of
        the nearest; it returns none that is not there. Raises VectorIndexError.
        """
        ...

    async def add(
        self, partition: bytes, key: bytes, vector: Vector, expires_at: float, now: float
    ) -> None:
        """Put a vector in, in place of the key's former one; on return any search finds it.

        Raises VectorIndexError, and ValueError for what is no vector of this index.
        """
        ...

    async def remove(self, keys: Sequence[bytes]) -> None:
        """Take vectors out; unknown keys are no error. Raises VectorIndexError."""
        ...

    async def sweep(self, now: float) -> None:
        """Drop what has expired by `now`, and the oldest beyond the bound.

        Raises VectorIndexError.
        """
        ...

    async def close(self) -> None:
        """Finish the changes under way and let go of files and connections."""
        ...


def require_vector(vector: Vector, dimensions: int, expires_at: float) -> None:
    """Raise ValueError unless these are a vector of so many dimensions, and a time.

    No number of a unit vector is above 1; what is far above it, or is none, cannot be kept.
    """
    if vector.shape != (dimensions,) or not (np.abs(vector) < _LARGEST).all():
        raise ValueError(f"not a finite unit vector of {dimensions} dimensions")
    if math.isnan(expires_at):
        raise ValueError("expiry is not a number")


def are_vectors(rows: NDArray[np.float32]) -> NDArray[np.bool_]:
    """Return which rows `require_vector` takes."""
    return np.asarray((np.abs(rows) < _LARGEST).all(axis=1))
