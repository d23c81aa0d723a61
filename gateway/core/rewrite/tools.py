"""The tools of a request: the keys of their schemas, and their own order.

Law: no tool is lost, added or changed in meaning; those that were in order stay byte for byte.
"""

from typing import Any, NamedTuple

from gateway.core.rewrite.outcome import DeclinedError, Rewrite, WhyNot
from gateway.core.rewrite.places import (
    Span,
    after_space,
    compact_start,
    elements,
    next_element,
    start_of,
)
from gateway.core.rewrite.schema_keys import Tool, in_order, tool_text
from gateway.core.rewrite.splice import Edit
from policies.decide import PrefixSettings, SchemaKeys

MOST_BYTES = 2**20
"""Of all tools together; larger ones are left as they are."""

_REMEMBERED_FORMS = 1024
_REMEMBERED_BYTES = 16_384
_FORMS: dict[bytes, bytes] = {}
"""Tools as they print, and as they were written when they came last."""


class Arranged(NamedTuple):
    """Tools as they are sent: what moved, and in which order they stand now."""

    tools: list[Tool]
    order: list[int]
    """Place n holds what stood at ``order[n]``."""
    changes: tuple[Rewrite, ...]

    @property
    def value(self) -> list[dict[str, Any]]:
        """The array that takes the place of the one that came."""
        return [self.tools[index].value for index in self.order]


def arranged(tools: list[Any], settings: PrefixSettings) -> Arranged | None:
    """Return the tools in order, None where they are. Raises DeclinedError."""
    try:
        ready = in_order(tools, settings.schema_keys)
    except TypeError:  # an integer of more than 64 bits
        raise DeclinedError(WhyNot.UNREADABLE) from None
    if sum(len(tool.printed) for tool in ready) > MOST_BYTES:
        raise DeclinedError(WhyNot.TOO_LARGE)
    changes: list[Rewrite] = []
    if any(tool.printed is not tool.came for tool in ready):
        changes.append(Rewrite.SCHEMA_KEYS)
    order = list(range(len(ready)))
    if settings.sorts_tools:
        by_name = sorted(order, key=[(tool.name, tool.printed) for tool in ready].__getitem__)
        if by_name != order:
            order = by_name
            changes.append(Rewrite.TOOLS)
    return Arranged(ready, order, tuple(changes)) if changes else None


def edits(
    raw: bytes, body: dict[str, Any], field: str, result: Arranged, keys: SchemaKeys
) -> list[Edit]:
    """Return what is to be done to the array of tools in this field of the body."""
    came = b"[%b]" % b",".join([tool.came for tool in result.tools])
    start = compact_start(raw, body, field, came)
    if start is not None:
        texts = [result.tools[index].printed for index in result.order]
        return [Edit(start, start + len(came), b"[%b]" % b",".join(texts))]
    start = start_of(raw, (0, len(raw)), field)
    places = _places(raw, start, body[field], result.tools)
    texts = [
        raw[slice(*place)] if tool.printed is tool.came else tool_text(raw[slice(*place)], keys)
        for place, tool in zip(places, result.tools, strict=True)
    ]
    return [
        Edit(*places[place], texts[source])
        for place, source in enumerate(result.order)
        if place != source or result.tools[place].printed is not result.tools[place].came
    ]


def _places(raw: bytes, start: int, came: list[dict[str, Any]], tools: list[Tool]) -> list[Span]:
    """Return where the tools stand in an array that begins at ``start``.

    How a client wrote a tool the last time it will write it again, and to compare is faster by far
    than to walk: what stands there is the same text, so it is the same value and ends there.
    """
    places: list[Span] = []
    at = after_space(raw, start + 1)
    for tool in tools:
        form = _FORMS.get(tool.came)
        if form is None or not raw.startswith(form, at):
            break
        places.append((at, at + len(form)))
        at = next_element(raw, at + len(form))
    else:
        return places
    places = elements(raw, start, came)
    for place, tool in zip(places, tools, strict=True):
        if len(_FORMS) >= _REMEMBERED_FORMS:
            _FORMS.clear()
        if len(form := raw[slice(*place)]) <= _REMEMBERED_BYTES:
            _FORMS[tool.came] = form
    return places
