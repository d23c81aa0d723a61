"""A request to a cached endpoint: parsed and checked once, then carried from the handler on.

A body that OpenAI would refuse, but other servers take, is ``odd``: its request is forwarded as it
came, and neither looked up nor stored.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

from gateway.protocol.conversation import last_user_text, system_text
from gateway.protocol.endpoints.registry import SPECS
from gateway.protocol.errors import ClientError
from gateway.protocol.exact_json import BodyError, BodyTooLargeError, LoneSurrogateError, parse_body
from policies.decision import Endpoint

LARGE_BYTES = 262_144
"""Longer bodies are read, keyed and translated in a thread: a quarter of a megabyte takes a
millisecond, or some tens where it is made to take long."""

LONGEST_MODEL = 1_024
"""Of a model's name, which entries and tables keep: it may be the path of a file."""


@dataclass(frozen=True, slots=True)
class OddShape:
    """The whole body of an odd request, and the error that OpenAI would return."""

    body: dict[str, Any] = field(repr=False)
    error: ClientError


@dataclass(frozen=True, slots=True)
class CacheRequest:
    """A request in its client's form, or in the form to send.

    ``raw`` is the JSON of ``body``. If the request is odd, ``body`` is only what routing reads.
    ``headers`` are by lower-case name, repeated lines joined; ``fields`` are the lines as they
    came. ``target`` is path and query. ``holder`` names the gateway key of the client, if any,
    and ``team`` is the holder's team.
    """

    endpoint: Endpoint
    body: dict[str, Any] = field(repr=False)
    raw: bytes = field(repr=False)
    headers: Mapping[str, str] = field(repr=False)
    fields: Iterable[tuple[str, str]] = field(repr=False)
    target: str = field(repr=False)
    holder: str | None = None
    odd: OddShape | None = None
    team: str | None = None
    needs_usage: bool = False
    """Whether the tokens of the holder are limited, so that they must be known."""

    query: str = field(init=False, repr=False)
    """Query string, without its question mark."""
    asked: dict[str, Any] = field(init=False, repr=False)
    """The whole body, also if the request is odd."""
    model: str = field(init=False)
    """The model that the client names, empty if it names none."""
    streamed: bool = field(init=False)
    """Whether the client requests a stream."""
    wants_usage: bool = field(init=False)
    """Whether the client gets usage on its stream: if requested, or if the last event has it."""

    def __post_init__(self) -> None:
        # The slots are set once: each is read several times on the way of a hit.
        put, body = object.__setattr__, self.body
        put(self, "query", self.target.partition("?")[2])
        put(self, "asked", body if self.odd is None else self.odd.body)
        put(self, "model", body.get("model") or "")
        streaming = SPECS[self.endpoint].streaming
        put(self, "streamed", streaming is not None and body.get("stream") is True)
        wants_usage = streaming is not None and not streaming.usage_option
        if streaming is not None and streaming.usage_option:
            match body:  # as OpenAI or as OpenRouter has it
                case {"stream_options": {"include_usage": True}} | {"usage": {"include": True}}:
                    wants_usage = True
        put(self, "wants_usage", wants_usage)

    @property
    def last_user_text(self) -> str | None:
        """The text of the last turn of the user, if it is text.

        If an odd request has none, all texts of its question: rules must not miss it.
        """
        text = last_user_text(self.endpoint, self.asked)
        if self.odd is None:
            return text
        if text is None:
            text = "\n".join(_texts(self.asked.get(SPECS[self.endpoint].question_field))) or None
        return _without_surrogates(text)

    @property
    def system_text(self) -> str | None:
        text = system_text(self.endpoint, self.asked)
        return text if self.odd is None else _without_surrogates(text)


def read_request(
    endpoint: Endpoint,
    raw: bytes,
    *,
    headers: Mapping[str, str],
    fields: Iterable[tuple[str, str]] = (),
    target: str = "",
    holder: str | None = None,
    team: str | None = None,
) -> CacheRequest:
    """Parse a body and check its shape; see ``CacheRequest``. Raises ClientError."""
    error: ClientError | None = None
    try:
        body = parse_body(raw)
    except LoneSurrogateError as surrogate:
        body, error = surrogate.body, ClientError(400, str(surrogate))
    except BodyTooLargeError as large:
        raise ClientError(413, str(large), code="request_too_large") from None
    except BodyError as bad:
        raise ClientError(400, str(bad)) from None
    if isinstance(name := body.get("model"), str) and len(name) > LONGEST_MODEL:
        text = f"The name of a model has at most {LONGEST_MODEL:,} characters."
        raise ClientError(400, text, param="model")
    error = SPECS[endpoint].validate(body) or error
    odd = None
    if error is not None:
        odd, body = OddShape(body, error), _routing_body(endpoint, body)
    place = target or endpoint.value
    return CacheRequest(endpoint, body, raw, headers, fields, place, holder, odd, team)


def _routing_body(endpoint: Endpoint, body: dict[str, Any]) -> dict[str, Any]:
    """Return the fields of an odd request that routing reads."""
    names = ("model", "previous_response_id") if SPECS[endpoint].keeps_by_id else ("model",)
    routing: dict[str, Any] = {
        name: body[name]
        for name in names
        if isinstance(body.get(name), str) and _is_text(body[name])
    }
    if body.get("stream") is True:
        routing["stream"] = True
        match body:
            case {"stream_options": {"include_usage": True}} | {"usage": {"include": True}}:
                routing["stream_options"] = {"include_usage": True}
    if isinstance(body.get("store"), bool):
        routing["store"] = body["store"]
    return routing


def _is_text(value: str) -> bool:
    return value.isascii() or value.encode("utf-8", "replace") == value.encode(
        "utf-8", "surrogatepass"
    )


def _texts(value: Any) -> list[str]:
    found: list[str] = []
    stack = [value]
    while stack:
        match stack.pop():
            case str() as text:
                found.append(text)
            case list() as items:
                stack.extend(reversed(items))
            case dict() as members:
                stack.extend(reversed(members.values()))
    return found


def _without_surrogates(text: str | None) -> str | None:
    return None if text is None else text.encode("utf-8", "replace").decode()
