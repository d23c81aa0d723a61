"""Whether an upstream may be asked: what its calls and probes have told.

Laws:
- Only a call that was answered brings a failing upstream back. A probe that is answered lets one
  call at a time try it (trial), so that a server that lies about its health costs little.
- One that fails again soon after it came back is left alone twice as long: flapping is no health.
- An upstream that asks for a pause gets it, within a bound, and that is no failure.

Circuit breaker as in M. Nygard, "Release It!"; ejection times that grow as in Envoy's outlier
detection.
"""

from dataclasses import dataclass, replace
from enum import StrEnum

from gateway.protocol.cache_status import Reason
from policies.plain_enum import plain_members

FAILURES_IN_A_ROW = 3
WINDOW = 20
FAILED_OF_WINDOW = 10
"""Of the last ``WINDOW`` calls, where good ones come between."""
PROBES_IN_A_ROW = 2
FIRST_PAUSE = 0.5
LONGEST_PAUSE = 30.0
CALM_SECONDS = 60.0
"""Who was up for so long is not known to flap any more."""
DEFAULT_REST = 1.0
LONGEST_REST = 60.0


@plain_members
class State(StrEnum):
    """One vocabulary for metric, log and ``/readyz``."""

    UP = "up"
    RESTING = "resting"
    TRIAL = "trial"
    OPEN = "open"


@dataclass(frozen=True, slots=True)
class Up:
    """It answers; ``pause`` is what it was left alone for before, ``since`` when it came back."""

    since: float
    pause: float = 0.0
    failed: int = 0
    probes_failed: int = 0
    window: int = 0
    """The last calls, a bit each, 1 where it failed."""


@dataclass(frozen=True, slots=True)
class Open:
    """It fails and is left alone; at ``until`` a probe is due."""

    until: float
    pause: float
    why: Reason


@dataclass(frozen=True, slots=True)
class Trial:
    """It answers probes again; the next call shows whether it answers calls."""

    pause: float
    why: Reason


@dataclass(frozen=True, slots=True)
class Health:
    """What is known of an upstream."""

    at: Up | Open | Trial
    rests_until: float = 0.0
    rests_why: Reason = Reason.UPSTREAM_LIMITED

    def state(self, now: float) -> State:
        """Return the state in a word."""
        match self.at:
            case Open():
                return State.OPEN
            case Trial():
                return State.TRIAL
            case Up():
                return State.RESTING if now < self.rests_until else State.UP

    def why(self, now: float) -> Reason | None:
        """Return why it is not simply up."""
        if isinstance(self.at, Open | Trial):
            return self.at.why
        return self.rests_why if now < self.rests_until else None

    def back_at(self, now: float) -> float:
        """Return when it may be asked again, as far as is known."""
        until = self.at.until if isinstance(self.at, Open) else now
        return max(until, self.rests_until, now)


def new(now: float) -> Health:
    """Return what is thought of an upstream of which nothing is known: that it answers."""
    return Health(Up(now - CALM_SECONDS))


def answered(health: Health, now: float) -> Health:
    """Return the health after a call was answered."""
    match health.at:
        case Up(failed=0, probes_failed=0, window=0):
            return health
        case Up() as up:
            window = _shifted(up, failed=False)
            return replace(health, at=replace(up, failed=0, probes_failed=0, window=window))
        case Open(pause=pause) | Trial(pause=pause):
            return replace(health, at=Up(now, pause))


def call_failed(health: Health, why: Reason, now: float) -> Health:
    """Return the health after a call failed; what was under way when it opened changes nothing."""
    match health.at:
        case Up() as up:
            window = _shifted(up, failed=True)
            counted = replace(up, failed=up.failed + 1, window=window)
            often = counted.failed >= FAILURES_IN_A_ROW or window.bit_count() >= FAILED_OF_WINDOW
            return replace(health, at=_opened(up, why, now) if often else counted)
        case Trial() as trial:
            return replace(health, at=_open_for(2 * trial.pause, why, now))
        case Open():
            return health


def asked_for_rest(health: Health, seconds: float | None, why: Reason, now: float) -> Health:
    """Return the health after the upstream asked to be left alone, for so long if it said."""
    rest = DEFAULT_REST if seconds is None else min(seconds, LONGEST_REST)
    return replace(health, rests_until=max(health.rests_until, now + rest), rests_why=why)


def probed(health: Health, fault: Reason | None, now: float, *, for_sure: bool = False) -> Health:
    """Return the health after a probe; ``for_sure`` is a fault that the upstream itself tells."""
    match health.at:
        case Up() as up if fault is None:
            return replace(health, at=replace(up, probes_failed=0)) if up.probes_failed else health
        case Up() as up if for_sure or up.probes_failed + 1 >= PROBES_IN_A_ROW:
            return replace(health, at=_opened(up, fault or Reason.UPSTREAM_STATUS, now))
        case Up() as up:
            return replace(health, at=replace(up, probes_failed=up.probes_failed + 1))
        case Open() as opened if fault is None:
            return replace(health, at=Trial(opened.pause, opened.why))
        case Open() as opened:
            return replace(health, at=_open_for(2 * opened.pause, fault or opened.why, now))
        case Trial() as trial:
            return (
                health if fault is None else replace(health, at=_open_for(trial.pause, fault, now))
            )


def _opened(up: Up, why: Reason, now: float) -> Open:
    flaps = up.pause > 0 and now - up.since < CALM_SECONDS
    return _open_for(2 * up.pause if flaps else FIRST_PAUSE, why, now)


def _open_for(pause: float, why: Reason, now: float) -> Open:
    pause = min(pause, LONGEST_PAUSE)
    return Open(now + pause, pause, why)


def _shifted(up: Up, *, failed: bool) -> int:
    return ((up.window << 1) | failed) & ((1 << WINDOW) - 1)
