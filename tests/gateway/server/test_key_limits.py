"""The limits of a key's holder, with the time as an argument."""

from datetime import UTC, datetime

import pytest

from gateway.cache.stores.windows import PERIODS
from gateway.server.keys.limits import (
    NANO,
    Budget,
    Limits,
    Usage,
    limit_fields,
    over_soft_budgets,
    refusal,
)

NOON = datetime(2026, 11, 24, 12, tzinfo=UTC).timestamp()
DAY = 86_400.0


def let_through(limits, usage, now):
    """Count a request if it may go on; tell whether it may."""
    if refusal(limits, usage, now) is not None:
        return False
    usage.count_request(limits, now)
    return True


def test_a_minute_has_so_many_requests_and_no_more():
    limits, usage = Limits(rpm=3), Usage()
    assert [let_through(limits, usage, NOON + n) for n in range(4)] == [True, True, True, False]
    assert refusal(limits, usage, NOON + 4).what == "requests"


@pytest.mark.parametrize("start", [0.0, 20.0, 59.0])
def test_after_the_wait_that_is_told_one_more_goes_on(start):
    limits, usage = Limits(rpm=5), Usage()
    now = NOON + start
    while (refused := refusal(limits, usage, now)) is None:
        usage.count_request(limits, now)
    assert 0 < refused.wait <= 120
    assert refusal(limits, usage, now + refused.wait - 0.01) is not None
    assert let_through(limits, usage, now + refused.wait)


def test_the_turn_of_a_minute_frees_no_second_burst():
    limits, usage = Limits(rpm=60), Usage()
    for _ in range(60):
        assert let_through(limits, usage, NOON + 59)
    let = sum(let_through(limits, usage, NOON + 61) for _ in range(60))
    assert let == 1


def test_tokens_are_counted_when_they_are_known():
    limits, usage = Limits(tpm=100), Usage()
    usage.count_use(limits, 99, 0, NOON)
    assert refusal(limits, usage, NOON) is None
    usage.count_use(limits, 50, 0, NOON)
    assert refusal(limits, usage, NOON).what == "tokens"
    assert refusal(limits, usage, NOON + 120) is None


def test_requests_under_way_are_bounded():
    limits, usage = Limits(concurrency=2), Usage()
    usage.running = 1
    assert refusal(limits, usage, NOON) is None
    usage.running = 2
    assert refusal(limits, usage, NOON).what == "concurrency"


@pytest.mark.parametrize(
    ("period", "end"),
    [
        ("day", datetime(2026, 11, 25, tzinfo=UTC)),
        ("month", datetime(2026, 12, 1, tzinfo=UTC)),
    ],
)
def test_a_budget_lasts_until_its_period_ends(period, end):
    budget = Budget(1000, period)
    limits, usage = Limits(budget=(budget,)), Usage()
    usage.count_use(limits, 999, 0, NOON)
    assert refusal(limits, usage, NOON) is None
    usage.count_use(limits, 500, 0, NOON)
    refused = refusal(limits, usage, NOON)
    assert refused == ("budget", end.timestamp() - NOON, budget)
    assert refusal(limits, usage, end.timestamp() - 1) is not None
    assert refusal(limits, usage, end.timestamp()) is None


def test_december_is_followed_by_january():
    now = datetime(2026, 12, 31, 23, tzinfo=UTC).timestamp()
    end = PERIODS["month"].window_end(PERIODS["month"].window_of(now))
    assert end == datetime(2027, 1, 1, tzinfo=UTC).timestamp()


def test_a_soft_budget_refuses_nothing():
    limits, usage = Limits(soft_budget=(Budget(10, "day"),)), Usage()
    usage.count_use(limits, 10, 0, NOON)
    assert refusal(limits, usage, NOON) is None
    assert over_soft_budgets(limits, usage, NOON) == [Budget(10, "day")]
    assert dict(limit_fields(limits, usage, NOON)) == {
        "x-refrain-soft-budget": "exceeded; used=10; limit=10; period=day; unit=tokens"
    }


@pytest.mark.parametrize("jump", [-DAY, -40 * DAY, 400 * DAY])
def test_a_clock_that_jumps_and_comes_back_neither_frees_nor_locks_a_key(jump):
    limits, usage = Limits(rpm=2, budget=(Budget(1000, "day"),)), Usage()
    usage.count_use(limits, 1000, 0, NOON)
    assert refusal(limits, usage, NOON).what == "budget"
    assert let_through(limits, usage, NOON + jump)
    assert refusal(limits, usage, NOON).what == "budget"
    assert refusal(limits, usage, NOON + DAY) is None


def test_a_clock_that_visits_four_days_ahead_finds_the_budgets_used():
    limits, usage = Limits(budget=(Budget(1000, "day"), Budget(2000, "month"))), Usage()
    usage.count_use(limits, 1000, 0, NOON)
    for day in range(1, 5):
        usage.count_use(limits, 1, 0, NOON + day * DAY)
    assert refusal(limits, usage, NOON).what == "budget"


def test_a_replys_head_says_what_is_left():
    limits, usage = Limits(rpm=10, tpm=1000), Usage()
    fresh = dict(limit_fields(limits, usage, NOON))
    assert fresh["x-ratelimit-remaining-requests"] == "10"
    assert fresh["x-ratelimit-reset-requests"] == "0s"
    usage.count_request(limits, NOON)
    usage.count_use(limits, 300, 0, NOON)
    assert dict(limit_fields(limits, usage, NOON + 15)) == {
        "x-ratelimit-limit-requests": "10",
        "x-ratelimit-remaining-requests": "9",
        "x-ratelimit-reset-requests": "105s",
        "x-ratelimit-limit-tokens": "1000",
        "x-ratelimit-remaining-tokens": "700",
        "x-ratelimit-reset-tokens": "105s",
    }
    assert dict(limit_fields(Limits(concurrency=2), usage, NOON)) == {}


def test_few_windows_are_kept():
    limits, usage = Limits(rpm=1000), Usage()
    for minute in range(100):
        usage.count_request(limits, NOON + 60 * minute)
    assert len(usage.counters["requests/minute"].windows) == 3


def test_dollars_and_tokens_have_budgets_of_their_own_and_the_longest_wait_counts():
    day, month = Budget(1000, "day"), Budget(20 * NANO, "month", "USD")
    limits, usage = Limits(budget=(day, month), soft_budget=(Budget(NANO, "day", "USD"),)), Usage()
    usage.count_use(limits, 999, 20 * NANO - 1, NOON)
    assert refusal(limits, usage, NOON) is None
    usage.count_use(limits, 1, 0, NOON)
    assert refusal(limits, usage, NOON).budget is day
    usage.count_use(limits, 1, 1, NOON)
    assert refusal(limits, usage, NOON).budget is month
    assert refusal(limits, usage, NOON + DAY).budget is month
    assert dict(limit_fields(limits, usage, NOON)) == {
        "x-refrain-soft-budget": "exceeded; used=20; limit=1; period=day; unit=USD"
    }


def test_a_budget_is_written_as_people_write_it():
    assert str(Budget(5_000_000, "day")) == "5,000,000 tokens a day"
    assert str(Budget(20 * NANO, "month", "USD")) == "20 USD a month"
    assert str(Budget(1_500_000_000_000, "month", "USD")) == "1,500 USD a month"
    assert str(Budget(2_500_000, "day", "USD")) == "0.0025 USD a day"
