"""What the gateway adds to a request (key, salt, priority), and which upstream answered it.

Law: if the gateway has keys of its own, no credential of a client travels on. What the gateway says
in its own name (salt, priority) a client cannot say in its place. Otherwise the bytes of the body
are the client's.
"""

import json
import re
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

from gateway.protocol.cache_status import Reason
from gateway.protocol.headers import CREDENTIALS, Fields, request_fields, without
from gateway.telemetry.observation import Observation
from policies.decision import Priority

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
    """Return the headers of a call of our own, in JSON, for the client that sent these."""
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


UPSTREAM = "X-Refrain-Upstream"
MODEL = "X-Refrain-Model"
_OURS = "x-refrain-"
"""Prefix of the gateway's own headers, which no upstream may send."""

MOST_MODELS = 1024
LONGEST_MODEL = 256
"""Clients choose the names of models, so what is remembered of them is bounded."""

Lane = tuple[str, str]


@dataclass(frozen=True, slots=True)
class Outgoing:
    """A request as an upstream gets it; ``target`` is path and query, ``model`` what it names.

    ``prefix`` is the prompt's chain of block digests, of the prompt as it is sent: entry i covers
    the blocks 0 to i. It is empty if none was made.
    """

    target: str
    fields: Fields = field(repr=False)
    raw: bytes = field(repr=False)
    model: str = ""
    prefix: tuple[int, ...] = field(default=(), repr=False)
    streamed: bool = False
    """Whether a stream is asked for."""
    instead: Mapping[str, bytes] = field(default_factory=dict, repr=False)
    """What these upstreams get in place of ``raw``, by name."""
    client: str | None = field(default=None, repr=False)
    """The client that takes turns with others, None if it is not known."""
    named: str = field(default="", repr=False)
    """The id of what it continues, which one upstream keeps."""
    at: str = ""
    """The only upstream that can answer it, if there is one."""

    @property
    def rank(self) -> int:
        """Return its priority as a number, the first in line with the least."""
        priority = next((value for name, value in self.fields if name == PRIORITY), "")
        return _RANKS.get(priority, _RANKS[Priority.NORMAL])

    @property
    def lane(self) -> Lane:
        """Requests of one lane wait for the same upstreams."""
        return self.model, self.at

    def raw_to(self, upstream: str) -> bytes:
        """Return the body for an upstream."""
        return self.instead.get(upstream, self.raw)


_RANKS: dict[str, int] = {Priority.HIGH: 0, Priority.NORMAL: 1, Priority.LOW: 2}

Tried = tuple[tuple[str, Reason], ...]
"""Which upstreams failed, and why."""


def _ignored(_feedback: object) -> None:
    """No-op: a single upstream needs no feedback."""


@dataclass(frozen=True, slots=True)
class Served:
    """Which upstream answered, and those that were tried before it, each with why it did not."""

    upstream: str
    tried: Tried = ()
    several: bool = False
    """Whether another one could have answered."""
    note_cached: Callable[[int], None] = field(default=_ignored, repr=False, compare=False)
    """Callback for the tokens of the prompt that it found in its cache, if it says so."""
    note_made: Callable[[str], None] = field(default=_ignored, repr=False, compare=False)
    """Callback for the id of what it has made and keeps."""


def note_served(served: Served | None, seen: Observation) -> None:
    """Note which upstream answered, where there are several."""
    if served is not None and served.several:
        seen.upstream, seen.tried = served.upstream, served.tried


def with_upstream(fields: Fields, served: Served | None) -> Fields:
    """Return an upstream's headers; of several upstreams, with which one answered."""
    theirs = tuple(field for field in fields if not field[0].lower().startswith(_OURS))
    if served is None or not served.several:
        return theirs
    return (*theirs, (UPSTREAM, format_upstream_header(served.upstream, served.tried)))


def format_upstream_header(upstream: str, tried: Tried) -> str:
    """Return the upstream that answered, if any, and those tried before, with the reasons."""
    failed = ", ".join(f"{name}={reason}" for name, reason in tried)
    return "; ".join(([upstream] if upstream else []) + ([f'tried="{failed}"'] if failed else []))
