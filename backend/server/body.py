"""Bodies: of requests, one JSON object, read within bounds and strictly; of plain replies.

Duplicate keys are refused because parsers differ on which of the two wins, and a cache in front
of this server must not key one while the other is answered. A parser holds the interpreter's lock
from the first byte to the last, so bytes and values are bounded even in a thread.
"""

import asyncio
import json
from collections.abc import Mapping
from typing import Any, TypeVar

import orjson
from aiohttp import web
from pydantic import BaseModel

from backend.server.http_server import read_body
from backend.server.protocol.errors import ApiError, validate

ON_LOOP_BYTES = 64 * 1024
ON_LOOP_OBJECTS = 100
"""Parsing and checking what is within both takes a millisecond or two."""

MAX_VALUES = 2_000_000
"""Mostly numbers: tokens of prompts. Commas are counted, those in texts too."""

MAX_CONTAINERS = 500_000
"""Arrays and objects. Opening brackets are counted, those in texts too."""

ALLOW_UNKNOWN = web.AppKey("allow_unknown", bool)
"""Whether fields of requests that no server is known to read are ignored."""

RequestT = TypeVar("RequestT", bound=BaseModel)


class _DuplicateKeyError(ValueError):
    """An object has the key, the only argument, twice."""


async def read_request(request: web.Request, schema: type[RequestT]) -> RequestT:
    """Return what the body says. Raises ApiError (400, 408, 413)."""
    close = {"Connection": "close"}
    try:
        raw = await read_body(request)
    except TimeoutError:
        message = "The body of your request did not come in time."
        raise ApiError(408, message, code="timeout", headers=close) from None
    except web.RequestPayloadError as error:
        # aiohttp cannot tell where the next request begins, and closes the connection.
        raise ApiError(400, "The request body could not be decoded.", headers=close) from error
    allow_unknown = request.app[ALLOW_UNKNOWN]

    def check() -> RequestT:
        return validate(schema, parse_body(raw), allow_unknown=allow_unknown)

    if len(raw) <= ON_LOOP_BYTES and raw.count(b"{") <= ON_LOOP_OBJECTS:
        return check()
    return await asyncio.to_thread(check)


def parse_body(raw: bytes) -> dict[str, Any]:
    """Return the object in ``raw``. Raises ApiError (400, 413)."""
    _check_size(raw.count(b",") + 1, MAX_VALUES, "values")
    _check_size(raw.count(b"{") + raw.count(b"["), MAX_CONTAINERS, "arrays and objects")
    try:
        body = orjson.loads(raw)
        if not _keys_provably_unique(raw, body):
            json.loads(raw, object_pairs_hook=_refuse_duplicates)
    except _DuplicateKeyError as error:
        message = f"The request body has the key '{error}' twice in one object."
        raise ApiError(400, message, param=str(error), code="duplicate_key") from None
    except ValueError as error:
        raise ApiError(400, f"The request body is not valid JSON: {error}.") from None
    except RecursionError:
        raise ApiError(400, "The request body is nested too deeply.") from None
    if not isinstance(body, dict):
        raise ApiError(400, "The request body must be a JSON object.", code="invalid_type")
    return body


def _check_size(number: int, most: int, things: str) -> None:
    if number > most:
        message = f"The request body is too large: at most {most} {things} are read."
        raise ApiError(413, message, code="request_too_large")


def _keys_provably_unique(raw: bytes, value: Any) -> bool:
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
            raise _DuplicateKeyError(key)
        seen.add(key)


def json_response(
    body: Mapping[str, Any], status: int = 200, headers: Mapping[str, str] | None = None
) -> web.Response:
    """Return ``body`` as JSON."""
    return web.Response(
        body=orjson.dumps(body), status=status, headers=headers, content_type="application/json"
    )
