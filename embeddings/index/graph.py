"""Vectors of a partition that are searched through a graph (HNSW): quick however many there are.

Laws: rows are only appended, and by one thread; a removed vector keeps guiding searches to its
neighbours and is never returned. Vectors are 16-bit floats, as in a block.
"""

from collections.abc import Sequence
from typing import Any, Final

import faiss
import numpy as np
from numpy.typing import NDArray

from embeddings.encoder.encoder import Vector
from embeddings.index.flat_block import Found, Half, Place, first_places, halves_of

# What FAISS ships as its types lacks the half of it.
_faiss: Any = faiss

# See the README for what these were chosen by.
LINKS: Final = 32
"""Neighbours of a node on the upper levels; twice as many on the lowest."""
BUILD_WIDTH: Final = 160
"""Candidates looked at to place a new node."""
NARROWEST, WIDEST, ROWS_A_CANDIDATE = 128, 256, 1024
"""Candidates looked at by a search: one for so many rows, within bounds."""

_WIDENING: Final = 4
# A search that meets expired vectors hides them and looks again; this bounds how much work one
# search does for the sweep. What it does not find by then is a miss.
_MOST_ROUNDS: Final = 6
_MOST_WANTED: Final = 256


class Graph:
    """Up to `capacity` rows of one partition. Guarded by the partition's lock."""

    __slots__ = (
        "_capacity",
        "_cursor",
        "_fewest",
        "_hidden",
        "_live",
        "_selected",
        "_selector",
        "_view",
        "index",
        "name",
        "places",
        "saved",
    )

    def __init__(self, dimensions: int, capacity: int, fewest: int, links: Any = None) -> None:
        """`fewest`: removed rows that are not worth moving the others.

        `links`: an index of FAISS whose vectors are missing and will be seated row by row.
        """
        if links is None:
            links = _faiss.IndexHNSWSQ(
                dimensions, faiss.ScalarQuantizer.QT_fp16, LINKS, faiss.METRIC_INNER_PRODUCT
            )
        else:
            _make_room(links)
        self.index = links
        self.index.hnsw.efConstruction = BUILD_WIDTH
        self._capacity = capacity = max(capacity, int(self.index.ntotal))
        self._fewest = fewest
        self.places: list[Place | None] = [None] * int(self.index.ntotal)
        self._live = 0
        self._cursor = 0
        self._view: Half | None = None
        self._hidden = self.index.ntotal
        self.name = ""
        """What it is saved as, if it is, and how many of its rows."""
        self.saved = 0
        # A bit for each row that may be returned. FAISS keeps its address.
        self._selected = np.zeros((capacity + 7) // 8, dtype=np.uint8)
        self._selector = _faiss.IDSelectorBitmap(self._selected)

    @property
    def live(self) -> int:
        """Number of vectors."""
        return self._live

    @property
    def room(self) -> int:
        """How many rows can be appended."""
        return self._capacity - len(self.places)

    @property
    def decayed(self) -> bool:
        """Whether so many vectors were removed that the rest should move elsewhere."""
        return len(self.places) - self._live > max(self._live, self._fewest)

    def append(self, places: Sequence[Place], vectors: NDArray[np.float32]) -> None:
        """Take vectors in, from the rows they are in so far."""
        first = len(self.places)
        self._view = None
        self.index.add(vectors)
        for row, place in enumerate(places, first):
            former, old_row = place.rows, place.row
            place.rows, place.row = self, row
            self.places.append(place)
            self._selected[row >> 3] |= 1 << (row & 7)
            former.clear(old_row)
        self._live += len(places)

    def seat(self, place: Place, row: int, vector: Vector) -> None:
        """Take a vector into a row that it had before a restart."""
        self.halves()[row] = vector
        place.rows, place.row = self, row
        self.places[row] = place
        self._selected[row >> 3] |= 1 << (row & 7)
        self._hidden -= 1
        self._live += 1

    def settle(self) -> None:
        """Give each row that was left without a vector that of a neighbour, to guide searches.

        A vector that is gone from the store cannot be had back, and links lead past its row. That
        of its nearest neighbour is near to it, and so are its own links.
        """
        if self._live == len(self.places):
            return
        halves, links = self.halves(), self._nearest_links()
        known = np.array([place is not None for place in self.places])
        for _ in range(_MOST_ROUNDS):
            (unknown,) = np.nonzero(~known)
            near = links[unknown]
            usable = (near >= 0) & known[near]
            chosen = usable.argmax(axis=1)
            found = usable.any(axis=1)
            if not found.any():
                break
            halves[unknown[found]] = halves[near[found, chosen[found]]]
            known[unknown[found]] = True

    def clear(self, row: int) -> None:
        """Forget the vector of a row; its node stays."""
        self.places[row] = None
        self._live -= 1
        self._hide(row)

    def first(self, count: int) -> list[Place]:
        """Return up to `count` places, the oldest rows first."""
        while self._cursor < len(self.places) and self.places[self._cursor] is None:
            self._cursor += 1
        return first_places(self.places, count, self._cursor)

    def vectors(self, rows: list[int]) -> NDArray[np.float32]:
        """Return the vectors of some rows."""
        return self.halves()[rows].astype(np.float32)

    def nearest(self, vector: Vector, k: int, now: float) -> list[Found]:
        """Return the `k` nearest live vectors as far as the graph finds them, nearest first."""
        wanted = k
        found: list[Found] = []
        for _ in range(_MOST_ROUNDS):
            if not (wanted := min(wanted, self._live)):
                break
            found, expired = self._living(vector, wanted, now)
            if len(found) >= k or not expired:
                break
            for row in expired:
                self._hide(row)
            wanted = min(wanted * _WIDENING, max(k, _MOST_WANTED))
        return found[:k]

    def _living(self, vector: Vector, wanted: int, now: float) -> tuple[list[Found], list[int]]:
        similarities, rows = self.index.search(
            vector.reshape(1, -1), wanted, params=self._parameters(wanted)
        )
        found: list[Found] = []
        expired: list[int] = []
        for similarity, row in zip(similarities[0].tolist(), rows[0].tolist(), strict=True):
            place = self.places[row] if row >= 0 else None
            if place is None:
                continue
            if now < place.expires_at:
                found.append((similarity, place))
            else:
                expired.append(row)
        return found, expired

    def _parameters(self, wanted: int) -> Any:
        width = min(WIDEST, max(NARROWEST, len(self.places) // ROWS_A_CANDIDATE))
        width = max(width, wanted)
        if not self._hidden:
            return _faiss.SearchParametersHNSW(efSearch=width)
        return _faiss.SearchParametersHNSW(efSearch=width, sel=self._selector)

    def _hide(self, row: int) -> None:
        bit = 1 << (row & 7)
        if self._selected[row >> 3] & bit:
            self._selected[row >> 3] &= ~bit & 0xFF
            self._hidden += 1

    def halves(self) -> Half:
        """Return a writable view of all vectors; valid until a row is appended."""
        if self._view is None:
            self._view = halves_of(_faiss.downcast_index(self.index.storage))
        return self._view

    def _nearest_links(self) -> NDArray[np.int32]:
        """Return each row's links on the lowest level, nearest first; -1 where there is none."""
        hnsw = self.index.hnsw
        links: NDArray[np.int32] = faiss.rev_swig_ptr(hnsw.neighbors.data(), hnsw.neighbors.size())
        starts = faiss.rev_swig_ptr(hnsw.offsets.data(), hnsw.offsets.size())[:-1].astype(np.int64)
        return links[starts[:, None] + np.arange(hnsw.nb_neighbors(0))]


def _make_room(links: Any) -> None:
    storage = _faiss.IndexScalarQuantizer(
        links.d, faiss.ScalarQuantizer.QT_fp16, faiss.METRIC_INNER_PRODUCT
    )
    storage.codes.resize(links.ntotal * storage.code_size)
    storage.ntotal = links.ntotal
    storage.this.disown()
    links.storage, links.own_fields = storage, True
