"""One upstream of a pool, as the operator declared it.

How many requests may be sent in any one minute: exact, over a window that slides.

What is known of one upstream now, and whether it may be asked.
"""

import re
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass, field
from fnmatch import translate
from functools import cached_property

from gateway.protocol.reasons import Reason
from gateway.upstream.pool import health as healths
from gateway.upstream.pool.health import Health, Open, State, Trial, Up


@dataclass(frozen=True)
class Member:
    """``models`` are globs; a lower ``tier`` is asked first; limits are this process's share."""

    name: str
    models: tuple[str, ...] = ("*",)
    tier: int = 1
    max_concurrency: int | None = None
    requests_per_minute: int | None = None
    weight: float = field(default=1.0)

    @cached_property
    def _pattern(self) -> re.Pattern[str]:
        return re.compile("|".join(translate(glob) for glob in self.models))

    def serves(self, model: str) -> bool:
        """Tell whether the model is among those declared for it."""
        return self._pattern.match(model) is not None


def serving(members: tuple[Member, ...], model: str) -> tuple[Member, ...]:
    """Return the members for a model, all where none is declared: they say that they know it not.

    So an unknown model is told by an upstream, as everywhere.
    """
    declared = tuple(member for member in members if member.serves(model))
    return declared or members


MINUTE = 60.0


class Rate:
    """At most ``most`` sends in any minute; ``now`` never goes back."""

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


SOON = 1.0
"""Seconds after which to come back where nothing tells when there is room."""


@dataclass(eq=False, slots=True)
class Standing:
    """What is known of one upstream now."""

    member: Member
    health: Health
    rate: Rate | None = None
    in_flight: int = 0
    tried: bool = False
    """Whether a call is under way that shows if it is back."""
    heard_at: float = 0.0
    """When it last answered anything."""
    probed_at: float = 0.0

    @property
    def is_well(self) -> bool:
        """Tell whether it is not left alone for its failures."""
        return isinstance(self.health.at, Up)

    def has_room(self, now: float) -> bool:
        """Tell whether its own limits let one more request go there."""
        most = self.member.max_concurrency
        return (most is None or self.in_flight < most) and self.room_at(now) <= now

    def room_at(self, now: float) -> float:
        """Return when its rate lets the next one go there."""
        return now if self.rate is None else self.rate.free_at(now)

    def is_able(self, now: float) -> bool:
        """Tell whether it may be asked now."""
        if now < self.health.rests_until or not self.has_room(now):
            return False
        match self.health.at:
            case Up():
                return True
            case Trial():
                return not self.tried
            case Open():
                return False

    def unwell(self, now: float) -> int:
        """Return how far from well it is, for an order."""
        return _WORSE.index(self.health.state(now))


_WORSE = (State.UP, State.RESTING, State.TRIAL, State.OPEN)


def new(member: Member, now: float) -> Standing:
    """Return the standing of one of which nothing is known."""
    most = member.requests_per_minute
    return Standing(member, healths.new(now), None if most is None else Rate(most), heard_at=now)


@dataclass(frozen=True, slots=True)
class NoRoom:
    """Nobody can be asked now.

    ``at`` is when somebody may be, where that is known by the clock; ``status`` and ``why`` what
    a client is told that does not wait.
    """

    status: int
    why: Reason
    at: float | None
    waits: bool
    """Whether it is worth waiting: somebody is well, and only busy or resting."""


def no_room(left: Sequence[Standing], now: float) -> NoRoom:
    """Tell when, and with what words: the least that keeps somebody from being asked."""
    well = [one for one in left if isinstance(one.health.at, Up)]
    if not well:
        at = min((one.health.back_at(now) for one in left), default=now + SOON)
        why = next((why for one in left if (why := one.health.why(now))), Reason.UPSTREAM_BUSY)
        return NoRoom(503, why, max(at, now + SOON), waits=False)
    times = [
        max(one.health.rests_until, one.room_at(now))
        for one in well
        if one.member.max_concurrency is None or one.in_flight < one.member.max_concurrency
    ]
    return NoRoom(429, Reason.UPSTREAM_BUSY, min(times, default=None), waits=True)
