"""Shape of requests to the cached endpoints: what any upstream would refuse, refused at once.

Only types and the few things the gateway itself reads are checked. Ranges, unknown models and
context lengths are the upstream's to judge, and fields unknown here pass. A shape that OpenAI
refuses and other servers take is returned as an error, not raised: such a request is forwarded as
it came, and not looked up.
"""

from collections.abc import Iterator
from typing import Any

from gateway.protocol.errors import ClientError
from gateway.protocol.fields import Fields, Type

_JSON_NAMES = {
    dict: "an object",
    list: "an array",
    str: "a string",
    bool: "a boolean",
    int: "an integer",
    float: "a decimal",
}


def check_fields(body: dict[str, Any], fields: Fields) -> Iterator[ClientError]:
    """Yield why a request is forwarded only. Raises ClientError for what no server takes."""
    for name, value in body.items():
        known = fields.get(name)
        if known is None or value is None or (kind := known.type) is None:
            continue
        if type(value) not in kind.types:  # not isinstance: True is no number
            if not kind.taken(value):
                raise wrong_type(name, value, kind)
            yield wrong_type(name, value, kind)


def check_model(body: dict[str, Any]) -> Iterator[ClientError]:
    """Yield an error for a request that names no model: servers of one model take it."""
    if body.get("model") is None:
        yield missing("model")


def check_type(where: str, value: Any, kind: Type) -> None:
    """Raise ClientError for a value of another type."""
    if type(value) not in kind.types:
        raise wrong_type(where, value, kind)


def require(holder: dict[str, Any], name: str, where: str = "") -> None:
    """Raise ClientError where a field is absent or null."""
    if holder.get(name) is None:
        raise missing(f"{where}.{name}" if where else name)


def wrong_type(where: str, value: Any, kind: Type) -> ClientError:
    """Return the error of a value of another type."""
    got = "null" if value is None else _JSON_NAMES[type(value)]
    message = f"Invalid type for '{where}': expected {kind.expected}, but got {got} instead."
    return ClientError(400, message, param=where, code="invalid_type")


def missing(param: str) -> ClientError:
    """Return the error of a field that is absent."""
    message = f"Missing required parameter: '{param}'."
    return ClientError(400, message, param=param, code="missing_required_parameter")


def empty_array(where: str) -> ClientError:
    """Return the error of an array that holds nothing."""
    got = "minimum length 1, but got an empty array"
    return _wrong_length(where, "empty_array", "empty array", got)


def long_array(where: str, most: int, length: int) -> ClientError:
    """Return the error of an array that holds too much."""
    got = f"maximum length {most}, but got an array with length {length}"
    return _wrong_length(where, "array_above_max_length", "array too long", got)


def _wrong_length(where: str, code: str, what: str, got: str) -> ClientError:
    message = f"Invalid '{where}': {what}. Expected an array with {got} instead."
    return ClientError(400, message, param=where, code=code)
