"""Where a model's files lie. Needs no torch, so the server can ask as well as the engine."""

from pathlib import Path

from backend.models.config import ModelLoadError

_HUB_FILES = ["*.json", "*.safetensors", "*.jinja"]


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
        return Path(snapshot_download(model, allow_patterns=_HUB_FILES))
    except (OSError, ValueError, HFValidationError) as error:
        reason = str(error).splitlines()[0] if str(error) else type(error).__name__
        raise ModelLoadError(
            f"{model}: no such directory, and the hub does not provide it: {reason}"
        ) from error


def _refuse_pipes(directory: Path) -> None:
    """Raise ModelLoadError for what is read as a file and is none: a pipe would be waited for."""
    try:
        for pattern in (*_HUB_FILES, *(f"*/{each}" for each in _HUB_FILES)):
            for path in directory.glob(pattern):
                if path.exists() and not path.is_file():
                    raise ModelLoadError(f"{path}: no regular file")
    except OSError as error:
        raise ModelLoadError(f"{directory}: {error}") from error


def is_embedding_model(directory: Path) -> bool:
    """Whether ``directory`` has the layout of sentence-transformers."""
    return (directory / "modules.json").is_file()
