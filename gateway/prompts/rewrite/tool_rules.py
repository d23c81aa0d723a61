"""The tools of a request: their order, and the order of the keys of their schemas.

Laws: no tool is lost, added or changed in meaning, and tools in order stay byte for byte. Arrays
are never reordered, so the schema sent is JSON-equal to the one read. A model writes its arguments
in the order of the properties. So that order stays, unless the policy says otherwise
(``schema_keys: on``). For ``strict`` tools it always stays.

Agents send the same tools thousands of times, so they are remembered. That saves time and changes
nothing else. The memory is bounded in bytes, and what it holds never changes.
"""

import json
from collections.abc import Iterable, Mapping
from itertools import chain
from operator import attrgetter
from typing import Any, NamedTuple

import orjson

from gateway.prompts.json_splice import (
    Edit,
    Places,
    after_space,
    end_of,
    end_of_printed,
    next_element,
)
from gateway.prompts.outcome import NotRewritten, NotRewrittenError, Rewrite
from policies.decision import PrefixSettings, SchemaKeys

MAX_REMEMBERED_BYTES = 2**24
"""Of all remembered tools; over it, all are forgotten."""
MAX_FORM_BYTES = 2**14
"""Of one tool; longer ones are not remembered."""
_FORM_BYTES = 1024
"""Overhead of a form, with its share of the owner's table, estimated."""
_MAX_FORMS = 8
"""Of one tool name; the oldest is forgotten."""
MAX_TOOL_BYTES = 2**20
"""Of all tools together; larger ones are left as they are."""

_NAMED = frozenset(
    {"properties", "patternProperties", "$defs", "definitions", "dependentSchemas"}
    | {"dependentRequired", "dependencies"}
)
"""Keywords with members that the author of the schema names."""
_SCHEMAS = frozenset(
    {"items", "prefixItems", "additionalItems", "additionalProperties", "contains", "not", "if"}
    | {"then", "else", "allOf", "anyOf", "oneOf", "propertyNames", "unevaluatedItems"}
    | {"unevaluatedProperties", "contentSchema"}
)
"""Keywords that hold schemas; any other holds data."""
_EXACT = json.JSONDecoder(parse_int=orjson.Fragment, parse_float=orjson.Fragment)
"""Keeps numbers as written."""
_SPACE = b" \t\r\n"
_SCHEMAS_OF_TOOLS = ("parameters", "input_schema")
"""The fields of a tool that hold its schema: OpenAI's, Anthropic's."""


class Form(NamedTuple):
    """A tool in the client's form and in the form to send."""

    name: str
    original: bytes
    sent: bytes
    """The same object as ``original`` where nothing moves."""
    value: dict[str, Any]
    """The parsed value of ``sent``."""


Forms = Mapping[str, tuple[Form, ...]]
"""By the names of tools."""


class KnownTools:
    """The tools of former requests, by owner. Read by several threads, written by one.

    Owners are apart so that the time of a request tells nothing of another owner's tools.
    """

    def __init__(self, max_bytes: int = MAX_REMEMBERED_BYTES) -> None:
        self._max_bytes = max_bytes
        self._forms: dict[tuple[bytes, str], dict[str, tuple[Form, ...]]] = {}
        self._bytes = 0

    def forms(self, keys: SchemaKeys, owner: bytes) -> Forms:
        return self._forms.get((owner, keys.value), {})

    def note(self, keys: SchemaKeys, new: Iterable[Form], owner: bytes) -> None:
        for form in new:
            if len(form.original) > MAX_FORM_BYTES:
                continue
            if self._bytes + _size(form) > self._max_bytes:
                self._forms, self._bytes = {}, 0
            known = self._forms.setdefault((owner, keys.value), {})
            others = known.get(form.name, ())
            known[form.name] = (form, *others[: _MAX_FORMS - 1])
            self._bytes += _size(form) - sum(map(_size, others[_MAX_FORMS - 1 :]))


def _size(form: Form) -> int:
    return len(form.original) + len(form.sent) + _FORM_BYTES


class Arranged(NamedTuple):
    """The tools of a request in order."""

    new: list[Form]
    """Forms that were not known."""
    changes: tuple[Rewrite, ...] = ()
    value: list[dict[str, Any]] | None = None
    """The array as it is sent; None where nothing changes."""
    edit: Edit | None = None


