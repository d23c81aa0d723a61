"""Request directives of Cache-Control and the freshness of an entry (RFC 9111, RFC 5861, RFC 9211).

Law: in doubt, not fresh. A malformed or repeated directive counts as its strictest meaning: a
client's typo costs an upstream call, and never returns an unwanted answer. No grace serves an
entry that the request refuses.
"""

import math
import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from enum import StrEnum
from typing import Any, NamedTuple

CLOCK_SKEW = 2.0
"""Seconds by which the clocks of gateways that share a store may differ."""
_LONGEST = 2**31
"""Seconds; a cache reads larger numbers as this (RFC 9111, 1.2.2)."""
_WHITE_SPACE = " \t\r\n"
_FLAGS = frozenset({"no-store", "no-cache", "only-if-cached"})
_DURATIONS: dict[str, tuple[Callable[[float, float], float], float]] = {
    # The strictest of several, and the meaning of a malformed one.
    "max-age": (min, 0),
    "min-fresh": (max, math.inf),
    "max-stale": (min, 0),
    "stale-if-error": (min, 0),
}
_QUOTED = r'"(?:[^"\\]|\\.)*+"'
_QUOTES_CLOSE = re.compile(rf'(?:[^"]|{_QUOTED})*+', re.DOTALL)
_MEMBER = re.compile(rf'(?:[^",]|{_QUOTED})++', re.DOTALL)
_JITTER_BYTES = 8
_JITTER_SPAN = 1 << 8 * _JITTER_BYTES


@dataclass(frozen=True, slots=True)
class Directives:
    """The directives of a request's Cache-Control, in seconds; None if absent."""

    no_store: bool = False
    no_cache: bool = False
    only_if_cached: bool = False
    max_age: float | None = None
    min_fresh: float | None = None
    max_stale: float | None = None
    """Staleness the client accepts; ``math.inf`` accepts any."""
    stale_if_error: float | None = None
    """Staleness the client accepts where the upstream fails (RFC 5861, 4)."""


NOTHING_ASKED = Directives()


@dataclass(frozen=True, slots=True)
class Grace:
    """Seconds past expiry in which a stale entry may still be served (RFC 5861)."""

    revalidate: float = 0.0
    """While a fresh answer is fetched."""
    error: float = 0.0
    """Where the upstream fails."""


NO_GRACE = Grace()


class Verdict(StrEnum):
    """May the entry be served to this request."""

    FRESH = "fresh"
    """It may: fresh, or no staler than the request accepts."""
    REVALIDATE = "revalidate"
    """It may, being stale by no more than its grace, and a fresh answer is to be fetched."""
    STALE = "stale"
    REFUSED = "refused"
    """Fresh by policy, but the request's directives refuse it."""


class Freshness(NamedTuple):
    """Verdict, ``Age`` and ``ttl`` of an entry, in whole seconds rounded down.

    ``if_error`` tells whether an entry that is not served may be, should the upstream fail.
    """

    verdict: Verdict
    age: int
    ttl: int
    """Remaining freshness lifetime; negative once stale (RFC 9211, 2.4)."""
    if_error: bool = False


def freshness(
    *,
    stored_at: float,
    expires_at: float,
    now: float,
    directives: Directives,
    grace: Grace = NO_GRACE,
) -> Freshness:
    """Judge an entry at ``now``; times are seconds on one clock.

    ``max-stale`` extends the policy's lifetime, not a ``max-age`` or ``min-fresh`` beside it.
    """
    if stored_at - now > CLOCK_SKEW:
        # The clock was set back since: the age is not known.
        return Freshness(Verdict.STALE, 0, 0)
    age = max(0.0, now - stored_at)
    ttl = expires_at - stored_at - age
    if ttl > 0 and directives is NOTHING_ASKED:
        return Freshness(Verdict.FRESH, math.floor(age), math.floor(ttl))
    verdict = _verdict(age, ttl, directives, grace)
    served = verdict is Verdict.FRESH or verdict is Verdict.REVALIDATE
    if_error = not served and _serves_on_error(age, ttl, directives, grace)
    return Freshness(verdict, math.floor(age), math.floor(ttl), if_error)


