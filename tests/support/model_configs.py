"""The shape of a checkpoint, as the engine reads it."""

from pathlib import Path

from backend.models.config import DecoderConfig, read_json
from backend.models.families import parse_config


def load_config(directory: Path) -> DecoderConfig:
    path = directory / "config.json"
    return parse_config(read_json(path), str(path))
