"""CUDA graphs of decoding: all layers as one launch, captured for some batch sizes.

A batch runs in the graph of the next size, the rest of which is padding: rows without keys whose
KV goes to the padding block. Graphs of all sizes share one pool of memory, so they may not run at
the same time; they do not, there is one stream. What a graph returns is kept apart for each size:
hidden states, which are small, and not logits.
"""

from bisect import bisect_left
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor

# Runs before a capture: kernels are compiled, libraries choose their algorithms.
_WARM_UPS = 2


def graph_sizes(max_num_seqs: int) -> tuple[int, ...]:
    """Return the batch sizes to capture: 1, 2, 4, then multiples of 8, then of 16 above 64.

    Padding costs at most a few rows' worth: between sizes a product's time hardly moves.
    """
    sizes = {1, 2, 4, *range(8, 65, 8), *range(80, max_num_seqs + 16, 16)}
    return (*sorted(size for size in sizes if size < max_num_seqs), max_num_seqs)


def size_for(count: int, sizes: Sequence[int]) -> int | None:
    """Return the least of the sorted ``sizes`` that holds ``count`` rows, None beyond them."""
    place = bisect_left(sizes, count)
    return sizes[place] if place < len(sizes) else None


class DecodeGraphs:
    """Captured graphs by size; on CUDA only."""

    def __init__(self) -> None:
        self._graphs: dict[int, tuple[Any, Tensor]] = {}
        self._pool: Any = None
        self._stream: Any = None

    def __contains__(self, size: object) -> bool:
        return size in self._graphs

    def capture(self, size: int, run: Callable[[], Tensor]) -> None:
        """Capture ``run``, which reads its inputs from where they will be, for later sizes too."""
        # One stream for all: cuBLAS keeps a workspace, 32 MiB on Hopper, for each it has seen.
        if self._stream is None:
            self._stream = torch.cuda.Stream()  # type: ignore[no-untyped-call]
        self._stream.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(self._stream):
            for _ in range(_WARM_UPS):
                run()
        torch.cuda.current_stream().wait_stream(self._stream)
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph, pool=self._pool, stream=self._stream):
            output = run()
        self._pool = self._pool or graph.pool()
        self._graphs[size] = graph, output

    def replay(self, size: int) -> Tensor:
        """Run the graph and return its output, which the next replay overwrites."""
        graph, output = self._graphs[size]
        graph.replay()
        return output
