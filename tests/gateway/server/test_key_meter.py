"""Counts of several processes agree, outlive a restart, and do without their store."""

import pytest
from observations import observation_of

from gateway.cache.ports import StoreError
from gateway.cache.stores.counts import Change, Count
from gateway.cache.stores.redis.link import RedisLink
from gateway.cache.stores.redis.sums import COUNTS_AT_ONCE, RedisKeyCounts
from gateway.cache.stores.sqlite.sums import SqliteKeyCounts
from gateway.cache.stores.windows import PERIODS
from gateway.protocol.errors import ClientError
from gateway.protocol.tokens import PromptUsage
from gateway.server.keys.key_line import Key
from gateway.server.keys.limiter import LimitError
from gateway.server.keys.limits import NANO, Budget, Limits
from gateway.server.keys.usage_sync import REFUSED_SECONDS, UsageSync
from gateway.telemetry.prices import Price, Prices
from running_redis import RunningRedis, redis_folders

NOW = 1_800_000_000.0
LIMITS = Limits(rpm=10, budget=(Budget(1000, "month"),))
KEY = Key("shop", limits=LIMITS)


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
    monkeypatch.setattr("gateway.server.keys.usage_sync.EXCHANGE_SECONDS", 600.0)


def usage_sync_of(counts, now=NOW):
    return UsageSync(counts, lambda: now)


def spend(usage_sync, tokens=0, limits=LIMITS):
    permit = usage_sync.begin(KEY if limits is LIMITS else Key("shop", limits=limits))
    permit.charge(observation_of(usage=PromptUsage(completion=tokens)))
    permit.end()


async def test_amounts_add_up_over_processes(open_counts):
    one, two = open_counts(), open_counts()
    count, other = Count("shop", "tokens/day", 7), Count("desk, ü", "requests/minute", 9)
    changes = {count: Change(5), other: Change(1)}
    assert await one.add("a", changes) == {count: 5, other: 1}
    assert await two.add("b", {count: Change(2), other: Change(0)}) == {count: 7, other: 1}
    assert await two.load([("tokens/day", 7), ("tokens/day", 8)]) == {count: 7}
    await one.close()
    await two.close()


async def test_two_processes_share_a_rate(open_counts):
    one, two = usage_sync_of(open_counts()), usage_sync_of(open_counts())
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
    first = usage_sync_of(open_counts())
    async with first.lifespan():
        spend(first, 1200)
    second = usage_sync_of(open_counts())
    async with second.lifespan():
        with pytest.raises(LimitError, match="budget of 1,000 tokens a month"):
            spend(second)


async def test_the_minute_before_counts_after_a_restart(open_counts):
    end = NOW - NOW % 60 + 60
    first = usage_sync_of(open_counts(), end - 1)
    async with first.lifespan():
        for _ in range(10):
            spend(first)
    second = usage_sync_of(open_counts(), end)
    async with second.lifespan():
        with pytest.raises(LimitError, match="10 requests a minute"):
            spend(second)


async def test_no_count_is_handed_over_twice(open_counts):
    counts = open_counts()
    usage_sync = usage_sync_of(counts)
    async with usage_sync.lifespan():
        spend(usage_sync, 10)
        await usage_sync.exchange()
        spend(usage_sync, 10)
        await usage_sync.exchange()
        await usage_sync.exchange()
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

    async def add(self, batch, changes):
        self._check()
        for count, (amount, known) in changes.items():
            self.totals[count] = max(self.totals.get(count, 0), known) + amount
        return {count: self.totals[count] for count in changes}

    async def close(self):
        pass


async def test_what_a_frozen_redis_counts_late_is_counted_once(server):
    link = RedisLink(server.url, seconds=0.2)
    usage_sync = usage_sync_of(RedisKeyCounts(link))
    await link.command(0, "FLUSHALL")
    async with usage_sync.lifespan():
        spend(usage_sync, 10)
        await usage_sync.exchange()
        server.freeze()
        try:
            for _ in range(3):
                spend(usage_sync, 100)
                await usage_sync.exchange()
                assert usage_sync.problem == "Redis did not answer in time"
        finally:
            server.thaw()
        while usage_sync.problem is not None:
            await usage_sync.exchange()
        assert usage_sync.limiter(KEY).usage.spent(LIMITS.budget[0], NOW) == 310
        month = "tokens/month", 2027 * 12
        assert await usage_sync._counts.load([month]) == {Count("shop", *month): 310}
    await link.close()


