"""An embedding model in the layout of sentence-transformers: token ids in, vectors out.

The library's modules compute (the transformer, pooling, projections), so that a vector is the one
that the model's author meant. Tokens are made here, never cut: a text that does not fit is the
server's to refuse. Vectors have length 1 as OpenAI's have, save of models whose similarity is
another than the cosine, for which the length means something.
"""

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import tokenizers
import torch
from sentence_transformers import SentenceTransformer
from torch import Tensor
from transformers.utils.logging import disable_progress_bar

from backend.models.config import ModelLoadError
from backend.ports import EmbeddingShape
from backend.tokenizer.tokenizer import Tokenizer

_DTYPES = {"float32": torch.float32, "bfloat16": torch.bfloat16, "float16": torch.float16}


class EmbeddingModel:
    """Computes batches; owned by one thread."""

    def __init__(self, model: Any, shape: EmbeddingShape) -> None:
        """``model`` is a SentenceTransformer whose first module reads token ids."""
        self.shape = shape
        self.on_cuda = model.device.type == "cuda"
        self._model = model
        self._num_threads = torch.get_num_threads()
        tokenizer = model.tokenizer
        self._pad_id: int = tokenizer.pad_token_id or 0
        self._pads_left = tokenizer.padding_side == "left"
        self._normalises = model.similarity_fn_name == "cosine"

    @torch.inference_mode()
    def embed(self, batch: Sequence[Sequence[int]]) -> list[bytes | None]:
        """Return each input's vector as packed little-endian float32, None where it is not finite.

        Every input has tokens, and they fit the context.
        """
        # A thread begins with what torch was last told, by whichever engine of this process.
        torch.set_num_threads(self._num_threads)
        features = self._features(batch)
        output = self._model({name: value.to(self._model.device) for name, value in features})
        rows: Tensor = output["sentence_embedding"][:, : self.shape.dimensions].float()
        if self._normalises:
            rows = torch.nn.functional.normalize(rows, dim=1)
        finite = torch.isfinite(rows).all(dim=1).tolist()
        packed = rows.cpu().numpy().astype("<f4")
        return [row.tobytes() if good else None for row, good in zip(packed, finite, strict=True)]

    def _features(self, batch: Sequence[Sequence[int]]) -> list[tuple[str, Tensor]]:
        longest = max(map(len, batch))
        tokens = torch.full((len(batch), longest), self._pad_id, dtype=torch.long)
        mask = torch.zeros_like(tokens)
        for row, ids in enumerate(batch):
            columns = slice(longest - len(ids), longest) if self._pads_left else slice(0, len(ids))
            tokens[row, columns] = torch.tensor(ids, dtype=torch.long)
            mask[row, columns] = 1
        return [("input_ids", tokens), ("attention_mask", mask)]


class PromptedTokenizer(Tokenizer):
    """Puts the model's default prompt, if it has one, before every whole text."""

    prompt: str = ""

    def encode(self, text: str, *, add_special_tokens: bool = False) -> list[int]:
        """See Tokenizer."""
        return super().encode(self.prompt + text, add_special_tokens=add_special_tokens)


def load_embedding_model(
    directory: Path, *, device: str, dtype: str, max_model_len: int | None, threads: int | None
) -> tuple[EmbeddingModel, Tokenizer]:
    """Load a model directory. Raises ModelLoadError."""
    disable_progress_bar()
    if threads is not None:
        torch.set_num_threads(threads)
    if device == "cuda" and not torch.cuda.is_available():
        raise ModelLoadError("device cuda: torch finds no CUDA device")
    chosen = "cuda" if device != "cpu" and torch.cuda.is_available() else "cpu"
    if dtype == "auto" and chosen == "cpu":
        dtype = "float32"
    try:
        model = SentenceTransformer(
            str(directory),
            device=chosen,
            local_files_only=True,
            model_kwargs={"dtype": _DTYPES.get(dtype, dtype)},
        )
    except Exception as error:  # damaged files raise whatever the library trips over first
        line = str(error).strip().partition("\n")[0]
        raise ModelLoadError(f"{directory}: {line or type(error).__name__}") from error
    model.eval()
    _check_kind(model, directory)
    shape = EmbeddingShape(
        max_tokens=_context(model, max_model_len),
        dimensions=int(model.get_embedding_dimension()),
        shorter=_matryoshka(directory, int(model.get_embedding_dimension())),
    )
    return EmbeddingModel(model, shape), _tokenizer(model)


def _check_kind(model: Any, directory: Path) -> None:
    first = model[0]
    tokenizer = getattr(first, "tokenizer", None)
    if not hasattr(first, "auto_model") or not hasattr(tokenizer, "backend_tokenizer"):
        raise ModelLoadError(
            f"{directory}: its first module, {type(first).__name__}, does not read token ids; only "
            "text transformers with a fast tokenizer are served"
        )
    prompted = bool(_default_prompt(model))
    if prompted and any(getattr(module, "include_prompt", True) is False for module in model):
        raise ModelLoadError(f"{directory}: leaving the prompt out of pooling is not supported")


def _context(model: Any, wanted: int | None) -> int:
    positions = getattr(model[0].auto_model.config, "max_position_embeddings", None)
    trained = int(model.max_seq_length)
    most = trained if positions is None else min(trained, positions)
    if wanted is None:
        return most
    if not 1 < wanted <= (positions or most):
        raise ModelLoadError(
            f"max-model-len {wanted}: the model's context is {positions or most} tokens"
        )
    return wanted


def _matryoshka(directory: Path, dimensions: int) -> frozenset[int]:
    """Return the lengths that the model's vectors may be cut to, by its ``config.json``.

    The keys are those that other servers read. A model that was not trained for it makes poor
    vectors when cut, so silence means none.
    """
    config = json.loads((directory / "config.json").read_text(encoding="utf-8"))
    listed = config.get("matryoshka_dimensions")
    if isinstance(listed, list):
        return frozenset(size for size in listed if isinstance(size, int) and size < dimensions)
    return frozenset(range(1, dimensions)) if config.get("is_matryoshka") is True else frozenset()


def _default_prompt(model: Any) -> str:
    prompts: dict[str, str] = model.prompts
    return prompts.get(model.default_prompt_name or "", "")


def _tokenizer(model: Any) -> Tokenizer:
    # A copy of what the library made of the files: its own is changed by every call.
    backend = tokenizers.Tokenizer.from_str(model.tokenizer.backend_tokenizer.to_str())
    made = PromptedTokenizer(backend, eos_token_ids=frozenset(), bos_token_id=None, template=None)
    made.prompt = _default_prompt(model)
    return made
