"""Vectors by partition and key: one flat list a partition and, where there are many, candidates.

Laws: a search sees its own partition only; an expired or removed vector is never returned; what was
put in is found from that moment on; the number of vectors is bounded, the oldest leave first. Time
is an argument.

One thread makes changes, one builds, any may search. A thread waits for no more than the lock of
one partition.
"""

import heapq
from collections import OrderedDict, deque
from collections.abc import Iterator, Sequence
from threading import Lock
from typing import Final

import numpy as np
from numpy.typing import NDArray

from embeddings.encoder.encoder import Vector
from embeddings.index.approximate import ApproximateIndex
from embeddings.index.flat import FlatRows, Found, Place
from embeddings.index.vector_index import require_vector
from embeddings.messages import Match

FLAT_VECTORS: Final = 100_000
"""A partition of no more is compared vector by vector."""

_CANDIDATES: Final = 128
_WIDENING: Final = 4
_MOST_CANDIDATES: Final = 2048
# Copied under the lock at a time, for the build: a millisecond.
_COPIED: Final = 1024
# Rows put in during a build that are taken in under the lock: ten milliseconds.
_FEW: Final = 16
# Stale pairs of the heap are cleared once they are more than the true ones, and so many.
_MOST_STALE: Final = 64


class Partition:
    """Any thread may call it; `build` only one at a time."""

    __slots__ = ("_approximate", "_building", "_changed", "_dimensions", "_flat", "_lock", "_rows")

    def __init__(self, dimensions: int, flat_vectors: int) -> None:
        self._dimensions = dimensions
        self._flat = flat_vectors
        self._lock = Lock()
        self._rows = FlatRows(dimensions)
        self._approximate: ApproximateIndex | None = None
        self._building: Iterator[None] | None = None
        # Rows put in since a build began; None while there is none, or it is in vain.
        self._changed: list[int] | None = None

    @property
    def live(self) -> int:
        """Number of vectors."""
        return self._rows.live

    @property
    def approximate(self) -> bool:
        """Whether a search may miss some of the nearest."""
        return self._approximate is not None

    def put(self, places: Sequence[Place], vectors: NDArray[np.float32]) -> None:
        """Take vectors in, shape (places, dimensions)."""
        with self._lock:
            self._rows.put(places, vectors)
            rows = [place.row for place in places]
            if self._approximate is not None:
                self._approximate.add(np.array(rows), vectors)
                if self._approximate.overgrown(self._rows.live):
                    self._approximate = None
            if self._changed is not None:
                self._changed += rows

    def remove(self, place: Place) -> None:
        """Forget a vector."""
        with self._lock:
            self._rows.clear(place.row)
            if self._rows.has_gaps:
                self._rows.close_gaps()
                self._approximate = self._changed = None
            elif self._rows.live <= self._flat // 2:
                self._approximate = None

    def search(self, vector: Vector, k: int, now: float) -> list[Found]:
        """Return the `k` nearest live vectors, nearest first."""
        with self._lock:
            if self._approximate is None:
                return self._rows.nearest(vector, k, now)
            wanted = max(_CANDIDATES, _WIDENING * k)
            while True:
                rows = self._approximate.candidates(vector, wanted)
                found = self._rows.ranked(rows, vector, now)
                # Entries out of date and expired vectors may crowd out the living.
                if len(found) >= max(k, wanted // _WIDENING) or wanted >= _MOST_CANDIDATES:
                    return found[:k]
                wanted *= _WIDENING

    def ask_for_building(self) -> bool:
        """Return whether `build` is to be called from now on; True once until it is done."""
        with self._lock:
            if self._building is not None or not self._needs_building:
                return False
            self._building = self._steps()
            return True

    def build(self) -> bool:
        """Do a step of what there is to build. Return whether to call again."""
        if self._building is not None:
            try:
                for _ in self._building:
                    return True
            except BaseException:
                self._building = None  # the next change asks for another
                raise
            self._building = None
        return self.ask_for_building()

    @property
    def _needs_building(self) -> bool:
        if self._approximate is None:
            return self.live > self._flat
        return self._approximate.worn(self.live)

    def _steps(self) -> Iterator[None]:
        """Build another approximate index beside the present one, and put it in its place."""
        with self._lock:
            if not self._needs_building:
                return
            self._changed = []
            rows = np.arange(len(self._rows.places))
        try:
            yield from self._built(rows)
        finally:
            self._changed = None

    def _built(self, rows: NDArray[np.int64]) -> Iterator[None]:
        made = ApproximateIndex(self._dimensions, self.live)
        sample = np.empty((min(made.sample_size, self.live), self._dimensions), dtype=np.float32)
        filled = 0
        for some in _parts(np.random.default_rng(0).permutation(rows)):
            if (copied := self._copied(some)) is None:
                return
            fitting = copied[1][: len(sample) - filled]
            sample[filled : filled + len(fitting)] = fitting
            filled += len(fitting)
            if filled == len(sample):
                break
            yield  # searches wait for the lock, and would not get it from a loop
        yield from made.train(sample[:filled])
        del sample
        for some in _parts(rows):
            if (copied := self._copied(some)) is None:
                return
            made.add(*copied)
            yield
        yield from self._catch_up(made)

    def _catch_up(self, made: ApproximateIndex) -> Iterator[None]:
        """Take in what was put in meanwhile, the last of it under the lock."""
        while True:
            with self._lock:
                if self._changed is None:
                    return
                late = np.array(self._changed[:_COPIED], dtype=np.int64)
                del self._changed[:_COPIED]
                vectors = self._rows.vectors(late)
                if len(late) < _FEW:
                    made.add(late, vectors)
                    self._approximate, self._changed = made, None
                    return
            made.add(late, vectors)
            yield

    def _copied(
        self, rows: NDArray[np.int64]
    ) -> tuple[NDArray[np.int64], NDArray[np.float32]] | None:
        """Return those of the rows that are in use and their vectors; None to give the build up."""
        with self._lock:
            if self._changed is None:
                return None
            used = rows[[self._rows.places[row] is not None for row in rows.tolist()]]
            return used, self._rows.vectors(used)


def _parts(rows: NDArray[np.int64]) -> Iterator[NDArray[np.int64]]:
    return (rows[start : start + _COPIED] for start in range(0, len(rows), _COPIED))


class MemoryIndex:
    """Unit vectors by partition and key.

    A key is in one partition at a time. Vectors are float32 of shape (dimensions,); times are
    seconds since the epoch; a vector is live while `now < expires_at`.
    """

    def __init__(self, dimensions: int, max_vectors: int, flat_vectors: int = FLAT_VECTORS) -> None:
        self._dimensions = dimensions
        self._max_vectors = max_vectors
        self._flat_vectors = flat_vectors
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
    def unbuilt(self) -> bool:
        """Whether `build` has something to do."""
        return bool(self._to_build)

    def add(self, partition: bytes, key: bytes, vector: Vector, expires_at: float) -> list[bytes]:
        """Put a vector in, in place of the key's former one. Return the keys that had to leave.

        Raises ValueError for what is no unit vector of these dimensions, and for an expiry that is
        not a number.
        """
        require_vector(vector, self._dimensions, expires_at)
        return self.add_all([Place(key, partition, expires_at)], vector.reshape(1, -1))

    def add_all(self, places: Sequence[Place], vectors: NDArray[np.float32]) -> list[bytes]:
        """Put vectors in that were checked, shape (places, dimensions), each of another key.

        Return the keys that had to leave. If it raises, none of them is in, and what the keys had
        before stays.
        """
        numbers: dict[bytes, list[int]] = {}
        for number, place in enumerate(places):
            numbers.setdefault(place.partition, []).append(number)
        try:
            for name, its in numbers.items():
                rows = self._partitions.get(name)
                if rows is None:
                    rows = self._partitions[name] = Partition(self._dimensions, self._flat_vectors)
                rows.put([places[number] for number in its], vectors[its])
        except BaseException:
            # Nobody else knows of what is in: it would be found, and never leave.
            for place in places:
                self._take_out(place)
            raise
        for place in places:
            self.remove(place.key)
            self._places[place.key] = place
            self._expect_expiry(place.expires_at, place.key)
        for name in numbers:
            self._expect_building(self._partitions[name])
        return self._evict()

    def remove(self, key: bytes) -> bool:
        """Take a vector out; return whether it was there."""
        place = self._places.pop(key, None)
        if place is None:
            return False
        rows = self._partitions[place.partition]
        self._take_out(place)
        self._expect_building(rows)
        return True

    def _take_out(self, place: Place) -> None:
        rows = self._partitions.get(place.partition)
        if rows is None:
            return
        if place.row >= 0:
            rows.remove(place)
        if not rows.live:
            del self._partitions[place.partition]

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

    def build(self) -> bool:
        """Do a step of what there is to build, in each partition in its turn.

        Return whether there is more.
        """
        if self._to_build:
            rows, more = self._to_build.popleft(), True
            try:
                more = rows.build()
            finally:  # a build that failed is tried again, without a change of its partition
                if more:
                    self._to_build.append(rows)
        return bool(self._to_build)

    def _expect_building(self, rows: Partition) -> None:
        if rows.ask_for_building():
            self._to_build.append(rows)

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
