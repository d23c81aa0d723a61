"""What the holder of a key may use, what it has used, and the decision about its next request.

Amounts are counted in windows of time: UTC minutes, days and months, each by its number. A minute's
rate slides: the window before counts with the share of it that is less than a minute old. A window
stays while later ones are used, so a clock that jumps finds its counts again when it comes back.

Law: whoever else counts for the same holder, a total is what all were known to have counted
(``known``) and what this process has counted since (``pending``).
"""

from collections.abc import Iterator
from dataclasses import dataclass
from datetime import UTC, datetime
from math import ceil
from typing import NamedTuple

MINUTE, DAY = 60, 86_400
KEPT_WINDOWS = 3
_ALMOST = 1e-6
"""What sums of fractions may be wrong by."""


@dataclass(frozen=True, slots=True)
class Budget:
    """At most so many ``tokens`` in each ``period``: a ``day`` or a ``month``, in UTC."""

    tokens: int
    period: str

    def __str__(self) -> str:
        return f"{self.tokens:,} tokens a {self.period}"


@dataclass(frozen=True, slots=True)
class Limits:
    """Requests and tokens a minute, requests under way, and tokens of a day or month; None: any.

    Over ``soft_budget`` the holder is only told.
    """

    rpm: int | None = None
    tpm: int | None = None
    concurrency: int | None = None
    budget: Budget | None = None
    soft_budget: Budget | None = None

    @property
    def counts_tokens(self) -> bool:
        """Whether the tokens of each request must be known."""
        return self.tpm is not None or bool(self.budget or self.soft_budget)


NO_LIMITS = Limits()


class Refusal(NamedTuple):
    """Why a request may not go on: ``what`` is used up, and in ``wait`` seconds there is more."""

    what: str
    wait: float


class Window:
    """The amount of one window of time."""

    __slots__ = ("known", "pending")

    def __init__(self) -> None:
        self.known = 0
        self.pending = 0

    @property
    def total(self) -> int:
        """All that is known to be counted."""
        return self.known + self.pending


class Counter:
    """An amount by windows of ``period``; the first that was begun is the first to go."""

    __slots__ = ("period", "windows")

    def __init__(self, period: str) -> None:
        self.period = period
        self.windows: dict[int, Window] = {}

    def at(self, number: int) -> Window:
        """Return the window with this number."""
        window = self.windows.get(number)
        if window is None:
            window = self.windows[number] = Window()
            if len(self.windows) > KEPT_WINDOWS:
                del self.windows[next(iter(self.windows))]
        return window

    def total(self, number: int) -> int:
        """Return the amount of a window that may be absent."""
        window = self.windows.get(number)
        return 0 if window is None else window.known + window.pending


class Usage:
    """What the holder of a key has used."""

    __slots__ = ("counters", "running", "told")

    def __init__(self) -> None:
        self.counters = {
            "requests/minute": Counter("minute"),
            "tokens/minute": Counter("minute"),
            "tokens/day": Counter("day"),
            "tokens/month": Counter("month"),
        }
        self.running = 0
        """Requests under way in this process."""
        self.told = -1
        """The window in which the soft budget was last seen to be used up."""

    def spent(self, budget: Budget, now: float) -> int:
        """Return the tokens of the budget's present window."""
        return self.counters[f"tokens/{budget.period}"].total(window_of(budget.period, now))

    def count_request(self, limits: Limits, now: float) -> None:
        """Count a request that goes on."""
        if limits.rpm is not None:
            self.counters["requests/minute"].at(int(now // MINUTE)).pending += 1

    def count_tokens(self, limits: Limits, tokens: int, now: float) -> None:
        """Count the tokens of a request that has ended."""
        periods = {each.period for each in (limits.budget, limits.soft_budget) if each is not None}
        if limits.tpm is not None:
            periods.add("minute")
        for period in periods:
            self.counters[f"tokens/{period}"].at(window_of(period, now)).pending += tokens


def window_of(period: str, now: float) -> int:
    """Return the number of the window of time that ``now`` is in."""
    if period == "month":
        when = datetime.fromtimestamp(now, UTC)
        return when.year * 12 + when.month - 1
    return int(now // (MINUTE if period == "minute" else DAY))


def window_end(period: str, number: int) -> float:
    """Return when a window ends, in seconds since the epoch."""
    if period == "month":
        year, month = divmod(number + 1, 12)
        return datetime(year, month + 1, 1, tzinfo=UTC).timestamp()
    return float((number + 1) * (MINUTE if period == "minute" else DAY))


def refusal(limits: Limits, usage: Usage, now: float) -> Refusal | None:
    """Return why the holder's next request may not go on, or None."""
    if limits.concurrency is not None and usage.running >= limits.concurrency:
        return Refusal("concurrency", 1.0)
    for what, most in (("requests", limits.rpm), ("tokens", limits.tpm)):
        if most is not None and (wait := _wait(usage.counters[f"{what}/minute"], most, now)):
            return Refusal(what, wait)
    budget = limits.budget
    if budget is not None and usage.spent(budget, now) >= budget.tokens:
        end = window_end(budget.period, window_of(budget.period, now))
        return Refusal("budget", max(1.0, end - now))
    return None


def over_soft_budget(limits: Limits, usage: Usage, now: float) -> bool:
    """Tell whether the soft budget is used up."""
    soft = limits.soft_budget
    return soft is not None and usage.spent(soft, now) >= soft.tokens


def _wait(counter: Counter, most: int, now: float) -> float:
    """Return in how many seconds one more fits into a minute's rate, 0 if at once."""
    number, elapsed = divmod(now, MINUTE)
    present, before = counter.total(int(number)), counter.total(int(number) - 1)
    room = most - 1
    if present + before * (1 - elapsed / MINUTE) <= room + _ALMOST:
        return 0.0
    if present <= room:
        return MINUTE * (1 - (room - present) / before) - elapsed
    return MINUTE - elapsed + MINUTE * (1 - room / present)


_LINES = (
    b"\r\nx-ratelimit-limit-%b: %d\r\nx-ratelimit-remaining-%b: %d\r\nx-ratelimit-reset-%b: %ds"
)
_SOFT = b"\r\nx-refrain-soft-budget: exceeded; used=%d; limit=%d; period=%b"


def limit_lines(limits: Limits, usage: Usage, now: float) -> bytes:
    """Return what a reply's head says of the limits: lines, each behind its line end."""
    lines = b""
    if limits.rpm is not None:
        lines = _rate_lines(b"requests", limits.rpm, usage.counters["requests/minute"], now)
    if limits.tpm is not None:
        lines += _rate_lines(b"tokens", limits.tpm, usage.counters["tokens/minute"], now)
    soft = limits.soft_budget
    if soft is not None and (used := usage.spent(soft, now)) >= soft.tokens:
        lines += _SOFT % (used, soft.tokens, soft.period.encode())
    return lines


def limit_fields(limits: Limits, usage: Usage, now: float) -> Iterator[tuple[str, str]]:
    """Yield the same as names and values."""
    for line in limit_lines(limits, usage, now).decode().split("\r\n")[1:]:
        name, _, value = line.partition(": ")
        yield name, value


def _rate_lines(what: bytes, most: int, counter: Counter, now: float) -> bytes:
    number, elapsed = divmod(now, MINUTE)
    present, before = counter.total(int(number)), counter.total(int(number) - 1)
    left = int(most - present - before * (1 - elapsed / MINUTE) + _ALMOST)
    reset = ceil((2 * MINUTE if present else MINUTE) - elapsed) if present or before else 0
    return _LINES % (what, most, what, max(0, left), what, reset)