def jittered(lifetime: float, jitter: float, digest: bytes) -> float:
    """Return the lifetime less a share of it, up to ``jitter``, that is ``digest``'s own.

    Entries stored together do not expire together; equal digests get equal lifetimes.
    """
    if not jitter:
        return lifetime
    return lifetime * (1 - jitter * int.from_bytes(digest[:_JITTER_BYTES], "big") / _JITTER_SPAN)


def _verdict(age: float, ttl: float, directives: Directives, grace: Grace) -> Verdict:
    refused = (
        directives.no_store
        or directives.no_cache
        or (directives.max_age is not None and age > directives.max_age)
        or (directives.min_fresh is not None and ttl < directives.min_fresh)
    )
    if ttl > 0:
        return Verdict.REFUSED if refused else Verdict.FRESH
    stale_by = -ttl
    if refused or stale_by > _accepted_staleness(directives):
        return Verdict.STALE
    if stale_by < grace.revalidate:
        return Verdict.REVALIDATE
    return Verdict.STALE if directives.max_stale is None else Verdict.FRESH


def _accepted_staleness(directives: Directives) -> float:
    """Return the staleness that the request accepts where the policy grants a grace.

    A request that bounds the age or the freshness accepts no staleness (RFC 9111, 5.2.1.1).
    """
    if directives.max_stale is not None:
        return directives.max_stale
    return math.inf if directives.max_age is None and directives.min_fresh is None else -math.inf


def _serves_on_error(age: float, ttl: float, directives: Directives, grace: Grace) -> bool:
    """Tell whether an entry may replace an answer after a failure of the upstream.

    A request's own ``stale-if-error`` counts from the end of its ``max-age``. It takes precedence
    over the request's other bounds, but never goes beyond the policy's grace.
    """
    if directives.no_store or directives.no_cache or -ttl >= max(grace.error, 0.0):
        return False
    if directives.stale_if_error is not None:
        overdue = -ttl if directives.max_age is None else max(-ttl, age - directives.max_age)
        return overdue <= directives.stale_if_error
    refused = directives.max_age is not None and age > directives.max_age
    return ttl <= 0 and not refused and -ttl <= _accepted_staleness(directives)


def parse_directives(header: str | None) -> Directives:
    """Read a Cache-Control request header (all its lines joined by commas). Never raises.

    Unknown directives are ignored, names are matched in any case, and arguments may be quoted.
    """
    if not header:
        return NOTHING_ASKED
    found: dict[str, Any] = {}
    for name, argument in _members(header):
        field = name.replace("-", "_")
        if name in _FLAGS:
            found[field] = True
        elif name == "max-stale" and argument is None:
            found.setdefault(field, math.inf)
        elif name in _DURATIONS:
            strictest, malformed = _DURATIONS[name]
            seconds = _seconds(argument, otherwise=malformed)
            found[field] = strictest(found.get(field, seconds), seconds)
    return Directives(**found)


def _members(header: str) -> Iterator[tuple[str, str | None]]:
    """Yield name in lower case and argument (None without ``=``) of each list member.

    Where a quote is never closed, every comma ends a member: an open quote must not swallow the
    directives behind it, as in ``max-age="5, no-store``.
    """
    members = _MEMBER.findall(header) if _QUOTES_CLOSE.fullmatch(header) else header.split(",")
    for member in members:
        name, equals, argument = member.partition("=")
        argument = argument.strip(_WHITE_SPACE)
        if len(argument) >= 2 and argument[0] == argument[-1] == '"':
            argument = argument[1:-1]
        yield name.strip(_WHITE_SPACE).lower(), argument if equals else None


def _seconds(argument: str | None, *, otherwise: float) -> float:
    if argument is None or not (argument.isascii() and argument.isdigit()):
        return otherwise
    # Leading zeros aside, ten digits hold the longest duration; int() of a huge string is slow.
    digits = argument.lstrip("0") or "0"
    return _LONGEST if len(digits) > 10 else min(int(digits), _LONGEST)
