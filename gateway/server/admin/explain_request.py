"""A request asked about, not sent, and where in it personal data stands.

It is a body, one with endpoint and headers, or a decision log's line.
"""

import json
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from itertools import islice
from typing import Any

import orjson

from gateway.cache.canonical import BodyError, parse_body
from gateway.protocol.conversation import is_readable, names_text, prompt_text
from gateway.protocol.endpoint import Endpoint
from gateway.protocol.fields import neutral_fields
from gateway.protocol.text_extraction import as_names, query_readings
from policies.pii.scan import PiiScanner

MOST_FINDINGS = 100
_TOGETHER = "texts put together or unescaped"
_NAMES = frozenset({"model"}).union(*map(neutral_fields, Endpoint))
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

    @property
    def target(self) -> str:
        """Path and query."""
        return self.endpoint.value + (f"?{self.query}" if self.query else "")

    @property
    def raw(self) -> bytes:
        """The body as bytes, for what reads requests."""
        try:
            return orjson.dumps(self.body)
        except TypeError:  # an integer of more than 64 bits
            return json.dumps(self.body).encode()


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
    endpoint, query = _target(given.get("endpoint"))
    headers = _headers(given.get("headers", {}))
    return Inquiry(endpoint or _inferred(body), query, headers, body, endpoint is None)


def as_json(inquiry: Inquiry) -> dict[str, Any]:
    """Return what ``parse_inquiry`` reads, for a gateway elsewhere."""
    headers = dict(inquiry.headers)
    return {"endpoint": inquiry.target, "headers": headers, "body": inquiry.body}


def _target(value: Any) -> tuple[Endpoint | None, str]:
    """Return the endpoint, None where none is named, and the query."""
    if value is None:
        return None, ""
    if not isinstance(value, str):
        raise InquiryError("endpoint", "a path such as /v1/chat/completions")
    path, _, query = value.partition("?")
    if path not in [*Endpoint]:
        raise InquiryError("endpoint", f"one of {', '.join(Endpoint)}")
    return Endpoint(path), query


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


@dataclass(frozen=True, slots=True)
class Finding:
    """What was found and where, never the text itself. Places count characters."""

    kind: str
    where: str
    start: int = 0
    end: int = 0


def findings(
    scanner: PiiScanner, endpoint: Endpoint, body: dict[str, Any], query: str
) -> list[Finding]:
    """Scan a request as a lookup does, and find the places of what that finds."""
    beside = {field: body[field] for field in body if field in neutral_fields(endpoint)}
    keyed = {field: body[field] for field in body if field not in beside}
    found: list[Finding] = []
    if not is_readable(endpoint, body):
        found.append(Finding("unreadable", "prompt, as token numbers"))
    elif kind := scanner.scan(prompt_text(endpoint, body, query)):
        found += _places(scanner, keyed, query) or [Finding(kind, _TOGETHER)]
    if kind := scanner.scan(names_text(endpoint, body)):
        found += _places(scanner, beside) or [Finding(kind, _TOGETHER)]
    return found


def _places(scanner: PiiScanner, fields: dict[str, Any], query: str = "") -> list[Finding]:
    found: list[Finding] = []
    for field, value in fields.items():
        for where, text in _texts(scanner, field, value):
            if field in _NAMES and as_names(text) != text:
                spans = scanner.spans(as_names(text))[:1]
                found += [Finding(span.kind, where, 0, len(text)) for span in spans]
            else:
                spans = scanner.spans(text)
                found += [Finding(span.kind, where, span.start, span.end) for span in spans]
            if len(found) >= MOST_FINDINGS:
                return found[:MOST_FINDINGS]
    kinds = (kind for text in query_readings(query) if (kind := scanner.scan(text)))
    return found + [Finding(kind, "query string") for kind in islice(kinds, 1)]


def _texts(scanner: PiiScanner, field: str, value: Any) -> Iterator[tuple[str, str]]:
    """Yield the texts of a field and where they stand; a place quotes no name with a finding."""

    def named(name: str) -> str:
        return name if scanner.scan(name) is None else "(a name)"

    yield named(field), field
    stack = [(named(field), value)]
    while stack:
        at, each = stack.pop()
        match each:
            case str():
                yield at, each
            case dict():
                for name, member in reversed(each.items()):
                    where = f"{at}.{named(name)}"
                    stack += [(where, member), (where, name)]
            case list():
                stack += reversed([(f"{at}[{index}]", item) for index, item in enumerate(each)])
