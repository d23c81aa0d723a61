"""The hints: from a request as it would be sent to one that tells the provider of its prefix.

Law: bytes are only added. What the client says itself stays; the last user turn is never touched
and moves nothing. What comes out goes in again without a change.
"""

from dataclasses import dataclass
from typing import Any

import orjson

from gateway.core.hints import cache_key
from gateway.core.hints.breakpoints import marked
from gateway.core.hints.models import keeps_by_options, marks_of
from gateway.core.outcome import Declined, NotRewritten, NotRewrittenError, Rewrite
from gateway.core.rewrite.splice import Edit, spliced
from gateway.core.types import Endpoint
from policies.hints import BreakpointField, Breakpoints, HintSettings, KeyRetention

RETENTION = "prompt_cache_retention"
_OPTIONS = "prompt_cache_options"
_TELLING = frozenset({Endpoint.CHAT, Endpoint.RESPONSES})


@dataclass(frozen=True, slots=True)
class Hinted:
    """A request as it is sent: ``raw`` is the JSON of ``body``."""

    body: dict[str, Any]
    raw: bytes
    changes: tuple[Rewrite, ...] = ()
    declined: tuple[Declined, ...] = ()
    edits: tuple[Edit, ...] = ()
    """What was done to the bytes that came."""


def hints_for(endpoint: Endpoint, settings: HintSettings) -> tuple[Rewrite, ...]:
    """Return the hints that are on, where requests of this kind have any."""
    if not settings.any_on or endpoint not in _TELLING:
        return ()
    switches = (
        (Rewrite.BREAKPOINTS, settings.breakpoints is not Breakpoints.OFF),
        (Rewrite.CACHE_KEY, settings.cache_key),
        (Rewrite.RETENTION, settings.retention is not KeyRetention.UNSET),
    )
    return tuple(hint for hint, on in switches if on)


def hinted(
    endpoint: Endpoint,
    body: dict[str, Any],
    raw: bytes,
    settings: HintSettings,
    *,
    rule: str,
    owner: bytes,
) -> Hinted:
    """Return the request with the hints of ``settings``; ``raw`` is the JSON of ``body``.

    ``rule`` and ``owner``, who tells tenants apart, are part of the key that is sent.
    """
    changes: list[Rewrite] = []
    declined: list[Declined] = []
    edits: list[Edit] = []
    told = body
    for hint in hints_for(endpoint, settings):
        try:
            match hint:
                case Rewrite.BREAKPOINTS:
                    told, marks = _with_marks(endpoint, body, raw, settings)
                    edits += marks
                    done = bool(marks)
                case Rewrite.CACHE_KEY:
                    key = _key(endpoint, body, settings, rule, owner)
                    done = key is not None
                    told, edits = _with_field(told, raw, edits, cache_key.FIELD, key)
                case _:
                    kept = _retention(body, settings)
                    done = kept is not None
                    told, edits = _with_field(told, raw, edits, RETENTION, kept)
        except NotRewrittenError as error:
            declined.append(Declined(hint, error.why))
            continue
        if done:
            changes.append(hint)
    if not edits:
        return Hinted(body, raw, (), tuple(declined))
    # Edits at one place stay in the order in which they were made.
    edits.sort(key=lambda edit: edit.start)
    return Hinted(told, spliced(raw, edits), tuple(changes), tuple(declined), tuple(edits))


def _with_marks(
    endpoint: Endpoint, body: dict[str, Any], raw: bytes, settings: HintSettings
) -> tuple[dict[str, Any], list[Edit]]:
    marks = marks_of(_model(body), settings)
    if marks is None or (
        endpoint is Endpoint.RESPONSES and marks.field is BreakpointField.CACHE_CONTROL
    ):
        raise NotRewrittenError(NotRewritten.MODEL)
    return marked(endpoint, body, raw, settings, marks)


def _key(
    endpoint: Endpoint, body: dict[str, Any], settings: HintSettings, rule: str, owner: bytes
) -> str | None:
    if cache_key.FIELD in body:
        return None
    key = cache_key.cache_key(endpoint, body, rule, owner, settings.keys)
    if key is None:
        raise NotRewrittenError(NotRewritten.UNREADABLE)
    return key


def _retention(body: dict[str, Any], settings: HintSettings) -> str | None:
    if RETENTION in body or _OPTIONS in body:
        return None
    if keeps_by_options(_model(body)):  # and refuses the other
        raise NotRewrittenError(NotRewritten.MODEL)
    return settings.retention.value


def _with_field(
    body: dict[str, Any], raw: bytes, edits: list[Edit], field: str, value: str | None
) -> tuple[dict[str, Any], list[Edit]]:
    if value is None:
        return body, edits
    end = raw.rindex(b"}")
    printed = b'"' + field.encode() + b'":' + orjson.dumps(value)
    return {**body, field: value}, [*edits, Edit(end, end, b"," + printed)]


def _model(body: dict[str, Any]) -> str:
    model = body.get("model")
    return model if isinstance(model, str) else ""
