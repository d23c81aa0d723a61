"""A gateway key as a line of a file: NAME SHA256, and then attributes such as ``models=gpt-4o*``.

A key is 256 random bits, so its plain SHA-256 tells nothing: a slow hash is for passwords.
Law: no message quotes a word of a line. Somebody may have put a key there instead of its digest.
"""

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from difflib import get_close_matches
from functools import lru_cache
from typing import Any

from gateway.protocol.cache_status import Reason
from gateway.protocol.errors import ClientError
from policies.policy import glob_test

NAME = re.compile(r"[^\s#!]{1,64}")
_DIGEST = re.compile(r"[0-9a-fA-F]{64}")
_READING = frozenset({"GET", "HEAD", "DELETE"})
"""Methods of requests that no model answers."""

_test_of = lru_cache(maxsize=1024)(glob_test)


class KeyLineError(ValueError):
    """A line, or one attribute of it, is wrong; the text says what was expected."""


class ForbiddenError(ClientError):
    """The key may not be used for this request."""

    reason = Reason.MODEL_NOT_ALLOWED

    def __init__(self, message: str, param: str | None = None) -> None:
        super().__init__(403, message, param=param, code="model_not_allowed")


@dataclass(frozen=True, slots=True)
class Key:
    """A key that may be used here, and its holder's ``name``.

    ``models`` are globs of the models that it may name; empty allows any. ``expires`` is in seconds
    since the epoch.
    """

    name: str
    models: tuple[str, ...] = ()
    expires: float | None = None

    def check_model(self, model: str) -> None:
        """Raise ForbiddenError unless the key may use this model."""
        if self.models and not _test_of(self.models)(model):
            allowed = ", ".join(self.models)
            raise ForbiddenError(
                f"This API key may not use this model. It may use: {allowed}.", "model"
            )

    def check_other_path(self, method: str) -> None:
        """Raise ForbiddenError if a request to a path that is passed through may name a model."""
        if self.models and method not in _READING:
            raise ForbiddenError(
                "This API key is restricted to some models, so it may not use this path: "
                "its requests are not read here."
            )


def read_key(words: Sequence[str]) -> tuple[bytes, Key]:
    """Read the words of a line; return the digest and the key. Raises KeyLineError."""
    if len(words) < 2 or not NAME.fullmatch(words[0]) or not _DIGEST.fullmatch(words[1]):
        raise KeyLineError("expected NAME and the SHA-256 of a key (64 hex digits)")
    name, digest, *rest = words
    found: dict[str, Any] = {}
    for word in rest:
        attribute, _, value = word.partition("=")
        if attribute not in ATTRIBUTES:
            near = get_close_matches(attribute, ATTRIBUTES, n=1)
            known = near[0] if near else ", ".join(ATTRIBUTES)
            raise KeyLineError(f"expected attributes such as {known}, each as name=value")
        if attribute in found:
            raise KeyLineError(f"{attribute} is there twice")
        try:
            found[attribute] = ATTRIBUTES[attribute].read(value)
        except KeyLineError as error:
            raise KeyLineError(f"{attribute}: {error}") from None
    return bytes.fromhex(digest), Key(name, **found)


def format_attributes(key: Key) -> Mapping[str, str]:
    """Return the attributes that a key has, as a line has them."""
    values = {name: getattr(key, name) for name in ATTRIBUTES}
    return {
        name: ATTRIBUTES[name].write(value)
        for name, value in values.items()
        if value is not None and value != ()
    }


def format_key(digest: bytes, key: Key) -> str:
    """Return the line of a key."""
    attributes = (f"{name}={value}" for name, value in format_attributes(key).items())
    return " ".join((key.name, digest.hex(), *attributes))


@dataclass(frozen=True, slots=True)
class Attribute:
    """How an attribute's value is read, which raises KeyLineError, and how it is written."""

    read: Callable[[str], Any]
    write: Callable[[Any], str]


def _read_models(text: str) -> tuple[str, ...]:
    models = tuple(text.split(","))
    if not all(models) or any(char.isspace() or char == "#" for char in text):
        raise KeyLineError("expected names or globs of models, such as gpt-4o*,claude-*")
    return models


def _read_time(text: str) -> float:
    try:
        when = datetime.fromisoformat(text)
    except ValueError:
        raise KeyLineError("expected a date in UTC: 2027-01-31 or 2027-01-31T12:00Z") from None
    return (when if when.tzinfo else when.replace(tzinfo=UTC)).timestamp()


def format_time(seconds: float) -> str:
    """Return a time as a line has it."""
    return datetime.fromtimestamp(seconds, UTC).strftime("%Y-%m-%dT%H:%M:%SZ")


ATTRIBUTES: Mapping[str, Attribute] = {
    "models": Attribute(_read_models, ",".join),
    "expires": Attribute(_read_time, format_time),
}
"""The attributes of a line, which are fields of ``Key``."""
