"""Whether an upstream may get requests: its circuit breaker, fed by calls and probes.

Laws:
- Only a successful call closes the breaker. After a successful probe it is half-open (trial): one
  call at a time tries the upstream, so that a server that lies about its health costs little.
- An upstream that fails again soon after its recovery is ejected for twice as long.
- An upstream that asks for a pause gets it, within a bound. That is no failure.
- What one client's request may have provoked holds for that client alone: its pauses, and its own
  breaker, which becomes half-open by the clock. It is a sign for all only if the failure before it
  was another client's. So a client alone adds one failure to the breaker of all. A connection that
  cannot be made, a probe and a call without a known client count for all.

Circuit breaker as in M. Nygard, "Release It!"; ejection times that grow as in Envoy's outlier
detection.
"""

from dataclasses import dataclass, field, replace
from enum import StrEnum
from math import inf

from cachetools import LRUCache

from gateway.protocol.http.cache_status import Reason

FAILURES_IN_A_ROW = 3
WINDOW = 20
FAILED_OF_WINDOW = 10
"""Of the last ``WINDOW`` calls, where good ones come between."""
PROBES_IN_A_ROW = 2
FIRST_EJECTION = 0.5
FIRST_REFUSAL = 5.0
"""Seconds of an ejection because the gateway's key is refused: that seldom changes soon."""
LONGEST_EJECTION = 30.0
CALM_SECONDS = 60.0
"""After so long in state up, an upstream counts as stable again."""
DEFAULT_RETRY_AFTER = 1.0
LONGEST_RETRY_AFTER = 60.0
MOST_CLIENTS = 256
"""Clients in trouble that are remembered for each upstream; one that is forgotten tries again."""
ACTIVE_SECONDS = 10.0
"""After so long without an answer, the trouble of one client is shown as the upstream's state."""


class State(StrEnum):
    """One vocabulary for metric, log and ``/readyz``."""

    UP = "up"
    PAUSED = "paused"
    TRIAL = "trial"
    OPEN = "open"
    DRAINING = "draining"
    """It has left the pool, and finishes its calls."""


@dataclass(frozen=True, slots=True)
class Up:
    """The breaker is closed since ``since``; ``ejection`` is the length of the last ejection."""

    since: float
    ejection: float = 0.0
    failed: int = 0
    probes_failed: int = 0
    window: int = 0
    """The last calls, a bit each: 1 is a failure."""


@dataclass(frozen=True, slots=True)
class Open:
    """The breaker is open and the upstream ejected; at ``until`` a probe is due."""

    until: float
    ejection: float
    why: Reason


@dataclass(frozen=True, slots=True)
class Trial:
    """The breaker is half-open: probes succeed, and the next call decides."""

    ejection: float
    why: Reason


@dataclass(frozen=True, slots=True)
class Health:
    """The circuit breaker of an upstream, and the pause that the upstream asked for."""

    breaker: Up | Open | Trial
    paused_until: float = 0.0
    pause_reason: Reason = Reason.UPSTREAM_LIMITED

    def state(self, now: float) -> State:
        """Return the state as one word."""
        match self.breaker:
            case Open():
                return State.OPEN
            case Trial():
                return State.TRIAL
            case Up():
                return State.PAUSED if now < self.paused_until else State.UP

    def why(self, now: float) -> Reason | None:
        """Return the reason of a state other than up."""
        if isinstance(self.breaker, Open | Trial):
            return self.breaker.why
        return self.pause_reason if now < self.paused_until else None

    def back_at(self, now: float) -> float:
        """Return when the upstream may get requests again, as far as that is known."""
        until = self.breaker.until if isinstance(self.breaker, Open) else now
        return max(until, self.paused_until, now)


def new(now: float) -> Health:
    """Return the health of an upstream without history: it counts as up."""
    return Health(Up(now - CALM_SECONDS))


def untested(now: float) -> Health:
    """Return the health of a replica that gets requests once a probe succeeds."""
    return Health(Open(now, FIRST_EJECTION, Reason.UPSTREAM_UNREACHABLE))


def record_answer(health: Health, now: float) -> Health:
    """Return the health after a call was answered."""
    match health.breaker:
        case Up(failed=0, probes_failed=0, window=0):
            return health
        case Up() as up:
            window = _shifted(up, failed=False)
            return replace(health, breaker=replace(up, failed=0, probes_failed=0, window=window))
        case Open(ejection=ejection) | Trial(ejection=ejection):
            return replace(health, breaker=Up(now, ejection))


def record_failure(health: Health, why: Reason, now: float) -> Health:
    """Return the health after a call failed; calls that fail while it is open change nothing.

    A refusal of the gateway's key opens the breaker at once.
    """
    match health.breaker:
        case Up() as up:
            window = _shifted(up, failed=True)
            counted = replace(up, failed=up.failed + 1, window=window)
            often = (
                counted.failed >= FAILURES_IN_A_ROW
                or window.bit_count() >= FAILED_OF_WINDOW
                or why is Reason.UPSTREAM_REFUSED
            )
            return replace(health, breaker=_eject(up, why, now) if often else counted)
        case Trial() as trial:
            return replace(health, breaker=_open_for(2 * trial.ejection, why, now))
        case Open():
            return health


