"""Counts of several processes agree, outlive a restart, and do without their store."""

import pytest

from gateway.cache.ports import Count, StoreError
from gateway.cache.stores.redis.key_counts import RedisKeyCounts
from gateway.cache.stores.redis.link import RedisLink
from gateway.cache.stores.sqlite.key_counts import KEPT_WINDOWS, SqliteKeyCounts
from gateway.protocol.tokens import PromptUsage
from gateway.server.keys.key_line import Key
from gateway.server.keys.limits import Budget, Limits
from gateway.server.keys.meter import LimitError, Meter
from gateway.telemetry.observation import Observation
from running_redis import RunningRedis, redis_folders

NOW = 1_800_000_000.0
LIMITS = Limits(rpm=10, budget=Budget(1000, "month"))


@pytest.fixture(scope="module")
def server(tmp_path_factory):
    """A Redis of the newest version that is here."""
    if not redis_folders():
        pytest.skip("no redis-server is installed")
    redis = RunningRedis(tmp_path_factory.mktemp("redis"))
    redis.start()
    yield redis
    redis.kill()


@pytest.fixture(params=["sqlite", "redis"])
async def open_counts(request, tmp_path):
    """Return what opens the same counts, as each process does."""
    links = []

    def open_sqlite():
        return SqliteKeyCounts(tmp_path / "counts.sqlite3")

    def open_redis():
        links.append(RedisLink(server.url, seconds=30.0))
        return RedisKeyCounts(links[-1])

    if request.param == "sqlite":
        yield open_sqlite
        return
    server = request.getfixturevalue("server")
    first = open_redis()
    await first._link.command(0, "FLUSHALL")
    yield open_redis
    for link in links:
        await link.close()


@pytest.fixture(autouse=True)
def slow_exchanges(monkeypatch):
    """Let tests say when counts are exchanged."""
    monkeypatch.setattr("gateway.server.keys.meter.EXCHANGE_SECONDS", 600.0)


def meter_of(counts, now=NOW):
    return Meter(counts, lambda: now)


def spend(meter, tokens=0, limits=LIMITS):
    seen = Observation("", 0.0, lambda: 0.0, (), usage=PromptUsage(completion=tokens))
    meter.begin(Key("shop", limits=limits)).end(seen)


async def test_amounts_add_up_over_processes(open_counts):
    one, two = open_counts(), open_counts()
    count, other = Count("shop", "tokens/day", 7), Count("desk, ü", "requests/minute", 9)
    assert await one.add({count: 5, other: 1}) == {count: 5, other: 1}
    assert await two.add({count: 2, other: 0}) == {count: 7, other: 1}
    assert await two.load([("tokens/day", 7), ("tokens/day", 8)]) == {count: 7}
    await one.close()
    await two.close()


async def test_two_processes_share_a_rate(open_counts):
    one, two = meter_of(open_counts()), meter_of(open_counts())
    async with one.lifespan(), two.lifespan():
        for _ in range(6):
            spend(one)
        await one.exchange()
        for _ in range(4):
            spend(two)
        await two.exchange()
        with pytest.raises(LimitError, match="10 requests a minute"):
            spend(two)
        spend(one)  # which has not heard of the other yet
        await one.exchange()
        with pytest.raises(LimitError):
            spend(one)


async def test_a_budget_outlives_a_restart(open_counts):
    first = meter_of(open_counts())
    async with first.lifespan():
        spend(first, 1200)
    second = meter_of(open_counts())
    async with second.lifespan():
        with pytest.raises(LimitError, match="budget of 1,000 tokens a month"):
            spend(second)


async def test_the_minute_before_counts_after_a_restart(open_counts):
    end = NOW - NOW % 60 + 60
    first = meter_of(open_counts(), end - 1)
    async with first.lifespan():
        for _ in range(10):
            spend(first)
    second = meter_of(open_counts(), end)
    async with second.lifespan():
        with pytest.raises(LimitError, match="10 requests a minute"):
            spend(second)


async def test_no_count_is_handed_over_twice(open_counts):
    counts = open_counts()
    meter = meter_of(counts)
    async with meter.lifespan():
        spend(meter, 10)
        await meter.exchange()
        spend(meter, 10)
        await meter.exchange()
        await meter.exchange()
        assert list((await counts.load([("tokens/month", 2027 * 12)])).values()) == [20]


class BrokenCounts:
    """Counts in memory that fail while they are told to."""

    def __init__(self):
        self.broken, self.totals = True, {}

    def _check(self):
        if self.broken:
            raise StoreError("the disk is gone")

    async def load(self, windows):
        self._check()
        return {}

    async def add(self, changes):
        self._check()
        for count, delta in changes.items():
            self.totals[count] = self.totals.get(count, 0) + delta
        return {count: self.totals[count] for count in changes}

    async def close(self):
        pass


async def test_without_the_shared_counts_each_process_goes_on_counting(caplog):
    counts = BrokenCounts()
    meter = meter_of(counts)
    async with meter.lifespan():
        for _ in range(10):
            spend(meter, 1)
            await meter.exchange()
        assert meter.details() == {"counts": "the disk is gone"}
        with pytest.raises(LimitError):
            spend(meter)
        counts.broken = False
        await meter.exchange()
        assert meter.details() == {"counts": "ok"}
    told = [each.getMessage() for each in caplog.records if each.levelname == "ERROR"]
    assert told == [
        "keys: the shared counts do not answer, so each process counts by itself: the disk is gone"
    ]
    assert sorted(counts.totals.values()) == [10, 10]


async def test_a_damaged_file_is_named_with_what_to_do(tmp_path):
    file = tmp_path / "counts.sqlite3"
    file.write_bytes(b"no database" * 100)
    with pytest.raises(StoreError, match=r"counts\.sqlite3: .*delete it"):
        await SqliteKeyCounts(file).add({Count("shop", "tokens/day", 1): 1})


async def test_the_file_keeps_few_windows_and_is_private(tmp_path):
    counts = SqliteKeyCounts(tmp_path / "counts.sqlite3")
    windows = [("requests/minute", number) for number in range(10)]
    assert await counts.load(windows) == {}
    assert not (tmp_path / "counts.sqlite3").exists()
    for what, number in windows:
        await counts.add({Count("shop", what, number): 1})
    assert len(await counts.load(windows)) == KEPT_WINDOWS
    assert (tmp_path / "counts.sqlite3").stat().st_mode & 0o777 == 0o600
    await counts.close()


async def test_a_key_without_limits_is_not_counted():
    meter = meter_of(None)
    assert meter.begin(Key("shop")) is None
    assert meter.gate(Key("shop")) is None


async def test_a_repeated_hit_counts_as_a_request_until_the_limit():
    meter, key = meter_of(None), Key("shop", limits=Limits(rpm=2), expires=NOW + 1)
    gate = meter.gate(key)
    assert gate(NOW).startswith(b"\r\nx-ratelimit-limit-requests: 2\r\n")
    assert b"remaining-requests: 0" in gate(NOW)
    assert gate(NOW) is None
    with pytest.raises(LimitError):
        meter.begin(key)
    assert gate(NOW + 1) is None
    assert meter.gate(Key("desk", expires=NOW + 1))(NOW) == b""


async def test_the_soft_budget_is_logged_once_in_its_period(caplog):
    limits = Limits(soft_budget=Budget(10, "day"))
    meter = meter_of(None)
    for _ in range(3):
        spend(meter, 10, limits)
    told = [each.getMessage() for each in caplog.records]
    assert told == ["keys: shop has used its soft budget of 10 tokens a day"]
