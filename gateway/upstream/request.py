"""One request on its way to an upstream: what the gateway adds to it, and which upstream answered.

Laws:
- If the gateway has keys of its own, no credential of a client travels on. A client cannot say what
  the gateway says in its own name (salt, priority). All other bytes of the body are the client's.
- What the gateway adds fails no request. If an upstream refuses a request with an addition, that
  request is sent once more, as the client sent it. The second call is charged to the retry budget.
  While that budget is empty, nothing is added that could be refused.
"""

from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from contextlib import AbstractAsyncContextManager, suppress
from dataclasses import dataclass, field
from http import HTTPStatus
from typing import Any, Protocol

from gateway.cache.lookup import Forward
from gateway.cache.ports import Scanner
from gateway.prompts.json_splice import Edit, Places, splice, with_field
from gateway.prompts.outcome import Compression, Declined, Rewrite
from gateway.protocol import exact_json
from gateway.protocol.anthropic.thinking import without_unsigned_thinking
from gateway.protocol.cache_status import Reason
from gateway.protocol.endpoints.registry import SPECS
from gateway.protocol.headers import CREDENTIALS, Fields, request_fields, without
from gateway.protocol.messages import ALL_ADDITIONS, Addition
from gateway.protocol.request import CacheRequest
from gateway.telemetry.observation import Attempt, Observation, Place
from policies.decision import Priority

PRIORITY = "X-Refrain-Priority"
SALT = "cache_salt"

OF_AN_ACCOUNT = ("x-goog-api-key", "cookie", "openai-organization", "openai-project")

_REPLACED_FIELDS = ("accept-encoding", "content-encoding", "content-type", "cache-control")
OF_A_TRACE = ("traceparent", "tracestate")


def own_fields(fields: Iterable[tuple[str, str]]) -> Fields:
    """Return the headers of a call of our own, in JSON, for the client that sent these."""
    client_fields = request_fields(fields, *_REPLACED_FIELDS, *OF_A_TRACE, PRIORITY.lower())
    ours = (("Content-Type", "application/json"), ("Accept-Encoding", "identity"))
    return (*client_fields, *ours, (PRIORITY, Priority.LOW.value))


def with_key(
    fields: Iterable[tuple[str, str]], api_key: str | None, auth: str = "bearer"
) -> Fields:
    """Return the headers with the upstream's own key, if there is one, and no client's key.

    ``auth`` is ``bearer``, or the name of the header that has the key. Headers that choose one of
    the operator's accounts are dropped too.
    """
    others = without(fields, *CREDENTIALS, *OF_AN_ACCOUNT)
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

Lane = tuple[str, str, bool]


def anyone() -> Sequence[bytes]:
    """Return the scope of requests that belong to no client."""
    return (b"",)


Sent = tuple[bytes, dict[str, Any] | None]
"""The JSON of a body, and the body, None where it is not parsed."""


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
    instead: Mapping[str, Sent] = field(default_factory=dict, repr=False)
    """Bodies for some upstreams in place of this one, by name."""
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
    def lane(self) -> Lane:
        """Requests of one lane wait for the same upstreams."""
        return self.model, self.pinned, self.native

    def sent_to(self, upstream: str, model: str | None, *, signed_only: bool = False) -> bytes:
        """Return the JSON for an upstream; ``model`` is its name of the model, if it renames it.

        Every other byte stays, unless it is to have ``signed_only`` thinking and has other.
        """
        raw, body = self.instead.get(upstream, (self.raw, self.body))
        if signed_only and b'thinking"' in raw:
            # What is no JSON, or cannot be printed, goes as it came.
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


Accepts = Mapping[str, frozenset[Addition]]
"""Which additions each upstream accepts, by its name; one that is not there accepts all."""


