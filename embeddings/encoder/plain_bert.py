"""Which models are computed here, by what their files say: plain BERT.

A sentence encoder is also the mean of its tokens, of unit length.

Law: what is not known to be computed equally is not plain; the reason says what it was.
"""

import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

_MODULES: Final = ("Transformer", "Pooling", "Normalize")
# How transformers names what tokenizer.json names otherwise.
_NORMALIZER: Final = {
    "do_lower_case": "lowercase",
    "strip_accents": "strip_accents",
    "tokenize_chinese_chars": "handle_chinese_chars",
}


@dataclass(frozen=True, slots=True)
class BertShape:
    """What the weights do not tell of themselves."""

    layers: int
    heads: int
    epsilon: float


def bert_shape(config: Mapping[str, Any]) -> BertShape:
    """Return the shape that a config.json states. Raises ValueError for what is no plain BERT."""
    plain = {"model_type": "bert", "hidden_act": "gelu", "position_embedding_type": "absolute"}
    for setting, expected in plain.items():
        found = config.get(setting, None if setting == "model_type" else expected)
        if found != expected:
            raise ValueError(f"{setting} is {found!r}, expected {expected!r}")
    if config.get("is_decoder"):
        raise ValueError("a decoder, expected an encoder")
    try:
        shape = BertShape(
            layers=int(config["num_hidden_layers"]),
            heads=int(config["num_attention_heads"]),
            epsilon=float(config.get("layer_norm_eps", 1e-12)),
        )
    except (KeyError, TypeError) as error:
        raise ValueError(f"incomplete configuration: {error}") from error
    if shape.layers < 1 or shape.heads < 1 or not 0 <= shape.epsilon < 1:
        raise ValueError(f"impossible configuration: {shape}")
    return shape


class NotPlainError(Exception):
    """The model's files ask for more than is computed here."""


@dataclass(frozen=True, slots=True)
class PlainBert:
    """A model that its shape, weights, tokenizer and longest text tell whole."""

    shape: BertShape
    weights: Path
    tokenizer: Path
    max_tokens: int


def plain_bert(directory: Path) -> PlainBert:
    """Return what a directory in the layout of sentence-transformers holds. Raises NotPlainError.

    Files that are missing or damaged are not plain either: sentence-transformers judges them.
    """
    try:
        shape = bert_shape(_read(directory / "config.json"))
        _require_modules(directory)
        _require_tokenizer(directory)
        settings = _read(directory / "sentence_bert_config.json")
        _require(not settings.get("do_lower_case"), "sentence_bert_config.json: do_lower_case")
        longest = int(settings["max_seq_length"])
    except (OSError, ValueError, AttributeError, TypeError, KeyError) as error:
        raise NotPlainError(f"{type(error).__name__}: {error}".partition("\n")[0]) from error
    weights = directory / "model.safetensors"
    _require(weights.is_file(), "no model.safetensors")
    return PlainBert(shape, weights, directory / "tokenizer.json", longest)


def _require_modules(directory: Path) -> None:
    modules = json.loads((directory / "modules.json").read_text(encoding="utf-8"))
    names = tuple(module["type"].rpartition(".")[2] for module in modules)
    _require(names in (_MODULES, _MODULES[:2]), f"modules.json: {', '.join(names)}")
    _require(modules[0]["path"] == "", "modules.json: the transformer has a folder of its own")
    pooling = _read(directory / modules[1]["path"] / "config.json")
    modes = {name for name, on in pooling.items() if name.startswith("pooling_mode_") and on}
    mean = modes == {"pooling_mode_mean_tokens"} or pooling.get("pooling_mode") == "mean"
    _require(mean, f"{modules[1]['path']}/config.json: pooling is not the mean")
    prompts = directory / "config_sentence_transformers.json"
    if prompts.is_file():
        _require(not _read(prompts).get("default_prompt_name"), f"{prompts.name}: a prompt")


def _require_tokenizer(directory: Path) -> None:
    tokenizer = _read(directory / "tokenizer.json")
    normalizer = tokenizer["normalizer"]
    _require(tokenizer["model"]["type"] == "WordPiece", "tokenizer.json: not WordPiece")
    _require(normalizer["type"] == "BertNormalizer", "tokenizer.json: not BERT's normalizer")
    for ours, theirs in _NORMALIZER.items():
        stated = _read(directory / "tokenizer_config.json").get(ours, normalizer[theirs])
        _require(stated == normalizer[theirs], f"tokenizer_config.json: {ours}")


def _read(path: Path) -> Mapping[str, Any]:
    found = json.loads(path.read_text(encoding="utf-8"))
    if not isinstance(found, dict):
        raise TypeError(f"{path.name} is no object")
    return found


def _require(holds: bool, otherwise: str) -> None:
    if not holds:
        raise NotPlainError(otherwise)
