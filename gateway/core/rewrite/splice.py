"""Edits of a JSON text in bytes: all that is not edited stays as it came."""

from collections.abc import Iterable, Sequence
from typing import Any, NamedTuple

import orjson

from gateway.core.rewrite.texts import Path


class Edit(NamedTuple):
    """What takes the place of the bytes from ``start`` to ``end``."""

    start: int
    end: int
    text: bytes


def spliced(raw: bytes, edits: Sequence[Edit]) -> bytes:
    """Return the text with all edits made, which are in order and do not overlap."""
    pieces: list[bytes] = []
    at = 0
    for start, end, text in edits:
        pieces += (raw[at:start], text)
        at = end
    return b"".join((*pieces, raw[at:]))


def replaced(body: dict[str, Any], path: Path, new: Any) -> dict[str, Any]:
    """Return a copy of a body in which ``new`` stands at the path; what is not on it is shared."""
    return all_replaced(body, ((path, new),))


def all_replaced(body: dict[str, Any], values: Iterable[tuple[Path, Any]]) -> dict[str, Any]:
    """Return a copy of a body in which these values stand at their paths.

    What holds several of them is copied once: a request may have 100,000 turns.
    """
    copies: dict[Path, Any] = {(): body.copy()}
    for path, new in values:
        for depth, step in enumerate(path[:-1]):
            inner = path[: depth + 1]
            if inner not in copies:
                holder = copies[path[:depth]]
                holder[step] = copies[inner] = holder[step].copy()
        copies[path[:-1]][path[-1]] = new
    changed: dict[str, Any] = copies[()]
    return changed


def printed(value: Any) -> bytes:
    """Return the JSON of a value of ours."""
    return orjson.dumps(value)
