"""Models on ONNX Runtime: sessions, tokenizers, and BERT sentence encoders made of both.

They are ready in a second, without torch and transformers. Law: vectors equal those of
sentence-transformers up to rounding, so the digest is the same and an index outlives the change of
runtime.
"""

from collections.abc import Iterator, Sequence
from functools import lru_cache
from threading import Lock
from typing import Final

import numpy as np
import onnxruntime
from numpy.typing import NDArray
from safetensors.numpy import load_file
from tokenizers import Encoding, Tokenizer

from embeddings.encoder.bert_graph import INPUTS, Graph, Weight, sentence_encoder
from embeddings.encoder.plain_bert import PlainBert

# What the runtime took for a pass it keeps for the next: 35 kB a token, and 280 MB of the largest
# batch. After a pass of more tokens than these it gives back what it took.
_LARGE_TOKENS: Final = 512
# Encoder and verifier mostly have one vocabulary, which takes 10 MB each time that it is read.
_TOKENIZERS: Final = 2
_reading_tokenizer: Final = Lock()
# Texts of one pass are padded to the longest: it is at most so many times the shortest.
_MOST_UNEVEN: Final = 1.5
_WORDS: Final = "embeddings.word_embeddings.weight"

Row = tuple[Sequence[int], Sequence[int]]


class OnnxSession:
    """A loaded graph on the CPU, for any thread. Raises what the runtime raises."""

    def __init__(self, graph: Graph, threads: int) -> None:
        options = onnxruntime.SessionOptions()
        options.intra_op_num_threads = threads
        options.inter_op_num_threads = 1
        options.log_severity_level = 4  # it raises what it logs
        # Idle threads sleep. Spinning, they take the processor from those who need it, and double
        # the time of a pass on two busy cores (benchmarks/LOG.md).
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
        feed = {name: np.zeros(shape, np.int32) for name in INPUTS}
        for place, (ids, types) in enumerate(rows):
            feed["ids"][place, : len(ids)] = ids
            feed["types"][place, : len(ids)] = types
            feed["mask"][place, : len(ids)] = 1
        options = self._large if shape[0] * shape[1] > _LARGE_TOKENS else None
        output: NDArray[np.float32] = self._session.run(None, feed, options)[0]
        return output


def read_tokenizer(text: str) -> Tokenizer:
    """Return the tokenizer of a tokenizer.json, which pads and cuts nothing; do not change it.

    Any thread may use it. Raises what the library raises for a damaged file.
    """
    with _reading_tokenizer:  # two models are loaded at a time
        return _read(text)


@lru_cache(_TOKENIZERS)
def _read(text: str) -> Tokenizer:
    tokenizer = Tokenizer.from_str(text)
    tokenizer.no_padding()
    tokenizer.no_truncation()
    return tokenizer


class OnnxSentenceModel:
    """See encoder.SentenceModel. Raises what libraries raise for damaged files."""

    def __init__(self, plain: PlainBert, threads: int) -> None:
        weights: dict[str, Weight] = {
            name.removeprefix("bert."): np.asarray(values, np.float32)
            for name, values in load_file(plain.weights).items()
        }
        # Half of the model's numbers, of which a text reads some dozen rows: 16 bits are enough.
        weights[_WORDS] = np.asarray(weights[_WORDS], np.float16)
        self.dimensions = np.asarray(weights[_WORDS]).shape[1]
        self._session = OnnxSession(sentence_encoder(plain.shape, weights), threads)
        self._tokenizer = read_tokenizer(plain.tokenizer.read_text(encoding="utf-8"))
        self.special_tokens: int = self._tokenizer.num_special_tokens_to_add(is_pair=False)
        self.max_tokens = plain.max_tokens

    def tokens(self, text: str) -> Encoding:
        """Return the tokens of the whole text."""
        return self._tokenizer.encode(text)

    def vectors(self, texts: Sequence[Encoding]) -> NDArray[np.float32]:
        """Return one unit-length row for the tokens of each text."""
        rows = np.empty((len(texts), self.dimensions), np.float32)
        for places in _alike([len(tokens) for tokens in texts]):
            rows[places] = self._session.run([(texts[at].ids, texts[at].type_ids) for at in places])
        return rows


def _alike(lengths: Sequence[int]) -> Iterator[list[int]]:
    """Yield the places of lengths that are alike, the shortest first."""
    places = sorted(range(len(lengths)), key=lengths.__getitem__)
    group: list[int] = []
    for place in places:
        if group and lengths[place] > _MOST_UNEVEN * lengths[group[0]]:
            yield group
            group = []
        group.append(place)
    if group:
        yield group