async def test_a_batch_counts_once_in_each_script_although_it_is_repeated(server):
    link = RedisLink(server.url, seconds=30.0)
    await link.command(0, "FLUSHALL")
    counts, fails = RedisKeyCounts(link), [False, True]
    number = COUNTS_AT_ONCE + 1
    changes = {Count(f"h{n}", "tokens/day", 7): Change(5, 1) for n in range(number)}
    run = link.run

    async def lose_the_second_answer(*arguments):
        answer = await run(*arguments)
        if fails and fails.pop(0):
            raise StoreError("the answer is lost")
        return answer

    link.run = lose_the_second_answer
    with pytest.raises(StoreError, match="is lost"):
        await counts.add("a", changes)
    assert set((await counts.load([("tokens/day", 7)])).values()) == {6}
    assert await counts.add("a", changes) == dict.fromkeys(changes, 6)
    await link.command(0, "HDEL", b"refrain:1:{keys}:tokens/day:7", "h0")
    assert await counts.add("a", changes) == dict.fromkeys(changes, 6)
    assert set((await counts.add("b", changes)).values()) == {11}
    await link.close()


async def test_without_the_shared_counts_each_process_goes_on_counting(caplog):
    counts = BrokenCounts()
    usage_sync = usage_sync_of(counts)
    async with usage_sync.lifespan():
        for _ in range(10):
            spend(usage_sync, 1)
            await usage_sync.exchange()
        assert usage_sync.details([]) == {"counts": "the disk is gone", "problems": []}
        with pytest.raises(LimitError):
            spend(usage_sync)
        counts.broken = False
        await usage_sync.exchange()
        assert usage_sync.details([]) == {"counts": "ok", "problems": []}
    told = [each.getMessage() for each in caplog.records if each.levelname == "ERROR"]
    assert told == [
        "keys: the shared counts do not answer, so each process counts by itself: the disk is gone"
    ]
    assert sorted(counts.totals.values()) == [10, 10]


async def test_where_limits_fail_closed_holders_wait_for_the_shared_counts(caplog):
    counts = BrokenCounts()
    counts.broken = False
    usage_sync = UsageSync(counts, lambda: NOW, fails_open=False)
    async with usage_sync.lifespan():
        spend(usage_sync)
        counts.broken = True
        await usage_sync.exchange()
        spend(usage_sync)  # one exchange may have come too late
        await usage_sync.exchange()
        gate = usage_sync.gate(Key("shop", limits=LIMITS))
        assert gate(NOW) is None
        with pytest.raises(LimitError, match="not known at present") as refused:
            spend(usage_sync)
        assert refused.value.status == 503
        counts.broken = False
        await usage_sync.exchange()
        spend(usage_sync)
    assert "keys with limits are refused: the disk is gone" in caplog.text
    assert sorted(counts.totals.values()) == [0, 3]


@pytest.mark.parametrize("fails_open", [True, False])
async def test_counts_that_could_not_be_loaded_at_the_start_are_loaded_later(
    open_counts, fails_open
):
    first = usage_sync_of(open_counts())
    async with first.lifespan():
        spend(first, 1200)
    counts = open_counts()
    load, broken = counts.load, True

    async def load_once_it_works(windows):
        if broken:
            raise StoreError("not there yet")
        return await load(windows)

    counts.load = load_once_it_works
    usage_sync = UsageSync(counts, lambda: NOW, fails_open=fails_open)
    async with usage_sync.lifespan():
        if not fails_open:
            with pytest.raises(LimitError, match="not known at present"):
                spend(usage_sync)
        broken = False
        await usage_sync.exchange()
        with pytest.raises(LimitError, match="budget of 1,000 tokens a month"):
            spend(usage_sync)


async def test_counts_that_were_lost_come_back_from_those_who_know_them(open_counts):
    one, two = usage_sync_of(open_counts()), usage_sync_of(open_counts())
    async with one.lifespan(), two.lifespan():
        spend(one, 600)
        await one.exchange()
        spend(two, 300)
        await two.exchange()
        spend(one)
        await one.exchange()
        lost = open_counts()
        if isinstance(lost, SqliteKeyCounts):
            await lost.run(lambda connection: connection.execute("DELETE FROM key_count"))
        else:
            await lost._link.command(0, "FLUSHALL")
        await lost.close()
        spend(two, 50)
        await two.exchange()
        spend(one, 50)
        await one.exchange()
        with pytest.raises(LimitError, match="budget of 1,000 tokens a month"):
            spend(one)
        third = usage_sync_of(open_counts())
        async with third.lifespan():
            with pytest.raises(LimitError, match="budget of 1,000 tokens a month"):
                spend(third)


