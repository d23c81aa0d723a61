"""pydantic's complaints in OpenAI's words, the first one only: a client mends them one by one."""

from collections.abc import Mapping, Sequence
from typing import Any, TypeVar

import orjson
from pydantic import BaseModel, ValidationError
from pydantic_core import ErrorDetails

from backend.server.errors import ApiError
from backend.server.fields import ALLOW_UNKNOWN

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
    "greater_than_equal": ("below minimum", "minimum", ">=", "ge"),
    "greater_than": ("below minimum", "minimum", ">", "gt"),
    "less_than_equal": ("above maximum", "maximum", "<=", "le"),
}

# pydantic's complaint of a string: what OpenAI says, and its code.
_STRINGS = {
    "string_too_short": ("empty string", "with minimum length {min_length}", "empty_string"),
    "string_too_long": (
        "string too long",
        "with maximum length {max_length}",
        "string_above_max_length",
    ),
    "string_pattern_mismatch": (
        "string does not match pattern",
        "that matches the pattern '{pattern}'",
        "invalid_value",
    ),
}
# Our own complaints, which are worded where they are made.
_WORDED = {
    "invalid_combination": "invalid_parameter_combination",
    "disorder": None,
    "moved": "unsupported_parameter",
}


def validate(
    schema: type[RequestT], body: Mapping[str, Any], *, allow_unknown: bool = False
) -> RequestT:
    """Return the request in ``body``. Raises ApiError (400)."""
    try:
        return schema.model_validate(body, context={ALLOW_UNKNOWN: allow_unknown})
    except ValidationError as error:
        raise _translate(error.errors(include_url=False)[0]) from None


def _translate(error: ErrorDetails) -> ApiError:
    kind, value, context = error["type"], error["input"], error.get("ctx", {})
    location = (*error["loc"], context["field"]) if "field" in context else error["loc"]
    param = context.get("param") or _path(location)
    if kind == "missing" or (value is None and len(error["loc"]) == 1):
        return _refusal(
            f"Missing required parameter: '{param}'.", param, "missing_required_parameter"
        )
    if kind in {"unsupported_parameter", "unknown_parameter"}:
        return _unsupported(param, context.get("neutral"))
    if kind in _WORDED:
        return _refusal(error["msg"], param, _WORDED[kind])
    if kind == "invalid_key":
        return _refusal(
            f"Invalid key in '{param}': {context['key'][:40]}. You should only be submitting "
            "non-negative integers.",
            param,
            "invalid_value",
        )
    if kind in _STRINGS:
        return _wrong_string(param, kind, value, context)
    if kind == "literal_error" and isinstance(value, str):
        return _refusal(
            f"Invalid value: '{value}'. Supported values are: {context['expected']}.",
            param,
            "invalid_value",
        )
    if kind in {"too_short", "too_long"}:
        return _wrong_length(param, kind, context)
    if kind in _BOUNDS:
        return _out_of_bounds(param, kind, value, context)
    return _wrong_type(param, error)


def _wrong_type(param: str, error: ErrorDetails) -> ApiError:
    kind, value = error["type"], error["input"]
    if kind == "int_type" and isinstance(value, float) and abs(value) >= 2**63:
        return _beyond_64_bits(param, value)
    # Our unions name what they accept as their message; a literal's values are its context.
    expected = error["msg"] if kind == "invalid_type" else _EXPECTED.get(kind)
    expected = expected or error.get("ctx", {}).get("expected")
    if expected is None:
        return _refusal(f"Invalid '{param}': {error['msg']}.", param, "invalid_value")
    return _refusal(
        f"Invalid type for '{param}': expected {expected}, "
        f"but got {_JSON_NAMES[type(value)]} instead.",
        param,
        "invalid_type",
    )


def _refusal(message: str, param: str, code: str | None) -> ApiError:
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


def _unsupported(param: str, neutral: Sequence[Any] | None) -> ApiError:
    if neutral is None:
        return _refusal(
            f"Unknown parameter: '{param}'. Leave it out, or start the server with "
            "--allow-unknown-fields, which ignores parameters that it does not know.",
            param,
            "unknown_parameter",
        )
    # A neutral value that is empty is as good as none, and would only read oddly.
    written = " or ".join(
        orjson.dumps(value).decode() for value in neutral if value not in ("", [], {})
    )
    alternative = f" or set it to {written}" if written else ""
    return _refusal(
        f"Unsupported parameter: '{param}' is not supported by this server; "
        f"leave it out{alternative}.",
        param,
        "unsupported_parameter",
    )


def _wrong_string(param: str, kind: str, value: str, context: Mapping[str, Any]) -> ApiError:
    problem, expected, code = _STRINGS[kind]
    got = {
        "string_too_short": ", but got an empty string instead",
        "string_too_long": f", but got a string with length {len(value)} instead",
    }
    return _refusal(
        f"Invalid '{param}': {problem}. Expected a string {expected.format(**context)}"
        f"{got.get(kind, '')}.",
        param,
        code,
    )


def _wrong_length(param: str, kind: str, context: Mapping[str, Any]) -> ApiError:
    length = context["actual_length"]
    if kind == "too_short":
        return _refusal(
            f"Invalid '{param}': empty array. Expected an array with minimum length "
            f"{context['min_length']}, but got an empty array instead.",
            param,
            "empty_array",
        )
    return _refusal(
        f"Invalid '{param}': array too long. Expected an array with maximum length "
        f"{context['max_length']}, but got an array with length {length} instead.",
        param,
        "array_above_max_length",
    )


def _beyond_64_bits(param: str, value: float) -> ApiError:
    # The JSON parser has made it a decimal, and its last digits are lost.
    words, bound = ("below", -(2**63)) if value < 0 else ("above", 2**63 - 1)
    limit = "minimum" if value < 0 else "maximum"
    return _refusal(
        f"Invalid '{param}': integer {words} {limit} value. Expected a value "
        f"{'>=' if value < 0 else '<='} {bound}, but got an integer of more than 64 bits instead.",
        param,
        f"integer_{words}_{limit[:3]}_value",
    )


def _out_of_bounds(param: str, kind: str, value: Any, context: Mapping[str, Any]) -> ApiError:
    words, limit, sign, key = _BOUNDS[kind]
    number = "integer" if isinstance(context[key], int) else "decimal"
    code_number = f"{number}_{words.split()[0]}_{'min' if limit == 'minimum' else 'max'}_value"
    return _refusal(
        f"Invalid '{param}': {number} {words} value. "
        f"Expected a value {sign} {context[key]}, but got {value} instead.",
        param,
        code_number,
    )
