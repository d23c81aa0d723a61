"""One upstream of a pool: what is declared of it, its limits, and whether it may get a request."""

import re
from collections import deque
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from fnmatch import translate
from functools import cached_property
from math import inf

from gateway.protocol.http.cache_status import Reason
from gateway.upstream.pool import health as healths
from gateway.upstream.pool.health import Clients, Health, Trial, Up
from gateway.upstream.pool.routing import Load
from gateway.upstream.pool.watch.engine_load import LoadSignal, elsewhere

MINUTE = 60.0
PREFILL, DECODE = "prefill", "decode"
"""Roles of members where prefill is apart from decode."""
SOON = 1.0
"""Seconds after which to come back if nothing tells when there is room."""


@dataclass(frozen=True)
class Member:
    """One upstream of a pool, as the operator declared it.

    ``models`` are globs. ``rename`` maps each alias that it serves to its own name of the model. A
    lower ``tier`` comes first. Limits are this process's share.
    """

    name: str
    models: tuple[str, ...] = ("*",)
    tier: int = 1
    max_concurrency: int | None = None
    requests_per_minute: int | None = None
    weight: float = field(default=1.0)
    native: bool = False
    """Whether it has Anthropic's API, so that requests to ``/v1/messages`` go there as they are."""
    rename: Mapping[str, str] = field(default_factory=dict, hash=False)
    number: int = 0
    """Its place in the declaration."""
    realtime: bool = True
    """Whether it may have ``/v1/realtime``."""
    role: str = ""
    """One that only computes prompts, PREFILL, gets no client's request. Empty: it does both."""
    kv_transfer: str = ""
    """Where decode engines get the KV blocks of a prefill engine."""

    @cached_property
    def _pattern(self) -> re.Pattern[str]:
        return re.compile("|".join(translate(glob) for glob in self.models))

    def serves(self, model: str) -> bool:
        """Tell whether the model is among those declared for it."""
        return model in self.rename or self._pattern.match(model) is not None

    @property
    def serves_all(self) -> bool:
        """Whether nothing is declared of its models."""
        return "*" in self.models

    def names(self, model: str) -> bool:
        """Tell whether it serves the model, and not only because it serves all."""
        return model in self.rename or (not self.serves_all and self.serves(model))


class Rate:
    """At most ``most`` sends in any minute, exact; ``now`` never goes back."""

    def __init__(self, most: int) -> None:
        self._sent: deque[float] = deque(maxlen=most)
        self._most = most

    def free_at(self, now: float) -> float:
        """Return when the next may be sent, ``now`` if at once."""
        if len(self._sent) < self._most:
            return now
        return max(now, self._sent[0] + MINUTE)

    def take(self, now: float) -> None:
        """Note one that is sent."""
        self._sent.append(now)


@dataclass(eq=False, slots=True)
class UpstreamState:
    """The present state of one upstream."""

    member: Member
    health: Health
    rate: Rate | None = None
    in_flight: int = 0
    trial_under_way: bool = False
    """Whether the call of a half-open breaker is under way."""
    heard_at: float = 0.0
    """When it last answered anything."""
    probed_at: float = 0.0
    draining: bool = False
    """Whether it has left the pool."""
    signal: LoadSignal | None = None
    """What its engine says of its load, if it is asked."""
    clients: Clients = field(default_factory=Clients)
    listed: frozenset[str] = frozenset()
    """The models that it lists, none if they are not known."""

    def offers(self, model: str) -> bool:
        """Tell whether it may have a model: its globs say so, or its list, or neither is known."""
        return not self.listed or not self.member.serves_all or model in self.listed

    def can_prefill(self, model: str, now: float) -> bool:
        """Tell whether it may compute a prompt for decode engines now; an empty model is any."""
        member = self.member
        if member.role != PREFILL or self.draining or not self.can_accept(now):
            return False
        return not model or (member.serves(model) and self.offers(model))

    @property
    def is_full(self) -> bool:
        """Tell whether its number of calls is at the limit."""
        return self.in_flight >= (self.member.max_concurrency or inf)

    def has_room(self, now: float) -> bool:
        """Tell whether its own limits let one more request go there."""
        return not self.is_full and self.room_at(now) <= now

    def room_at(self, now: float) -> float:
        """Return when its rate lets the next one go there."""
        return now if self.rate is None else self.rate.free_at(now)

    def health_for(self, client: str | None, now: float) -> Health:
        """Return the health that decides about a client's request."""
        trouble = self.clients.trouble_of(client)
        return self.health if trouble is None else healths.worse(self.health, trouble.at(now))

    def shown(self, now: float) -> Health:
        """Return the health that operators see."""
        return self.clients.shown(self.health, now)

    def is_on_trial(self, client: str | None) -> bool:
        """Tell whether the call is under way that decides about a client's request."""
        trouble = self.clients.trouble_of(client)
        return self.trial_under_way or (trouble is not None and trouble.trial_under_way)

    def can_accept(self, now: float, client: str | None = None) -> bool:
        """Tell whether it may get a client's request now."""
        most = self.member.max_concurrency
        health = self.health_for(client, now) if self.clients.troubles else self.health
        if now < health.paused_until or (most is not None and self.in_flight >= most):
            return False
        if self.rate is not None and self.rate.free_at(now) > now:
            return False
        breaker = health.breaker
        return isinstance(breaker, Up) or (
            isinstance(breaker, Trial) and not self.is_on_trial(client)
        )


def new_state(member: Member, now: float) -> UpstreamState:
    """Return the state of an upstream of which nothing is known yet."""
    most = member.requests_per_minute
    rate = None if most is None else Rate(most)
    return UpstreamState(member, healths.new(now), rate, heard_at=now)


def loads(upstreams: Sequence[UpstreamState], now: float) -> list[Load]:
    """Return what each has to do, by what its engine says too."""
    known = elsewhere([one.signal for one in upstreams], now)
    return [
        Load(one.member.name, one.in_flight + others, one.member.weight, is_crowded)
        for one, (others, is_crowded) in zip(upstreams, known, strict=True)
    ]


@dataclass(frozen=True, slots=True)
class NoRoom:
    """No upstream can take the request now.

    ``at`` is when one may, if the clock tells that. ``status`` and ``why`` are for a client that
    does not wait.
    """

    status: int
    why: Reason
    at: float | None
    waits: bool
    """Whether waiting may help: an upstream is healthy, and only busy or paused."""
    own: bool = False
    """Whether other clients may find room: the troubles are this client's alone."""


def no_room(left: Sequence[UpstreamState], now: float, client: str | None = None) -> NoRoom:
    """Tell when the first of these upstreams may take a request, and why none can now."""
    own = any(one.clients.trouble_of(client) for one in left)
    each = [(one, one.health_for(client, now)) for one in left]
    healthy = [(one, health) for one, health in each if isinstance(health.breaker, Up)]
    if not healthy:
        at = min((health.back_at(now) for _, health in each), default=now + SOON)
        unknown = Reason.UPSTREAM_BUSY if left else Reason.UPSTREAM_UNREACHABLE
        why = next((why for _, health in each if (why := health.why(now))), unknown)
        return NoRoom(503, why, max(at, now + SOON), waits=False, own=own)
    times = (
        max(health.paused_until, one.room_at(now)) for one, health in healthy if not one.is_full
    )
    return NoRoom(429, Reason.UPSTREAM_BUSY, min(times, default=None), waits=True, own=own)
