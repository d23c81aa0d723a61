"""The sentence encoder: text in, unit-length float32 vector out, or the reason for having none.

A text that does not fit the model whole is refused, never cut: two long texts that share their
beginning would get equal vectors, and the cache would answer one with the other's answer.
"""

import logging
from collections.abc import Sequence, Sized
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path
from typing import Any, Final, Protocol

import numpy as np
from numpy.typing import NDArray

from embeddings.encoder.model_files import ModelError, ModelFiles, locate, verified_digest
from embeddings.encoder.plain_bert import NotPlainError, PlainBert, plain_bert
from embeddings.messages import Reason

Vector = NDArray[np.float32]
Encoded = Vector | Reason

DEVICES: Final = ("auto", "cpu", "cuda")

# No natural text has tokens this long on average. Counting the tokens of a longer text would hold
# up everybody else's, only to refuse it.
_MOST_CHARACTERS_A_TOKEN: Final = 64
# Of these a driver makes at least one: on Linux, and where Linux runs under Windows.
_CUDA_DEVICES: Final = (Path("/dev/nvidiactl"), Path("/dev/dxg"))

_log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class EncoderSettings:
    """Which model runs where. `model`: see model_files.locate; `threads` of a pass on the CPU.

    `lanes`: how many passes are to run side by side. A runtime that runs one at a time gives it as
    many threads.
    """

    model: str
    device: str
    threads: int
    lanes: int = 1


class SentenceModel(Protocol):
    """A model in some runtime. Special tokens count: `max_tokens` is the longest text with them."""

    dimensions: int
    max_tokens: int
    special_tokens: int

    def tokens(self, text: str) -> Sized:
        """Return the tokens of the whole text, in a form of the model's own."""
        ...

    def vectors(self, texts: Sequence[Any]) -> NDArray[np.float32]:
        """Return one unit-length row for the tokens of each text; there are some, and they fit."""
        ...


class Encoder:
    """A loaded sentence encoder. As many threads may use it side by side as it has `lanes`.

    `digest` identifies everything that shapes a vector (see model_files), `dimensions` its length,
    `max_tokens` the longest text, special tokens included.
    """

    def __init__(self, name: str, digest: str, model: SentenceModel, lanes: int = 1) -> None:
        self.name = name
        self.lanes = lanes
        self.digest = digest
        self._model = model
        self.dimensions = model.dimensions
        self.max_tokens = model.max_tokens

    def encode(self, texts: Sequence[str]) -> list[Encoded]:
        """Return for each text its vector, shape (dimensions,), or the reason for having none."""
        read = [self._read(text) for text in texts]
        accepted = [tokens for tokens in read if not isinstance(tokens, Reason)]
        rows = iter(self._model.vectors(accepted) if accepted else ())
        return [tokens if isinstance(tokens, Reason) else _finite(next(rows)) for tokens in read]

    def _read(self, text: str) -> Sized | Reason:
        if len(text) > self.max_tokens * _MOST_CHARACTERS_A_TOKEN:
            return Reason.TEXT_TOO_LONG
        tokens = self._model.tokens(text)
        if len(tokens) > self.max_tokens:
            return Reason.TEXT_TOO_LONG
        # Control characters and the like vanish in the tokenizer: nothing is left to compare.
        return Reason.EMPTY_TEXT if len(tokens) <= self._model.special_tokens else tokens


def _finite(row: Vector) -> Encoded:
    return row if np.isfinite(row).all() else Reason.ERROR


def load_encoder(settings: EncoderSettings) -> Encoder:
    """Load a model and warm it with one forward pass. Raises ModelError.

    Plain BERT runs on ONNX Runtime where there is no GPU to use; all else on sentence-transformers,
    which takes seconds to import.
    """
    files = locate(settings.model)
    with ThreadPoolExecutor(1, "model-digest") as hashing:
        # Hashing 90 MB leaves the interpreter free to load meanwhile.
        digest = hashing.submit(verified_digest, files)
        try:
            model, lanes = _loaded(files, settings)
        except ModelError:
            raise
        except Exception as error:  # damaged files raise whatever the library trips over first
            digest.result()
            raise _unusable(files, error) from error
        verified = digest.result()
    encoder = Encoder(files.name, verified, model, lanes)
    try:
        (warmed,) = encoder.encode(["How do I reset my password?"])
    except Exception as error:
        raise _unusable(files, error) from error
    if isinstance(warmed, Reason):
        raise ModelError(f"the encoder in {files.directory} makes no usable vectors")
    return encoder


def _loaded(files: ModelFiles, settings: EncoderSettings) -> tuple[SentenceModel, int]:
    """Return the model, and for how many threads at a time."""
    plain = _plain(files, settings)
    if plain is not None:
        from embeddings.encoder.onnx import OnnxSentenceModel  # noqa: PLC0415 - not always needed

        return OnnxSentenceModel(plain, settings.threads), settings.lanes
    try:
        # Seconds of import that only those need who get here.
        from embeddings.encoder.torch import load_torch_model  # noqa: PLC0415
    except ModuleNotFoundError as error:
        raise ModelError(
            f"{files.name} needs {error.name}, which is not installed: "
            "pip install 'refrain-gateway[transformers]'"
        ) from error
    threads = settings.threads * settings.lanes
    return load_torch_model(files.directory, settings.device, threads), 1


def _plain(files: ModelFiles, settings: EncoderSettings) -> PlainBert | None:
    if settings.device == "cuda" or (settings.device == "auto" and _cuda()):
        return None
    try:
        return plain_bert(files.directory)
    except NotPlainError as reason:
        _log.info("%s runs on sentence-transformers: %s", files.name, reason)
        return None


def _cuda() -> bool:
    if find_spec("torch") is None or not any(device.exists() for device in _CUDA_DEVICES):
        return False
    import torch  # noqa: PLC0415 - seconds of import, only where there is a driver

    return torch.cuda.is_available()


def _unusable(files: ModelFiles, error: Exception) -> ModelError:
    line = str(error).strip().partition("\n")[0]
    return ModelError(f"cannot load the encoder from {files.directory}: {line}")
