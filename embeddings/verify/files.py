"""The cross-encoder on disk: config.json, model.safetensors, tokenizer.json in one directory.

Large matrices are stored in eight bits with a float scale for each output, and multiplied in seven;
what is small is stored as it is. The digest covers all three files and how scores are made of them.
"""

import hashlib
import json
import shutil
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import numpy as np
from safetensors.numpy import load_file, save_file

from embeddings.encoder.bert_graph import Quantised, Weight, quantised
from embeddings.encoder.model_files import ModelError
from embeddings.verify.fusion import MIDDLE, WEIGHT
from embeddings.verify.guards import VERSION

MOST_BYTES: Final = 24_000_000

_CONFIG: Final = "config.json"
_WEIGHTS: Final = "model.safetensors"
_TOKENIZER: Final = "tokenizer.json"
_FILES: Final = (_CONFIG, _TOKENIZER, _WEIGHTS)
_SCALE: Final = ".scale"
_POSITIONS: Final = "embeddings.position_embeddings.weight"
# The head and the few token types are small, and the score hangs on them.
_KEPT_WHOLE: Final = ("classifier.weight", "embeddings.token_type_embeddings.weight", _POSITIONS)
_UNUSED: Final = ("position_ids", "token_type_ids", "pooler.dense.weight", "pooler.dense.bias")
# Part of the digest: what else a calibration of these files' scores depends on.
_RECIPE: Final = (
    "sigmoid of the logit, logsumexp over tokens less the logarithm of their number, pairs of four "
    f"token types; plus {WEIGHT:g} times the cosine over {MIDDLE:g}; guards {VERSION}"
)


@dataclass(frozen=True, slots=True)
class VerifierFiles:
    """What a directory holds, read. `max_tokens` is the longest pair, special tokens included."""

    name: str
    digest: str
    config: Mapping[str, Any]
    weights: Mapping[str, Weight]
    tokenizer: str
    max_tokens: int


def read_verifier(directory: Path) -> VerifierFiles:
    """Read a verifier's files. Raises ModelError."""
    missing = [name for name in _FILES if not (directory / name).is_file()]
    if missing:
        raise ModelError(f"{directory} holds no {' and no '.join(missing)}")
    try:
        digest = hashlib.sha256(_RECIPE.encode())
        for name in _FILES:
            with (directory / name).open("rb") as file:
                found = hashlib.file_digest(file, "sha256").hexdigest()
            digest.update(json.dumps([name, found]).encode())
        config = json.loads((directory / _CONFIG).read_text(encoding="utf-8"))
        weights = _unpacked(load_file(directory / _WEIGHTS))
        return VerifierFiles(
            name=str(config["name"]),
            digest=digest.hexdigest(),
            config=config,
            weights=weights,
            tokenizer=(directory / _TOKENIZER).read_text(encoding="utf-8"),
            max_tokens=len(_whole(weights[_POSITIONS])),
        )
    except Exception as error:  # damaged files raise whatever the library trips over first
        raise ModelError(f"cannot read {directory}: {_line(error)}") from error


def save_verifier(
    state_dict: Mapping[str, Any], config: Mapping[str, Any], tokenizer: Path, directory: Path
) -> None:
    """Write a trained cross-encoder for `read_verifier`, its large matrices in eight bits.

    `state_dict` is that of a BERT with `classifier.weight` (1, hidden) and `classifier.bias`, names
    with or without `bert.` in front; `config` is BERT's, with `name` for people and `max_tokens`,
    beyond which positions are not kept. Raises ModelError over MOST_BYTES.
    """
    weights = {name.removeprefix("bert."): np.asarray(value) for name, value in state_dict.items()}
    packed: dict[str, Any] = {}
    for name, value in weights.items():
        if name.endswith(_UNUSED):
            continue
        floats = np.ascontiguousarray(value, dtype=np.float32)
        if name == _POSITIONS:
            floats = np.ascontiguousarray(floats[: int(config["max_tokens"])])
        if floats.ndim == 2 and name not in _KEPT_WHOLE:
            eight = quantised(floats)
            packed[name], packed[name + _SCALE] = eight.values, eight.scale
        else:
            packed[name] = floats
    written = {**config, "max_position_embeddings": len(packed[_POSITIONS])}
    directory.mkdir(parents=True, exist_ok=True)
    save_file(packed, directory / _WEIGHTS)
    (directory / _WEIGHTS).chmod(0o644)  # the library makes it unreadable for others
    (directory / _CONFIG).write_text(json.dumps(written, indent=2, sort_keys=True) + "\n")
    if tokenizer != directory / _TOKENIZER:
        shutil.copyfile(tokenizer, directory / _TOKENIZER)
    size = sum((directory / name).stat().st_size for name in _FILES)
    if size > MOST_BYTES:
        raise ModelError(f"{directory} holds {size} bytes, at most {MOST_BYTES} are to be shipped")


def _unpacked(packed: Mapping[str, Any]) -> dict[str, Weight]:
    weights: dict[str, Weight] = {}
    for name, values in packed.items():
        if name.endswith(_SCALE):
            continue
        scale = packed.get(name + _SCALE)
        weights[name] = values if scale is None else Quantised(values, scale)
    return weights


def _whole(weight: Weight) -> Any:
    return weight.values if isinstance(weight, Quantised) else weight


def _line(error: Exception) -> str:
    return f"{type(error).__name__}: {error}".strip().partition("\n")[0]
