"""Why a request cannot be answered: OpenAI's error object, all four keys.

``validate`` words pydantic's complaints as OpenAI would; only the first is reported.
"""

import math
from collections.abc import Mapping, Sequence
from typing import Any, TypeVar

import orjson
from pydantic import BaseModel, ValidationError
from pydantic_core import ErrorDetails

from backend.ports import OverloadedError, QueueFullError, QueueTimeoutError
from backend.server.protocol import ALLOW_UNKNOWN

INVALID_REQUEST = "invalid_request_error"
RATE_LIMIT = "rate_limit_error"
SERVER_ERROR = "server_error"

_RETRY_SECONDS = "2"


class ApiError(Exception):
    """Ends a request with ``status`` and an error object."""

    def __init__(
        self,
        status: int,
        message: str,
        *,
        kind: str = INVALID_REQUEST,
        param: str | None = None,
        code: str | None = None,
        headers: Mapping[str, str] | None = None,
    ) -> None:
        """``kind`` is OpenAI's ``type``; ``param`` the path of the field at fault."""
        super().__init__(message)
        self.status = status
        self.message = message
        self.kind = kind
        self.param = param
        self.code = code
        self.headers = dict(headers or {})

    def body(self) -> dict[str, Any]:
        """Return the reply's JSON."""
        return {
            "error": {
                "message": self.message,
                "type": self.kind,
                "param": self.param,
                "code": self.code,
            }
        }


def unavailable(reason: str) -> ApiError:
    """Return the error of a server that cannot generate now but may soon."""
    return ApiError(
        503,
        f"The server cannot answer yet: {reason}.",
        kind=SERVER_ERROR,
        code="model_not_ready",
        headers={"Retry-After": _RETRY_SECONDS},
    )


def unknown_model(name: str) -> ApiError:
    """Return the error for a model that is not served here."""
    return ApiError(
        404,
        f"The model '{name}' does not exist or you do not have access to it.",
        param="model",
        code="model_not_found",
    )


def cannot_generate(name: str) -> ApiError:
    """Return the error for text wanted of a model that makes embeddings."""
    return ApiError(
        404,
        f"The model '{name}' makes embeddings. This is not a chat model and thus not supported in "
        "the v1/chat/completions, v1/completions and v1/responses endpoints. Did you mean to use "
        "v1/embeddings?",
        param="model",
    )


def cannot_embed(name: str) -> ApiError:
    """Return the error for embeddings wanted of a model that generates text."""
    return ApiError(
        404,
        f"You are not allowed to generate embeddings from this model: '{name}' is not an embedding "
        "model and thus not supported in the v1/embeddings endpoint. Did you mean to use "
        "v1/chat/completions?",
        param="model",
    )


def overloaded(error: OverloadedError) -> ApiError:
    """Return the error of a request that found too many others: 429 at once, 503 after a wait."""
    at_once = isinstance(error, QueueFullError)
    code = "queue_timeout" if isinstance(error, QueueTimeoutError) else "overloaded"
    return ApiError(
        429 if at_once else 503,
        f"The server is overloaded: {error}. Please try again later.",
        kind=RATE_LIMIT if at_once else SERVER_ERROR,
        code="queue_full" if at_once else code,
        headers={"Retry-After": str(max(1, math.ceil(error.retry_after)))},
    )


def engine_failed(reason: str) -> ApiError:
    """Return the error of a generation that broke off through no fault of the client."""
    return ApiError(500, f"The engine failed: {reason}", kind=SERVER_ERROR, code="engine_error")


def internal_error() -> ApiError:
    """Return the error of a defect of ours, which is in the log alone."""
    return ApiError(
        500,
        "The server had an error while processing your request.",
        kind=SERVER_ERROR,
        code="internal_error",
    )


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
# What we word where it is found, and the codes.
_WORDED = {
    "invalid_combination": "invalid_parameter_combination",
    "disorder": None,
    "invalid_key": "invalid_value",
    "moved": "unsupported_parameter",
}
# What is wrong with a string or an array, what was expected, what came instead, and the code.
_SIZES = {
    "string_too_short": (
        "empty string",
        "a string with minimum length {min_length}, but got an empty string instead",
        "empty_string",
    ),
    "string_too_long": (
        "string too long",
        "a string with maximum length {max_length}, but got a string with length {size} instead",
        "string_above_max_length",
    ),
    "string_pattern_mismatch": (
        "string does not match pattern",
        "a string that matches the pattern '{pattern}'",
        "invalid_value",
    ),
    "too_short": (
        "empty array",
        "an array with minimum length {min_length}, but got an empty array instead",
        "empty_array",
    ),
    "too_long": (
        "array too long",
        "an array with maximum length {max_length}, but got an array with length {size} instead",
        "array_above_max_length",
    ),
}


def validate(
    schema: type[RequestT], body: Mapping[str, Any], *, allow_unknown: bool = False
) -> RequestT:
    """Return the request in ``body``. Raises ApiError (400)."""
    try:
        return schema.model_validate(body, context={ALLOW_UNKNOWN: allow_unknown})
    except ValidationError as error:
        details = error.errors(include_url=False)[0]
    context = details.get("ctx", {})
    location = (*details["loc"], *([context["field"]] if "field" in context else []))
    param = context.get("param") or _path(location)
    message, code = _describe(details, context, param)
    raise ApiError(400, message, param=param, code=code)


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
    if kind in _WORDED:
        return error["msg"], _WORDED[kind]
    if kind in _SIZES:
        problem, expected, code = _SIZES[kind]
        size = len(value) if isinstance(value, str) else 0
        return (
            f"Invalid '{param}': {problem}. Expected {expected.format(**context, size=size)}.",
            code,
        )
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
