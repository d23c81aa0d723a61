"""BERT sentence encoders on ONNX Runtime: ready in a second, without torch and transformers.

Law: vectors equal those of sentence-transformers up to rounding, so the digest is the same and an
index outlives the change of runtime.
"""

from collections.abc import Iterator, Sequence
from typing import Final

import numpy as np
from numpy.typing import NDArray
from safetensors.numpy import load_file
from tokenizers import Encoding

from embeddings.encoder.bert_graph import Weight, sentence_encoder
from embeddings.encoder.onnx_session import OnnxSession
from embeddings.encoder.plain_bert import PlainBert
from embeddings.encoder.tokenizer import read_tokenizer

# Texts of one pass are padded to the longest: it is at most so many times the shortest.
_MOST_UNEVEN: Final = 1.5
_WORDS: Final = "embeddings.word_embeddings.weight"


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
