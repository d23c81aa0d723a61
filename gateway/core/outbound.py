"""What a request says to the upstream beyond what the client said: key, salt, priority.

Law: where the gateway has keys of its own, no credential of a client travels on. What the gateway
says in its own name (salt, priority) a client cannot say in its place; but for that, the bytes of
the body are the client's.
"""

import json
import re
from collections.abc import Iterable
from typing import Any

from gateway.core.access import CREDENTIALS
from gateway.core.headers import Fields, request_fields, without
from policies.decide import Priority

PRIORITY = "X-Refrain-Priority"
SALT = "cache_salt"

OF_AN_ACCOUNT = ("x-goog-api-key", "cookie", "openai-organization", "openai-project")

_NOT_OURS = ("accept-encoding", "content-encoding", "content-type", "cache-control")
_OF_A_TRACE = ("traceparent", "tracestate")

_DECODER = json.JSONDecoder()
_SPACE = re.compile(r"[ \t\r\n]*")


def with_priority(fields: Iterable[tuple[str, str]], priority: Priority) -> Fields:
    """Return the headers with the policy's priority in place of what the client sent."""
    kept = without(fields, PRIORITY.lower())
    return kept if priority is Priority.NORMAL else (*kept, (PRIORITY, priority.value))


def own_fields(fields: Iterable[tuple[str, str]]) -> Fields:
    """Return the headers of a call of ours, in JSON, in the name of who sent these."""
    kept = without(request_fields(fields), *_NOT_OURS, *_OF_A_TRACE)
    ours = (("Content-Type", "application/json"), ("Accept-Encoding", "identity"))
    return with_priority((*kept, *ours), Priority.LOW)


def with_key(fields: Iterable[tuple[str, str]], api_key: str | None) -> Fields:
    """Return the headers with the upstream's own key, if there is one, and no client's.

    Nor does a client choose on which of the operator's accounts it asks.
    """
    kept = without(fields, *CREDENTIALS, *OF_AN_ACCOUNT)
    return kept if api_key is None else (*kept, ("Authorization", f"Bearer {api_key}"))


def with_salt(body: dict[str, Any], raw: bytes, salt: str) -> tuple[dict[str, Any], bytes]:
    """Return body and bytes with ``cache_salt`` set; ``raw`` is the JSON of ``body``."""
    printed = json.dumps(salt).encode()
    salted = {**body, SALT: salt}
    if SALT in body:
        text = raw.decode()
        start, end = _place(text, SALT)
        return salted, text[:start].encode() + printed + text[end:].encode()
    end = raw.rindex(b"}")
    comma = b"," if body else b""
    return salted, raw[:end] + comma + b'"cache_salt":' + printed + raw[end:]


def with_model(body: dict[str, Any], raw: bytes, model: str) -> tuple[dict[str, Any], bytes]:
    """Return body and bytes that name another model; ``raw`` is the JSON of ``body``."""
    text = raw.decode()
    start, end = _place(text, "model")
    named = text[:start].encode() + json.dumps(model).encode() + text[end:].encode()
    return {**body, "model": model}, named


def without_salt(body: dict[str, Any]) -> dict[str, Any]:
    """Return the body as it is keyed where the gateway sets the salt itself."""
    return {name: value for name, value in body.items() if name != SALT} if SALT in body else body


def _place(text: str, field: str) -> tuple[int, int]:
    """Return where the value of a top-level field of a JSON object begins and ends."""
    at = _after_space(text, text.index("{") + 1)
    while text[at] != "}":
        name, at = _DECODER.raw_decode(text, at)
        start = _after_space(text, text.index(":", at) + 1)
        _, end = _DECODER.raw_decode(text, start)
        if name == field:
            return start, end
        at = _after_space(text, end)
        if text[at] == ",":
            at = _after_space(text, at + 1)
    raise KeyError(field)


def _after_space(text: str, at: int) -> int:
    match = _SPACE.match(text, at)
    return at if match is None else match.end()