async def test_a_clock_that_goes_back_by_a_day_finds_the_counts_of_both_days(open_counts):
    limits, now = Limits(budget=(Budget(100, "day"), Budget(250, "month"))), [NOW]
    usage_sync = UsageSync(open_counts(), lambda: now[0])
    async with usage_sync.lifespan():
        spend(usage_sync, 100, limits)
        await usage_sync.exchange()
        with pytest.raises(LimitError, match="100 tokens a day"):
            spend(usage_sync, 1, limits)
        now[0] -= 86_400
        spend(usage_sync, 100, limits)
        await usage_sync.exchange()
        with pytest.raises(LimitError, match="100 tokens a day"):
            spend(usage_sync, 1, limits)
        now[0] += 86_400
        with pytest.raises(LimitError, match="100 tokens a day"):
            spend(usage_sync, 1, limits)
        now[0] += 86_400
        spend(usage_sync, 50, limits)
        with pytest.raises(LimitError, match="250 tokens a month"):
            spend(usage_sync, 1, limits)
    now[0] -= 2 * 86_400
    again = UsageSync(open_counts(), lambda: now[0])
    async with again.lifespan():
        with pytest.raises(LimitError, match="250 tokens a month"):
            spend(again, 1, limits)


async def test_holders_without_a_key_are_dropped_once_their_counts_are_handed_over():
    counts = BrokenCounts()
    counts.broken = False
    usage_sync = usage_sync_of(counts)
    usage_sync.keep({"shop", "desk"})
    async with usage_sync.lifespan():
        spend(usage_sync, 5)
        counts.broken = True
        under_way = usage_sync.begin(Key("desk", limits=LIMITS))
        usage_sync.keep({"bar"})
        await usage_sync.exchange()
        assert set(usage_sync._usages) == {"shop", "desk"}
        counts.broken = False
        await usage_sync.exchange()
        assert set(usage_sync._usages) == {"desk"}
        under_way.end()
        await usage_sync.exchange()
        assert not usage_sync._usages
        assert not usage_sync._limiters
    assert sorted(counts.totals.values()) == [1, 1, 5]


async def test_a_holder_that_gets_a_key_again_has_used_what_it_had_used(open_counts):
    usage_sync = usage_sync_of(open_counts())
    usage_sync.keep({"shop"})
    async with usage_sync.lifespan():
        spend(usage_sync, 1200)
        usage_sync.keep(set())
        await usage_sync.exchange()
        assert not usage_sync._usages
        usage_sync.keep({"shop"})
        await usage_sync.exchange()
        with pytest.raises(LimitError, match="budget of 1,000 tokens a month"):
            spend(usage_sync)


def test_a_fallback_model_without_a_price_costs_what_the_model_asked_for_costs():
    usage_sync = UsageSync(None, lambda: NOW, Prices({"m": Price(1e-6, 2e-6)}))
    key = Key("shop", limits=Limits(budget=(Budget(NANO, "day", "USD"),)))
    used = PromptUsage(prompt=1000, completion=500)
    for fallback in ("unknown", None):
        seen = observation_of(usage=used, model="m", fallback_model=fallback)
        usage_sync.begin(key).charge(seen)
    assert usage_sync.limiter(key).usage.spent(key.limits.budget[0], NOW) == 2 * 2_000_000


