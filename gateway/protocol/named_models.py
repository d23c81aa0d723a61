"""Which models a request names, in whatever field: a restricted key must allow each of them.

Servers know more fields than ``model``: lists of fallbacks, a tool's own model, the requests of a
batch. Some of them read names of fields in any case.
"""

import re
from collections.abc import Iterator, Mapping
from contextlib import suppress
from typing import Any
from urllib.parse import parse_qsl

from gateway.protocol.exact_json import BodyError, parse_body

_NAMES = re.compile("model|fallback|^(?:deployment|preset$|engine$|route)", re.IGNORECASE)
"""Fields whose texts name models."""

_PROSE = frozenset(
    {"messages", "input", "inputs", "prompt", "system", "instructions", "metadata", "documents"}
    | {"query", "functions", "response_format", "text", "text_format", "output_config", "user"}
    | {"output_format", "guided_json", "structured_outputs", "json_schema", "prediction"}
    | {"parameters", "function", "input_schema", "tool_choice", "contents", "stop"}
)
"""Fields of what a model reads or writes: no server looks for a model there."""

MOST_REQUESTS = 50_000
"""Of a batch."""

_ESCAPE = b"\\u00"

_MODES = frozenset({"fallback", "sort"})
"""Words of OpenRouter's ``route``."""


def models_in(body: Any) -> list[str]:
    """Return each model that a JSON body names, the one in ``model`` first."""
    found = list(_models(body))
    own = body.get("model") if isinstance(body, dict) else None
    return list(dict.fromkeys([own, *found] if isinstance(own, str) else found))


def _models(value: Any) -> Iterator[str]:
    if isinstance(value, list):
        for item in value:
            yield from _models(item)
    elif isinstance(value, dict):
        for name, inner in value.items():
            if name in _PROSE:
                continue
            if not _NAMES.search(name):
                yield from _models(inner)
            elif not (isinstance(inner, str) and inner in _MODES):
                yield from _texts(inner)


def _texts(value: Any) -> Iterator[str]:
    """Yield the names in a field of models: a text, a list, or models with their substitutes."""
    match value:
        case str():
            yield value
        case list():
            for item in value:
                yield from _texts(item)
        case dict() if any(_NAMES.search(name) for name in value):
            yield from _models(value)
        case dict():
            for name, inner in value.items():
                yield name
                yield from _texts(inner)


def models_in_head(query: str, headers: Mapping[str, str]) -> list[str]:
    """Return each model that a query string and headers name, as some proxies read them."""
    fields = (*parse_qsl(query), *headers.items())
    return [value for name, value in fields if _NAMES.search(name)]


def names_model(field: str) -> bool:
    """Tell whether a field of a form names a model."""
    return _NAMES.search(field) is not None


def models_in_batch(lines: bytes) -> list[str]:
    """Return each model that the requests of a batch's file name. Raises BodyError."""
    found: dict[str, None] = {}
    if lines.count(b"\n") > MOST_REQUESTS:
        raise BodyError(f"a batch has more than {MOST_REQUESTS:,} requests")
    for line in lines.split(b"\n"):
        if line.strip():
            named = models_in(parse_body(line).get("body"))
            if not named:
                raise BodyError("a request of the batch names no model")
            found |= dict.fromkeys(named)
    return list(found)


def models_in_file(data: bytes) -> list[str]:
    """Return the models of a file that is not uploaded as a batch, but might run as one.

    Some servers run it whatever its purpose was. Raises BodyError.
    """
    found: dict[str, None] = {}
    for number, row in enumerate(_rows(data)):
        if number == MOST_REQUESTS:
            raise BodyError(f"a file has more than {MOST_REQUESTS:,} rows like the rows of a batch")
        with suppress(BodyError):
            found |= dict.fromkeys(models_in(parse_body(row).get("body")))
    return list(found)


def _rows(data: bytes) -> Iterator[bytes]:
    """Yield the lines in which a request may stand; the others take no object, and hardly time."""
    end, signs = -1, dict.fromkeys((b'"body"', _ESCAPE), -1)
    while True:
        for sign, at in signs.items():
            if at <= end:
                found = data.find(sign, end + 1)
                signs[sign] = len(data) if found < 0 else found
        if (first := min(signs.values())) == len(data):
            return
        begin, end = data.rfind(b"\n", 0, first) + 1, data.find(b"\n", first)
        end = len(data) if end < 0 else end
        yield data[begin:end]
