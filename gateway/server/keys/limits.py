"""What the holder of a key may use, what it has used, and the decision about its next request.

Amounts are counted in windows of time, as ``PERIODS`` says. A minute's rate slides: the window
before counts with the share of it that is less than a minute old. A window stays while later ones
are used, so a clock that jumps finds its counts again when it comes back.

Law: several processes may count for one holder. A total is what all of them were known to have
counted (``known``) and what this process has counted since (``pending``).
"""

from dataclasses import dataclass
from decimal import Decimal
from math import ceil
from typing import NamedTuple

from gateway.cache.stores.windows import MINUTE, PERIODS, RATE

NANO = 10**9
"""Dollars are counted in thousand millionths: a token may cost less than a millionth."""
_ALMOST = 1e-6
"""What sums of fractions may be wrong by."""


class Budget(NamedTuple):
    """At most this ``amount`` in each ``period``, such as a ``day`` in UTC.

    The ``unit`` is ``tokens``, or ``USD`` of which the amount has thousand millionths.
    """

    amount: int
    period: str
    unit: str = "tokens"

    def __str__(self) -> str:
        return f"{self.written(self.amount, ',')} {self.unit} a {self.period}"

    def written(self, amount: int, form: str = "") -> str:
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
        return self.known + self.pending


class Counter:
    """An amount by windows of ``period``; the first that was begun is the first to go."""

    __slots__ = ("_begin", "_end", "_number", "period", "windows")

    def __init__(self, period: str) -> None:
        self.period = period
        self.windows: dict[int, Window] = {}
        self._begin = self._end = 0.0
        self._number = 0

    def number(self, now: float) -> int:
        if not self._begin <= now < self._end:
            row = PERIODS[self.period]
            self._number = number = row.window_of(now)
            self._begin, self._end = row.window_end(number - 1), row.window_end(number)
        return self._number

    def at(self, number: int) -> Window:
        window = self.windows.get(number)
        if window is None:
            window = self.windows[number] = Window()
            if len(self.windows) > PERIODS[self.period].windows:
                del self.windows[next(iter(self.windows))]
        return window

    def total(self, number: int) -> int:
        """Return the amount of a window that may be absent."""
        window = self.windows.get(number)
        return 0 if window is None else window.known + window.pending


class Usage:
    """What the holder of a key has used."""

    __slots__ = ("budgets", "counters", "requests", "running", "second", "tokens", "told")

    def __init__(self) -> None:
        self.requests, self.tokens = Counter(RATE), Counter(RATE)
        self.budgets = {
            (period, unit): Counter(period)
            for unit in ("tokens", "USD")
            for period in PERIODS
            if period != RATE
        }
        self.counters = {f"requests/{RATE}": self.requests, f"tokens/{RATE}": self.tokens} | {
            f"{unit}/{period}": counter for (period, unit), counter in self.budgets.items()
        }
        """All of them, by the names under which they are shared."""
        self.running = 0
        """Requests under way in this process."""
        self.second = -1
        """The second in which repeated hits were last looked at; -1 once something else changes."""
        self.told: dict[Budget, int] = {}
        """The window in which each soft budget was last seen to be used up."""

    def spent(self, budget: Budget, now: float) -> int:
        counter = self.budgets[budget[1:]]
        return counter.total(counter.number(now))

    def count_request(self, limits: Limits, now: float) -> None:
        if limits.rpm is not None:
            self.requests.at(self.requests.number(now)).pending += 1

    def count_use(self, limits: Limits, tokens: int, nano_dollars: int, now: float) -> None:
        """Count the tokens and the cost of a request that has ended."""
        if limits.tpm is not None:
            self.tokens.at(self.tokens.number(now)).pending += tokens
        for what in {budget[1:] for budget in limits.budget + limits.soft_budget}:
            counter = self.budgets[what]
            amount = tokens if what[1] == "tokens" else nano_dollars
            counter.at(counter.number(now)).pending += amount


