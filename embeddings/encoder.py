"""The sentence encoder: text in, unit-length float32 vector out, or the reason for having none.

A text that does not fit the model whole is refused, never cut: two long texts that share their
beginning would get equal vectors, and the cache would answer one with the other's answer.
"""

from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from embeddings.messages import Reason
from embeddings.model_files import ModelError, locate, verified_digest

Vector = NDArray[np.float32]
Encoded = Vector | Reason

DEVICES: Final = ("auto", "cpu", "cuda")

# No natural text has tokens this long on average. Counting the tokens of a longer text would hold
# up everybody else's, only to refuse it.
_MOST_CHARACTERS_A_TOKEN: Final = 64


@dataclass(frozen=True, slots=True)
class EncoderSettings:
    """Which model runs where. `model`: see model_files.locate; `threads` of the CPU path."""

    model: str
    device: str
    threads: int


class Encoder:
    """A loaded sentence-transformers model. Not thread-safe: one thread owns it.

    `digest` identifies everything that shapes a vector (see model_files), `dimensions` its length,
    `max_tokens` the longest text, special tokens included.
    """

    def __init__(self, name: str, digest: str, model: Any) -> None:
        self.name = name
        self.digest = digest
        self._model = model
        self.dimensions = int(model.get_embedding_dimension())
        self.max_tokens = int(model.max_seq_length)

    def encode(self, texts: Sequence[str]) -> list[Encoded]:
        """Return for each text its vector, shape (dimensions,), or the reason for having none."""
        encoded: list[Encoded] = [Reason.ERROR] * len(texts)
        accepted: list[int] = []
        for place, text in enumerate(texts):
            reason = self._refusal(text)
            if reason is None:
                accepted.append(place)
            else:
                encoded[place] = reason
        if not accepted:
            return encoded
        rows: NDArray[np.float32] = self._model.encode(
            [texts[place] for place in accepted],
            batch_size=len(accepted),
            convert_to_numpy=True,
            normalize_embeddings=True,
            show_progress_bar=False,
        )
        rows = np.ascontiguousarray(rows, dtype=np.float32)
        for place, row in zip(accepted, rows, strict=True):
            if np.isfinite(row).all():
                encoded[place] = row
        return encoded

    def _refusal(self, text: str) -> Reason | None:
        if len(text) > self.max_tokens * _MOST_CHARACTERS_A_TOKEN:
            return Reason.TEXT_TOO_LONG
        tokenizer = self._model.tokenizer
        tokens = len(tokenizer(text, truncation=False, verbose=False)["input_ids"])
        if tokens > self.max_tokens:
            return Reason.TEXT_TOO_LONG
        # Control characters and the like vanish in the tokenizer: nothing is left to compare.
        return Reason.EMPTY_TEXT if tokens <= tokenizer.num_special_tokens_to_add() else None


def load_encoder(settings: EncoderSettings) -> Encoder:
    """Load a model and warm it with one forward pass. Takes seconds. Raises ModelError."""
    files = locate(settings.model)
    with ThreadPoolExecutor(1, "model-digest") as hashing:
        # Hashing 90 MB leaves the interpreter free to import meanwhile.
        digest = hashing.submit(verified_digest, files)
        import torch  # noqa: PLC0415 - seconds of import that only this function needs
        from sentence_transformers import SentenceTransformer  # noqa: PLC0415
        from transformers.utils.logging import disable_progress_bar  # noqa: PLC0415

        verified = digest.result()
    disable_progress_bar()
    torch.set_num_threads(settings.threads)
    device = _device(settings.device, cuda=torch.cuda.is_available())
    try:
        model = SentenceTransformer(str(files.directory), device=device, local_files_only=True)
        encoder = Encoder(files.name, verified, model)
        warmed = encoder.encode(["How do I reset my password?"])[0]
    except Exception as error:  # damaged files raise whatever the library trips over first
        line = str(error).strip().partition("\n")[0]
        raise ModelError(f"cannot load the encoder from {files.directory}: {line}") from error
    if isinstance(warmed, Reason):
        raise ModelError(f"the encoder in {files.directory} makes no usable vectors")
    return encoder


def _device(wanted: str, *, cuda: bool) -> str:
    if wanted == "cuda" and not cuda:
        raise ModelError("--device cuda: no CUDA device is available to torch")
    return "cuda" if cuda and wanted == "auto" else wanted.replace("auto", "cpu")
