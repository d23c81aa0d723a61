"""A period of budgets is one row of a table, from which keys, limits and stores know it."""

from datetime import UTC, datetime

import pytest
from observations import observation_of

from gateway.cache.stores.counts import Change, Count
from gateway.cache.stores.redis.link import RedisLink
from gateway.cache.stores.redis.sums import RedisKeyCounts
from gateway.cache.stores.sqlite.sums import SqliteKeyCounts
from gateway.cache.stores.windows import DAY, PERIODS, Period
from gateway.protocol.tokens import PromptUsage
from gateway.server.keys.key_line import KeyLineError, format_key, read_key
from gateway.server.keys.limiter import LimitError
from gateway.server.keys.usage_sync import UsageSync
from running_redis import RunningRedis, redis_folders

LINE = ["shop", "0f" * 32, "budget=1ktokens/week"]
TUESDAY = datetime(2026, 11, 24, 12, tzinfo=UTC).timestamp()
MONDAY = datetime(2026, 11, 30, tzinfo=UTC).timestamp()
WEEK = Period(  # the epoch was a Thursday
    2, 21 * DAY, lambda now: int(now // DAY + 3) // 7, lambda n: float((7 * n + 4) * DAY)
)


@pytest.fixture
def week(monkeypatch):
    monkeypatch.setitem(PERIODS, "week", WEEK)


@pytest.fixture
def server(tmp_path):
    if not redis_folders():
        pytest.skip("no redis-server is installed")
    redis = RunningRedis(tmp_path / "redis")
    redis.start()
    yield redis
    redis.kill()


@pytest.fixture(params=["sqlite", "redis"])
async def counts(request, tmp_path):
    if request.param == "sqlite":
        file = SqliteKeyCounts(tmp_path / "counts.sqlite3")
        yield file
        await file.close()
        return
    link = RedisLink(request.getfixturevalue("server").url, seconds=30.0)
    yield RedisKeyCounts(link)
    await link.close()


@pytest.mark.parametrize("period", PERIODS)
@pytest.mark.parametrize("now", [TUESDAY, MONDAY, MONDAY - 0.5, 0.0])
def test_a_window_contains_its_time_and_ends_where_the_next_one_begins(period, now):
    row = PERIODS[period]
    number = row.window_of(now)
    assert row.window_end(number - 1) <= now < row.window_end(number)
    assert row.window_of(row.window_end(number)) == number + 1


@pytest.mark.parametrize("period", ["week", "minute"])
def test_only_a_period_of_the_table_has_budgets_and_a_minute_has_a_rate(period):
    with pytest.raises(KeyLineError, match="expected a budget"):
        read_key([*LINE[:2], f"budget=1ktokens/{period}"])


@pytest.mark.usefixtures("week")
async def test_with_a_row_for_weeks_processes_share_a_weekly_budget(counts):
    digest, key = read_key(LINE)
    assert format_key(digest, key).split() == LINE
    clock = [TUESDAY]
    one, two = (UsageSync(counts, lambda: clock[0]) for _ in range(2))
    async with one.lifespan(), two.lifespan():
        for usage_sync, tokens in ((one, 999), (two, 1)):
            permit = usage_sync.begin(key)
            permit.charge(observation_of(usage=PromptUsage(completion=tokens)))
            permit.end()
            await usage_sync.exchange()
        with pytest.raises(LimitError, match=r"tokens a week.* again from 2026-11-30T00:00:00Z on"):
            two.begin(key)
        clock[0] = MONDAY
        two.begin(key).end()


@pytest.mark.usefixtures("week")
async def test_the_file_keeps_as_many_weeks_as_the_row_says(tmp_path):
    counts = SqliteKeyCounts(tmp_path / "counts.sqlite3")
    for number in range(5):
        await counts.add(str(number), {Count("shop", "tokens/week", number): Change(1)})
    found = await counts.load([("tokens/week", number) for number in range(5)])
    assert sorted(count.window for count in found) == [3, 4]
    await counts.close()


@pytest.mark.usefixtures("week")
async def test_redis_keeps_a_week_for_as_long_as_the_row_says(server):
    link = RedisLink(server.url, seconds=30.0)
    await RedisKeyCounts(link).add("a", {Count("shop", "tokens/week", 7): Change(1)})
    (name,) = await link.command(0, "KEYS", "*tokens/week:7")
    assert 20 * DAY < await link.command(0, "TTL", name) <= WEEK.seconds
    await link.close()
