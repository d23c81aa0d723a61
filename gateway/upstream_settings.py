"""Settings of the upstreams: their long form, one mapping each."""

import re
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import Self
from urllib.parse import urlsplit

from pydantic import BaseModel, ConfigDict, Field, field_validator, model_validator

from gateway.units import Seconds

_NAME = re.compile(r"[A-Za-z0-9._:/-]{1,128}")
_VARIABLE = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")
_ONE_WORD = re.compile(r"\S+")
_PATH = re.compile(r"/[!-~]*")


class UpstreamSettings(BaseModel):
    """One upstream. A time that is not given is that of all upstreams."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    url: str
    name: str | None = None
    models: tuple[str, ...] = Field(default=("*",), min_length=1)
    tier: int = Field(default=1, ge=1, le=100)
    weight: float = Field(default=1.0, gt=0, le=1000)
    api_key_file: Path | None = None
    api_key_env: str | None = Field(default=None, repr=False)
    max_concurrency: int | None = Field(default=None, ge=1)
    requests_per_minute: int | None = Field(default=None, ge=1, le=1_000_000)
    connect_timeout: Seconds | None = Field(default=None, gt=0)
    read_timeout: Seconds | None = Field(default=None, gt=0)
    first_token_timeout: Seconds | None = Field(default=None, gt=0)
    between_tokens_timeout: Seconds | None = Field(default=None, gt=0)
    probe: str = "auto"
    shares_prefill: bool = False
    kv_events: bool = False

    @field_validator("url")
    @classmethod
    def _base_url(cls, value: str) -> str:
        return base_url(value)

    @field_validator("name")
    @classmethod
    def _word(cls, value: str | None) -> str | None:
        if value is not None and not _NAME.fullmatch(value):
            raise ValueError("expected a word of letters, digits and . _ : / - for a name")
        return value

    @field_validator("api_key_env")
    @classmethod
    def _variable(cls, value: str | None) -> str | None:
        if value is not None and not _VARIABLE.fullmatch(value):
            # What stands here by mistake may be a key.
            raise ValueError("expected the name of an environment variable that holds the key")
        return value

    @field_validator("probe")
    @classmethod
    def _path_or_word(cls, value: str) -> str:
        if value not in ("auto", "off") and not _PATH.fullmatch(value):
            raise ValueError(f"expected auto, off or a path such as /health, got {value!r}")
        return value

    @model_validator(mode="after")
    def _one_key(self) -> Self:
        if self.api_key_file is not None and self.api_key_env is not None:
            raise ValueError("expected api_key_file or api_key_env, not both")
        return self

    @property
    def called(self) -> str:
        """Its name: what was given, else host and port."""
        return self.name or urlsplit(self.url).netloc


def base_url(value: str) -> str:
    """Return an OpenAI-style base URL without a last slash. Raises ValueError."""
    url = value.rstrip("/")
    place = url.partition("//")[2].partition("/")[0]
    if "@" in place:
        raise ValueError(
            f"expected no user name or password in the URL of {place.rpartition('@')[2]}: "
            "the client's own Authorization is passed on"
        )
    try:
        parts = urlsplit(url)
        well_formed = parts.hostname and parts.port != 0 and _ONE_WORD.fullmatch(url)
    except ValueError:
        well_formed = None
    if not well_formed or parts.scheme not in ("http", "https"):
        raise ValueError(f"expected a URL such as http://127.0.0.1:8000/v1, got {url!r}")
    if parts.query or parts.fragment:  # which may hold a key
        raise ValueError(f"expected no query in the URL of {parts.hostname}: it ends in /v1")
    if not parts.path.endswith("/v1"):
        raise ValueError(f"expected a base URL that ends in /v1, got {url!r}")
    return url


def named_apart(upstreams: Sequence[UpstreamSettings]) -> None:
    """Refuse two of one name. Raises ValueError."""
    counted = Counter(upstream.called for upstream in upstreams)
    twice = next((name for name, times in counted.items() if times > 1), None)
    if twice is not None:
        raise ValueError(f"expected a name of its own for each upstream, {twice!r} is there twice")
