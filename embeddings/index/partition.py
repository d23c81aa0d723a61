"""The vectors of one partition: blocks searched one by one and, once there are many, graphs.

Laws: a vector is in one place only; each method holds the lock for a bounded time; building moves a
few vectors at a time, and at no moment is a vector that was put in not there.

New vectors go into the last block. While there is only that one, the partition is small. What is in
the blocks before it is to be moved into the last graph, oldest first, by whoever calls `build`.
"""

from dataclasses import dataclass
from typing import Final

from embeddings.encoder.encoder import Vector
from embeddings.index.flat_block import FlatBlock, Found, Place, Rows
from embeddings.index.graph import Graph
from embeddings.index.turns import Turns

# Placing a vector takes half a millisecond to one in a large graph; a search may come meanwhile.
_STEP: Final = 4


@dataclass(frozen=True, slots=True)
class Sizes:
    """What is how large, in vectors; see the README for why. Small numbers are for tests.

    `block`: a partition of no more is searched one by one. `graph`: where a graph ends and the next
    begins. `unbuilt`: how many of the vectors that are in no graph yet a search looks at.
    """

    block: int = 4096
    graph: int = 1 << 20
    unbuilt: int = 1 << 15


@dataclass(frozen=True, slots=True)
class Seat:
    """The row of a graph that a vector had before a restart."""

    graph: Graph
    row: int

    @property
    def free(self) -> bool:
        """Whether nothing sits there yet: two rows of a damaged store may claim it."""
        return self.graph.places[self.row] is None


class Partition:
    """Any thread may call it; `build` only one at a time."""

    __slots__ = ("_blocks", "_building", "_dimensions", "_graphs", "_lock", "_sizes", "live")

    def __init__(self, dimensions: int, sizes: Sizes) -> None:
        self._dimensions = dimensions
        self._sizes = sizes
        self._lock = Turns()
        self._blocks = [FlatBlock(dimensions)]
        self._graphs: tuple[Graph, ...] = ()
        self._building = False
        self.live = 0

    def put(self, place: Place, vector: Vector) -> bool:
        """Take a vector in. Return whether `build` is to be called from now on."""
        with self._lock:
            if self._blocks[-1].live >= self._sizes.block:
                self._blocks.append(FlatBlock(self._dimensions))
            self._blocks[-1].put(place, vector)
            self.live += 1
            return self._asks_for_building()

    def seat(self, place: Place, vector: Vector, seat: Seat) -> None:
        """Take a vector in where it was before a restart."""
        with self._lock:
            if seat.graph not in self._graphs:
                # The last is the one that grows.
                graphs = (*self._graphs, seat.graph)
                self._graphs = tuple(sorted(graphs, key=lambda graph: graph.room))
            seat.graph.seat(place, seat.row, vector)
            self.live += 1

    def remove(self, place: Place) -> bool:
        """Forget a vector. Return whether `build` is to be called from now on."""
        with self._lock:
            place.rows.clear(place.row)
            self.live -= 1
            return self._asks_for_building()

    def search(self, vector: Vector, k: int, now: float) -> list[Found]:
        """Return the `k` nearest live vectors, nearest first.

        Of what is in no graph yet it looks at the latest only: a search is bounded even while the
        graphs of a million vectors are built anew.
        """
        most = max(1, self._sizes.unbuilt // self._sizes.block)
        with self._lock:
            searched: tuple[Rows, ...] = (*self._blocks[-most:], *self._graphs)
            found = [near for rows in searched for near in rows.nearest(vector, k, now)]
        found.sort(key=_similarity, reverse=True)
        return found[:k]

    def build(self) -> bool:
        """Do a small piece of what there is to build. Return whether to call again."""
        with self._lock:
            if self._shrunken:
                self._flatten()
            elif (source := self._source()) is not None:
                self._move(source)
            self._building = self._unbuilt
            return self._building

    def settle(self) -> bool:
        """Make the graphs whole once all are seated. Return whether `build` is to be called."""
        with self._lock:
            for graph in self._graphs:
                graph.settle()
            return self._asks_for_building()

    @property
    def waiting(self) -> int:
        """Number of vectors to be built in."""
        return sum(block.live for block in self._blocks[:-1])

    @property
    def graphs(self) -> tuple[Graph, ...]:
        """The graphs; only whoever calls `build` may read the links."""
        return self._graphs

    @property
    def _shrunken(self) -> bool:
        return bool(self._graphs) and self.live <= self._sizes.block // 2

    @property
    def _unbuilt(self) -> bool:
        return self._shrunken or self._source() is not None

    def _asks_for_building(self) -> bool:
        if self._building or not self._unbuilt:
            return False
        self._building = True
        return True

    def _source(self) -> Rows | None:
        if len(self._blocks) > 1:
            return self._blocks[0]
        return next((graph for graph in self._graphs if graph.decayed), None)

    def _move(self, source: Rows) -> None:
        graph = self._open_graph()
        if places := source.first(min(_STEP, graph.room)):
            graph.append(places, source.vectors([place.row for place in places]))
        if not source.live:
            self._blocks = [block for block in self._blocks if block is not source]
            self._graphs = tuple(graph for graph in self._graphs if graph is not source)

    def _open_graph(self) -> Graph:
        if not self._graphs or not self._graphs[-1].room or self._graphs[-1].decayed:
            self._graphs += (Graph(self._dimensions, self._sizes.graph, self._sizes.block),)
        return self._graphs[-1]

    def _flatten(self) -> None:
        block = FlatBlock(self._dimensions)
        everything: tuple[Rows, ...] = (*self._graphs, *self._blocks)
        for rows in everything:
            places = rows.first(rows.live)
            vectors = rows.vectors([place.row for place in places])
            for place, vector in zip(places, vectors, strict=True):
                block.put(place, vector)
        self._blocks, self._graphs = [block], ()


def _similarity(found: Found) -> float:
    return found[0]
