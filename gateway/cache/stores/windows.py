"""Windows of time in which amounts are counted: each period of UTC time is a row of ``PERIODS``."""

from collections.abc import Callable
from datetime import UTC, datetime
from typing import NamedTuple

MINUTE, DAY = 60, 86_400


class Period(NamedTuple):
    """What is kept of a period, the number of the window of a time, and when a window ends."""

    windows: int
    """Kept of each holder and amount. The one that was begun first goes first, whatever the clock
    says: one that was days ahead for a while makes no budget begin anew."""
    seconds: int
    """Kept from the last change on; longer than a window, for clocks that differ."""
    window_of: Callable[[float], int]
    window_end: Callable[[int], float]


def _month(now: float) -> int:
    when = datetime.fromtimestamp(now, UTC)
    return when.year * 12 + when.month - 1


def _month_end(number: int) -> float:
    year, month = divmod(number + 1, 12)
    return datetime(year, month + 1, 1, tzinfo=UTC).timestamp()


RATE = "minute"
"""The period of rates. Its windows slide; each other one is a period of budgets."""
PERIODS = {
    RATE: Period(3, 600, lambda now: int(now // MINUTE), lambda n: float((n + 1) * MINUTE)),
    "day": Period(8, 4 * DAY, lambda now: int(now // DAY), lambda n: float((n + 1) * DAY)),
    "month": Period(3, 100 * DAY, _month, _month_end),
}
