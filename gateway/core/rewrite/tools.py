"""The tools of a request: the keys of their schemas, and their own order.

Law: no tool is lost, added or changed in meaning; those that were in order stay byte for byte.
"""

from typing import Any, NamedTuple

from gateway.core.rewrite.outcome import DeclinedError, Rewrite, WhyNot
from gateway.core.rewrite.places import Span, after_space, elements, next_element
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
    raw: bytes, start: int, came: list[dict[str, Any]], result: Arranged, keys: SchemaKeys
) -> list[Edit]:
    """Return what is to be done to the array that begins at ``start``."""
    places, texts = _texts(raw, start, came, result, keys)
    found = []
    for place, source in enumerate(result.order):
        if place != source or result.tools[place].moved:
            found.append(Edit(*places[place], texts[source]))
    return found


def _texts(
    raw: bytes, start: int, came: list[dict[str, Any]], result: Arranged, keys: SchemaKeys
) -> tuple[list[Span], list[bytes]]:
    """Return where the tools stand, and what each is written as."""
    places, texts = [], []
    at = after_space(raw, start + 1)
    for tool in result.tools:
        if not raw.startswith(tool.came, at):
            places = elements(raw, start, came)
            return places, [
                tool_text(raw[slice(*place)], keys) if tool.moved else raw[slice(*place)]
                for place, tool in zip(places, result.tools, strict=True)
            ]
        end = at + len(tool.came)
        places.append((at, end))
        texts.append(tool.printed)
        at = next_element(raw, end)
    return places, texts
