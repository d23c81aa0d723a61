"""The rewrite plan: from a request as it came to one whose prefix repeats, and what was changed.

Law: nothing changes but what a rule that is on names. A rule that cannot be sure leaves the request
as it is and says why. Bytes that no rule changes are those that came, so they are spliced and never
printed anew; the last user turn is never touched. What comes out goes in again without a change.
"""

from dataclasses import dataclass
from typing import Any

from gateway.core.rewrite import tools
from gateway.core.rewrite.outcome import Declined, Rewrite, WhyNot
from gateway.core.rewrite.places import start_of
from gateway.core.types import Endpoint
from policies.decide import PrefixSettings, SchemaKeys

_TOOL_FIELDS = {
    Endpoint.CHAT: ("tools", "functions"),
    Endpoint.RESPONSES: ("tools",),
}


@dataclass(frozen=True, slots=True)
class Rewritten:
    """A request as it is sent: ``raw`` is the JSON of ``body``."""

    body: dict[str, Any]
    raw: bytes
    changes: tuple[Rewrite, ...] = ()
    declined: tuple[Declined, ...] = ()


def rules_for(
    endpoint: Endpoint, body: dict[str, Any], settings: PrefixSettings
) -> tuple[Rewrite, ...]:
    """Return the rules that are on and have something to look at."""
    if any(body.get(field) for field in _TOOL_FIELDS.get(endpoint, ())):
        return _tool_rules(settings)
    return ()


def rewrite(
    endpoint: Endpoint, body: dict[str, Any], raw: bytes, settings: PrefixSettings
) -> Rewritten:
    """Return the request with the rules of ``settings`` applied; ``raw`` is the JSON of ``body``.

    Neither ``body`` nor anything in it is changed.
    """
    result = Rewritten(body, raw)
    if settings.sorts_tools or settings.schema_keys is not SchemaKeys.OFF:
        for field in _TOOL_FIELDS.get(endpoint, ()):
            if body.get(field):
                result = _with_tools(result, field, settings)
    return result


def _with_tools(given: Rewritten, field: str, settings: PrefixSettings) -> Rewritten:
    came = given.body[field]
    if not isinstance(came, list) or not all(isinstance(each, dict) for each in came):
        return given
    try:
        result = tools.arranged(came, settings)
    except tools.TooLargeError:
        return _declined(given, _tool_rules(settings), WhyNot.TOO_LARGE)
    except TypeError:  # an integer of more than 64 bits
        return _declined(given, _tool_rules(settings), WhyNot.UNREADABLE)
    if result is None:
        return given
    start = start_of(given.raw, (0, len(given.raw)), field)
    (start, end), text = tools.written(given.raw, start, came, result, settings.schema_keys)
    return Rewritten(
        {**given.body, field: result.value},
        given.raw[:start] + text + given.raw[end:],
        tuple(dict.fromkeys(given.changes + result.changes)),
        given.declined,
    )


def _tool_rules(settings: PrefixSettings) -> tuple[Rewrite, ...]:
    keys = () if settings.schema_keys is SchemaKeys.OFF else (Rewrite.SCHEMA_KEYS,)
    return (*keys, Rewrite.TOOLS) if settings.sorts_tools else keys


def _declined(given: Rewritten, rules: tuple[Rewrite, ...], why: WhyNot) -> Rewritten:
    declined = (*given.declined, *(Declined(rule, why) for rule in rules))
    return Rewritten(given.body, given.raw, given.changes, tuple(dict.fromkeys(declined)))
