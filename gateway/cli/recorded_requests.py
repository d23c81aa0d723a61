"""Requests as logs hold them: a gateway's decision log, OpenAI's batch files, bare bodies."""

from dataclasses import dataclass, field
from typing import Any

import orjson

from gateway.protocol.endpoint import Endpoint

_OF_BODIES = (
    ("messages", Endpoint.CHAT),
    ("prompt", Endpoint.COMPLETIONS),
    ("input", Endpoint.RESPONSES),
)

Route = tuple[str, str, str]
"""Rule, endpoint and model."""


class RecordedError(ValueError):
    """The line holds no request; the message says what was expected."""


@dataclass(frozen=True, slots=True)
class Recorded:
    """One recorded request, and what the upstream said of it."""

    endpoint: Endpoint
    model: str
    rule: str
    raw: bytes = field(repr=False)
    """The JSON of its body; read, it takes several times the memory."""
    prompt_tokens: int | None = None
    cached_tokens: int | None = None

    @property
    def body(self) -> dict[str, Any]:
        """Read anew each time."""
        body: dict[str, Any] = orjson.loads(self.raw)
        return body

    @property
    def route(self) -> Route:
        """What has settings of its own."""
        return (self.rule, self.endpoint.value, self.model)


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
        raw=raw,
        prompt_tokens=_count(given.get("prompt_tokens")),
        cached_tokens=_count(given.get("cached_tokens")),
    )


def _endpoint(said: Any, body: dict[str, Any]) -> Endpoint:
    for field_name, endpoint in _OF_BODIES:
        if isinstance(body.get(field_name), list | str):
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
    return value if isinstance(value, int) and value >= 0 else None
