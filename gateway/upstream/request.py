"""One request on its way to an upstream, and which upstream answered.

Law: if the gateway has its own keys, no credential of a client travels on. No client can say
what the gateway says in its own name (salt, priority). All other bytes of a body are the client's.
"""

from collections.abc import Awaitable, Callable, Iterable, Sequence
from contextlib import AbstractAsyncContextManager, suppress
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Protocol

from gateway.cache.lookup import Forward
from gateway.cache.ports import Scanner
from gateway.prompts.json_splice import with_field
from gateway.prompts.outcome import Compression, Declined, Rewrite
from gateway.protocol import exact_json
from gateway.protocol.anthropic.thinking import without_unsigned_thinking
from gateway.protocol.http.cache_status import Reason
from gateway.protocol.http.headers import CREDENTIALS, Fields, request_fields, without
from gateway.protocol.request import CacheRequest
from gateway.telemetry.observation import Attempt, Observation, Place
from gateway.upstream.pool.retry_budget import Forwarding
from policies.decision import Endpoint, Priority

if TYPE_CHECKING:
    from gateway.upstream.additions import Variant, Variants

PRIORITY = "X-Refrain-Priority"
SALT = "cache_salt"
SALT_HEADER = "X-Refrain-Cache-Salt"
"""The salt of a live session, whose handshake has no body."""
PREFILL = "X-Refrain-Prefill"
"""Where a decode engine gets KV blocks from. The gateway says it: a client could name any host."""

_ACCOUNT = ("x-goog-api-key", "cookie", "openai-organization", "openai-project")
OF_A_CLIENT = (*CREDENTIALS, *_ACCOUNT)
"""Headers that have a client's credential, or choose its account."""
OF_A_TRACE = ("traceparent", "tracestate")
OF_A_METHOD = ("x-http-method-override", "x-http-method", "x-method-override")
"""Headers by which some servers take a request for one of another method, whose body is read."""

_PASSED_REPLACED = (PRIORITY.lower(), SALT_HEADER.lower(), PREFILL.lower(), "content-encoding")
"""The priority is the policy's, the salt the tenant's. What is sent of the decoded body has its own
length."""
_CALL_REPLACED = (*_PASSED_REPLACED, "accept-encoding")
_OWN_REPLACED = (*_CALL_REPLACED, "content-type", "cache-control", *OF_A_TRACE)
_UNENCODED = ("Accept-Encoding", "identity")


def own_fields(fields: Iterable[tuple[str, str]]) -> Fields:
    """Return the headers of a call that the gateway makes for a client, which sent these."""
    ours = (("Content-Type", "application/json"), _UNENCODED, (PRIORITY, Priority.LOW.value))
    return (*request_fields(fields, *_OWN_REPLACED), *ours)


def call_fields(fields: Iterable[tuple[str, str]], priority: Priority) -> Fields:
    """Return the headers of a client's call, whose answer is read here."""
    fields = (*request_fields(fields, *_CALL_REPLACED), _UNENCODED)
    return fields if priority is Priority.NORMAL else (*fields, (PRIORITY, priority.value))


def passed_fields(fields: Iterable[tuple[str, str]], *replaced: str) -> Fields:
    """Return the headers of a request that passes through, without the ``replaced`` ones."""
    return request_fields(fields, *_PASSED_REPLACED, *replaced)


def unencoded_fields(fields: Fields) -> Fields:
    """Return the headers of a request that passes through, and whose reply is read here."""
    return (*without(fields, "accept-encoding"), _UNENCODED)


def with_key(
    fields: Iterable[tuple[str, str]], api_key: str | None, auth: str = "bearer"
) -> Fields:
    """Return the headers with the upstream's own key, if there is one, and no client's key.

    ``auth`` is ``bearer``, or the name of the header that has the key. Headers that choose one of
    the operator's accounts are dropped too.
    """
    others = without(fields, *OF_A_CLIENT)
    if api_key is None:
        return others
    own = ("Authorization", f"Bearer {api_key}") if auth == "bearer" else (auth, api_key)
    return (*others, own)


