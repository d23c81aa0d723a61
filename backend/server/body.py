"""Request bodies: one JSON object, strictly read.

Duplicate keys are refused because parsers differ on which of the two wins, and a cache in front
of this server must not key one while the other is answered.
"""

import json
from typing import Any

import orjson

from backend.server.errors import ApiError
from backend.server.large_body import RepeatedKeyError, TooMuchError, parse_in_pieces

WHOLE_BYTES = 64 * 1024
"""A parser reads this much in a millisecond or two; what is larger is read in pieces."""


def parse_body(raw: bytes) -> dict[str, Any]:
    """Return the object in ``raw``. Raises ApiError (400, 413)."""
    try:
        body = _parse(raw) if len(raw) <= WHOLE_BYTES else parse_in_pieces(raw, _parse)
    except TooMuchError as error:
        raise ApiError(
            413,
            f"The request body is too large: at most {error} are read.",
            code="request_too_large",
        ) from None
    except RepeatedKeyError as error:
        raise ApiError(
            400,
            f"The request body has the key '{error}' twice in one object.",
            param=str(error),
            code="duplicate_key",
        ) from None
    except ValueError as error:
        raise ApiError(400, f"The request body is not valid JSON: {error}.") from None
    except RecursionError:
        raise ApiError(400, "The request body is nested too deeply.") from None
    if not isinstance(body, dict):
        raise ApiError(400, "The request body must be a JSON object.", code="invalid_type")
    return body


def _parse(raw: bytes) -> Any:
    value = orjson.loads(raw)
    if isinstance(value, dict | list) and not _keys_provably_unique(raw, value):
        json.loads(raw, object_pairs_hook=_refuse_duplicates)
    return value


def _keys_provably_unique(raw: bytes, value: dict[str, Any] | list[Any]) -> bool:
    """Whether no key was dropped: then the reprint has as many colons as the text.

    An escaped colon would upset the count, and what is nested deeply cannot be reprinted; neither
    is judged here.
    """
    if b"\\u003" in raw:
        return False
    try:
        return raw.count(b":") == orjson.dumps(value).count(b":")
    except orjson.JSONEncodeError:
        return False


def _refuse_duplicates(pairs: list[tuple[str, Any]]) -> None:
    seen: set[str] = set()
    for key, _ in pairs:
        if key in seen:
            raise RepeatedKeyError(key)
        seen.add(key)
