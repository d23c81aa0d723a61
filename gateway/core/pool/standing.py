"""What is known of one upstream now, and whether it may be asked."""

from collections.abc import Sequence
from dataclasses import dataclass

from gateway.core.pool import health as healths
from gateway.core.pool.health import Health, Open, State, Trial, Up
from gateway.core.pool.member import Member
from gateway.core.pool.rate import Rate
from gateway.core.types import Reason

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