def parsed(raw: bytes) -> dict[str, Any]:
    """Return the body that a request's JSON stands for. Raises BodyError."""
    try:
        return exact_json.parse_body(raw)
    except exact_json.LoneSurrogateError as error:
        return error.body


def with_model(raw: bytes, model: str, body: dict[str, Any] | None = None) -> bytes:
    """Return a request's JSON with another model; every other byte stays.

    It is parsed, unless ``body`` is what it stands for.
    """
    return with_field(parsed(raw) if body is None else body, raw, "model", model)[1]


def without_salt(body: dict[str, Any]) -> dict[str, Any]:
    """Return the body as it is keyed where the gateway sets the salt itself."""
    return {name: value for name, value in body.items() if name != SALT} if SALT in body else body


UPSTREAM = "X-Refrain-Upstream"
MODEL = "X-Refrain-Model"

MOST_MODELS = 1024
LONGEST_MODEL = 256
"""Clients choose the names of models, so what is remembered of them is bounded."""

_GENERATING = frozenset(
    {Endpoint.CHAT, Endpoint.COMPLETIONS, Endpoint.RESPONSES, Endpoint.MESSAGES}
)

Lane = tuple[str, str, bool]


def anyone() -> Sequence[bytes]:
    """Return the scope of requests that belong to no client."""
    return (b"",)


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
    """Whether a stream is requested."""
    body: dict[str, Any] | None = field(default=None, repr=False)
    """What ``raw`` is the JSON of, None where it is not parsed."""
    refused: frozenset[str] = frozenset()
    """Fields that a translation leaves out, since the upstream has refused them."""
    plain: bool = False
    """Whether a translation leaves out all that may be refused."""
    variants: "Variants | None" = field(default=None, repr=False)
    """The bodies for upstreams that get another one."""
    forwarding: Forwarding | None = field(default=None, repr=False)
    """The client's request on its way; None for a request of ours."""
    salt: str = field(default="", repr=False)
    """What a translated request gets as ``cache_salt``: a server of Anthropic's API refuses it."""
    client: str | None = field(default=None, repr=False)
    """The client that takes turns with others, None if it is not known."""
    sticky_id: str = field(default="", repr=False)
    """The id of the object that it continues, which one upstream stores."""
    scopes: Callable[[], Sequence[bytes]] = field(default=anyone, repr=False)
    """Returns the scopes of the client, within which state that it names was learnt."""
    pinned: str = ""
    """The only upstream that can answer it, if there is one."""
    bound: bool = False
    """Whether that is due to state in its body, which others cannot read."""
    native: bool = False
    """Whether only servers of Anthropic's API can answer it."""
    attempt: Callable[[Place], Attempt] | None = field(default=None, repr=False)
    """Begins the trace of each request that is sent, if the call is traced."""

    @property
    def generates(self) -> bool:
        """Whether its answer is generated from a prompt, token by token."""
        return self.target.partition("?")[0] in _GENERATING

    @property
    def lane(self) -> Lane:
        """Requests of one lane wait for the same upstreams."""
        return self.model, self.pinned, self.native

    def sent(self, model: str | None, *, signed_only: bool = False) -> bytes:
        """Return the JSON to send; ``model`` is the upstream's name of it, if it renames it.

        Every other byte stays, unless it is to have ``signed_only`` thinking and has other.
        """
        raw, body = self.raw, self.body
        if signed_only and b'thinking"' in raw:
            # A body that is not JSON, or cannot be printed, goes as it came.
            with suppress(TypeError, ValueError):
                body = parsed(raw) if body is None else body
                if (signed := without_unsigned_thinking(body)) is not None:
                    raw, body = exact_json.dumps(signed), signed
        return raw if model is None else with_model(raw, model, body)


