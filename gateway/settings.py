"""Settings of the gateway: flags over REFRAIN_* environment over refrain.yaml over defaults."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import yaml
from pydantic import BaseModel, ConfigDict, Field, ValidationError, field_validator

ENVIRONMENT_PREFIX = "REFRAIN_"


class SettingsError(Exception):
    """A setting is missing, unknown or wrong; the message names where it came from."""


class Settings(BaseModel):
    """Everything `refrain serve` can be told. Sizes are bytes, times seconds."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    upstream: tuple[str, ...] = Field(default=(), description="OpenAI-style base URL, ends in /v1")
    host: str = "127.0.0.1"
    port: int = Field(default=8080, ge=0, le=65535)
    data_dir: Path = Path(".refrain")
    policy: Path | None = None
    workers: int = Field(default=1, ge=1, le=64)
    log_level: str = Field(default="info", pattern="^(debug|info|warning|error)$")
    max_body_bytes: int = Field(default=32 * 2**20, ge=1024)
    max_answer_bytes: int = Field(default=8 * 2**20, ge=1024)
    store_bytes: int = Field(default=2**30, ge=2**20)
    memory_bytes: int = Field(default=128 * 2**20, ge=0)
    embeddings_model: str | None = None
    embeddings_device: str = Field(default="auto", pattern="^(auto|cpu|cuda)$")
    semantic_timeout: float = Field(default=0.25, gt=0)
    connect_timeout: float = Field(default=10.0, gt=0)
    read_timeout: float = Field(default=600.0, gt=0)

    @field_validator("upstream", mode="before")
    @classmethod
    def _one_or_more(cls, value: object) -> object:
        return value.split() if isinstance(value, str) else value

    @field_validator("upstream")
    @classmethod
    def _base_urls(cls, value: tuple[str, ...]) -> tuple[str, ...]:
        urls = tuple(url.rstrip("/") for url in value)
        for url in urls:
            parts = urlsplit(url)
            if parts.scheme not in ("http", "https") or not parts.hostname:
                raise ValueError(f"expected a URL such as http://127.0.0.1:8000/v1, got {url!r}")
            if not parts.path.endswith("/v1"):
                raise ValueError(f"expected a base URL that ends in /v1, got {url!r}")
        return urls


def load_settings(
    flags: Mapping[str, Any], environment: Mapping[str, str], file: Path | None
) -> Settings:
    """Merge the sources. ``flags`` holds only what was given. Raises SettingsError."""
    merged: dict[str, Any] = {}
    origin: dict[str, str] = {}
    for source, values in (
        (str(file), _read(file) if file is not None else {}),
        ("environment", _from_environment(environment)),
        ("command line", flags),
    ):
        for name, value in values.items():
            merged[name] = value
            origin[name] = source
    try:
        return Settings.model_validate(merged)
    except ValidationError as error:
        raise SettingsError(_explain(error, origin)) from None


def _read(file: Path) -> dict[str, Any]:
    try:
        text = file.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise SettingsError(f"{file}: cannot be read: {error}") from None
    try:
        values = yaml.safe_load(text)
    except yaml.YAMLError as error:
        raise SettingsError(f"{file}: not valid YAML: {' '.join(str(error).split())}") from None
    if values is None:
        return {}
    if not isinstance(values, dict) or not all(isinstance(name, str) for name in values):
        raise SettingsError(f"{file}: expected a mapping of settings, got {type(values).__name__}")
    return values


def _from_environment(environment: Mapping[str, str]) -> dict[str, str]:
    known = {ENVIRONMENT_PREFIX + name.upper(): name for name in Settings.model_fields}
    return {known[name]: value for name, value in environment.items() if name in known and value}


def _explain(error: ValidationError, origin: Mapping[str, str]) -> str:
    lines = []
    for problem in error.errors(include_url=False):
        key = ".".join(str(part) for part in problem["loc"])
        name = str(problem["loc"][0])
        where = origin.get(name, "settings")
        shown = ENVIRONMENT_PREFIX + name.upper() if where == "environment" else key
        if problem["type"] == "extra_forbidden":
            known = ", ".join(sorted(Settings.model_fields))
            lines.append(f"{where}: unknown key '{shown}'; known keys: {known}")
        else:
            message = problem["msg"].removeprefix("Value error, ")
            lines.append(f"{where}: {shown}: {message}")
    return "\n".join(lines)