async def test_repeated_hits_of_a_second_count_like_others():
    usage_sync, key = usage_sync_of(None), Key("shop", limits=Limits(rpm=100, tpm=1000))
    gate = usage_sync.gate(key)
    left = [gate(NOW + n / 100).split(b"remaining-requests: ")[1][:3] for n in range(10)]
    assert left == [b"%d\r" % (99 - n) for n in range(10)]
    spend(usage_sync, 10, key.limits)
    assert b"remaining-requests: 88\r" in gate(NOW)
    assert b"remaining-tokens: 990\r" in gate(NOW)
    assert usage_sync.limiter(key).usage.counters["requests/minute"].total(int(NOW // 60)) == 13
    assert sum(gate(NOW) is not None for _ in range(200)) == 87
    assert gate(NOW + 121) is not None


async def test_only_holders_near_a_limit_exchange_often(open_counts):
    one, two = usage_sync_of(open_counts()), usage_sync_of(open_counts())
    async with one.lifespan(), two.lifespan():
        for _ in range(4):
            spend(one)
        await one.exchange(near=True)
        spend(two)
        await two.exchange()
        assert two.limiter(KEY).usage.counters["requests/minute"].total(int(NOW // 60)) == 1
        spend(one)  # half of the ten
        await one.exchange(near=True)
        await two.exchange()
        spend(two)
        await two.exchange()
        assert two.limiter(KEY).usage.counters["requests/minute"].total(int(NOW // 60)) == 7


async def test_a_damaged_file_is_set_aside_with_its_log_and_known_counts_come_back(
    tmp_path, caplog
):
    file = tmp_path / "counts.sqlite3"
    file.write_bytes(b"no database" * 100)
    (tmp_path / "counts.sqlite3-wal").write_bytes(b"frames of another file")
    counts, count = SqliteKeyCounts(file), Count("shop", "tokens/day", 1)
    assert await counts.add("a", {count: Change(1, 40)}) == {count: 41}
    await counts.close()
    assert "counts from zero again" in caplog.text
    assert (tmp_path / "counts.sqlite3.corrupt").exists()
    again = SqliteKeyCounts(file)
    assert await again.load([("tokens/day", 1)]) == {count: 41}
    await again.close()


async def test_the_file_keeps_few_windows_and_is_private(tmp_path):
    counts = SqliteKeyCounts(tmp_path / "counts.sqlite3")
    windows = [(what, number) for what in ("requests/minute", "tokens/day") for number in range(12)]
    assert await counts.load(windows) == {}
    assert not (tmp_path / "counts.sqlite3").exists()
    for what, number in windows:
        await counts.add(f"{what} {number}", {Count("shop", what, number): Change(1)})
    assert len(await counts.load(windows)) == PERIODS["minute"].windows + PERIODS["day"].windows
    assert (tmp_path / "counts.sqlite3").stat().st_mode & 0o777 == 0o600
    await counts.close()


async def test_a_key_without_limits_is_not_counted():
    usage_sync = usage_sync_of(None)
    assert usage_sync.begin(Key("shop")) is None
    assert usage_sync.gate(Key("shop")) is None


async def test_a_repeated_hit_counts_as_a_request_until_the_limit():
    usage_sync, key = usage_sync_of(None), Key("shop", limits=Limits(rpm=2), expires=NOW + 1)
    gate = usage_sync.gate(key)
    assert gate(NOW).startswith(b"\r\nx-ratelimit-limit-requests: 2\r\n")
    assert b"remaining-requests: 0" in gate(NOW)
    assert gate(NOW) is None
    with pytest.raises(LimitError):
        usage_sync.begin(key)
    assert gate(NOW + 1) is None
    assert usage_sync.gate(Key("desk", expires=NOW + 1))(NOW) == b""


async def test_the_soft_budget_is_logged_once_in_its_period(caplog):
    limits = Limits(soft_budget=(Budget(10, "day"),))
    usage_sync = usage_sync_of(None)
    for _ in range(3):
        spend(usage_sync, 10, limits)
    told = [each.getMessage() for each in caplog.records]
    assert told == ["keys: shop has used its soft budget of 10 tokens a day"]


async def test_a_holder_without_a_price_is_a_problem_until_the_keys_change(caplog):
    def refuse_unknown(model):
        if model == "nobody's":
            raise ClientError(404, "no such model")

    usage_sync = UsageSync(None, lambda: 0.0, refuse_unknown=refuse_unknown)
    with pytest.raises(ClientError):
        usage_sync.refuse_unpriced("ann", "nobody's")
    for number in range(300):
        usage_sync.refuse_unpriced("ann", f"m{number}")
        usage_sync.refuse_unpriced(f"holder{number}", "m\x1b")
    problems = usage_sync.details(["keys.txt: gone"])["problems"]
    assert problems[0] == "keys.txt: gone"
    assert problems[1].startswith("every request of ann for 'm0', 'm1', ")
    assert " and 24 more is refused: " in problems[1]
    assert "'m\\x1b'" in problems[2]
    assert problems[-1] == "293 more holders are refused in this way"
    assert len(caplog.records) == 32 + 300
    usage_sync.keep(["ann"])
    assert usage_sync.details([])["problems"] == []


async def test_a_model_that_a_holder_named_once_is_a_problem_for_a_day(caplog):
    now = [NOW]
    usage_sync = UsageSync(None, lambda: now[0])
    usage_sync.refuse_unpriced("ann", "slip" * 10_000)
    usage_sync.refuse_unpriced("ann", "m")
    now[0] += REFUSED_SECONDS / 2
    usage_sync.refuse_unpriced("ann", "m")
    [problem] = usage_sync.details([])["problems"]
    assert "'m'" in problem
    assert len(problem) < 500
    now[0] += REFUSED_SECONDS / 2
    [problem] = usage_sync.details([])["problems"]
    assert problem.startswith("every request of ann for 'm' is refused")
    now[0] += REFUSED_SECONDS / 2
    assert usage_sync.details([])["problems"] == []
    assert len(caplog.records) == 2