@dataclass(frozen=True, slots=True)
class Variant:
    """A request as some upstreams get it."""

    exchange: Exchange
    raw: bytes
    body: dict[str, Any]
    """What ``raw`` is the JSON of."""
    additions: frozenset[Addition]
    usage: bool
    """Whether usage is requested, by the client or the gateway."""

    @property
    def moves_values(self) -> bool:
        """Tell whether it has a turn of volatile values, which some chat templates refuse."""
        return Rewrite.VOLATILE in self.exchange.rewrites

    def may_explain(self, status: int) -> bool:
        """Tell whether a refusal may be due to the gateway's changes."""
        match status:
            case HTTPStatus.INTERNAL_SERVER_ERROR:
                return self.moves_values  # llama.cpp answers so if a chat template fails
            case HTTPStatus.BAD_REQUEST | HTTPStatus.UNPROCESSABLE_ENTITY:
                return bool(self.additions) or self.moves_values
            case _:
                return False

    def remedy(self, accepts: frozenset[Addition]) -> str:
        """Return the settings that stop the gateway from sending the refused additions."""
        settings = []
        if self.additions:
            left = ", ".join(sorted(accepts - self.additions))
            settings.append(f"accepts: [{left}] (upstream_accepts where it has no long form)")
        if self.moves_values:
            settings.append("prefix: {volatile: off} in the policy")
        return " and ".join(settings)


def variants(
    exchange: Exchange, accepts: Accepts, *, may_retry: bool
) -> tuple[Variant, dict[str, Variant]]:
    """Return what any upstream gets, and what some get in its place, by their names.

    Unless ``may_retry``, they have nothing that an upstream may refuse.
    """
    if not may_retry:
        plain = _variant(exchange, frozenset())
        return (as_client_sent(exchange) if plain.moves_values else plain), {}
    usual = _variant(exchange, ALL_ADDITIONS)
    if not accepts:
        return usual, {}
    made = {ALL_ADDITIONS: usual}
    for accepted in accepts.values():
        if accepted not in made:
            made[accepted] = _variant(exchange, accepted)
    others = {name: made[one] for name, one in accepts.items() if one != ALL_ADDITIONS}
    return usual, others


def as_client_sent(exchange: Exchange) -> Variant:
    """Return the request without anything that the gateway adds or moves."""
    return _variant(exchange.original or exchange, frozenset())


def _variant(exchange: Exchange, accepted: frozenset[Addition]) -> Variant:
    added = set[Addition]()
    if exchange.unhinted is not None:
        if Addition.HINTS in accepted:
            added.add(Addition.HINTS)
        else:
            exchange = exchange.unhinted
    request = exchange.request
    raw, usage = request.raw, request.wants_usage
    body = request.asked
    streaming = SPECS[exchange.request.endpoint].streaming
    if streaming is not None and streaming.usage_option and Addition.STREAM_USAGE in accepted:
        with_usage, raw = ask_for_usage(body, raw)
        if with_usage is not None:
            added.add(Addition.STREAM_USAGE)
            body, usage = with_usage, True
    return Variant(exchange, raw, body, frozenset(added), usage)


_NO_STREAM = frozenset({"false", "no", "off", "n", "f", "0"})


def ask_for_usage(body: dict[str, Any], raw: bytes) -> tuple[dict[str, Any] | None, bytes]:
    """Return the body to forward and its JSON. None: usage is not requested in addition.

    Only ``stream_options.include_usage`` is added, if the client streams and did not request usage.
    Every other byte stays.
    """
    # In an odd request, a server may take any other value for true.
    if not body.get("stream") or str(body["stream"]).lower() in _NO_STREAM:
        return None, raw
    options = body.get("stream_options")
    if not isinstance(options, dict | None) or (options or {}).get("include_usage") is True:
        return None, raw
    with_usage = {**body, "stream_options": {**(options or {}), "include_usage": True}}
    if "stream_options" not in body:
        end = raw.rindex(b"}")
        return with_usage, raw[:end] + b',"stream_options":{"include_usage":true}' + raw[end:]
    places = Places(raw, body)
    start, end = places.span(("stream_options",))
    text = b'{"include_usage":true}'
    if options and "include_usage" in options:
        (start, end), text = places.span(("stream_options", "include_usage")), b"true"
    elif options:
        start = end = end - 1
        text = b',"include_usage":true'
    return with_usage, splice(raw, [Edit(start, end, text)])


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
