"""The tools of a request: their order, and the order of the keys of their schemas.

Laws: no tool is lost, added or changed in meaning, and tools in order stay byte for byte. Objects
are equal in any order of their members, and arrays are never reordered, so the schema sent is
JSON-equal to the one read. For ``strict`` tools the order of properties stays, as the model must
write its arguments in it.

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
    Elements,
    Places,
    after_space,
    end_of,
    end_of_printed,
    next_element,
)
from gateway.prompts.outcome import NotRewritten, NotRewrittenError, Rewrite
from gateway.prompts.texts import Path
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
"""Keywords whose members the author of the schema names."""
_SCHEMAS = frozenset(
    {"items", "prefixItems", "additionalItems", "additionalProperties", "contains", "not", "if"}
    | {"then", "else", "allOf", "anyOf", "oneOf", "propertyNames", "unevaluatedItems"}
    | {"unevaluatedProperties", "contentSchema"}
)
"""Keywords that hold schemas; any other holds data."""
_EXACT = json.JSONDecoder(parse_int=orjson.Fragment, parse_float=orjson.Fragment)
"""Keeps numbers as written."""
_SPACE = b" \t\r\n"
_SCHEMA = "parameters"
_KEY = b'"parameters"'
_FLAT: Path = (_SCHEMA,)
_NESTED: Path = ("function", _SCHEMA)


class Form(NamedTuple):
    """A tool as it came, and as it is sent."""

    name: str
    came: bytes
    sent: bytes
    """Is ``came`` where nothing moves."""
    value: dict[str, Any]
    """That of ``sent``."""


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
        """Return the owner's known tools for this order of keys."""
        return self._forms.get((owner, keys.value), {})

    def note(self, keys: SchemaKeys, met: Iterable[Form], owner: bytes) -> None:
        """Remember the owner's tools that were not known."""
        for form in met:
            if len(form.came) > MAX_FORM_BYTES:
                continue
            if self._bytes + _size(form) > self._max_bytes:
                self._forms, self._bytes = {}, 0
            known = self._forms.setdefault((owner, keys.value), {})
            others = known.get(form.name, ())
            known[form.name] = (form, *others[: _MAX_FORMS - 1])
            self._bytes += _size(form) - sum(map(_size, others[_MAX_FORMS - 1 :]))


def _size(form: Form) -> int:
    return len(form.came) + len(form.sent) + _FORM_BYTES


class Arranged(NamedTuple):
    """The tools of a request in order."""

    met: list[Form]
    """Those that were not known."""
    changes: tuple[Rewrite, ...] = ()
    value: list[dict[str, Any]] | None = None
    """The array as it is sent; None where nothing changes."""
    edit: Edit | None = None


def arrange_tools(
    raw: bytes, start: int, came: list[dict[str, Any]], settings: PrefixSettings, known: Forms
) -> Arranged:
    """Put the tools of the array that begins at ``start`` in order. Raises NotRewrittenError."""
    names = _names(came)
    elements = Elements(raw, start, came)
    try:
        read = _recognised(raw, elements.start(0), names, known) or _read(
            raw, elements, names, settings.schema_keys, known
        )
    except TypeError:  # an integer of more than 64 bits
        raise NotRewrittenError(NotRewritten.UNREADABLE) from None
    if read.end - start > MAX_TOOL_BYTES:
        raise NotRewrittenError(NotRewritten.TOO_LARGE)
    sent = read.forms
    changes: list[Rewrite] = []
    if any(form.sent is not form.came for form in sent):
        changes.append(Rewrite.SCHEMA_KEYS)
    if settings.sorts_tools:
        sent = _by_name(read.forms)
        if sent != read.forms:
            changes.append(Rewrite.TOOLS)
    if not changes:
        return Arranged(read.met)
    texts = [form.sent for form in sent]
    if isinstance(read.gaps, bytes):
        text = read.gaps.join(texts)
    else:
        text = b"".join(chain.from_iterable(zip(texts, (*read.gaps, b""), strict=True)))
    values = [form.value for form in sent]
    return Arranged(read.met, tuple(changes), values, Edit(read.start, read.end, text))


def _by_name(forms: list[Form]) -> list[Form]:
    return sorted(forms, key=attrgetter("name", "sent"))


class _Read(NamedTuple):
    """The tools of an array, between ``start`` and ``end``."""

    start: int
    end: int
    forms: list[Form]
    gaps: bytes | list[bytes]
    """The text between tools, as a list if it is not always the same."""
    met: list[Form]
    """Those that were not known."""


def _recognised(raw: bytes, start: int, names: list[str], known: Forms) -> _Read | None:
    """Read tools by one comparison with known ones; None where they are not all known.

    A client writes its tools the same way each time, and comparing is much faster than reading: the
    same text is the same value.
    """
    met = [raw.startswith(form.came, start) for form in known.get(names[0], ())]
    if True not in met:
        return None
    index = met.index(True)  # tools of one request were noted together
    try:
        forms = [known[name][index] for name in names]
    except LookupError:
        return None
    end = start + len(forms[0].came)
    gap = raw[end : next_element(raw, end)]
    text = gap.join([form.came for form in forms])
    if not raw.startswith(text, start):
        return None
    return _Read(start, start + len(text), forms, gap, [])


def _read(
    raw: bytes, elements: Elements, names: list[str], keys: SchemaKeys, known: Forms
) -> _Read:
    """Read the tools of an array one by one."""
    forms: list[Form] = []
    gaps: list[bytes] = []
    met: list[Form] = []
    at = end = start = elements.start(0)
    for index, (name, tool) in enumerate(zip(names, elements.values, strict=True)):
        for form in known.get(name, ()):
            if raw.startswith(form.came, at):
                break
        else:
            end = end_of(raw, at, tool) or elements.span(index)[1]
            if end - start > MAX_TOOL_BYTES:
                raise NotRewrittenError(NotRewritten.TOO_LARGE)
            text = raw[at:end]
            sent, value = _with_keys_in_order(text, tool, keys) or (text, tool)
            form = Form(name, text, sent, value)
            met.append(form)
        forms.append(form)
        end = at + len(form.came)
        at = next_element(raw, end)
        gaps.append(raw[end:at])
    return _Read(start, end, forms, gaps[:-1], met)


def _names(tools: list[dict[str, Any]]) -> list[str]:
    found = []
    for tool in tools:
        function = tool.get("function")
        name = (function if isinstance(function, dict) else tool).get("name")
        found.append(name if isinstance(name, str) else "")
    return found


def _with_keys_in_order(
    text: bytes, tool: dict[str, Any], keys: SchemaKeys
) -> tuple[bytes, dict[str, Any]] | None:
    """Return the text of a tool with the keys of its schema in order, and its value.

    None where nothing moves. All else keeps its bytes, and numbers stay as written. Raises
    TypeError if the schema does not print.
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
            # Numbers may be written in a form that is not printed.
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
    # No letter is escaped and this stands once, so it is the key.
    return after_space(text, after_space(text, text.find(_KEY) + len(_KEY)) + 1)


def _path_of_schema(tool: dict[str, Any]) -> Path | None:
    function = tool.get("function")
    if isinstance(function, dict) and isinstance(function.get(_SCHEMA), dict):
        return _NESTED
    return _FLAT if isinstance(tool.get(_SCHEMA), dict) else None


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