Tried = tuple[tuple[str, Reason], ...]
"""Which upstreams failed, and why."""


@dataclass(frozen=True, slots=True)
class Served:
    """Which upstream answered, and the upstreams that failed before it, with the reasons."""

    upstream: str
    tried: Tried = ()
    several: bool = False
    """Whether another one could have answered."""
    passes_credentials: bool = True
    """Whether the upstream gets the credentials of clients, and not one of the gateway or none."""
    variant: "Variant | None" = field(default=None, repr=False, compare=False)
    """The ``Variant`` that was answered, None where there is only one."""
    added: frozenset[str] = frozenset()
    """The fields of a translation that a server may refuse."""
    report: Callable[[int | None], None] | None = field(default=None, repr=False, compare=False)
    """Takes the prompt's cached tokens, None if unknown."""
    learn: Callable[[Sequence[str], bytes], Awaitable[None] | None] | None = field(
        default=None, repr=False, compare=False
    )
    """Takes values that only this upstream can read, and the scope that they were made within.
    Returns the work of telling other gateways, if there are any."""


def with_upstream(fields: Fields, served: Served | None) -> Fields:
    """Return the headers of a reply; of several upstreams, with which one answered."""
    if served is None or not served.several:
        return fields
    return (*fields, (UPSTREAM, format_upstream_header(served.upstream, served.tried)))


def format_upstream_header(upstream: str, tried: Tried) -> str:
    """Return the upstream that answered, if any, and why others before it failed."""
    failed = ", ".join(f"{name}={reason}" for name, reason in tried)
    return "; ".join(([upstream] if upstream else []) + ([f'tried="{failed}"'] if failed else []))


@dataclass(frozen=True, slots=True, eq=False)
class Exchange:
    """One request on its way to the upstream."""

    request: CacheRequest
    """As it is sent."""
    state: Forward
    """Its ``store`` is the plan under which the answer may be admitted, if it may."""
    scanner: Scanner
    observation: Observation
    priority: Priority = Priority.NORMAL
    rewrites: tuple[Rewrite, ...] = ()
    """The rewrites that were applied to the prompt, and the others with their reasons."""
    not_rewritten: tuple[Declined, ...] = ()
    compression: Compression | None = None
    """The outcome for its declared context, if any."""
    salt: str = field(default="", repr=False)
    """The tenant's salt, where it is no part of the body: see ``Outgoing``."""
    client: str | None = field(default=None, repr=False)
    """The holder of the gateway's key that the client showed, else a digest of its credential."""
    scopes: Callable[[], Sequence[bytes]] = field(default=anyone, repr=False)
    """Returns the scopes of the client; what its answer brings is learnt for the first."""
    unhinted: "Exchange | None" = None
    """The same for upstreams that accept no hints, if it has hints."""
    original: "Exchange | None" = None
    """The request as the client sent it, if this one differs."""
    forwarding: Forwarding = field(default_factory=Forwarding, repr=False)


class UpstreamReply(Protocol):
    """The head of an upstream's reply, and its body as it arrives."""

    @property
    def served(self) -> Served:
        """Which of several upstreams this is."""

    @property
    def status(self) -> int:
        """HTTP status code."""

    @property
    def headers(self) -> Sequence[tuple[str, str]]:
        """Headers as received. The body is decoded, whatever its Content-Encoding."""

    @property
    def content_type(self) -> str:
        """Media type without parameters, lower case."""

    async def read(self) -> bytes:
        """Return the next piece of the body, none at its end.

        Raises UpstreamError when it breaks off or stalls.
        """


class Upstream(Protocol):
    """An OpenAI-compatible server."""

    @property
    def name(self) -> str:
        """Base URL without credentials; part of every key."""

    def send(self, outgoing: Outgoing) -> AbstractAsyncContextManager[UpstreamReply]:
        """POST the request; leaving the context cancels the rest of the reply.

        Raises UpstreamError when it cannot be reached or sends no head in time.
        """
