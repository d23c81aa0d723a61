"""Request bodies: one JSON object, strictly read.

Duplicate keys are refused because parsers differ on which of the two wins, and a cache in front
of this server must not key one while the other is answered.
"""

import json
from typing import Any

import orjson

from backend.server.errors import ApiError


class _DuplicateKeyError(ValueError):
    pass


def parse_body(raw: bytes) -> dict[str, Any]:
    """Return the object in ``raw``. Raises ApiError (400)."""
    try:
        body = orjson.loads(raw)
    except orjson.JSONDecodeError as error:
        raise ApiError(400, f"The request body is not valid JSON: {error}.") from None
    if not isinstance(body, dict):
        raise ApiError(400, "The request body must be a JSON object.", code="invalid_type")
    if not _keys_provably_unique(raw, body):
        _refuse_duplicate_keys(raw)
    return body


def _keys_provably_unique(raw: bytes, body: dict[str, Any]) -> bool:
    """Whether no key was dropped: then the reprint has as many colons as the text.

    An escaped colon would upset the count, and what is nested deeply cannot be reprinted; neither
    is judged here.
    """
    if b"\\u003" in raw:
        return False
    try:
        return raw.count(b":") == orjson.dumps(body).count(b":")
    except orjson.JSONEncodeError:
        return False


def _refuse_duplicate_keys(raw: bytes) -> None:
    try:
        json.loads(raw, object_pairs_hook=_refuse_duplicates)
    except _DuplicateKeyError as error:
        raise ApiError(
            400,
            f"The request body has the key '{error}' twice in one object.",
            param=str(error),
            code="duplicate_key",
        ) from None
    except RecursionError:
        raise ApiError(400, "The request body is nested too deeply.") from None


def _refuse_duplicates(pairs: list[tuple[str, Any]]) -> None:
    seen: set[str] = set()
    for key, _ in pairs:
        if key in seen:
            raise _DuplicateKeyError(key)
        seen.add(key)
