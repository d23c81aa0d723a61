"""Sentence vectors of many texts, for training and calibration."""

import os
from collections.abc import Sequence
from typing import Final

import numpy as np
from numpy.typing import NDArray

from embeddings.encoder.encoder import EncoderSettings, load_encoder
from embeddings.encoder.model_files import DEFAULT_MODEL
from embeddings.messages import Reason

_BATCH: Final = 64


def sentence_vectors(texts: Sequence[str]) -> NDArray[np.float32]:
    """Return a row for each text, of unit length; zeros where it has no vector.

    Raises ModelError.
    """
    encoder = load_encoder(EncoderSettings(DEFAULT_MODEL, "cpu", threads=os.cpu_count() or 1))
    order = sorted(range(len(texts)), key=lambda at: len(texts[at]))
    vectors = np.zeros((len(texts), encoder.dimensions), dtype=np.float32)
    for start in range(0, len(order), _BATCH):
        places = order[start : start + _BATCH]
        for place, vector in zip(places, encoder.encode([texts[x] for x in places]), strict=True):
            if not isinstance(vector, Reason):
                vectors[place] = vector
    return vectors