def record_pause(health: Health, seconds: float | None, why: Reason, now: float) -> Health:
    """Return the health after the upstream asked for a pause; None is an unknown length."""
    pause = DEFAULT_RETRY_AFTER if seconds is None else min(seconds, LONGEST_RETRY_AFTER)
    return replace(health, paused_until=max(health.paused_until, now + pause), pause_reason=why)


def record_result(health: Health, why: Reason, retry_after: float | None, now: float) -> Health:
    """Return the health after a call that gave no answer; a limit is a pause."""
    if why is Reason.UPSTREAM_LIMITED:
        return record_pause(health, retry_after, why, now)
    return record_failure(health, why, now)


def record_probe(
    health: Health, fault: Reason | None, now: float, *, for_sure: bool = False
) -> Health:
    """Return the health after a probe; ``for_sure`` marks a fault that the upstream reports."""
    breaker: Up | Open | Trial
    match health.breaker:
        case Up() as up if fault is None:
            breaker = replace(up, probes_failed=0) if up.probes_failed else up
        case Up(probes_failed=failed) as up if not for_sure and failed + 1 < PROBES_IN_A_ROW:
            breaker = replace(up, probes_failed=failed + 1)
        case Up() as up:
            breaker = _eject(up, fault or Reason.UPSTREAM_STATUS, now)
        case Open() as opened if fault is None:
            breaker = Trial(opened.ejection, opened.why)
        case Open() as opened:
            breaker = _open_for(2 * opened.ejection, fault or opened.why, now)
        case Trial() as trial:
            breaker = trial if fault is None else _open_for(trial.ejection, fault, now)
    return health if breaker is health.breaker else replace(health, breaker=breaker)


def _eject(up: Up, why: Reason, now: float) -> Open:
    flaps = up.ejection > 0 and now - up.since < CALM_SECONDS
    first = FIRST_REFUSAL if why is Reason.UPSTREAM_REFUSED else FIRST_EJECTION
    return _open_for(max(2 * up.ejection if flaps else 0.0, first), why, now)


def _open_for(ejection: float, why: Reason, now: float) -> Open:
    ejection = min(ejection, LONGEST_EJECTION)
    return Open(now + ejection, ejection, why)


def _shifted(up: Up, *, failed: bool) -> int:
    return ((up.window << 1) | failed) & ((1 << WINDOW) - 1)


def worse(one: Health, other: Health) -> Health:
    """Return a health under which a call has to wait for both."""
    worst = max(one.breaker, other.breaker, key=_rank)
    later = max(one, other, key=lambda health: health.paused_until)
    return Health(worst, later.paused_until, later.pause_reason)


def _rank(breaker: Up | Open | Trial) -> float:
    match breaker:
        case Up():
            return -inf
        case Trial():
            return 0.0
        case Open(until=until):
            return until


@dataclass(eq=False, slots=True)
class Trouble:
    """What the calls of one client at an upstream came to; ``since`` is its last failure."""

    health: Health
    since: float
    trial_under_way: bool = False

    def at(self, now: float) -> Health:
        """Return the health. No probe asks for one client, so time alone makes it half-open."""
        match self.health.breaker:
            case Open(until=until, ejection=ejection, why=why) if until <= now:
                return replace(self.health, breaker=Trial(ejection, why))
        return self.health


@dataclass(eq=False, slots=True)
class Clients:
    """What single clients met at one upstream: the troubles, and the last answer."""

    troubles: LRUCache[str, Trouble] = field(default_factory=lambda: LRUCache(MOST_CLIENTS))
    answered_at: float = -inf
    answered: str | None = None
    """The client that was answered last."""
    failed: str | None = None
    """The client whose failure was the last sign for all."""
    refused: str | None = None
    """The client that met the last refusal of the gateway's key since the last answer."""

    def trouble_of(self, client: str | None) -> Trouble | None:
        """Return what a client met, None if there is no trouble."""
        if client is None or not self.troubles:
            return None
        return self.troubles.get(client)

    def record_result(
        self, client: str, why: Reason, retry_after: float | None, now: float
    ) -> bool:
        """Note a call that gave no answer; tell whether it is a sign for all clients."""
        known = self.troubles.get(client) or Trouble(new(now), now)
        known.health = record_result(known.at(now), why, retry_after, now)
        known.since = now
        self.troubles[client] = known
        if why is Reason.UPSTREAM_REFUSED:
            before, self.refused = self.refused, client
            return before not in (None, client)
        if why is Reason.UPSTREAM_LIMITED or client == self.failed:
            return False
        self.failed = client
        return True

    def record_answer(self, client: str | None, now: float) -> None:
        """Note a call that was answered."""
        self.answered, self.answered_at, self.refused = client, now, None
        known = self.trouble_of(client)
        if client is None or known is None:
            return
        known.health = record_answer(known.at(now), now)
        match known.health.breaker:
            case Up(since=since, window=0) if now - since >= CALM_SECONDS:
                if now >= known.health.paused_until:
                    del self.troubles[client]

    def shown(self, health: Health, now: float) -> Health:
        """Return the health that operators see; ``health`` counts for all clients.

        A client's trouble is shown while nobody else is answered, a refusal of the key at once.
        """
        if not self.troubles:
            return health
        for client, known in self.troubles.items():
            if known.since <= self.answered_at:
                continue
            its = known.at(now)
            if (
                client == self.answered
                or now - self.answered_at > ACTIVE_SECONDS
                or its.why(now) is Reason.UPSTREAM_REFUSED
            ):
                health = worse(health, its)
        return health
