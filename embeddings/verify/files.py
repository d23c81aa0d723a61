"""The verifier on disk: config.json, model.safetensors, tokenizer.json in one directory.

Large matrices are stored in eight bits with a float scale for each output, and multiplied in seven;
what is small is stored as it is. The digest covers all three files and how scores are made of them.

A second network reads what the first one does not refuse. Its directory (directories.py) holds no
tokenizer: it reads the first one's tokens. Its config.json has three members more:

    first          digest of the first network's files; it goes with no other
    gate           the least logit of the first at which it reads a pair
    first_weighs   how much of the first's logit its own logit gets
"""

import hashlib
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from safetensors.numpy import load_file

from embeddings.encoder.bert_graph import Quantised, Weight
from embeddings.encoder.model_files import ModelError
from embeddings.verify.directories import second_directory
from embeddings.verify.guards import VERSION
from embeddings.verify.recipe import MIDDLE, REFUSED, WEIGHT, WORDING

CONFIG: Final = "config.json"
WEIGHTS: Final = "model.safetensors"
TOKENIZER: Final = "tokenizer.json"
FILES: Final = (CONFIG, TOKENIZER, WEIGHTS)
WORDS: Final = "words.safetensors"
FILES_OF_SECOND: Final = (CONFIG, WEIGHTS, WORDS)
"""The word embeddings are a file of theirs: no file is larger than what code hosts take."""
SCALE: Final = ".scale"
_WEIGHTS: Final = ".safetensors"
POSITIONS: Final = "embeddings.position_embeddings.weight"
# Part of the digest: what else a calibration of these files' scores depends on.
_RECIPE: Final = (
    "sigmoid of the logit, logsumexp over tokens less the logarithm of their number, pairs of four "
    f"token types; plus {WEIGHT:g} times the cosine over {MIDDLE:g}; guards {VERSION}"
    + (f"; {WORDING:g} more times it for words that are not shared" if WORDING else "")
)
_SECONDS_RECIPE: Final = f"less {REFUSED:g} below the gate"


@dataclass(frozen=True, slots=True)
class NetworkFiles:
    """One network's files, read. `max_tokens` is the longest pair, special tokens included."""

    name: str
    digest: str
    config: Mapping[str, Any]
    weights: Mapping[str, Weight]
    max_tokens: int


@dataclass(frozen=True, slots=True)
class VerifierFiles:
    """A verifier's files, read. `digest` is of all that shapes a score.

    `fault` says why a second network that is there is not used.
    """

    first: NetworkFiles
    second: NetworkFiles | None
    tokenizer: str
    gate: float = 0.0
    first_weighs: float = 0.0
    fault: str = ""

    @property
    def name(self) -> str:
        return self.first.name if self.second is None else self.second.name

    @property
    def digest(self) -> str:
        if self.second is None:
            return self.first.digest
        both = f"{self.first.digest} {self.second.digest} {_SECONDS_RECIPE}"
        return hashlib.sha256(both.encode()).hexdigest()


def read_verifier(directory: Path, *, alone: bool = False) -> VerifierFiles:
    """Read a verifier's files, `alone` without a second network. Raises ModelError.

    A second network that is damaged, or made for another first one, is passed over: `fault` says
    why. The first one alone has a digest and a calibration, so what it serves keeps its budget.
    """
    first = read_network(directory, FILES)
    tokenizer = _text(directory / TOKENIZER)
    where = None if alone else second_directory(directory)
    if where is None:
        return VerifierFiles(first, None, tokenizer)
    try:
        second = _second(where, first, directory)
        gate, weighs = (float(second.config[name]) for name in ("gate", "first_weighs"))
    except ModelError as error:
        return VerifierFiles(first, None, tokenizer, fault=f"{error}; it is not used")
    except (KeyError, TypeError, ValueError) as error:
        fault = f"{unreadable(where, error)}; it is not used"
        return VerifierFiles(first, None, tokenizer, fault=fault)
    return VerifierFiles(first, second, tokenizer, gate, weighs)


def _second(where: Path, first: NetworkFiles, directory: Path) -> NetworkFiles:
    """Return the second network of a verifier. Raises ModelError if it is another one's."""
    second = read_network(where, FILES_OF_SECOND)
    if second.config.get("first") != first.digest:
        raise ModelError(f"{where} was made for another verifier than {directory}")
    return second


def read_network(directory: Path, names: Sequence[str]) -> NetworkFiles:
    """Read one network's files, of these names. Raises ModelError."""
    missing = [name for name in names if not (directory / name).is_file()]
    if missing:
        raise ModelError(f"{directory} holds no {' and no '.join(missing)}")
    try:
        digest = hashlib.sha256(_RECIPE.encode())
        for name in names:
            with (directory / name).open("rb") as file:
                found = hashlib.file_digest(file, "sha256").hexdigest()
            digest.update(json.dumps([name, found]).encode())
        config = json.loads(_text(directory / CONFIG))
        packed: dict[str, Any] = {}
        for name in names:
            if name.endswith(_WEIGHTS):
                packed |= load_file(directory / name)
        weights: dict[str, Weight] = {
            name: Quantised(values, packed[name + SCALE]) if name + SCALE in packed else values
            for name, values in packed.items()
            if not name.endswith(SCALE)
        }
        return NetworkFiles(
            name=str(config["name"]),
            digest=digest.hexdigest(),
            config=config,
            weights=weights,
            max_tokens=len(packed[POSITIONS]),
        )
    except Exception as error:  # damaged files raise whatever the library trips over first
        raise unreadable(directory, error) from error


def _text(file: Path) -> str:
    try:
        return file.read_text(encoding="utf-8")
    except (OSError, ValueError) as error:
        raise unreadable(file.parent, error) from error


def unreadable(directory: Path, error: Exception) -> ModelError:
    """Return the error that says in one line why a verifier cannot be read."""
    line = f"{type(error).__name__}: {error}".strip().partition("\n")[0]
    return ModelError(f"cannot read the verifier in {directory}: {line}")
