"""Bodies: of requests, one JSON object, read within bounds and strictly; of plain replies.

Duplicate keys are refused because parsers differ on which of the two wins, and a cache in front
of this server must not key one while the other is answered. A parser holds the interpreter's lock
from the first byte to the last, so bytes and values are bounded even in a thread. pydantic's
complaints are worded as OpenAI would; only the first is reported.
"""

import asyncio
import json
from collections.abc import Callable, Mapping, Sequence
from typing import Any, TypeVar

import orjson
from aiohttp import web
from pydantic import BaseModel, ValidationError
from pydantic_core import ErrorDetails

from backend.server import protocol
from backend.server.http_server import read_body
from backend.server.protocol.errors import ApiError

ON_LOOP_BYTES = 64 * 1024
ON_LOOP_OBJECTS = 100
"""Parsing and checking what is within both takes a millisecond or two."""

MAX_VALUES = 500_000
"""Mostly numbers: tokens of prompts. Commas are counted, those in texts too."""

MAX_CONTAINERS = 125_000
"""Arrays and objects. Opening brackets are counted, those in texts too."""

ALLOW_UNKNOWN = web.AppKey("allow_unknown", bool)
"""Whether fields of requests that no server is known to read are ignored."""

RequestT = TypeVar("RequestT", bound=BaseModel)


_EXPECTED = {
    "string_type": "a string",
    "int_type": "an integer",
    "float_type": "a decimal",
    "bool_type": "a boolean",
    "list_type": "an array",
    "dict_type": "an object",
    "model_type": "an object",
}
_JSON_NAMES = {
    dict: "an object",
    list: "an array",
    str: "a string",
    bool: "a boolean",
    int: "an integer",
    float: "a decimal",
    type(None): "null",
}
# pydantic's bound: what OpenAI calls it, how it is written, and where pydantic keeps it.
_BOUNDS = {
    "greater_than_equal": ("below", "minimum", ">=", "ge"),
    "greater_than": ("below", "minimum", ">", "gt"),
    "less_than_equal": ("above", "maximum", "<=", "le"),
}


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
    return await validated(raw, lambda _: schema, allow_unknown=request.app[ALLOW_UNKNOWN])


async def validated(
    raw: bytes,
    choose: Callable[[dict[str, Any]], type[RequestT]],
    *,
    allow_unknown: bool,
    what: str = "request body",
) -> RequestT:
    """Return what the object in ``raw`` says, by the schema that is chosen for it.

    Raises ApiError (400, 413), and what ``choose`` raises.
    """

    def check() -> RequestT:
        body = parse_body(raw, what)
        schema, context = choose(body), {protocol.ALLOW_UNKNOWN: allow_unknown}
        try:
            return schema.model_validate(body, context=context)
        except ValidationError as error:
            raise _refusal(error.errors(include_url=False)[0]) from None

    if len(raw) <= ON_LOOP_BYTES and raw.count(b"{") <= ON_LOOP_OBJECTS:
        return check()
    return await asyncio.to_thread(check)


def parse_body(raw: bytes, what: str = "request body") -> dict[str, Any]:
    """Return the object in ``raw``. Raises ApiError (400, 413)."""
    _check_size(raw.count(b",") + 1, MAX_VALUES, "values", what)
    _check_size(raw.count(b"{") + raw.count(b"["), MAX_CONTAINERS, "arrays and objects", what)
    try:
        body = orjson.loads(raw)
        if not _keys_provably_unique(raw, body):
            json.loads(raw, object_pairs_hook=_refuse_duplicates)
    except _DuplicateKeyError as error:
        message = f"The {what} has the key '{error}' twice in one object."
        raise ApiError(400, message, param=str(error), code="duplicate_key") from None
    except (ValueError, RecursionError) as error:
        if isinstance(error, RecursionError) or str(error).startswith("depth limit exceeded"):
            raise ApiError(400, f"The {what} is nested too deeply.") from None
        raise ApiError(400, f"The {what} is not valid JSON: {error}.") from None
    if not isinstance(body, dict):
        raise ApiError(400, f"The {what} must be a JSON object.", code="invalid_type")
    return body


def _check_size(number: int, most: int, things: str, what: str) -> None:
    if number > most:
        message = f"The {what} is too large: at most {most} {things} are read."
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


def _refusal(details: ErrorDetails) -> ApiError:
    """Return a complaint of pydantic's as OpenAI would word it."""
    context = details.get("ctx", {})
    location = (*details["loc"], *([context["field"]] if "field" in context else []))
    param = context.get("param") or _path(location)
    message, code = _describe(details, context, param)
    return ApiError(400, message, param=param, code=code)


