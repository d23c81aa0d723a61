"""Which entries the operator means: by key, scope, model, tag, rule, or all.

Law: nothing is selected by accident. An empty selection, an unknown field or a wrong type is
refused with the field's name; several fields must all hold.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from fnmatch import fnmatchcase
from typing import Any

from gateway.cache.entry import Entry
from gateway.protocol.errors import UnauthorizedError

HASH_BYTES = 32
_HASHES = ("key", "scope")
_TEXTS = ("model", "tag", "rule")
FIELDS = (*_HASHES, *_TEXTS, "all")


class SelectionError(ValueError):
    """The selection is not one; ``field`` is the field that is wrong."""

    def __init__(self, field: str, expected: str) -> None:
        super().__init__(f"{field}: expected {expected}")
        self.field = field


@dataclass(frozen=True, slots=True)
class Selection:
    """Entries for which every field given holds; ``model`` is a glob."""

    key: bytes | None = None
    scope: bytes | None = None
    model: str | None = None
    tag: str | None = None
    rule: str | None = None

    def holds(self, entry: Entry) -> bool:
        """Tell whether the entry is among those selected."""
        return (
            (self.key is None or entry.key == self.key)
            and (self.scope is None or entry.scope == self.scope)
            and (self.model is None or fnmatchcase(entry.model, self.model))
            and (self.tag is None or self.tag in entry.tags)
            and (self.rule is None or entry.rule == self.rule)
        )


def parse_selection(given: Mapping[str, Any]) -> Selection:
    """Read a selection: the fields ``FIELDS``, of which at least one. Raises SelectionError."""
    for field in given:
        if field not in FIELDS:
            raise SelectionError(field, f"one of the fields {', '.join(FIELDS)}")
    everything = given.get("all", False)
    if not isinstance(everything, bool):
        raise SelectionError("all", "true")
    narrowed = [field for field in given if field != "all"]
    if everything == bool(narrowed):
        either = "either all: true or at least one of the fields"
        raise SelectionError("all", f"{either} {', '.join(FIELDS[:-1])}")
    hashes = {field: read_hash(field, given[field]) for field in _HASHES if field in given}
    texts = {field: _text(field, given[field]) for field in _TEXTS if field in given}
    return Selection(**hashes, **texts)  # type: ignore[arg-type]


def read_hash(field: str, value: Any) -> bytes:
    """Read a key or scope id as replies and lists show it. Raises SelectionError."""
    if isinstance(value, str) and len(value) == 2 * HASH_BYTES:
        try:
            return bytes.fromhex(value)
        except ValueError:
            pass
    raise SelectionError(field, f"{2 * HASH_BYTES} hex digits")


def _text(field: str, value: Any) -> str:
    if not isinstance(value, str) or not value:
        raise SelectionError(field, "text that is not empty")
    return value


def read_headers(value: object) -> dict[str, str]:
    """Read headers, whose names come back in lower case. Raises SelectionError."""
    if not isinstance(value, dict) or not all(isinstance(text, str) for text in value.values()):
        raise SelectionError("headers", "an object of texts")
    return {name.lower(): text for name, text in value.items()}


def read_holder(
    given: object, headers: Mapping[str, str], holder_of: Callable[[Mapping[str, str]], str | None]
) -> str | None:
    """Return whose gateway key is meant: as it is ``given``, else as the headers' key says.

    Raises SelectionError where keys are in use and the headers have none that is accepted.
    """
    if given is not None:
        if not isinstance(given, str) or not given:
            raise SelectionError("holder", "the name of a holder of gateway keys")
        return given
    try:
        return holder_of(headers)
    except UnauthorizedError:
        raise SelectionError(
            "headers", "a key that is accepted here, or the field holder in its place"
        ) from None
