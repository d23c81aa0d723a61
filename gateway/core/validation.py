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
        raise ClientError(
            400,
            "Invalid 'messages': empty array. Expected an array with minimum length 1, "
            "but got an empty array instead.",
            param="messages",
            code="empty_array",
        )
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


def _check_fields(body: dict[str, Any], fields: dict[str, tuple[str, tuple[type, ...]]]) -> None:
    for name, value in body.items():
        known = fields.get(name)
        if known is not None and value is not None and type(value) not in known[1]:
            _check_type(name, value, *known)


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