def arrange_tools(
    raw: bytes, start: int, tools: list[dict[str, Any]], settings: PrefixSettings, known: Forms
) -> Arranged:
    """Put the tools of the array that begins at ``start`` in order. Raises NotRewrittenError."""
    first = after_space(raw, start + 1)
    names = _names_of(tools)
    try:
        end, forms, gaps, new = _recognise(raw, first, names, known) or _read(
            raw, first, names, tools, keys=settings.schema_keys, known=known
        )
    except TypeError:  # an integer of more than 64 bits
        raise NotRewrittenError(NotRewritten.UNREADABLE) from None
    if end - start > MAX_TOOL_BYTES:
        raise NotRewrittenError(NotRewritten.TOO_LARGE)
    sent = forms
    changes: list[Rewrite] = []
    if any(form.sent is not form.original for form in forms):
        changes.append(Rewrite.SCHEMA_KEYS)
    if settings.sorts_tools:
        sent = sorted(forms, key=attrgetter("name", "sent"))
        if sent != forms:
            changes.append(Rewrite.TOOLS)
    if not changes:
        return Arranged(new)
    texts = [form.sent for form in sent]
    if isinstance(gaps, bytes):
        text = gaps.join(texts)
    else:
        text = b"".join(chain.from_iterable(zip(texts, (*gaps, b""), strict=True)))
    return Arranged(new, tuple(changes), [form.value for form in sent], Edit(first, end, text))


_Read = tuple[int, list[Form], bytes | list[bytes], list[Form]]
"""The end of the last tool of an array; the tools; the text between each two (one text if it is
always the same); the tools that were not known."""


def _recognise(raw: bytes, start: int, names: list[str], known: Forms) -> _Read | None:
    """Read tools by one comparison with known ones; None where they are not all known.

    A client writes its tools the same way each time, and comparing is much faster than reading: the
    same text is the same value.
    """
    matches = [raw.startswith(form.original, start) for form in known.get(names[0], ())]
    if True not in matches:
        return None
    index = matches.index(True)  # tools of one request were noted together
    try:
        forms = [known[name][index] for name in names]
    except LookupError:
        return None
    end = start + len(forms[0].original)
    gap = raw[end : next_element(raw, end)]
    text = gap.join([form.original for form in forms])
    return (start + len(text), forms, gap, []) if raw.startswith(text, start) else None


def _read(
    raw: bytes,
    start: int,
    names: list[str],
    tools: list[dict[str, Any]],
    *,
    keys: SchemaKeys,
    known: Forms,
) -> _Read:
    forms: list[Form] = []
    gaps: list[bytes] = []
    new: list[Form] = []
    at = end = start
    for name, tool in zip(names, tools, strict=True):
        for form in known.get(name, ()):
            if raw.startswith(form.original, at):
                break
        else:
            end = end_of(raw, at, tool)
            if end - start > MAX_TOOL_BYTES:
                raise NotRewrittenError(NotRewritten.TOO_LARGE)
            text = raw[at:end]
            form = Form(name, text, *_with_keys_in_order(text, tool, keys))
            new.append(form)
        forms.append(form)
        end = at + len(form.original)
        at = next_element(raw, end)
        gaps.append(raw[end:at])
    return end, forms, gaps[:-1], new


def _names_of(tools: list[dict[str, Any]]) -> list[str]:
    found = []
    for tool in tools:
        function = tool.get("function")
        name = (function if isinstance(function, dict) else tool).get("name")
        found.append(name if isinstance(name, str) else "")
    return found


def _with_keys_in_order(
    text: bytes, tool: dict[str, Any], keys: SchemaKeys
) -> tuple[bytes, dict[str, Any]]:
    """Return the text of a tool with the keys of its schema in order, and its value.

    All else keeps its bytes, and numbers stay as written. Raises TypeError if the schema does not
    print.
    """
    function = tool.get("function")
    described = function if isinstance(function, dict) else tool
    found = (
        (holder, name)
        for holder in (described, tool)
        for name in _SCHEMAS_OF_TOOLS
        if isinstance(holder.get(name), dict)
    )
    holder, name = next(found, (tool, ""))
    if keys is SchemaKeys.OFF or not name:
        return text, tool
    schema, key = holder[name], b'"%b"' % name.encode()
    named_too = keys is SchemaKeys.ON and described.get("strict") is not True
    original = orjson.dumps(schema)
    ordered = sent = _ordered(schema, named_too=named_too)
    if ordered == original:
        return text, tool
    path = (name,) if holder is tool else ("function", name)
    if text.count(key) == 1 and b"\\u00" not in text:
        # No letter is escaped and this stands once, so it is the key.
        start = after_space(text, after_space(text, text.find(key) + len(key)) + 1)
    else:
        start = Places(text, tool).start(path)
    end = end_of_printed(text, start, original, b"}")
    written = text[start:end]
    if written != original and written.translate(None, _SPACE) != original.translate(None, _SPACE):
        # Numbers may be written in a form that is not printed.
        sent = _ordered(_EXACT.decode(written.decode()), named_too=named_too)
    value = {**holder, name: orjson.loads(ordered)}
    if holder is not tool:
        value = {**tool, "function": value}
    return text[:start] + sent + text[end:], value


def _ordered(schema: Any, *, named_too: bool) -> bytes:
    if named_too:
        return orjson.dumps(schema, option=orjson.OPT_SORT_KEYS)
    return orjson.dumps(_keywords_in_order(schema))


def _keywords_in_order(schema: Any) -> Any:
    """Return a schema with sorted keywords; names that its author gave keep their order."""
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
