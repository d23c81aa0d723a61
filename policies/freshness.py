"""Request directives of Cache-Control and the freshness of an entry (RFC 9111, RFC 9211).

Law: in doubt, not fresh. A directive that is malformed or repeated counts as the strictest thing
it can mean, so that a client's typo costs an upstream call and never an answer it did not want.
"""

import math
from collections.abc import Iterator
from dataclasses import dataclass
from enum import StrEnum

_LONGEST = 2**31
"""Seconds; a cache reads larger numbers as this (RFC 9111, 1.2.2)."""
_WHITE_SPACE = " \t\r\n"


@dataclass(frozen=True, slots=True)
class Directives:
    """What a request's Cache-Control asks for; seconds, None where it does not ask."""

    no_store: bool = False
    no_cache: bool = False
    only_if_cached: bool = False
    max_age: float | None = None
    min_fresh: float | None = None
    max_stale: float | None = None
    """Staleness the client accepts; ``math.inf`` accepts any."""


_NOTHING_ASKED = Directives()


class Verdict(StrEnum):
    """May the entry be served to this request."""

    FRESH = "fresh"
    """It may: fresh, or no staler than the request accepts."""
    STALE = "stale"
    REFUSED = "refused"
    """Fresh by policy, but the request's directives refuse it."""


@dataclass(frozen=True, slots=True)
class Freshness:
    """Verdict, ``Age`` and ``ttl`` of an entry, in whole seconds rounded down."""

    verdict: Verdict
    age: int
    ttl: int
    """Remaining freshness lifetime; negative once stale (RFC 9211, 2.4)."""


def freshness(
    *, stored_at: float, expires_at: float, now: float, directives: Directives
) -> Freshness:
    """Judge an entry at ``now``; times are seconds on one clock.

    A clock that was set back makes an entry as young as when it was stored, never younger.
    ``max-stale`` extends the policy's lifetime, not a ``max-age`` or ``min-fresh`` beside it.
    """
    age = max(0.0, now - stored_at)
    ttl = expires_at - stored_at - age
    return Freshness(_verdict(age, ttl, directives), math.floor(age), math.floor(ttl))


def _verdict(age: float, ttl: float, asked: Directives) -> Verdict:
    stale = ttl <= 0
    if stale and (asked.max_stale is None or -ttl > asked.max_stale):
        return Verdict.STALE
    refused = (
        asked.no_store
        or asked.no_cache
        or (asked.max_age is not None and age > asked.max_age)
        or (asked.min_fresh is not None and ttl < asked.min_fresh)
    )
    if refused:
        return Verdict.STALE if stale else Verdict.REFUSED
    return Verdict.FRESH


def parse_directives(header: str | None) -> Directives:
    """Read a Cache-Control request header (all its lines joined by commas). Never raises.

    Unknown directives are ignored, names are matched in any case, and arguments may be quoted.
    """
    if not header:
        return _NOTHING_ASKED
    flags: set[str] = set()
    max_age: list[float] = []
    min_fresh: list[float] = []
    max_stale: list[float] = []
    for name, argument in _members(header):
        match name:
            case "no-store" | "no-cache" | "only-if-cached":
                flags.add(name)
            case "max-age":
                max_age.append(_seconds(argument, otherwise=0))
            case "min-fresh":
                min_fresh.append(_seconds(argument, otherwise=math.inf))
            case "max-stale":
                max_stale.append(math.inf if argument is None else _seconds(argument, otherwise=0))
            case _:
                continue
    return Directives(
        no_store="no-store" in flags,
        no_cache="no-cache" in flags,
        only_if_cached="only-if-cached" in flags,
        max_age=min(max_age, default=None),
        min_fresh=max(min_fresh, default=None),
        max_stale=min(max_stale, default=None),
    )


def _members(header: str) -> Iterator[tuple[str, str | None]]:
    """Yield name in lower case and argument (None without ``=``) of each list member."""
    for member in _split(header):
        name, equals, argument = member.partition("=")
        argument = argument.strip(_WHITE_SPACE)
        if len(argument) >= 2 and argument[0] == argument[-1] == '"':
            argument = argument[1:-1]
        yield name.strip(_WHITE_SPACE).lower(), argument if equals else None


def _split(header: str) -> Iterator[str]:
    """Split at commas outside quotes; at every comma when a quote is never closed.

    An open quote must not swallow the directives behind it: ``max-age="5, no-store``.
    """
    if '"' not in header:
        yield from header.split(",")
        return
    start, quoted, escaped, members = 0, False, False, []
    for position, character in enumerate(header):
        if escaped:
            escaped = False
        elif quoted and character == "\\":
            escaped = True
        elif character == '"':
            quoted = not quoted
        elif character == "," and not quoted:
            members.append(header[start:position])
            start = position + 1
    if quoted:
        yield from header.split(",")
    else:
        yield from (*members, header[start:])


def _seconds(argument: str | None, *, otherwise: float) -> float:
    if argument is None or not (argument.isascii() and argument.isdigit()):
        return otherwise
    # Leading zeros aside, ten digits hold the longest duration; int() of a huge string is slow.
    digits = argument.lstrip("0") or "0"
    return _LONGEST if len(digits) > 10 else min(int(digits), _LONGEST)
