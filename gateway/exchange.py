"""Requests and replies as the pipeline sees them, free of any HTTP library."""

from collections.abc import AsyncIterator, Awaitable, Callable, Iterable, Mapping
from contextlib import AsyncExitStack
from dataclasses import dataclass, field
from typing import Any

from gateway.core.lookup import Forward
from gateway.core.outcome import Compression, Declined, Rewrite
from gateway.core.plan import Plan
from gateway.core.types import Endpoint
from gateway.observation import Observation
from gateway.ports import Scanner

Headers = tuple[tuple[str, str], ...]


@dataclass(frozen=True, slots=True)
class Inbound:
    """A request to a cached endpoint.

    ``target`` is path and query. ``headers`` are by lower-case name, repeated lines joined;
    ``fields`` are the lines as they came. ``holder`` is whose gateway key it bears, if one.
    """

    target: str = field(repr=False)
    headers: Mapping[str, str] = field(repr=False)
    fields: Iterable[tuple[str, str]] = field(repr=False)
    raw: bytes = field(repr=False)
    holder: str | None = None
    method: str = "POST"

    @property
    def query(self) -> str:
        """The query string, empty where there is none."""
        return self.target.partition("?")[2]


@dataclass(frozen=True, slots=True)
class Reply:
    """Status and headers, and the body: whole, or as it comes.

    Who takes the reply closes ``resources``, whether or not the body was read: they hold the
    upstream call.
    """

    status: int
    headers: Headers
    body: bytes | AsyncIterator[bytes]
    resources: AsyncExitStack | None = None


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
    without_hints: "Exchange | None" = None
    """The same as it is sent to who refuses hints, where there are any."""
    without_volatile: "Callable[[], Awaitable[Exchange]] | None" = None
    """Makes the same for who refuses the turn with volatile values, where there is one."""

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
