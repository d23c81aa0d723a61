"""Shape of requests to the cached endpoints: what any upstream would refuse, refused at once.

Only types and the few things the gateway itself reads are checked. Ranges, unknown models and
context lengths are the upstream's to judge, and fields unknown here pass.
"""

from typing import Any

from gateway.core.errors import ClientError

_NUMBER = ("a decimal", (int, float))
_INTEGER = ("an integer", (int,))
_BOOLEAN = ("a boolean", (bool,))
_STRING = ("a string", (str,))
_OBJECT = ("an object", (dict,))
_OBJECTS = ("an array of objects", (list,))

_SHARED: dict[str, tuple[str, tuple[type, ...]]] = {
    "model": _STRING,
    "stream": _BOOLEAN,
    "stream_options": _OBJECT,
    "store": _BOOLEAN,
    "user": _STRING,
    "safety_identifier": _STRING,
    "metadata": _OBJECT,
    "temperature": _NUMBER,
    "top_p": _NUMBER,
    "n": _INTEGER,
    "seed": _INTEGER,
    "max_tokens": _INTEGER,
    "stop": ("one of a string or array of strings", (str, list)),
    "presence_penalty": _NUMBER,
    "frequency_penalty": _NUMBER,
    "logit_bias": _OBJECT,
}
_CHAT = _SHARED | {
    "messages": _OBJECTS,
    "max_completion_tokens": _INTEGER,
    "logprobs": _BOOLEAN,
    "top_logprobs": _INTEGER,
    "tools": _OBJECTS,
    "functions": _OBJECTS,
    "response_format": _OBJECT,
    "parallel_tool_calls": _BOOLEAN,
}
_COMPLETIONS = _SHARED | {
    "prompt": ("one of a string or array", (str, list)),
    "echo": _BOOLEAN,
    "logprobs": _INTEGER,
    "best_of": _INTEGER,
    "suffix": _STRING,
}
_EMBEDDINGS: dict[str, tuple[str, tuple[type, ...]]] = {
    "model": _STRING,
    "input": ("one of a string or array", (str, list)),
    "encoding_format": _STRING,
    "dimensions": _INTEGER,
    "user": _STRING,
}
_RESPONSES: dict[str, tuple[str, tuple[type, ...]]] = {
    "model": _STRING,
    "input": ("one of a string or array of objects", (str, list)),
    "instructions": _STRING,
    "stream": _BOOLEAN,
    "stream_options": _OBJECT,
    "store": _BOOLEAN,
    "background": _BOOLEAN,
    "user": _STRING,
    "safety_identifier": _STRING,
    "metadata": _OBJECT,
    "temperature": _NUMBER,
    "top_p": _NUMBER,
    "top_logprobs": _INTEGER,
    "max_output_tokens": _INTEGER,
    "max_tool_calls": _INTEGER,
    "parallel_tool_calls": _BOOLEAN,
    "previous_response_id": _STRING,
    "conversation": ("one of a string or object", (str, dict)),
    "include": ("an array", (list,)),
    "reasoning": _OBJECT,
    "text": _OBJECT,
    "tools": _OBJECTS,
}
_MOST_INPUTS = 2048
"""Of an embeddings request, as at OpenAI."""

_JSON_NAMES = {
    dict: "an object",
    list: "an array",
    str: "a string",
    bool: "a boolean",
    int: "an integer",
    float: "a decimal",
}


def validate_chat(body: dict[str, Any]) -> None:
    """Raise ClientError unless ``body`` has the shape of a chat completion request."""
    _check_fields(body, _CHAT)
    _require(body, "model")
    _require(body, "messages")
    messages = body["messages"]
    if not messages:
        raise _wrong_length("messages", "empty_array", "minimum length 1", "an empty array")
    for position, message in enumerate(messages):
        if not _is_plain(message):
            _check_message(f"messages[{position}]", message)


def _is_plain(message: Any) -> bool:
    """Recognise what nearly every message is, without naming its parts for an error."""
    return (
        type(message) is dict
        and type(message.get("role")) is str
        and type(message.get("content")) is str
    )


def _check_message(where: str, message: Any) -> None:
    _check_type(where, message, *_OBJECT)
    _require(message, "role", where)
    _check_type(f"{where}.role", message["role"], *_STRING)
    content = message.get("content")
    if content is not None:
        expected = "one of a string or array of objects"
        _check_type(f"{where}.content", content, expected, (str, list))
        if isinstance(content, list):
            for index, part in enumerate(content):
                _check_type(f"{where}.content[{index}]", part, *_OBJECT)


def validate_completion(body: dict[str, Any]) -> None:
    """Raise ClientError unless ``body`` has the shape of a completion request."""
    _check_fields(body, _COMPLETIONS)
    _require(body, "model")
    _require(body, "prompt")


def validate_embeddings(body: dict[str, Any]) -> None:
    """Raise ClientError unless ``body`` has the shape of an embeddings request."""
    _check_fields(body, _EMBEDDINGS)
    _require(body, "model")
    _require(body, "input")
    given = body["input"]
    if isinstance(given, str):
        return
    if not given:
        raise _wrong_length("input", "empty_array", "minimum length 1", "an empty array")
    if type(given[0]) is int:  # one input, as tokens
        _check_tokens("input", given)
        return
    if len(given) > _MOST_INPUTS:
        most, got = f"maximum length {_MOST_INPUTS}", f"an array with length {len(given)}"
        raise _wrong_length("input", "array_above_max_length", most, got)
    kind = ("an array of integers", (list,)) if type(given[0]) is list else _STRING
    for place, item in enumerate(given):
        _check_type(f"input[{place}]", item, *kind)
        if type(item) is list:
            _check_tokens(f"input[{place}]", item)


def _check_tokens(where: str, tokens: list[Any]) -> None:
    for place, token in enumerate(tokens):
        if type(token) is not int:
            _check_type(f"{where}[{place}]", token, *_INTEGER)


def validate_response(body: dict[str, Any]) -> None:
    """Raise ClientError unless ``body`` has the shape of a request to the Responses API."""
    _check_fields(body, _RESPONSES)
    if body.get("prompt") is None:  # a template may name the model
        _require(body, "model")
    given = body.get("input")
    for place, item in enumerate(given if isinstance(given, list) else ()):
        _check_type(f"input[{place}]", item, *_OBJECT)


def _check_fields(body: dict[str, Any], fields: dict[str, tuple[str, tuple[type, ...]]]) -> None:
    for name, value in body.items():
        known = fields.get(name)
        if known is not None and value is not None and type(value) not in known[1]:
            _check_type(name, value, *known)


def _wrong_length(where: str, code: str, expected: str, got: str) -> ClientError:
    what = "empty array" if code == "empty_array" else "array too long"
    message = (
        f"Invalid '{where}': {what}. Expected an array with {expected}, but got {got} instead."
    )
    return ClientError(400, message, param=where, code=code)


def _check_type(where: str, value: Any, expected: str, types: tuple[type, ...]) -> None:
    if type(value) in types:  # not isinstance: True is no number
        return
    got = "null" if value is None else _JSON_NAMES[type(value)]
    raise ClientError(
        400,
        f"Invalid type for '{where}': expected {expected}, but got {got} instead.",
        param=where,
        code="invalid_type",
    )


def _require(holder: dict[str, Any], name: str, where: str = "") -> None:
    if holder.get(name) is None:
        param = f"{where}.{name}" if where else name
        raise ClientError(
            400,
            f"Missing required parameter: '{param}'.",
            param=param,
            code="missing_required_parameter",
        )
