"""The tools of a request: the keys of their schemas, and their own order.

Law: no tool is lost, added or changed in meaning; those that were in order stay byte for byte.
"""

from typing import Any, NamedTuple

from gateway.core.rewrite.outcome import DeclinedError, Rewrite, WhyNot
from gateway.core.rewrite.places import compact_start, elements, start_of
from gateway.core.rewrite.schema_keys import Tool, in_order, tool_text
from gateway.core.rewrite.splice import Edit
from policies.decide import PrefixSettings, SchemaKeys

MOST_BYTES = 2**20
"""Of all tools together; larger ones are left as they are."""


class Arranged(NamedTuple):
    """Tools as they are sent: what moved, and in which order they stand now."""

    tools: tuple[Tool, ...]
    order: tuple[int, ...]
    """Place n holds what stood at ``order[n]``."""
    changes: tuple[Rewrite, ...]

    @property
    def value(self) -> list[dict[str, Any]]:
        """The array that takes the place of the one that came."""
        return [self.tools[index].value for index in self.order]


def arranged(tools: list[Any], settings: PrefixSettings) -> Arranged | None:
    """Return the tools in order, None where they are. Raises DeclinedError."""
    try:
        ready = tuple(in_order(tool, settings.schema_keys) for tool in tools)
    except TypeError:  # an integer of more than 64 bits
        raise DeclinedError(WhyNot.UNREADABLE) from None
    if sum(len(tool.printed) for tool in ready) > MOST_BYTES:
        raise DeclinedError(WhyNot.TOO_LARGE)
    order = tuple(range(len(ready)))
    changes: list[Rewrite] = [Rewrite.SCHEMA_KEYS] if any(tool.moved for tool in ready) else []
    if settings.sorts_tools:
        by_name = tuple(sorted(order, key=lambda index: _rank(ready[index])))
        if by_name != order:
            order = by_name
            changes.append(Rewrite.TOOLS)
    return Arranged(ready, order, tuple(changes)) if changes else None


def _rank(tool: Tool) -> tuple[str, bytes]:
    """Return what a tool is sorted by: its name, then all of it."""
    function = tool.value.get("function")
    name = (function if isinstance(function, dict) else tool.value).get("name")
    return (name if isinstance(name, str) else "", tool.printed)


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
    places = elements(raw, start, body[field])
    texts = [
        tool_text(raw[slice(*place)], keys) if tool.moved else raw[slice(*place)]
        for place, tool in zip(places, result.tools, strict=True)
    ]
    return [
        Edit(*places[place], texts[source])
        for place, source in enumerate(result.order)
        if place != source or result.tools[place].moved
    ]
