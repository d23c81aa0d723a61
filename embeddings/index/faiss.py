"""Nearest-neighbour index in memory, on FAISS: keys, expiry and bound over partitions of vectors.

Laws: a search sees its own partition only; an expired or removed vector is never returned; the
number of vectors is bounded, the oldest leave first. Time is an argument.

One thread makes changes, one builds, any may search. What a thread waits for is the lock of one
partition, for some milliseconds at most.
"""

import heapq
from collections import OrderedDict, deque

import faiss
import numpy as np

from embeddings.encoder.encoder import Vector
from embeddings.index.flat_block import Place
from embeddings.index.graph import Graph
from embeddings.index.partition import Partition, Seat, Sizes
from embeddings.index.vector_index import require_vector
from embeddings.messages import Match

# Stale pairs of the heap are cleared once they are more than the true ones, and so many.
_MOST_STALE = 64


def search_on_one_core() -> None:
    """Keep FAISS from splitting the work of the calling thread.

    One query is too little work to share: on busy cores, waiting for the slower half took 16 ms
    instead of 2.1 ms in 20,000 vectors.
    """
    faiss.omp_set_num_threads(1)


class FaissIndex:
    """Unit vectors by partition and key.

    A key is in one partition at a time. Vectors are float32 of shape (dimensions,); times are
    seconds since the epoch; a vector is live while `now < expires_at`.
    """

    def __init__(self, dimensions: int, max_vectors: int, sizes: Sizes | None = None) -> None:
        self.dimensions = dimensions
        self._max_vectors = max_vectors
        self._sizes = sizes or Sizes()
        self._partitions: dict[bytes, Partition] = {}
        # In order of insertion, so that its head is the oldest. A plain dictionary would look for
        # its head among all who left before.
        self._places: OrderedDict[bytes, Place] = OrderedDict()
        # Holds stale pairs too: a pair counts only while the key's place has that very expiry.
        self._expiries: list[tuple[float, bytes]] = []
        self._to_build: deque[Partition] = deque()

    def __len__(self) -> int:
        return len(self._places)

    @property
    def partitions(self) -> int:
        """Number of partitions that hold a vector."""
        return len(self._partitions)

    @property
    def sizes(self) -> Sizes:
        """What is how large."""
        return self._sizes

    @property
    def unbuilt(self) -> bool:
        """Whether `build` has something to do."""
        return bool(self._to_build)

    def add(
        self,
        partition: bytes,
        key: bytes,
        vector: Vector,
        expires_at: float,
        seat: Seat | None = None,
    ) -> list[bytes]:
        """Put a vector in, in place of the key's former one. Return the keys that had to leave.

        `seat`: where it was before a restart, if in a graph. Raises ValueError for what is no unit
        vector of these dimensions, and for an expiry that is not a number.
        """
        require_vector(vector, self.dimensions, expires_at)
        self.remove(key)
        rows = self._partitions.get(partition)
        if rows is None:
            rows = self._partitions[partition] = Partition(self.dimensions, self._sizes)
        place = self._places[key] = Place(key, partition, expires_at)
        # Rounded here and nowhere else: FAISS rounds ties another way than numpy, and a saved graph
        # knows its vectors by their bits.
        kept = vector.astype(np.float16).astype(np.float32)
        if seat is not None and seat.free:
            rows.seat(place, kept, seat)
        elif rows.put(place, kept):
            self._to_build.append(rows)
        self._expect_expiry(expires_at, key)
        return self._evict()

    def remove(self, key: bytes) -> bool:
        """Take a vector out; return whether it was there."""
        place = self._places.pop(key, None)
        if place is None:
            return False
        rows = self._partitions[place.partition]
        if rows.remove(place):
            self._to_build.append(rows)
        if not rows.live:
            del self._partitions[place.partition]
        return True

    def search(self, partition: bytes, vector: Vector, k: int, now: float) -> list[Match]:
        """Return the `k` nearest live vectors of a partition, nearest first."""
        rows = self._partitions.get(partition)
        if rows is None or k < 1:
            return []
        # Rounding takes the product of two unit vectors a hair beyond 1.
        return [
            Match(place.key, max(-1.0, min(1.0, similarity)))
            for similarity, place in rows.search(vector, k, now)
        ]

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

    @property
    def waiting(self) -> int:
        """About how many vectors are to be built in."""
        return sum(rows.waiting for rows in list(self._to_build))

    def settle(self) -> None:
        """Call it once all vectors are seated that had been there before a restart."""
        for rows in self._partitions.values():
            if rows.settle():
                self._to_build.append(rows)

    def graphs(self) -> list[Graph]:
        """Return all graphs; only the thread that builds may read the links."""
        return [graph for rows in list(self._partitions.values()) for graph in rows.graphs]

    def build(self) -> bool:
        """Do a small piece of what there is to build, in each partition in its turn.

        Return whether there is more.
        """
        if not self._to_build:
            return False
        rows = self._to_build.popleft()
        if rows.build():
            self._to_build.append(rows)
        return bool(self._to_build)

    def _expect_expiry(self, expires_at: float, key: bytes) -> None:
        heapq.heappush(self._expiries, (expires_at, key))
        if len(self._expiries) > 2 * len(self._places) + _MOST_STALE:
            self._expiries = [(place.expires_at, key) for key, place in self._places.items()]
            heapq.heapify(self._expiries)

    def _evict(self) -> list[bytes]:
        evicted: list[bytes] = []
        while len(self._places) > self._max_vectors:
            oldest = next(iter(self._places))
            self.remove(oldest)
            evicted.append(oldest)
        return evicted
