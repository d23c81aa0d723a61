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
from decimal import Decimal
from math import ceil
from typing import NamedTuple

MINUTE, DAY = 60, 86_400
NANO = 10**9
"""Dollars are counted in thousand millionths: a token may cost less than a millionth."""
KEPT_WINDOWS = 3
_ALMOST = 1e-6
"""What sums of fractions may be wrong by."""


@dataclass(frozen=True, slots=True)
class Budget:
    """At most this ``amount`` in each ``period``: a ``day`` or a ``month``, in UTC.

    The ``unit`` is ``tokens``, or ``USD`` of which the amount has thousand millionths.
    """

    amount: int
    period: str
    unit: str = "tokens"

    @property
    def counter(self) -> str:
        """The name of what is counted."""
        return f"{self.unit}/{self.period}"

    def __str__(self) -> str:
        return f"{self.written(self.amount, ',')} {self.unit} a {self.period}"

    def written(self, amount: int, form: str = "") -> str:
        """Return an amount in the unit."""
        if self.unit == "tokens":
            return f"{amount:{form}}"
        return f"{(Decimal(amount) / NANO).normalize():{form}f}"


@dataclass(frozen=True, slots=True)
class Limits:
    """Requests and tokens a minute, requests under way, and budgets; None and (): any.

    Over a ``soft_budget`` the holder is only told.
    """

    rpm: int | None = None
    tpm: int | None = None
    concurrency: int | None = None
    budget: tuple[Budget, ...] = ()
    soft_budget: tuple[Budget, ...] = ()

    @property
    def counts_tokens(self) -> bool:
        """Whether the tokens of each request must be known."""
        return self.tpm is not None or bool(self.budget or self.soft_budget)

    @property
    def counts_dollars(self) -> bool:
        """Whether the cost of each request counts."""
        return any(each.unit == "USD" for each in (*self.budget, *self.soft_budget))

    @property
    def needs_price(self) -> bool:
        """Whether a model without a price must be refused: its use would be without a bound."""
        return any(each.unit == "USD" for each in self.budget)


NO_LIMITS = Limits()


class Refusal(NamedTuple):
    """Why a request may not go on: ``what`` is used up, and in ``wait`` seconds there is more."""

    what: str
    wait: float
    budget: Budget | None = None


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

    __slots__ = ("counters", "running", "second", "told")

    def __init__(self) -> None:
        self.counters = {
            f"{what}/{period}": Counter(period)
            for what, period in (
                *(("requests", "minute"), ("tokens", "minute")),
                *((unit, period) for unit in ("tokens", "USD") for period in ("day", "month")),
            )
        }
        self.running = 0
        """Requests under way in this process."""
        self.second = -1
        """The second in which repeated hits were last looked at; -1 once something else changes."""
        self.told: dict[Budget, int] = {}
        """The window in which each soft budget was last seen to be used up."""

    def spent(self, budget: Budget, now: float) -> int:
        """Return the amount of the budget's present window."""
        return self.counters[budget.counter].total(window_of(budget.period, now))

    def count_request(self, limits: Limits, now: float) -> None:
        """Count a request that goes on."""
        if limits.rpm is not None:
            self.counters["requests/minute"].at(int(now // MINUTE)).pending += 1

    def count_use(self, limits: Limits, tokens: int, nano_dollars: int, now: float) -> None:
        """Count the tokens and the cost of a request that has ended."""
        counters = {each.counter for each in (*limits.budget, *limits.soft_budget)}
        if limits.tpm is not None:
            counters.add("tokens/minute")
        for name in counters:
            counter = self.counters[name]
            amount = tokens if name.startswith("tokens") else nano_dollars
            counter.at(window_of(counter.period, now)).pending += amount


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
    used_up = [
        Refusal("budget", max(1.0, window_end(period, window_of(period, now)) - now), each)
        for each in limits.budget
        if usage.spent(each, now) >= each.amount and (period := each.period)
    ]
    return max(used_up, key=lambda refused: refused.wait, default=None)


def is_near(limits: Limits, usage: Usage, now: float) -> bool:
    """Tell whether half of a limit is used, so that others who count must be heard often."""
    rates = (("requests/minute", limits.rpm), ("tokens/minute", limits.tpm))
    return any(
        most is not None and 2 * _rate(usage.counters[name], now) >= most for name, most in rates
    ) or any(
        2 * usage.spent(each, now) >= each.amount for each in (*limits.budget, *limits.soft_budget)
    )


def over_soft_budgets(limits: Limits, usage: Usage, now: float) -> list[Budget]:
    """Return the soft budgets that are used up."""
    return [each for each in limits.soft_budget if usage.spent(each, now) >= each.amount]


def _rate(counter: Counter, now: float) -> float:
    """Return the amount of the minute that ends now."""
    number, elapsed = divmod(now, MINUTE)
    return counter.total(int(number)) + counter.total(int(number) - 1) * (1 - elapsed / MINUTE)


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


_LIMIT = b"\r\nx-ratelimit-limit-%b: %d\r\nx-ratelimit-remaining-%b: "
_RESET = b"\r\nx-ratelimit-reset-%b: %ds"
_SOFT = "\r\nx-refrain-soft-budget: exceeded; used=%s; limit=%s; period=%s; unit=%s"


class LimitLines(NamedTuple):
    """What a reply's head says of limits, each line behind its line end.

    The number ``left`` of requests stands between ``before`` and ``after``, if ``before`` is there.
    """

    before: bytes
    left: int
    after: bytes

    def whole(self) -> bytes:
        """Return the lines."""
        return b"%b%d%b" % self if self.before else self.after


def limit_lines(limits: Limits, usage: Usage, now: float) -> LimitLines:
    """Return what a reply's head says of the limits."""
    before, left, after = b"", 0, b""
    if limits.rpm is not None:
        counter = usage.counters["requests/minute"]
        before, left, after = _rate_lines(b"requests", limits.rpm, counter, now)
    if limits.tpm is not None:
        after += _rate_lines(b"tokens", limits.tpm, usage.counters["tokens/minute"], now).whole()
    for soft in over_soft_budgets(limits, usage, now):
        used, most = (soft.written(each) for each in (usage.spent(soft, now), soft.amount))
        after += (_SOFT % (used, most, soft.period, soft.unit)).encode()
    return LimitLines(before, left, after)


def limit_fields(limits: Limits, usage: Usage, now: float) -> Iterator[tuple[str, str]]:
    """Yield the same as names and values."""
    for line in limit_lines(limits, usage, now).whole().decode().split("\r\n")[1:]:
        name, _, value = line.partition(": ")
        yield name, value


def _rate_lines(what: bytes, most: int, counter: Counter, now: float) -> LimitLines:
    number, elapsed = divmod(now, MINUTE)
    present, before = counter.total(int(number)), counter.total(int(number) - 1)
    left = int(most - present - before * (1 - elapsed / MINUTE) + _ALMOST)
    reset = ceil((2 * MINUTE if present else MINUTE) - elapsed) if present or before else 0
    return LimitLines(_LIMIT % (what, most, what), max(0, left), _RESET % (what, reset))
