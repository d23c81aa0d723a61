"""When to stop asking a part that failed, and when to ask it again.

Law: while it is open nobody who waits for an answer asks; whether the part is back is found out by
a probe that nobody waits for (half-open), after a pause that doubles with each probe that failed.
Circuit breaker as in M. Nygard, "Release It!", but for the probe, which is no client's request.
"""

from dataclasses import dataclass

FIRST_PAUSE = 0.1
LONGEST_PAUSE = 2.0
"""Seconds: recovery is noticed after at most this and one call."""


@dataclass(frozen=True, slots=True)
class Closed:
    """The part answers: everybody may ask."""


@dataclass(frozen=True, slots=True)
class Open:
    """The part failed: calls fail at once, and a probe is due after ``pause`` seconds."""

    pause: float


Breaker = Closed | Open

CLOSED = Closed()


def failed(breaker: Breaker) -> Open:
    """Return the state after a call failed; calls under way when it opened change nothing."""
    return breaker if isinstance(breaker, Open) else Open(FIRST_PAUSE)


def probe_failed(breaker: Open) -> Open:
    """Return the state after the part did not answer a probe."""
    return Open(min(2 * breaker.pause, LONGEST_PAUSE))