def refusal(limits: Limits, usage: Usage, now: float) -> Refusal | None:
    """Return why the holder's next request may not go on, or None."""
    if limits.concurrency is not None and usage.running >= limits.concurrency:
        return Refusal("concurrency", 1.0)
    if limits.rpm is not None and (wait := _wait(usage.requests, limits.rpm, now)):
        return Refusal("requests", wait)
    if limits.tpm is not None and (wait := _wait(usage.tokens, limits.tpm, now)):
        return Refusal("tokens", wait)
    used_up = [each for each in limits.budget if usage.spent(each, now) >= each.amount]
    if not used_up:
        return None
    ends = {each: (row := PERIODS[each.period]).window_end(row.window_of(now)) for each in used_up}
    last = max(used_up, key=ends.__getitem__)
    return Refusal("budget", max(1.0, ends[last] - now), last)


def is_near(limits: Limits, usage: Usage, now: float) -> bool:
    """Tell whether half of a limit is used, so that others who count must be heard often."""
    rates = ((usage.requests, limits.rpm), (usage.tokens, limits.tpm))
    return any(
        most is not None and 2 * (most - _left(counter, most, now)) >= most
        for counter, most in rates
    ) or any(
        2 * usage.spent(each, now) >= each.amount for each in limits.budget + limits.soft_budget
    )


def over_soft_budgets(limits: Limits, usage: Usage, now: float) -> list[Budget]:
    """Return the soft budgets that are used up."""
    return [each for each in limits.soft_budget if usage.spent(each, now) >= each.amount]


def _left(counter: Counter, most: int, now: float) -> int:
    """Return how many more fit into a minute's rate."""
    number, elapsed = divmod(now, MINUTE)
    present, before = counter.total(int(number)), counter.total(int(number) - 1)
    return max(0, int(most - present - before * (1 - elapsed / MINUTE) + _ALMOST))


def _reset(counter: Counter, now: float) -> int:
    """Return in how many seconds the whole rate is free again."""
    number, elapsed = divmod(now, MINUTE)
    if counter.total(int(number)):
        return ceil(2 * MINUTE - elapsed)
    return ceil(MINUTE - elapsed) if counter.total(int(number) - 1) else 0


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


_NAMES = {
    what: [f"x-ratelimit-{part}-{what}" for part in ("limit", "remaining", "reset")]
    for what in ("requests", "tokens")
}
_SOFT = "exceeded; used=%s; limit=%s; period=%s; unit=%s"


def limit_fields(limits: Limits, usage: Usage, now: float) -> list[tuple[str, str]]:
    """Return what a reply's head says of the limits: names and values.

    The second one is how many requests are left, if requests are limited.
    """
    fields: list[tuple[str, str]] = []
    if limits.rpm is not None:
        fields = _rate_fields("requests", limits.rpm, usage.requests, now)
    if limits.tpm is not None:
        fields += _rate_fields("tokens", limits.tpm, usage.tokens, now)
    for soft in over_soft_budgets(limits, usage, now) if limits.soft_budget else ():
        used, most = (soft.written(each) for each in (usage.spent(soft, now), soft.amount))
        fields.append(("x-refrain-soft-budget", _SOFT % (used, most, soft.period, soft.unit)))
    return fields


class LimitLines(NamedTuple):
    """The same as lines of a head, each behind its line end.

    The number ``left`` of requests stands between ``before`` and ``after``, if ``before`` is there.
    """

    before: bytes
    left: int
    after: bytes

    def whole(self) -> bytes:
        return b"%b%d%b" % self if self.before else self.after


def limit_lines(limits: Limits, usage: Usage, now: float) -> LimitLines:
    """Return what a reply's head says of the limits."""
    lines = [f"\r\n{name}: {value}" for name, value in limit_fields(limits, usage, now)]
    if limits.rpm is None:
        return LimitLines(b"", 0, "".join(lines).encode())
    left = lines[1].rpartition(" ")[2]
    before, after = lines[0] + lines[1].removesuffix(left), "".join(lines[2:])
    return LimitLines(before.encode(), int(left), after.encode())


def _rate_fields(what: str, most: int, counter: Counter, now: float) -> list[tuple[str, str]]:
    limit, remaining, reset = _NAMES[what]
    left = _left(counter, most, now)
    return [(limit, str(most)), (remaining, str(left)), (reset, f"{_reset(counter, now)}s")]
