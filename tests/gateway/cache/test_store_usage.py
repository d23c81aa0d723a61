"""Sums of usage in a file and in a real Redis: added once, bounded in rows and days."""

import asyncio
from types import SimpleNamespace

import orjson
import pytest

from gateway.cache.ports import StoreError
from gateway.cache.stores.counts import USAGE_DAYS, USAGE_OTHER, UsageRow
from gateway.cache.stores.redis import sums as redis_usage
from gateway.cache.stores.redis.link import RedisLink
from gateway.cache.stores.sqlite import sums as sqlite_usage

LABELS = '{"model":"m"}'


@pytest.fixture(params=["sqlite", "redis"])
async def stores(request, server, tmp_path):
    """Two stores of the same figures."""
    links = []
    if request.param == "sqlite":
        opened = [sqlite_usage.SqliteUsage(tmp_path / "usage.sqlite3") for _ in range(2)]
    else:
        links = [RedisLink(server.url, seconds=10) for _ in range(2)]
        await links[0].command(0, "FLUSHALL")
        opened = [redis_usage.RedisUsage(link) for link in links]
    module = sqlite_usage if request.param == "sqlite" else redis_usage
    yield SimpleNamespace(one=opened[0], two=opened[1], module=module)
    for store in opened:
        await store.close()


def row(day="2026-11-24", labels=LABELS, **figures):
    return UsageRow(day, labels, figures or {"requests": 1})


async def test_rows_of_several_gateways_are_summed(stores):
    await stores.one.add("a", [row(requests=1, dollars=0.1), row(labels="{}", requests=5)])
    await stores.two.add("b", [row(requests=2, seconds=0.25)])
    found = {(each.day, each.labels): each.figures for each in await stores.one.read("2026-11-24")}
    assert found == {
        ("2026-11-24", LABELS): {"requests": 3, "dollars": pytest.approx(0.1), "seconds": 0.25},
        ("2026-11-24", "{}"): {"requests": 5},
    }


async def test_counts_that_are_large_stay_exact(stores):
    most = 10**13
    await stores.one.add("a", [row(tokens=most, dollars=123456.789012)])
    await stores.one.add("b", [row(tokens=1, dollars=0.000001)])
    ((_, _, figures),) = await stores.one.read("2026-11-24")
    assert figures["tokens"] == most + 1
    assert figures["dollars"] == pytest.approx(123456.789013, rel=1e-12)


async def test_a_batch_is_added_once(stores):
    for store in (stores.one, stores.one, stores.two):
        await store.add("a", [row()])
    ((_, _, figures),) = await stores.two.read("2026-11-24")
    assert figures == {"requests": 1}


async def test_many_gateways_at_once_lose_nothing(stores):
    await asyncio.gather(
        *((stores.one, stores.two)[number % 2].add(str(number), [row()]) for number in range(40))
    )
    ((_, _, figures),) = await stores.two.read("2026-11-24")
    assert figures == {"requests": 40}


async def test_rows_beyond_the_bound_are_summed_as_other(stores, monkeypatch):
    monkeypatch.setattr(stores.module, "USAGE_ROWS", 3)
    monkeypatch.setattr(redis_usage, "ROWS_AT_ONCE", 4)
    rows = [row(labels=f'{{"model":"m{number}"}}') for number in range(10)]
    await stores.one.add("a", rows)
    await stores.one.add("b", rows)
    found = {each.labels: each.figures["requests"] for each in await stores.one.read("2026-11-24")}
    assert len(found) <= 4
    assert sum(found.values()) == 20
    assert found[USAGE_OTHER] == 14
    await stores.one.add("c", [row("2026-11-25", rows[9].labels)])
    assert {each.labels for each in await stores.one.read("2026-11-25")} == {rows[9].labels}


async def test_days_are_read_from_a_day_on_and_old_ones_are_forgotten(stores):
    days = ["2025-01-01", "2025-10-21", "2025-10-22", "2026-11-24"]
    for day in days:
        await stores.one.add(day, [row(day)])
    kept = sorted(each.day for each in await stores.one.read("2026-01-01"))
    assert kept == ["2026-11-24"]
    everything = {each.day for each in await stores.one.read("1970-01-01")}
    assert "2026-11-24" in everything
    assert USAGE_DAYS == 400


async def test_the_file_forgets_days_and_is_private(tmp_path):
    store = sqlite_usage.SqliteUsage(tmp_path / "usage.sqlite3")
    for day in ("2025-10-20", "2025-10-21", "2026-11-24"):
        await store.add(day, [row(day)])
    days = sorted(each.day for each in await store.read("1970-01-01"))
    assert days == ["2025-10-21", "2026-11-24"]
    assert (tmp_path / "usage.sqlite3").stat().st_mode & 0o777 == 0o600
    await store.close()
    with pytest.raises(StoreError, match="closed"):
        await store.read("1970-01-01")


async def test_a_corrupt_file_is_set_aside(tmp_path, caplog):
    path = tmp_path / "usage.sqlite3"
    path.write_bytes(b"not a database" * 1000)
    store = sqlite_usage.SqliteUsage(path)
    await store.add("a", [row()])
    assert len(await store.read("1970-01-01")) == 1
    await store.close()
    assert (tmp_path / "usage.sqlite3.corrupt").exists()
    assert "the figures of usage begin again" in caplog.text


async def test_days_in_redis_end_by_themselves(server):
    link = RedisLink(server.url, seconds=10)
    await link.command(0, "FLUSHALL")
    store = redis_usage.RedisUsage(link)
    await store.add("a", [row()])
    left = await link.command(0, "TTL", b"refrain:1:{usage}:2026-11-24")
    assert (USAGE_DAYS - 1) * 86_400 < left <= USAGE_DAYS * 86_400
    assert 0 < await link.command(0, "TTL", b"refrain:1:{usage}:batch:a:0") <= 3_600
    whole = await link.command(0, "HGET", b"refrain:1:{usage}:2026-11-24", LABELS)
    assert orjson.loads(whole) == {"requests": 1}
    await link.close()


async def test_a_store_that_cannot_be_reached_is_a_fault_of_the_store(tmp_path):
    link = RedisLink("redis://127.0.0.1:1/0", seconds=1)
    with pytest.raises(StoreError):
        await redis_usage.RedisUsage(link).add("a", [row()])
    await link.close()
    folder = sqlite_usage.SqliteUsage(tmp_path / "none" / "usage.sqlite3")
    with pytest.raises(StoreError):
        await folder.add("a", [row()])
