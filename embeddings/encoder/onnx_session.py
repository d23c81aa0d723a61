"""A graph of bert_graph.py at work: rows of token ids in, one row of numbers for each out.

Laws: threads that have nothing to do sleep. Spinning, they take the processor from whoever needs it
and double the time of a pass on two busy cores (benchmarks/LOG.md).
"""

from collections.abc import Sequence
from typing import Final

import numpy as np
import onnxruntime
from numpy.typing import NDArray

from embeddings.encoder.bert_graph import Graph

# What the runtime took for a pass it keeps for the next: 35 kB a token, and 280 MB of the largest
# batch. After a pass of more tokens than these it gives back what it took.
_LARGE_TOKENS: Final = 512

Row = tuple[Sequence[int], Sequence[int]]


class OnnxSession:
    """A loaded graph on the CPU. Not thread-safe. Raises what the runtime raises."""

    def __init__(self, graph: Graph, threads: int) -> None:
        options = onnxruntime.SessionOptions()
        options.intra_op_num_threads = threads
        options.inter_op_num_threads = 1
        options.log_severity_level = 4  # it raises what it logs
        options.add_session_config_entry("session.intra_op.allow_spinning", "0")
        # The level above fuses addition and normalisation into an operator that takes three times
        # as long.
        options.graph_optimization_level = onnxruntime.GraphOptimizationLevel.ORT_ENABLE_BASIC
        names = list(graph.constants)
        values = [onnxruntime.OrtValue.ortvalue_from_numpy(graph.constants[name]) for name in names]
        options.add_external_initializers(names, values)
        self._large = onnxruntime.RunOptions()
        self._large.add_run_config_entry("memory.enable_memory_arena_shrinkage", "cpu:0")
        self._session = onnxruntime.InferenceSession(
            graph.model, options, providers=["CPUExecutionProvider"]
        )

    def run(self, rows: Sequence[Row]) -> NDArray[np.float32]:
        """Return the graph's output for rows of token ids and token types, padded to one length."""
        shape = (len(rows), max(len(ids) for ids, _ in rows))
        feed = {name: np.zeros(shape, np.int32) for name in ("ids", "types", "mask")}
        for place, (ids, types) in enumerate(rows):
            feed["ids"][place, : len(ids)] = ids
            feed["types"][place, : len(ids)] = types
            feed["mask"][place, : len(ids)] = 1
        options = self._large if shape[0] * shape[1] > _LARGE_TOKENS else None
        output: NDArray[np.float32] = self._session.run(None, feed, options)[0]
        return output
