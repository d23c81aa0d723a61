"""A model's files: where they lie, what kind of model it is, and how its makers sample.

Needs no torch, so the server can ask as well as the engine.
"""

from collections.abc import Sequence
from pathlib import Path
from typing import Any, Literal

from backend.models.config import ModelLoadError, first_line, read_json
from backend.scheduler.request import SamplingParams
from backend.settings import AdapterSource

MOST_ADAPTERS = 8
"""All are in memory together, and one product has them all."""

_HUB_FILES = ["*.json", "*.safetensors", "*.jinja"]
# The same weights once more, in the format of Mistral's own code or of the model's makers.
_HUB_COPIES = ["consolidated*.safetensors", "original/*", "metal/*"]


def resolve_model(model: str) -> Path:
    """Return the directory of ``model``, a directory or a hub id that is downloaded if need be.

    Raises ModelLoadError.
    """
    path = Path(model).expanduser()
    if path.is_dir():
        _refuse_pipes(path)
        return path
    if path.exists() or path.is_absolute() or model.startswith((".", "~")) or model.count("/") > 1:
        raise ModelLoadError(f"{model}: no such directory")
    # Imported here because it is slow to import and a model directory does not need it.
    from huggingface_hub import snapshot_download  # noqa: PLC0415
    from huggingface_hub.errors import HFValidationError  # noqa: PLC0415

    try:
        return Path(
            snapshot_download(model, allow_patterns=_HUB_FILES, ignore_patterns=_HUB_COPIES)
        )
    except (OSError, ValueError, HFValidationError) as error:
        problem = f"no such directory, and the hub does not provide it: {first_line(error)}"
        raise ModelLoadError(f"{model}: {problem}") from error


def _refuse_pipes(directory: Path) -> None:
    """Raise ModelLoadError for what is read as a file and is none: a pipe would be waited for."""
    try:
        for pattern in (*_HUB_FILES, *(f"*/{each}" for each in _HUB_FILES)):
            for path in directory.glob(pattern):
                if path.exists() and not path.is_file():
                    raise ModelLoadError(f"{path}: no regular file")
    except OSError as error:
        raise ModelLoadError(f"{directory}: {error}") from error


def check_adapters(adapters: Sequence[AdapterSource], model: str | None = None) -> None:
    """Raise ModelLoadError where these are not directories of adapters with names of their own.

    ``model`` is the base's name, where it has one.
    """
    if len(adapters) > MOST_ADAPTERS:
        raise ModelLoadError(f"lora: at most {MOST_ADAPTERS} adapters, got {len(adapters)}")
    names: set[str] = set()
    for name, path in adapters:
        where = f"lora {name}={path}"
        if name in names:
            raise ModelLoadError(f"{where}: another adapter has this name")
        if name == model:
            raise ModelLoadError(f"{where}: the model itself has this name")
        names.add(name)
        directory = Path(path).expanduser()
        if not directory.is_dir():
            raise ModelLoadError(f"{where}: no such directory")
        _refuse_pipes(directory)
        if not (directory / "adapter_config.json").is_file():
            raise ModelLoadError(f"{where}: no adapter: there is no adapter_config.json")


def kind_of_model(directory: Path) -> Literal["generator", "embedder", "reranker"]:
    """Return what the model in ``directory`` does, by its files. Raises ModelLoadError."""
    if (directory / "modules.json").is_file():
        settings = read_json(directory / "config_sentence_transformers.json", optional=True)
        return "reranker" if settings.get("model_type") == "CrossEncoder" else "embedder"
    names = read_json(directory / "config.json", optional=True).get("architectures")
    first = names[0] if isinstance(names, list) and names else ""
    return "reranker" if str(first).endswith("ForSequenceClassification") else "generator"


def recommended_sampling(directory: Path, source: str = "auto") -> SamplingParams:
    """Return what the file says of sampling, OpenAI's defaults for what it lacks.

    Source ``none`` leaves the file out. ``do_sample: false`` recommends greedy decoding. Raises
    ModelLoadError naming file and key.
    """
    path = directory / "generation_config.json"
    config = read_json(path, optional=True) if source == "auto" else {}
    if config.get("do_sample") is False:
        return SamplingParams(temperature=0.0)
    default = SamplingParams()
    return SamplingParams(
        temperature=_number(path, config, "temperature", default.temperature, 2.0),
        top_p=_number(path, config, "top_p", default.top_p, 1.0),
        top_k=int(_number(path, config, "top_k", default.top_k, float("inf"))),
        min_p=_number(path, config, "min_p", default.min_p, 1.0),
        repetition_penalty=_number(path, config, "repetition_penalty", 1.0, float("inf")) or 1.0,
    )


def _number(path: Path, config: dict[str, Any], key: str, default: float, most: float) -> float:
    value = config.get(key)
    if value is None:
        return default
    if isinstance(value, bool) or not isinstance(value, int | float) or not 0 <= value <= most:
        raise ModelLoadError(f"{path}: {key}: expected a number of 0 to {most:g}, got {value!r}")
    return float(value)
