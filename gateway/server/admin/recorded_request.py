"""A recorded request, from its JSON.

The JSON is a body, a body beside its endpoint and headers, a line of OpenAI's batch files, or a
decision log's line with the request. Law: anything else is an error that names the expected form,
never a guess.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import orjson

from gateway.protocol.endpoints.registry import SPECS
from gateway.protocol.exact_json import BodyError, dumps, parse_body
from gateway.protocol.http.headers import CONTROL
from policies.decision import Endpoint

_MEMBERS = ("endpoint", "headers", "body")

Route = tuple[str, str, str]
"""Rule, endpoint and model."""


class InvalidFieldError(ValueError):
    """A field is invalid; ``field`` is its name, empty for the whole object."""

    def __init__(self, field: str, expected: str) -> None:
        super().__init__(f"{field}: expected {expected}" if field else f"expected {expected}")
        self.field = field
        self.expected = expected


@dataclass(frozen=True, slots=True)
class RecordedRequest:
    """A request as received, and the upstream's usage for it."""

    endpoint: Endpoint
    model: str
    rule: str
    raw: bytes = field(repr=False)
    """The JSON of its body; read, it takes several times the memory."""
    prompt_tokens: int | None = None
    cached_tokens: int | None = None
    query: str = ""
    headers: Mapping[str, str] = field(default_factory=dict)
    inferred: bool = False
    """Whether the record does not name its endpoint."""

    @property
    def body(self) -> dict[str, Any]:
        """Read the body each time."""
        body: dict[str, Any] = orjson.loads(self.raw)
        return body

    @property
    def target(self) -> str:
        return self.endpoint.value + (f"?{self.query}" if self.query else "")

    @property
    def route(self) -> Route:
        """The route: what may have its own settings."""
        return (self.rule, self.endpoint.value, self.model)


def parse_recorded(raw: bytes) -> RecordedRequest:
    """Read a request that somebody wrote to ask about it. Raises InvalidFieldError."""
    try:
        value = parse_body(raw)
    except BodyError as error:
        raise InvalidFieldError("", f"a request body as JSON ({error})") from None
    return read_request(value, strict=True)


def read_request(value: Any, *, strict: bool = False) -> RecordedRequest:
    """Read a request from parsed JSON. Raises InvalidFieldError.

    ``strict`` lets nothing stand beside a body that would be passed over.
    """
    if not isinstance(value, dict):
        raise InvalidFieldError("", "a JSON object")
    name = next((name for name in ("body", "request") if name in value), None)
    body, beside = (value, {}) if name is None else (value[name], value)
    if not isinstance(body, dict):
        raise InvalidFieldError(name or "", "an object")
    if strict and name == "body":
        for other in value:
            if other not in _MEMBERS:
                members = ", ".join(_MEMBERS)
                raise InvalidFieldError(other, f"one of the members {members} around a body")
    target = beside.get("endpoint", beside.get("url"))
    endpoint, query = (None, "") if target is None else read_endpoint(target)
    try:
        raw = dumps(body)
    except TypeError:
        raise InvalidFieldError("", "a request that is nested less deep") from None
    return RecordedRequest(
        endpoint=endpoint or _infer_endpoint(body),
        model=str(body.get("model") or ""),
        rule=str(beside.get("rule") or ""),
        raw=raw,
        prompt_tokens=_count(beside.get("prompt_tokens")),
        cached_tokens=_count(beside.get("cached_tokens")),
        query=query,
        headers=read_headers(beside.get("headers", {})),
        inferred=endpoint is None,
    )


def as_json(one: RecordedRequest) -> dict[str, Any]:
    """Return what ``read_request`` reads, for a gateway elsewhere."""
    return {"endpoint": one.target, "headers": dict(one.headers), "body": parse_body(one.raw)}


def read_endpoint(value: Any) -> tuple[Endpoint, str]:
    """Return the endpoint and the query of a path. Raises InvalidFieldError."""
    path, _, query = value.partition("?") if isinstance(value, str) else ("", "", "")
    if path not in [*Endpoint]:
        raise InvalidFieldError("endpoint", f"one of {', '.join(Endpoint)}")
    return Endpoint(path), query


def _infer_endpoint(body: dict[str, Any]) -> Endpoint:
    """Tell the endpoint by the fields that only one of them has."""
    for endpoint, spec in SPECS.items():
        if spec.recognises(body):
            return endpoint
    *most, last = dict.fromkeys(spec.question_field for spec in SPECS.values())
    raise InvalidFieldError(
        "", f"a body with {', '.join(most)} or {last}, or an object with endpoint"
    )


def read_headers(value: Any) -> dict[str, str]:
    """Return headers by lower-case name. Raises InvalidFieldError."""
    if not isinstance(value, dict):
        raise InvalidFieldError("headers", "an object of texts")
    headers: dict[str, str] = {}
    for name, text in value.items():
        if not isinstance(text, str) or CONTROL.search(text) is not None:
            raise InvalidFieldError(f"headers.{name}", "a text of one line")
        headers[name.lower()] = text
    return headers


def _count(value: Any) -> int | None:
    return value if isinstance(value, int) and value >= 0 else None
