"""Requests as logs hold them: a gateway's decision log, OpenAI's batch files, bare bodies."""

from typing import Any

import orjson

from gateway.core.prefix_report import Recorded
from gateway.core.types import Endpoint

_OF_BODIES = (
    ("messages", Endpoint.CHAT),
    ("prompt", Endpoint.COMPLETIONS),
    ("input", Endpoint.RESPONSES),
)


class RecordedError(ValueError):
    """The line holds no request; the message says what was expected."""


def parse_recorded(line: bytes) -> Recorded:
    """Read a line: ``{"request": ...}``, ``{"body": ...}`` or a body. Raises RecordedError."""
    try:
        given = orjson.loads(line)
    except orjson.JSONDecodeError:
        raise RecordedError("expected JSON") from None
    if not isinstance(given, dict):
        raise RecordedError("expected a JSON object")
    body = given.get("request", given.get("body", given))
    if not isinstance(body, dict):
        raise RecordedError("expected an object in its field request or body")
    endpoint = _endpoint(given.get("endpoint", given.get("url")), body)
    try:
        raw = orjson.dumps(body)
    except TypeError:
        raise RecordedError("expected a request that is nested less deep") from None
    return Recorded(
        endpoint=endpoint,
        model=str(body.get("model") or ""),
        rule=str(given.get("rule") or ""),
        body=body,
        raw=raw,
        prompt_tokens=_count(given.get("prompt_tokens")),
        cached_tokens=_count(given.get("cached_tokens")),
    )


def _endpoint(said: Any, body: dict[str, Any]) -> Endpoint:
    for field, endpoint in _OF_BODIES:
        if isinstance(body.get(field), list | str):
            if said is None:
                return endpoint
            break
    else:
        raise RecordedError("expected messages, prompt or input in the request")
    try:
        return Endpoint(said)
    except ValueError:
        known = ", ".join(endpoint.value for endpoint in Endpoint)
        raise RecordedError(f"endpoint: expected one of {known}") from None


def _count(value: Any) -> int | None:
    return value if isinstance(value, int) and value > 0 else None
