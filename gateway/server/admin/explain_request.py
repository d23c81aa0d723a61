"""A request asked about, not sent: a body, one with endpoint and headers, or a decision log's line.

Pure: bytes in, an ``Inquiry`` or an ``InquiryError`` out, which says what was expected.
"""

import json
import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import orjson

from gateway.cache.canonical import BodyError, parse_body
from gateway.protocol.endpoint import Endpoint

_MEMBERS = ("endpoint", "headers", "body")
_EMBEDDINGS_ONLY = ("encoding_format", "dimensions")
_LINE = re.compile(r"[\x00-\x08\x0a-\x1f\x7f]")


class InquiryError(ValueError):
    """This is no request; ``field`` is what is wrong, empty for the whole."""

    def __init__(self, field: str, expected: str) -> None:
        super().__init__(f"{field}: expected {expected}" if field else f"expected {expected}")
        self.field = field
        self.expected = expected


@dataclass(frozen=True, slots=True)
class Inquiry:
    """A request as it would come in. ``inferred`` tells that nobody named its endpoint."""

    endpoint: Endpoint
    query: str
    headers: Mapping[str, str]
    body: dict[str, Any]
    inferred: bool


def parse_inquiry(raw: bytes) -> Inquiry:
    """Read a request to be explained. Raises InquiryError."""
    try:
        given = parse_body(raw)
    except BodyError as error:
        raise InquiryError("", f"a request body as JSON ({error})") from None
    return read_inquiry(given)


def read_inquiry(given: dict[str, Any]) -> Inquiry:
    """Read a request to be explained from parsed JSON. Raises InquiryError."""
    if isinstance(given.get("request"), dict) and "body" not in given:
        given = {"endpoint": given.get("endpoint"), "body": given["request"]}
    if "body" not in given:
        return Inquiry(_inferred(given), "", {}, given, inferred=True)
    for name in given:
        if name not in _MEMBERS:
            raise InquiryError(name, f"one of the members {', '.join(_MEMBERS)} around a body")
    body = given["body"]
    if not isinstance(body, dict):
        raise InquiryError("body", "an object")
    path, query = _target(given.get("endpoint"))
    endpoint = _inferred(body) if path is None else _endpoint(path)
    return Inquiry(endpoint, query, _headers(given.get("headers", {})), body, path is None)


def as_json(inquiry: Inquiry) -> dict[str, Any]:
    """Return what ``parse_inquiry`` reads, for a gateway elsewhere."""
    target = inquiry.endpoint.value + (f"?{inquiry.query}" if inquiry.query else "")
    return {"endpoint": target, "headers": dict(inquiry.headers), "body": inquiry.body}


def _target(value: Any) -> tuple[str | None, str]:
    if value is None:
        return None, ""
    if not isinstance(value, str):
        raise InquiryError("endpoint", "a path such as /v1/chat/completions")
    path, _, query = value.partition("?")
    return path, query


def _endpoint(path: str) -> Endpoint:
    try:
        return Endpoint(path)
    except ValueError:
        raise InquiryError("endpoint", f"one of {', '.join(Endpoint)}") from None


def _inferred(body: dict[str, Any]) -> Endpoint:
    """Tell the endpoint by the fields that only one of them has."""
    if "messages" in body:
        return Endpoint.CHAT
    if "input" in body:
        embeds = any(name in body for name in _EMBEDDINGS_ONLY) or "embed" in str(body.get("model"))
        return Endpoint.EMBEDDINGS if embeds else Endpoint.RESPONSES
    if "prompt" in body:
        return Endpoint.COMPLETIONS
    raise InquiryError("", "a body with messages, prompt or input, or an object with endpoint")


def _headers(value: Any) -> Mapping[str, str]:
    if not isinstance(value, dict):
        raise InquiryError("headers", "an object of texts")
    headers: dict[str, str] = {}
    for name, text in value.items():
        if not isinstance(text, str) or _LINE.search(text) is not None:
            raise InquiryError(f"headers.{name}", "a text of one line")
        headers[name.lower()] = text
    return headers


def written(inquiry: Inquiry) -> bytes:
    """Return the body as bytes, for what reads requests."""
    try:
        return orjson.dumps(inquiry.body)
    except TypeError:  # an integer of more than 64 bits
        return json.dumps(inquiry.body).encode()
