"""Shape of requests to the cached endpoints: what any upstream would refuse, refused at once.

Only types and the few things the gateway itself reads are checked. Ranges, unknown models and
context lengths are the upstream's to judge, and fields unknown here pass. A shape that OpenAI
refuses and other servers take is returned as an error, not raised: such a request is forwarded as
it came, and not looked up.
"""

import re
from collections.abc import Iterator
from typing import Any

from gateway.protocol.errors import ClientError

_NUMERAL = re.compile(r"\s*[+-]?(\d+(\.\d*)?|\.\d+)([eE][+-]?\d+)?\s*", re.ASCII)
"""A number as a string, which vLLM reads as the number."""
_SWITCHES = frozenset({"true", "false", "0", "1", 0, 1})
"""What vLLM reads as true or false."""
_TOKENS_INSTEAD = ("input_ids", "input_embeds", "prompt_embeds")
"""What SGLang and vLLM take in place of messages."""
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
_NAMES_OF_USERS = frozenset({"user", "safety_identifier"})
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


def validate_chat(body: dict[str, Any]) -> ClientError | None:
    """Return why a chat request is forwarded only, or None. Raises ClientError if it is refused."""
    odd = list(_check_fields(body, _CHAT))
    if body.get("model") is None:
        odd += _missing_model(body)
    if body.get("messages") is None and any(name in body for name in _TOKENS_INSTEAD):
        return _missing("messages")
    _require(body, "messages")
    messages = body["messages"]
    if not messages:
        raise _wrong_length("messages", "empty_array", "minimum length 1", "an empty array")
    for position, message in enumerate(messages):
        if not _is_plain(message):
            odd += _check_message(f"messages[{position}]", message)
    return odd[0] if odd else None


def _is_plain(message: Any) -> bool:
    """Recognise what nearly every message is, without naming its parts for an error."""
    return (
        type(message) is dict
        and type(message.get("role")) is str
        and type(message.get("content")) is str
    )


def _check_message(where: str, message: Any) -> Iterator[ClientError]:
    _check_type(where, message, *_OBJECT)
    _require(message, "role", where)
    _check_type(f"{where}.role", message["role"], *_STRING)
    content = message.get("content")
    if content is not None:
        expected = "one of a string or array of objects"
        _check_type(f"{where}.content", content, expected, (str, list))
        if isinstance(content, list):
            for index, part in enumerate(content):
                if isinstance(part, str):
                    yield _wrong_type(f"{where}.content[{index}]", part, _OBJECT[0])
                else:
                    _check_type(f"{where}.content[{index}]", part, *_OBJECT)


def validate_completion(body: dict[str, Any]) -> ClientError | None:
    """Return why a completion request is forwarded only, or None. Raises ClientError."""
    odd = [*_check_fields(body, _COMPLETIONS), *_missing_model(body)]
    if body.get("prompt") is None:  # OpenAI has a default, vLLM takes ``prompt_embeds``
        odd.append(_missing("prompt"))
    return odd[0] if odd else None


def validate_embeddings(body: dict[str, Any]) -> ClientError | None:
    """Return why an embeddings request is forwarded only, or None. Raises ClientError."""
    odd = [*_check_fields(body, _EMBEDDINGS), *_missing_model(body)]
    if body.get("input") is None and isinstance(body.get("messages"), list):
        return _missing("input")  # a chat to embed, as vLLM takes it
    _require(body, "input")
    odd += _check_inputs(body["input"])
    return odd[0] if odd else None


def _check_inputs(given: str | list[Any]) -> Iterator[ClientError]:
    if isinstance(given, str):
        return
    if not given:
        raise _wrong_length("input", "empty_array", "minimum length 1", "an empty array")
    if type(given[0]) is int:  # one input, as tokens
        _check_tokens("input", given)
        return
    if len(given) > _MOST_INPUTS:
        most, got = f"maximum length {_MOST_INPUTS}", f"an array with length {len(given)}"
        yield _wrong_length("input", "array_above_max_length", most, got)
    kind = ("an array of integers", (list,)) if type(given[0]) is list else _STRING
    for place, item in enumerate(given):
        if isinstance(item, dict):  # text or an image, as models of both take it
            yield _wrong_type(f"input[{place}]", item, kind[0])
            continue
        _check_type(f"input[{place}]", item, *kind)
        if type(item) is list:
            _check_tokens(f"input[{place}]", item)


def _check_tokens(where: str, tokens: list[Any]) -> None:
    for place, token in enumerate(tokens):
        if type(token) is not int:
            _check_type(f"{where}[{place}]", token, *_INTEGER)


def validate_response(body: dict[str, Any]) -> ClientError | None:
    """Return why a request to the Responses API is forwarded only, or None. Raises ClientError."""
    odd = list(_check_fields(body, _RESPONSES))
    if body.get("prompt") is None:  # a template may name the model
        odd += _missing_model(body)
    given = body.get("input")
    for place, item in enumerate(given if isinstance(given, list) else ()):
        _check_type(f"input[{place}]", item, *_OBJECT)
    return odd[0] if odd else None


def _check_fields(
    body: dict[str, Any], fields: dict[str, tuple[str, tuple[type, ...]]]
) -> Iterator[ClientError]:
    for name, value in body.items():
        known = fields.get(name)
        if known is None or value is None or type(value) in known[1]:
            continue
        if _is_taken_elsewhere(name, value, known[1]):
            yield _wrong_type(name, value, known[0])
        else:
            _check_type(name, value, *known)


def _is_taken_elsewhere(name: str, value: Any, types: tuple[type, ...]) -> bool:
    """Tell whether there are servers that read the value as one of the right type."""
    if name in _NAMES_OF_USERS:
        return isinstance(value, int | float)
    if name == "logit_bias":
        return isinstance(value, list)  # pairs, as llama.cpp takes them
    if bool in types:
        return isinstance(value, str | int) and value in _SWITCHES
    if name == "logprobs" and isinstance(value, bool):
        return True
    return int in types and isinstance(value, str) and _NUMERAL.fullmatch(value) is not None


def _missing_model(body: dict[str, Any]) -> Iterator[ClientError]:
    """Servers of one model take a request that names none."""
    if body.get("model") is None:
        yield _missing("model")


def _wrong_length(where: str, code: str, expected: str, got: str) -> ClientError:
    what = "empty array" if code == "empty_array" else "array too long"
    message = (
        f"Invalid '{where}': {what}. Expected an array with {expected}, but got {got} instead."
    )
    return ClientError(400, message, param=where, code=code)


def _check_type(where: str, value: Any, expected: str, types: tuple[type, ...]) -> None:
    if type(value) not in types:  # not isinstance: True is no number
        raise _wrong_type(where, value, expected)


def _wrong_type(where: str, value: Any, expected: str) -> ClientError:
    got = "null" if value is None else _JSON_NAMES[type(value)]
    message = f"Invalid type for '{where}': expected {expected}, but got {got} instead."
    return ClientError(400, message, param=where, code="invalid_type")


def _require(holder: dict[str, Any], name: str, where: str = "") -> None:
    if holder.get(name) is None:
        raise _missing(f"{where}.{name}" if where else name)


def _missing(param: str) -> ClientError:
    message = f"Missing required parameter: '{param}'."
    return ClientError(400, message, param=param, code="missing_required_parameter")
