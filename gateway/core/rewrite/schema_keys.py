"""One order for the keys of tool schemas.

Law: objects are equal whatever the order of their members, and arrays are never reordered, so what
is written here is JSON-equal to what was read. Where the order of properties is the order in which
a model must write its arguments (``strict`` tools) it stays as it is.
"""

import json
from collections.abc import Iterable, Mapping
from functools import lru_cache
from typing import Any, NamedTuple

import orjson

from gateway.core.rewrite.places import member
from policies.decide import SchemaKeys

_REMEMBERED_BYTES = 16_384
_REMEMBERED_TOOLS = 1024

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


class Tool(NamedTuple):
    """A tool with its schema in order, its compact JSON, and that of the tool as it came."""

    value: dict[str, Any]
    printed: bytes
    came: bytes
    name: str


def in_order(tools: Iterable[dict[str, Any]], keys: SchemaKeys) -> list[Tool]:
    """Return tools with the keys of their schemas in order. Raises TypeError if one cannot print.

    Where nothing moved, ``printed`` is ``came``.
    """
    if keys is SchemaKeys.OFF:
        return [Tool(tool, printed := orjson.dumps(tool), printed, _name(tool)) for tool in tools]
    named_too = keys is SchemaKeys.ON  # an enum's member is slow to hash
    return [
        _remembered(printed, named_too)
        if len(printed := orjson.dumps(tool)) <= _REMEMBERED_BYTES
        else _ordered(printed, named_too)
        for tool in tools
    ]


def tool_text(text: bytes, keys: SchemaKeys) -> bytes:
    """Return the JSON of a tool, however it is written, with the keys of its schema in order.

    Nothing else of it is printed anew, and numbers stay as they are written.
    """
    named_too = keys is SchemaKeys.ON
    if len(text) > _REMEMBERED_BYTES:
        return _text_in_order(text, named_too)
    return _remembered_text(text, named_too)


def _ordered(printed: bytes, named_too: bool) -> Tool:
    tool = orjson.loads(printed)
    path = _path_of_schema(tool)
    if path is None:
        return Tool(tool, printed, printed, _name(tool))
    holder = tool if len(path) == 1 else tool[path[0]]
    schema = holder["parameters"]
    if named_too and not _is_strict(tool):
        ordered = orjson.loads(orjson.dumps(schema, option=orjson.OPT_SORT_KEYS))
    else:
        ordered = _keywords_in_order(schema)
    holder["parameters"] = ordered  # the place of the key stays
    again = orjson.dumps(tool)
    return Tool(tool, again if again != printed else printed, printed, _name(tool))


def _text_in_order(text: bytes, named_too: bool) -> bytes:
    tool = json.loads(text)
    path = _path_of_schema(tool)
    if path is None:
        return text
    place, holder = (0, len(text)), tool
    for name in path:
        place = member(text, place, holder, name)
        holder = holder[name]
    written = text[slice(*place)]
    schema = json.loads(written, parse_int=orjson.Fragment, parse_float=orjson.Fragment)
    if named_too and not _is_strict(tool):
        ordered = orjson.dumps(schema, option=orjson.OPT_SORT_KEYS)
    else:
        ordered = orjson.dumps(_keywords_in_order(schema))
    return text[: place[0]] + ordered + text[place[1] :]


_remembered = lru_cache(maxsize=_REMEMBERED_TOOLS)(_ordered)
_remembered_text = lru_cache(maxsize=_REMEMBERED_TOOLS)(_text_in_order)
"""Agents send the same tools thousands of times. What is kept is shared, and never changed."""


def _path_of_schema(tool: dict[str, Any]) -> tuple[str, ...] | None:
    match tool:
        case {"function": {"parameters": dict()}}:
            return "function", "parameters"
        case {"parameters": dict()}:
            return ("parameters",)
        case _:
            return None


def _name(tool: Mapping[str, Any]) -> str:
    function = tool.get("function")
    name = (function if isinstance(function, dict) else tool).get("name")
    return name if isinstance(name, str) else ""


def _is_strict(tool: Mapping[str, Any]) -> bool:
    function = tool.get("function")
    return (function if isinstance(function, dict) else tool).get("strict") is True


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
