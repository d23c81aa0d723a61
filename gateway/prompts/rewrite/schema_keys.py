"""One order for the keys of tool schemas.

Law: objects are equal whatever the order of their members, and arrays are never reordered, so what
is written here is JSON-equal to what was read. Where the order of properties is the order in which
a model must write its arguments (``strict`` tools) it stays as it is.
"""

import json
from typing import Any

import orjson

from gateway.prompts.json_splice import Places, after_space, end_of_printed
from gateway.prompts.texts import Path
from policies.decision import SchemaKeys

_NAMED = frozenset(
    {"properties", "patternProperties", "$defs", "definitions", "dependentSchemas"}
    | {"dependentRequired", "dependencies"}
)
"""Keywords whose members are named by the author of the schema."""
_SCHEMAS = frozenset(
    {"items", "prefixItems", "additionalItems", "additionalProperties", "contains", "not", "if"}
    | {"then", "else", "allOf", "anyOf", "oneOf", "propertyNames", "unevaluatedItems"}
    | {"unevaluatedProperties", "contentSchema"}
)
"""Keywords that hold schemas; what any other holds is data."""
_EXACT = json.JSONDecoder(parse_int=orjson.Fragment, parse_float=orjson.Fragment)
"""Keeps numbers as they are written."""
_SPACE = b" \t\r\n"
_SCHEMA = "parameters"
_KEY = b'"parameters"'
_FLAT: Path = (_SCHEMA,)
_NESTED: Path = ("function", _SCHEMA)

InOrder = tuple[bytes, dict[str, Any]]


def in_order(text: bytes, tool: dict[str, Any], keys: SchemaKeys) -> InOrder | None:
    """Return the text of a tool with the keys of its schema in order, and its value.

    None where nothing moves; nothing else of it is printed anew, and numbers stay as they are
    written. Raises TypeError if the schema does not print.
    """
    path = None if keys is SchemaKeys.OFF else _path_of_schema(tool)
    if path is None:
        return None
    function = tool.get("function")
    described = function if isinstance(function, dict) else tool
    named_too = keys is SchemaKeys.ON and described.get("strict") is not True
    holder = described if path is _NESTED else tool
    schema = holder[_SCHEMA]
    came = orjson.dumps(schema)
    ordered = sent = _ordered(schema, named_too=named_too)
    if ordered == came:
        return None
    start = _start(text, tool, path)
    if text.startswith(came, start):
        end = start + len(came)
    else:
        end = end_of_printed(text, start, came, b"}") or Places(text, tool).of(path)[1]
        written = text[start:end]
        if written.translate(None, _SPACE) != came.translate(None, _SPACE):
            # Numbers may be written in another way than they print.
            sent = _ordered(_EXACT.decode(written.decode()), named_too=named_too)
    value = {**holder, _SCHEMA: orjson.loads(ordered)}
    if path is _NESTED:
        value = {**tool, "function": value}
    return text[:start] + sent + text[end:], value


def _ordered(schema: Any, *, named_too: bool) -> bytes:
    if named_too:
        return orjson.dumps(schema, option=orjson.OPT_SORT_KEYS)
    return orjson.dumps(_keywords_in_order(schema))


def _start(text: bytes, tool: dict[str, Any], path: Path) -> int:
    """Return where the schema begins in the text of its tool."""
    if text.count(_KEY) != 1 or b"\\u00" in text:
        return Places(text, tool).start(path)
    # No letter is hidden and this stands once, so it is the key.
    return after_space(text, after_space(text, text.find(_KEY) + len(_KEY)) + 1)


def _path_of_schema(tool: dict[str, Any]) -> Path | None:
    function = tool.get("function")
    if isinstance(function, dict) and isinstance(function.get(_SCHEMA), dict):
        return _NESTED
    return _FLAT if isinstance(tool.get(_SCHEMA), dict) else None


def _keywords_in_order(schema: Any) -> Any:
    """Return a schema whose keywords are sorted, and what its author named is as it was."""
    if isinstance(schema, list):
        return [_keywords_in_order(each) for each in schema]
    if not isinstance(schema, dict):
        return schema
    ordered = {}
    for keyword in sorted(schema):
        value = schema[keyword]
        if keyword in _NAMED and isinstance(value, dict):
            value = {name: _keywords_in_order(each) for name, each in value.items()}
        elif keyword in _SCHEMAS:
            value = _keywords_in_order(value)
        ordered[keyword] = value
    return ordered
