"""Vectors of texts, made by the encoder that the gateway runs, in batches of like lengths."""

from collections.abc import Iterable

import numpy as np

from embeddings.encoder.encoder import EncoderSettings, Vector, load_encoder
from embeddings.encoder.model_files import DEFAULT_MODEL, locate, verified_digest
from embeddings.messages import Reason
from quality.kept import Kept
from quality.progress import told

BATCH = 32
_THREADS = 1


def vectors_of(texts: Iterable[str], kept: Kept) -> dict[str, Vector]:
    """Return the vectors of the texts that have one; what has none is never found."""
    maker = f"encoder {verified_digest(locate(DEFAULT_MODEL))}"
    wanted = set(texts)
    found = kept.find(maker, wanted)
    missing = sorted(wanted - found.keys(), key=lambda text: (len(text), text))
    if missing:
        found |= _encoded(missing, maker, kept)
    return {text: np.frombuffer(value, dtype=np.float32) for text, value in found.items() if value}


def _encoded(texts: list[str], maker: str, kept: Kept) -> dict[str, bytes]:
    encoder = load_encoder(EncoderSettings(DEFAULT_MODEL, "auto", threads=_THREADS))
    found: dict[str, bytes] = {}
    batches = [texts[start : start + BATCH] for start in range(0, len(texts), BATCH)]
    for batch in told("batches encoded", batches):
        results = encoder.encode(batch)
        made = {
            text: b"" if isinstance(vector, Reason) else vector.tobytes()
            for text, vector in zip(batch, results, strict=True)
        }
        kept.keep(maker, made)
        found |= made
    return found