def _path(location: Sequence[str | int]) -> str:
    """Return ``messages[0].content``; names in angle brackets are branches of our unions."""
    path = ""
    for step in location:
        if isinstance(step, int):
            path += f"[{step}]"
        elif not step.startswith("<"):
            path += f".{step}" if path else step
    return path


def _describe(
    error: ErrorDetails, context: Mapping[str, Any], param: str
) -> tuple[str, str | None]:
    """Return message and code."""
    kind, value = error["type"], error["input"]
    if kind == "missing" or (value is None and len(error["loc"]) == 1):
        return f"Missing required parameter: '{param}'.", "missing_required_parameter"
    if kind in {"unsupported_parameter", "unknown_parameter"}:
        return _unsupported(param, context.get("neutral"))
    if kind == "worded":
        return error["msg"], context["code"]
    if kind == "string_pattern_mismatch":
        problem = f"a string that matches the pattern '{context['pattern']}'"
        message = f"Invalid '{param}': string does not match pattern. Expected {problem}."
        return message, "invalid_value"
    if kind.endswith(("too_short", "too_long")):
        return _wrong_size(value, context, param)
    if kind == "literal_error" and isinstance(value, str):
        message = f"Invalid value: '{value}'. Supported values are: {context['expected']}."
        return message, "invalid_value"
    if kind in _BOUNDS:
        side, limit, sign, key = _BOUNDS[kind]
        number = "integer" if isinstance(context[key], int) else "decimal"
        words = f"{number} {side} {limit}", f"{sign} {context[key]}"
        return _out_of_bounds(param, words, value)
    if kind == "int_type" and isinstance(value, float) and abs(value) >= 2**63:
        # The JSON parser has made it a decimal, and its last digits are lost.
        below, above = f">= {-(2**63)}", f"<= {2**63 - 1}"
        words = ("integer below minimum", below) if value < 0 else ("integer above maximum", above)
        return _out_of_bounds(param, words, "an integer of more than 64 bits")
    return _wrong_type(error, param)


def _wrong_size(value: Sequence[Any], context: Mapping[str, Any], param: str) -> tuple[str, str]:
    article, thing = ("a", "string") if isinstance(value, str) else ("an", "array")
    if not value:
        expected = f"{article} {thing} with minimum length {context['min_length']}"
        problem, code, got = f"empty {thing}", f"empty_{thing}", f"an empty {thing}"
    else:
        expected = f"{article} {thing} with maximum length {context['max_length']}"
        problem, code = f"{thing} too long", f"{thing}_above_max_length"
        got = f"{article} {thing} with length {len(value)}"
    return f"Invalid '{param}': {problem}. Expected {expected}, but got {got} instead.", code


def _out_of_bounds(param: str, words: tuple[str, str], got: Any) -> tuple[str, str]:
    problem, expected = words
    message = (
        f"Invalid '{param}': {problem} value. Expected a value {expected}, but got {got} instead."
    )
    number, side, limit = problem.split()
    return message, f"{number}_{side}_{limit[:3]}_value"


def _wrong_type(error: ErrorDetails, param: str) -> tuple[str, str]:
    kind = error["type"]
    # Our unions name what they accept as their message; a literal's values are its context.
    expected = error["msg"] if kind == "invalid_type" else _EXPECTED.get(kind)
    expected = expected or error.get("ctx", {}).get("expected")
    if expected is None:
        return f"Invalid '{param}': {error['msg']}.", "invalid_value"
    got = _JSON_NAMES[type(error["input"])]
    message = f"Invalid type for '{param}': expected {expected}, but got {got} instead."
    return message, "invalid_type"


def _unsupported(param: str, neutral: Sequence[Any] | None) -> tuple[str, str]:
    if neutral is None:
        message = (
            f"Unknown parameter: '{param}'. Leave it out, or start the server with "
            "--allow-unknown-fields, which ignores parameters that it does not know."
        )
        return message, "unknown_parameter"
    # A neutral value that is empty is as good as none, and would only read oddly.
    written = " or ".join(
        orjson.dumps(value).decode() for value in neutral if value not in ("", [], {})
    )
    alternative = f" or set it to {written}" if written else ""
    message = (
        f"Unsupported parameter: '{param}' is not supported by this server; "
        f"leave it out{alternative}."
    )
    return message, "unsupported_parameter"


def json_response(
    body: Mapping[str, Any], status: int = 200, headers: Mapping[str, str] | None = None
) -> web.Response:
    """Return ``body`` as JSON."""
    return web.Response(
        body=orjson.dumps(body), status=status, headers=headers, content_type="application/json"
    )
