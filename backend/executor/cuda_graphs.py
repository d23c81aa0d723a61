"""CUDA graphs: what Python would launch one by one, captured once and replayed.

Decoding is one graph for all layers, for some batch sizes; a batch runs in the graph of the next
size, the rest of which is padding: rows without keys whose KV goes to the padding block. In steps
with prompts attention differs from step to step, so only what lies between two attentions is
captured, for some numbers of tokens; beyond the largest the device is busy for longer than launches
take.

Graphs share one pool of memory, so they may not run at the same time; they do not, there is one
stream. What a graph of decoding returns is kept apart for each size: hidden states, which are
small. What pieces hand on lies in buffers that all of them share.
"""

from bisect import bisect_left
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any, Protocol

import torch
from torch import Tensor

from backend.models.attention import Attention
from backend.models.decoder import Decoder

# Runs before a capture: kernels are compiled, libraries choose their algorithms.
_WARM_UPS = 2

PIECE_SIZES = (16, 32, 64, 128, 256, 512)
"""Numbers of tokens for which the pieces of a mixed step are captured."""


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


class Recorder(Protocol):
    """Captures launches; on a device without graphs a test may run them again instead."""

    def record(self, run: Callable[[], Any]) -> tuple[Callable[[], None], Any]:
        """Return what replays ``run``, and what it returned, which each replay writes anew."""

    def forget(self) -> None:
        """Begin anew: nothing that was recorded is replayed any more."""


class CudaRecorder:
    """``Recorder`` by ``torch.cuda.CUDAGraph``."""

    def __init__(self) -> None:
        self._pool: Any = None
        self._stream: Any = None

    def record(self, run: Callable[[], Any]) -> tuple[Callable[[], None], Any]:
        """Capture ``run``, which reads its inputs from where they will be."""
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
        return graph.replay, output

    def forget(self) -> None:
        # Its graphs are gone, and a pool without graphs cannot be captured into.
        self._pool = None


class PieceGraphs:
    """Captured pieces of a decoder between its attentions, by number of tokens."""

    def __init__(self, decoder: Decoder, recorder: Recorder, sizes: Sequence[int]) -> None:
        """Allocate the buffers that pieces hand on, for the largest of ``sizes``."""
        self._decoder = decoder
        self._recorder = recorder
        self.sizes = tuple(sizes)
        self._pieces: dict[int, list[Callable[[], None]]] = {}
        most = sizes[-1]
        zeros = torch.zeros(most, dtype=torch.int32, device=decoder.device)
        hidden, qkv, rotations = decoder.enter(zeros, zeros)
        self._tokens, self._positions = zeros, zeros.clone()
        self._hidden, self._qkv, self._rotations = hidden.clone(), qkv.clone(), rotations.clone()
        self._attended = qkv.new_zeros(most, decoder.attended_size)

    def size_for(self, num_tokens: int) -> int | None:
        """Return the captured size that ``num_tokens`` tokens run at, None for none."""
        size = size_for(num_tokens, self.sizes)
        return size if size in self._pieces else None

    def capture(self, size: int) -> None:
        """Capture all pieces for ``size`` tokens."""
        gaps = range(len(self._decoder.attention_layers) - 1)
        pieces = [partial(self._enter, size), *(partial(self._between, at, size) for at in gaps)]
        self._pieces[size] = [self._recorder.record(piece)[0] for piece in pieces]

    def forward(
        self,
        size: int,
        tokens: Tensor,
        positions: Tensor,
        attention: Attention,
        logit_rows: Tensor | None,
    ) -> Tensor:
        """Do as ``Decoder.forward``, by the pieces of ``size``."""
        count = len(tokens)
        self._tokens[:count].copy_(tokens)
        self._positions[:count].copy_(positions)
        qkv, rotations = self._qkv[:count], self._rotations[:count]
        layers = self._decoder.attention_layers
        for layer, replay in zip(layers, self._pieces[size], strict=True):
            replay()
            attended = attention.forward(layer, qkv, rotations)
            if layer is not layers[-1]:
                self._attended[:count].copy_(attended)
        return self._decoder.leave(self._hidden[:count], attended, logit_rows)

    def _enter(self, size: int) -> None:
        hidden, qkv, rotations = self._decoder.enter(self._tokens[:size], self._positions[:size])
        self._hidden[:size].copy_(hidden)
        self._qkv[:size].copy_(qkv)
        self._rotations[:size].copy_(rotations)

    def _between(self, index: int, size: int) -> None:
        hidden, qkv = self._decoder.between(index, self._hidden[:size], self._attended[:size])
        if hidden.data_ptr() != self._hidden.data_ptr():  # our kernel adds in place
            self._hidden[:size].copy_(hidden)
        self._qkv[:size].copy_(qkv)
