"""A trained cross-encoder written as the files that embeddings/verify/files.py reads."""

import json
import re
import shutil
from collections.abc import Mapping, Sequence
from functools import lru_cache
from pathlib import Path
from typing import Any, Final

import numpy as np
from safetensors.numpy import save_file
from tokenizers import Tokenizer

from embeddings.encoder.bert_graph import DISTANCES, compressible, quantised
from embeddings.encoder.model_files import ModelError
from embeddings.verify.directories import SECOND
from embeddings.verify.files import (
    CONFIG,
    FILES,
    POSITIONS,
    SCALE,
    TOKENIZER,
    WEIGHTS,
    WORDS,
    read_network,
)

MOST_BYTES: Final = 24_000_000
MOST_BYTES_OF_A_FILE: Final = 100_000_000
GATE: Final = -2.0
FIRST_WEIGHS: Final = 0.0
# The head and the few token types are small, and the score hangs on them.
_KEPT_WHOLE: Final = (
    "classifier.weight",
    "embeddings.token_type_embeddings.weight",
    POSITIONS,
    DISTANCES,
)
_WORDS: Final = "embeddings.word_embeddings.weight"
_UNUSED: Final = ("position_ids", "token_type_ids", "pooler.dense.weight", "pooler.dense.bias")


@lru_cache(maxsize=1)
def _unreached_words(tokenizer: Path) -> frozenset[int]:
    """Return the rows that no text reaches, those of special tokens aside.

    BERT's tokenizer cuts around each sign and ideograph before it looks words up. So no text has a
    word with one beside anything else: `##。`, or `[unused5]`, a place for words of one's own.
    """
    known = Tokenizer.from_file(str(tokenizer))
    words = known.get_vocab(with_added_tokens=False)
    specials = known.get_added_tokens_decoder()
    # What goes on with a word stands behind the beginning of one.
    texts = {row: re.sub("^##", "a", word) for word, row in words.items() if row not in specials}
    normal = known.normalizer.normalize_str(" ".join(texts.values()))
    whole = {text for text, _ in known.pre_tokenizer.pre_tokenize_str(normal)}
    return frozenset(row for row, text in texts.items() if text not in whole)


AS_BERT: Final = (
    ("attention.attn.q.", "attention.self.query."),
    ("attention.attn.k.", "attention.self.key."),
    ("attention.attn.v.", "attention.self.value."),
    ("attention.attn.o.", "attention.output.dense."),
    ("attention.LayerNorm.", "attention.output.LayerNorm."),
    ("types.weight", "embeddings.token_type_embeddings.weight"),
)
# MPNet has four special tokens in front of BERT's words, and two positions that no token has.
_WORDS_BEFORE: Final = 4
_POSITIONS_BEFORE: Final = 2
_SPECIAL_TOKENS: Final = {"[CLS]": 0, "[PAD]": 1, "[SEP]": 2}


def as_bert(state_dict: Mapping[str, Any], tokenizer: Path) -> dict[str, Any]:
    """Return an MPNet's weights by BERT's names, its words in the order of BERT's `tokenizer`."""
    renamed = {_berts_name(name): np.asarray(value) for name, value in state_dict.items()}
    vocabulary = json.loads(tokenizer.read_text(encoding="utf-8"))["model"]["vocab"]
    words = renamed[_WORDS][_WORDS_BEFORE : _WORDS_BEFORE + len(vocabulary)].copy()
    for token, row in _SPECIAL_TOKENS.items():
        words[vocabulary[token]] = renamed[_WORDS][row]
    renamed[_WORDS], renamed[POSITIONS] = words, renamed[POSITIONS][_POSITIONS_BEFORE:]
    return renamed


def _berts_name(name: str) -> str:
    name = name.removeprefix("bert.")
    for before, after in AS_BERT:
        name = name.replace(before, after)
    return name


def save_verifier(
    state_dict: Mapping[str, Any], config: Mapping[str, Any], tokenizer: Path, directory: Path
) -> None:
    """Write a trained first network for `read_verifier`, its large matrices in eight bits.

    `state_dict` is that of a BERT with `classifier.weight` (1, hidden) and `classifier.bias`, names
    with or without `bert.` in front; `config` is BERT's, with `name` for people and `max_tokens`,
    beyond which positions are not kept. Raises ModelError over MOST_BYTES.
    """
    weights = {name.removeprefix("bert."): np.asarray(value) for name, value in state_dict.items()}
    packed = _packed(weights, config, tokenizer)
    _write_config(config, packed, directory)
    _write(directory / WEIGHTS, packed)
    if tokenizer != directory / TOKENIZER:
        shutil.copyfile(tokenizer, directory / TOKENIZER)
    _refuse_large(directory, FILES, MOST_BYTES)


def save_second(
    state_dict: Mapping[str, Any],
    config: Mapping[str, Any],
    first: Path,
    *,
    gate: float = GATE,
    first_weighs: float = FIRST_WEIGHS,
) -> Path:
    """Write a trained second network, an MPNet, for the first one in `first`; return its folder.

    See embeddings/verify/files.py. Raises ModelError over MOST_BYTES_OF_A_FILE.
    """
    directory, tokenizer = first / SECOND, first / TOKENIZER
    settings = {
        "model_type": "bert",
        "first": read_network(first, FILES).digest,
        "gate": gate,
        "first_weighs": first_weighs,
    }
    whole = _packed(as_bert(state_dict, tokenizer), config, tokenizer)
    _write_config({**config, **settings}, whole, directory)
    words = {name: whole.pop(name) for name in list(whole) if name.startswith(_WORDS)}
    for name, part in ((WEIGHTS, whole), (WORDS, words)):
        _write(directory / name, part)
        _refuse_large(directory, (name,), MOST_BYTES_OF_A_FILE)
    return directory


def _packed(
    weights: Mapping[str, Any], config: Mapping[str, Any], tokenizer: Path
) -> dict[str, Any]:
    """Return the tensors of a file: large matrices in eight bits, each with its scales."""
    packed: dict[str, Any] = {}
    for name, value in weights.items():
        if name.endswith(_UNUSED):
            continue
        floats = np.ascontiguousarray(value, dtype=np.float32)
        if name == POSITIONS:
            floats = np.ascontiguousarray(floats[: int(config["max_tokens"])])
        if floats.ndim == 2 and name not in _KEPT_WHOLE:
            if name == _WORDS:  # they are looked up, not multiplied
                floats = floats.copy()
                floats[[row for row in _unreached_words(tokenizer) if row < len(floats)]] = 0
            eight = quantised(floats)
            values = eight.values if name == _WORDS else compressible(eight.values)
            packed[name], packed[name + SCALE] = values, eight.scale
        else:
            packed[name] = floats
    return packed


def _write_config(config: Mapping[str, Any], packed: Mapping[str, Any], directory: Path) -> None:
    written = {**config, "max_position_embeddings": len(packed[POSITIONS])}
    directory.mkdir(parents=True, exist_ok=True)
    (directory / CONFIG).write_text(json.dumps(written, indent=2, sort_keys=True) + "\n")


def _write(file: Path, tensors: Mapping[str, Any]) -> None:
    save_file(dict(tensors), file)
    file.chmod(0o644)  # the library makes it unreadable for others


def _refuse_large(directory: Path, names: Sequence[str], most: int) -> None:
    size = sum((directory / name).stat().st_size for name in names)
    if size > most:
        raise ModelError(f"{directory} holds {size} bytes, at most {most} are to be shipped")
