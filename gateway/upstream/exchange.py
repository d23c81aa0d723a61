"""One request on its way to the upstream, and the body that each upstream gets.

Law: what the gateway adds fails no request. If an upstream refuses a request with an addition, that
request is sent once more, as the client sent it. The second call is charged to the retry budget.
While that budget is empty, nothing is added that could be refused.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from http import HTTPStatus
from typing import Any

from gateway.cache.lookup import Forward
from gateway.cache.plan import Plan
from gateway.cache.ports import Scanner
from gateway.prompts.outcome import Compression, Declined, Rewrite
from gateway.protocol.endpoints.table import SPECS
from gateway.protocol.messages import ALL_ADDITIONS, Addition, Inbound
from gateway.protocol.tokens import ask_for_usage
from gateway.telemetry.observation import Observation
from policies.endpoint import Endpoint


@dataclass(frozen=True, slots=True, eq=False)
class Exchange:
    """One request on its way to the upstream."""

    endpoint: Endpoint
    inbound: Inbound
    body: dict[str, Any]
    state: Forward
    scanner: Scanner
    seen: Observation
    rewrites: tuple[Rewrite, ...] = ()
    """What of the prompt was rewritten, and what was left with its reason."""
    not_rewritten: tuple[Declined, ...] = ()
    compression: Compression | None = None
    """What became of its declared context, if any."""
    client: str | None = field(default=None, repr=False)
    """The holder of the gateway's key that the client showed, else a digest of its credential."""
    unhinted: "Exchange | None" = None
    """The same for upstreams that accept no hints, where it has hints."""
    original: "Exchange | None" = None
    """The request as the client sent it, where this one is another."""

    @property
    def plan(self) -> Plan | None:
        """The plan under which the answer may be admitted, if it may."""
        return self.state.store

    @property
    def streamed(self) -> bool:
        """Tell whether the client asked for a stream."""
        return SPECS[self.endpoint].streaming is not None and self.body.get("stream") is True

    @property
    def wants_usage(self) -> bool:
        """Tell whether the client asked for usage on its stream."""
        streaming = SPECS[self.endpoint].streaming
        if streaming is None:
            return False
        if not streaming.usage_option:
            return True  # it is part of the last event
        options = self.body.get("stream_options")
        return isinstance(options, dict) and options.get("include_usage") is True

    def note_rewrites(self) -> None:
        """Tell the sinks, once it is clear that this request is the one that is sent."""
        self.seen.rewrites, self.seen.not_rewritten = self.rewrites, self.not_rewritten
        self.seen.compression = self.compression


REFUSALS = frozenset({HTTPStatus.BAD_REQUEST, HTTPStatus.UNPROCESSABLE_ENTITY})
"""The statuses of servers that do not know a field, or refuse an order of turns."""

Accepts = Mapping[str, frozenset[Addition]]
"""Which additions each upstream accepts, by its name; one that is not there accepts all."""


@dataclass(frozen=True, slots=True)
class Variant:
    """A request as some upstreams get it."""

    exchange: Exchange
    raw: bytes
    additions: frozenset[Addition]
    usage: bool
    """Whether usage is asked for, by the client or the gateway."""

    @property
    def moves_values(self) -> bool:
        """Tell whether it has a turn of volatile values, which some chat templates refuse."""
        return Rewrite.VOLATILE in self.exchange.rewrites

    @property
    def may_be_refused(self) -> bool:
        """Tell whether it has anything of the gateway that an upstream may refuse."""
        return bool(self.additions) or self.moves_values

    def may_explain(self, status: int) -> bool:
        """Tell whether an upstream may have answered so because of what the gateway changed."""
        if status == HTTPStatus.INTERNAL_SERVER_ERROR:
            return self.moves_values  # llama.cpp answers so if a chat template fails
        return status in REFUSALS and self.may_be_refused

    def remedy(self, accepts: frozenset[Addition]) -> str:
        """Return the settings that keep the gateway from sending what may be refused here."""
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
        return (as_client_sent(exchange) if plain.may_be_refused else plain), {}
    made = {ALL_ADDITIONS: _variant(exchange, ALL_ADDITIONS)}
    for accepted in accepts.values():
        if accepted not in made:
            made[accepted] = _variant(exchange, accepted)
    others = {name: made[one] for name, one in accepts.items() if one != ALL_ADDITIONS}
    return made[ALL_ADDITIONS], others


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
    raw, usage = exchange.inbound.raw, exchange.wants_usage
    streaming = SPECS[exchange.endpoint].streaming
    if Addition.STREAM_USAGE in accepted and streaming is not None and streaming.usage_option:
        raw, asks = ask_for_usage(exchange.body, raw)
        if asks:
            added.add(Addition.STREAM_USAGE)
            usage = True
    return Variant(exchange, raw, frozenset(added), usage)
