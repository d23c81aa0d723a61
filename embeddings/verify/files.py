"""The cross-encoder on disk: config.json, model.safetensors, tokenizer.json in one directory.

Large matrices are stored in eight bits with a float scale for each output, and multiplied in seven;
what is small is stored as it is. The digest covers all three files and how scores are made of them.
"""

import hashlib
import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from safetensors.numpy import load_file

from embeddings.encoder.bert_graph import Quantised, Weight
from embeddings.encoder.model_files import ModelError
from embeddings.verify.guards import VERSION
from embeddings.verify.recipe import MIDDLE, WEIGHT

CONFIG: Final = "config.json"
WEIGHTS: Final = "model.safetensors"
TOKENIZER: Final = "tokenizer.json"
FILES: Final = (CONFIG, TOKENIZER, WEIGHTS)
SCALE: Final = ".scale"
POSITIONS: Final = "embeddings.position_embeddings.weight"
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
    missing = [name for name in FILES if not (directory / name).is_file()]
    if missing:
        raise ModelError(f"{directory} holds no {' and no '.join(missing)}")
    try:
        digest = hashlib.sha256(_RECIPE.encode())
        for name in FILES:
            with (directory / name).open("rb") as file:
                found = hashlib.file_digest(file, "sha256").hexdigest()
            digest.update(json.dumps([name, found]).encode())
        config = json.loads((directory / CONFIG).read_text(encoding="utf-8"))
        packed = load_file(directory / WEIGHTS)
        weights: dict[str, Weight] = {
            name: Quantised(values, packed[name + SCALE]) if name + SCALE in packed else values
            for name, values in packed.items()
            if not name.endswith(SCALE)
        }
        return VerifierFiles(
            name=str(config["name"]),
            digest=digest.hexdigest(),
            config=config,
            weights=weights,
            tokenizer=(directory / TOKENIZER).read_text(encoding="utf-8"),
            max_tokens=len(packed[POSITIONS]),
        )
    except Exception as error:  # damaged files raise whatever the library trips over first
        raise unreadable(directory, error) from error


def unreadable(directory: Path, error: Exception) -> ModelError:
    """Return the error that says in one line why a verifier cannot be read."""
    line = f"{type(error).__name__}: {error}".strip().partition("\n")[0]
    return ModelError(f"cannot read the verifier in {directory}: {line}")
