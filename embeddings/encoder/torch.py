"""Any encoder that sentence-transformers loads, on the CPU or a CUDA device.

The import alone takes seconds, torch's and that of trainers that nobody here needs.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from sentence_transformers import SentenceTransformer
from transformers.utils.logging import disable_progress_bar

from embeddings.encoder.model_files import ModelError


@dataclass(frozen=True, slots=True)
class _Tokens:
    """A text and how many tokens it has: the library reads the text anew."""

    text: str
    count: int

    def __len__(self) -> int:
        return self.count


class TorchSentenceModel:
    """See encoder.SentenceModel; `model` is a SentenceTransformer."""

    def __init__(self, model: Any) -> None:
        self._model = model
        self.dimensions = int(model.get_embedding_dimension())
        self.max_tokens = int(model.max_seq_length)
        self.special_tokens = int(model.tokenizer.num_special_tokens_to_add())

    def tokens(self, text: str) -> "_Tokens":
        """Return the tokens of the whole text."""
        ids = self._model.tokenizer(text, truncation=False, verbose=False)["input_ids"]
        return _Tokens(text, len(ids))

    def vectors(self, texts: Sequence["_Tokens"]) -> NDArray[np.float32]:
        """Return one unit-length row for the tokens of each text."""
        rows: NDArray[np.float32] = self._model.encode(
            [tokens.text for tokens in texts],
            batch_size=len(texts),
            convert_to_numpy=True,
            normalize_embeddings=True,
            show_progress_bar=False,
        )
        return np.ascontiguousarray(rows, dtype=np.float32)


def load_torch_model(directory: Path, device: str, threads: int) -> TorchSentenceModel:
    """Load a model. Raises ModelError for a device that is not there, and what libraries raise."""
    disable_progress_bar()
    torch.set_num_threads(threads)
    cuda = torch.cuda.is_available()
    if device == "cuda" and not cuda:
        raise ModelError("--device cuda: no CUDA device is available to torch")
    chosen = "cuda" if cuda and device == "auto" else device.replace("auto", "cpu")
    model = SentenceTransformer(str(directory), device=chosen, local_files_only=True)
    return TorchSentenceModel(model)
