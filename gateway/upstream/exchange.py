"""Requests and replies as the pipeline sees them, free of any HTTP library."""

from dataclasses import dataclass, field
from typing import Any

from gateway.cache.outcomes import Forward
from gateway.cache.plan import Plan
from gateway.cache.ports import Scanner
from gateway.prompts.compress.outcome import Compression
from gateway.prompts.outcome import Declined, Rewrite
from gateway.protocol.endpoint import Endpoint
from gateway.protocol.messages import Inbound
from gateway.telemetry.observation import Observation


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
    """Who asks: the holder of the gateway's key, else a digest of the credential."""
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
        return self.body.get("stream") is True

    @property
    def wants_usage(self) -> bool:
        """Tell whether the client asked for usage on its stream."""
        if self.endpoint is Endpoint.RESPONSES:
            return True  # it is part of the last event
        options = self.body.get("stream_options")
        return isinstance(options, dict) and options.get("include_usage") is True

    def note_rewrites(self) -> None:
        """Tell the sinks, once it is clear that this request is the one that is sent."""
        self.seen.rewrites, self.seen.not_rewritten = self.rewrites, self.not_rewritten
        self.seen.compression = self.compression
