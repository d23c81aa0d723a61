"""A cross-encoder in the thread of ``embedder``: pairs of texts in, one score each out.

sentence-transformers makes the tokens, templates included, and computes, so a score is that of
its ``CrossEncoder.predict``. To the engine a score is a vector of one number.
"""

from collections.abc import Sequence
from pathlib import Path
from threading import Lock
from typing import Any

from torch import Tensor

from backend.engine import embedder
from backend.models.config import ModelLoadError, first_line
from backend.ports import EmbeddingShape, EncodePairs, Pair
from backend.settings import EngineOptions
from backend.tokenizer.tokenizer import Tokenizer


class RerankingModel(embedder.EmbeddingModel):
    """Scores batches of ``Pair``, in one thread; any other thread may make pairs meanwhile."""

    def __init__(self, model: Any, max_tokens: int) -> None:
        """``model`` is a CrossEncoder with one label. Raises ValueError if it takes no pairs."""
        super().__init__(model, EmbeddingShape(max_tokens, dimensions=1))
        # Each call of the library changes its tokenizer.
        self._tokenizing = Lock()
        features = self._preprocess([("a", "b")], cut=False)
        names = features.keys() & {"modality", "logits_to_keep"}
        self._constants = {name: features[name] for name in names}

    def encode(self, pairs: Sequence[tuple[str, str]], cut: bool) -> list[Pair]:
        """Return the tokens of each pair; ``cut`` takes them off the longer text first."""
        with self._tokenizing:
            features = self._preprocess(pairs, cut=cut)
        encoded = [Pair(tokens) for tokens in features["input_ids"]]
        for pair, types in zip(encoded, features.get("token_type_ids", ()), strict=False):
            pair.types = tuple(types)
        return encoded

    def _preprocess(self, pairs: Sequence[tuple[str, str]], *, cut: bool) -> dict[str, Any]:
        text: dict[str, Any] = {"padding": False, "truncation": False}
        if cut:
            text |= {"truncation": "longest_first", "max_length": self.shape.max_tokens}
        prompt = self._model.prompts.get(self._model.default_prompt_name or "")
        options = {"text": text, "common": {"return_tensors": None}}
        given = [list(pair) for pair in pairs]
        return dict(self._model.preprocess(given, prompt=prompt, processing_kwargs=options))

    def _vectors(self, batch: Sequence[Sequence[int]], features: dict[str, Any]) -> Tensor:
        types = [pair.types for pair in batch if isinstance(pair, Pair)]
        if all(types):
            features["token_type_ids"] = self._padded(types, 0)
        scores = self._model(features | self._constants)["scores"].float()
        activated: Tensor = self._model.activation_fn(scores)
        return activated


def start(options: EngineOptions) -> tuple[embedder.EmbeddingEngine, Tokenizer, EncodePairs]:
    """Load the cross-encoder that ``options`` name and start its engine. Raises ModelLoadError."""
    model, directory = embedder.load_by_library(options, "CrossEncoder"), Path(options.model)
    if model.num_labels != 1:
        problem = f"id2label: a reranker has one label, and this has {model.num_labels}"
        raise ModelLoadError(f"{directory / 'config.json'}: {problem}")
    inner = model[0].auto_model
    is_classifier = type(inner).__name__.endswith("ForSequenceClassification")
    # A decoder scores the last token, which it finds by this key.
    is_decoder = is_classifier and not hasattr(inner.base_model, "embeddings")
    if is_decoder and inner.config.get_text_config().pad_token_id is None:
        problem = "pad_token_id is missing, so pairs of several lengths have no scores"
        raise ModelLoadError(f"{directory / 'config.json'}: {problem}")
    try:
        reranker = RerankingModel(model, embedder.context_of(model, options.max_model_len))
    except ValueError as error:  # a chat template without the roles of a pair
        raise ModelLoadError(f"{directory}: {first_line(error)}") from error
    tokenizer = Tokenizer(embedder.tokens_of(model), eos_token_ids=frozenset(), template=None)
    return embedder.start_engine(reranker), tokenizer, reranker.encode
