"""Hints to the provider about the stable prefix: breakpoints, ``prompt_cache_key``, retention.

Laws: bytes are only added. What the client sets itself stays. The last user turn is never changed,
and decides nothing. A request that has its hints gets no more of them.

By the ``prompt_cache_key`` OpenAI sends requests with one beginning to one machine. Two requests of
a rule and a tenant have the same key if they begin alike for about the shortest prefix that is
cached. The key is a digest under the gateway's secret, and tells nothing of the prompt.
"""

from collections.abc import Iterator
from hashlib import blake2b
from typing import Any

import orjson

from gateway.prompts.breakpoints import add_marks, keeps_by_options, marks_of
from gateway.prompts.json_splice import Edit, spliced
from gateway.prompts.outcome import Changed, Declined, NotRewritten, NotRewrittenError, Rewrite
from gateway.prompts.texts import is_block
from gateway.protocol.endpoints.table import SPECS
from policies.decision import BreakpointField, Breakpoints, Endpoint, HintSettings, KeyRetention

CACHE_KEY = "prompt_cache_key"
RETENTION = "prompt_cache_retention"
_OPTIONS = "prompt_cache_options"
BEGINNING_BYTES = 3072
"""1,024 tokens of dense text. With fewer, prompts share a key that share less."""
DIGEST_BYTES = 16
"""OpenAI takes keys of up to 64 characters."""


def cache_key(
    endpoint: Endpoint, body: dict[str, Any], rule: str, owner: bytes, keys: int
) -> str | None:
    """Return the key of a request; None where the request cannot be read.

    ``owner`` tells tenants apart. A conversation stays with one of its ``keys``.
    """
    running = blake2b(key=owner, digest_size=DIGEST_BYTES, person=b"refrain prompt")
    running.update(orjson.dumps([rule, body.get("model")]))
    left = BEGINNING_BYTES
    try:
        for piece in _pieces(endpoint, body):
            running.update(piece[:left])
            left -= len(piece)
            if left <= 0:
                break
        if keys > 1:
            running.update(bytes([_of_conversation(endpoint, body, keys)]))
    except TypeError:  # an integer of more than 64 bits, or text that is no Unicode
        return None
    return running.hexdigest()


def _pieces(endpoint: Endpoint, body: dict[str, Any]) -> Iterator[bytes]:
    """Yield the prompt in the order of the chat template, without values moved to its end."""
    *before, _ = SPECS[endpoint].prompt_fields
    for field in before:
        value = body.get(field)
        for each in value if isinstance(value, list) else (value,) if value else ():
            yield orjson.dumps(each)
    for turn in _turns(endpoint, body):
        yield orjson.dumps(turn)


def _turns(endpoint: Endpoint, body: dict[str, Any]) -> Iterator[Any]:
    turns = body.get(SPECS[endpoint].question_field)
    for turn in turns if isinstance(turns, list) else (turns,):
        if not (isinstance(turn, dict) and is_block(turn)):
            yield turn


def _of_conversation(endpoint: Endpoint, body: dict[str, Any], keys: int) -> int:
    """Return the index of the conversation's key, which depends on its first user turn."""
    asked: Any = None
    for turn in _turns(endpoint, body):
        if not isinstance(turn, dict) or turn.get("role") == "user":
            asked = turn.get("content") if isinstance(turn, dict) else turn
            break
    digest = blake2b(orjson.dumps(asked), digest_size=8).digest()
    return int.from_bytes(digest, "big") % keys


def hints_for(endpoint: Endpoint, settings: HintSettings) -> tuple[Rewrite, ...]:
    """Return the hints that are on, if requests of this endpoint have any."""
    if not settings.any_on or SPECS[endpoint].turns is None:
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
) -> Changed:
    """Return the request with the hints of ``settings``; ``raw`` is the JSON of ``body``.

    ``rule`` and ``owner``, which tells tenants apart, are part of the cache key.
    """
    changes: list[Rewrite] = []
    declined: list[Declined] = []
    edits: list[Edit] = []
    sent = body
    for hint in hints_for(endpoint, settings):
        try:
            match hint:
                case Rewrite.BREAKPOINTS:
                    sent, added = _with_marks(endpoint, body, raw, settings)
                case Rewrite.CACHE_KEY:
                    key = _key(endpoint, body, settings, rule, owner)
                    sent, added = _with_field(sent, raw, CACHE_KEY, key)
                case _:
                    sent, added = _with_field(sent, raw, RETENTION, _retention(body, settings))
        except NotRewrittenError as error:
            declined.append(Declined(hint, error.why))
            continue
        if added:
            edits += added
            changes.append(hint)
    if not edits:
        return Changed(body, raw, (), tuple(declined))
    # Edits at one place stay in the order in which they were made.
    edits.sort(key=lambda edit: edit.start)
    return Changed(sent, spliced(raw, edits), tuple(changes), tuple(declined), tuple(edits))


def _with_marks(
    endpoint: Endpoint, body: dict[str, Any], raw: bytes, settings: HintSettings
) -> tuple[dict[str, Any], list[Edit]]:
    marks = marks_of(_model(body), settings)
    refused = not SPECS[endpoint].takes_cache_control
    if marks is None or (refused and marks.field is BreakpointField.CACHE_CONTROL):
        raise NotRewrittenError(NotRewritten.MODEL)
    return add_marks(endpoint, body, raw, settings, marks)


def _key(
    endpoint: Endpoint, body: dict[str, Any], settings: HintSettings, rule: str, owner: bytes
) -> str | None:
    if CACHE_KEY in body:
        return None
    key = cache_key(endpoint, body, rule, owner, settings.keys)
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
    body: dict[str, Any], raw: bytes, field: str, value: str | None
) -> tuple[dict[str, Any], list[Edit]]:
    if value is None:
        return body, []
    end = raw.rindex(b"}")
    member = b',"' + field.encode() + b'":' + orjson.dumps(value)
    return {**body, field: value}, [Edit(end, end, member)]


def _model(body: dict[str, Any]) -> str:
    model = body.get("model")
    return model if isinstance(model, str) else ""
