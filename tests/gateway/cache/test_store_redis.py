"""Entries in a real Redis: the port's contract, and what only Redis can do to them."""

import asyncio
import contextlib
import itertools
from dataclasses import replace

import pytest

from gateway.cache.ports import EntryTooLargeError, StoreError, StoreUnavailableError
from gateway.cache.stores.conformance import check_store, example_entry
from gateway.cache.stores.entry_codec import encode_entry, encoded_size
from gateway.cache.stores.redis.store import RedisStore
from running_redis import VERSIONS, RunningRedis

REDIS_VERSIONS = VERSIONS
ENTRY = example_entry()
PREFIX = b"refrain:1:{0}:e:"
ROOMY = 1 << 20


@pytest.fixture
async def open_store(server, redis):
    stores = []

    def opened(max_bytes=ROOMY, **options):
        # Upkeep only where a test asks for it.
        options = {"seconds": 10, "upkeep_seconds": 3600, **options}
        stores.append(RedisStore(server.url, max_bytes=max_bytes, **options))
        return stores[-1]

    yield opened
    for store in stores:
        await store.close()


async def commands(redis):
    """Return how often Redis was asked to do what since the figures were reset."""
    figures = await redis.info("commandstats")
    asked = {name.removeprefix("cmdstat_"): of["calls"] for name, of in figures.items()}
    return {name: calls for name, calls in asked.items() if name.split("|")[0] != "config"}


async def counted(redis):
    """Return entries and bytes as they really are."""
    names = await redis.keys(PREFIX + b"*")  # SCAN may tell a name twice
    return len(names), sum([await redis.strlen(name) for name in names])


async def test_a_server_keeps_the_contract(server, redis):
    databases = itertools.count()

    async def make(max_bytes):
        return RedisStore(f"{server.url}/{next(databases)}", max_bytes=max_bytes, seconds=10)

    await check_store(make)


async def test_a_unix_socket_keeps_the_contract(redis_version, tmp_path):
    path = tmp_path / "redis.sock"
    server = RunningRedis(tmp_path, unixsocket=str(path))
    server.start()
    databases = itertools.count()

    async def make(max_bytes):
        url = f"unix://{path}?db={next(databases)}"
        return RedisStore(url, max_bytes=max_bytes, seconds=10)

    try:
        await check_store(make)
    finally:
        server.kill()


async def test_a_cold_hit_and_a_miss_are_one_round_trip_each(open_store, redis):
    store = open_store()
    await store.put(ENTRY)
    await redis.config_resetstat()
    assert await store.get(ENTRY.key) == ENTRY
    assert await store.get(b"unknown") is None
    assert await commands(redis) == {"mget": 2}


async def test_lookups_at_the_same_time_share_a_round_trip(open_store, redis):
    store = open_store()
    entries = [example_entry(b"%d" % n, b"%d" % n) for n in range(50)]
    await asyncio.gather(*map(store.put, entries))
    await redis.config_resetstat()
    assert await asyncio.gather(*(store.get(entry.key) for entry in entries)) == entries
    assert await commands(redis) == {"mget": 1}


async def test_two_stores_share_what_they_have(open_store):
    first, second = open_store(), open_store()
    await first.put(ENTRY)
    assert await second.get(ENTRY.key) == ENTRY
    newer = replace(ENTRY, result=b"newer")
    await second.put(newer)
    assert await first.get(ENTRY.key) == newer
    assert second.stats().entries == 1
    await first.delete(ENTRY.key)
    assert await second.get(ENTRY.key) is None


async def test_keys_and_values_show_nothing_of_a_key_that_hides_it(open_store, redis):
    store = open_store()
    await store.put(ENTRY)
    names = sorted([name async for name in redis.scan_iter()])
    assert names == [
        PREFIX + ENTRY.key,
        *(b"refrain:1:{0}:" + part for part in (b"ends", b"size", b"total", b"used")),
    ]


@pytest.mark.parametrize(
    "value",
    [
        b"",
        b"not an entry",
        encode_entry(ENTRY)[:-1],
        encode_entry(ENTRY).replace(b"answer", b"answes"),
        encode_entry(example_entry(b"another key")),
    ],
    ids=["empty", "foreign", "cut", "flipped", "another key's"],
)
async def test_a_damaged_entry_is_a_miss_and_is_deleted(open_store, redis, value):
    store = open_store()
    await store.put(ENTRY)
    await redis.set(PREFIX + ENTRY.key, value)
    assert await store.get(ENTRY.key) is None
    await store.close()
    assert await counted(redis) == (0, 0)
    assert store.stats().entries == store.stats().bytes == 0


async def test_a_value_of_another_kind_is_a_miss_and_can_be_replaced(open_store, redis):
    store = open_store()
    await redis.lpush(PREFIX + ENTRY.key, "somebody's list")
    assert await store.get(ENTRY.key) is None
    await store.put(ENTRY)
    assert await store.get(ENTRY.key) == ENTRY


async def test_what_replaced_a_damaged_entry_is_not_deleted_for_it(open_store, redis):
    store = open_store()
    await store.put(ENTRY)
    await redis.set(PREFIX + ENTRY.key, b"damaged")
    assert await store.get(ENTRY.key) is None  # its deletion has not begun
    await redis.set(PREFIX + ENTRY.key, encode_entry(ENTRY))
    await store.close()
    assert await redis.get(PREFIX + ENTRY.key) == encode_entry(ENTRY)


async def test_scripts_survive_a_script_flush(open_store, redis):
    store = open_store()
    await store.put(ENTRY)
    await redis.script_flush()
    await store.put(replace(ENTRY, result=b"newer"))
    assert (await store.get(ENTRY.key)).result == b"newer"


async def test_a_redis_that_was_emptied_has_one_line_that_says_what_is_lost(
    open_store, redis, caplog
):
    store = open_store()
    await store.put(ENTRY)
    await store.run_upkeep()
    await redis.flushall()
    for _ in range(2):
        await store.run_upkeep()
    [line] = [record for record in caplog.records if record.fields == {"event": "store"}]
    assert line.getMessage() == (
        "store: Redis has no index of entries any more (was it restarted empty?); "
        "what it has lost is a miss, and is stored again"
    )
    assert await store.get(ENTRY.key) is None


async def test_what_was_used_longest_ago_goes_first(open_store):
    size = encoded_size(example_entry(b"0", b"x" * 1000))
    store = open_store(10 * size)
    for n in range(10):
        await store.put(example_entry(b"%d" % n, b"x" * 1000))
    assert await store.get(b"0") is not None
    store.touch(b"1")
    await store.run_upkeep()
    for n in range(10, 18):
        await store.put(example_entry(b"%d" % (n % 10 + 20), b"x" * 990))
    assert await store.get(b"0") is not None
    assert await store.get(b"1") is not None
    assert await store.get(b"2") is None


async def test_noted_uses_are_bounded(open_store, monkeypatch):
    monkeypatch.setattr("gateway.cache.stores.redis.store.MAX_USES", 3)
    store = open_store()
    for key in (b"a", b"b", b"c", b"d", b"a"):
        store.touch(key)
    assert list(store._uses) == [b"b", b"c", b"a"]


async def test_a_use_does_not_bring_back_what_was_deleted(open_store, redis):
    store = open_store()
    await store.put(ENTRY)
    store.touch(ENTRY.key)
    await store.delete(ENTRY.key)
    await store.run_upkeep()
    assert store.stats().entries == store.stats().bytes == 0
    assert [name async for name in redis.scan_iter()] == [b"refrain:1:{0}:total"]


async def test_redis_keeps_an_entry_until_it_is_of_no_use_and_a_minute_at_least(open_store, redis):
    store = open_store(clock=lambda: 1000.0)
    for key, expires, grace in ((b"soon", 1200.0, 100.0), (b"over", 900.0, 0.0)):
        await store.put(replace(ENTRY, key=key, expires_at=expires, grace=grace))
    await store.put(replace(ENTRY, key=b"ever", expires_at=float("inf")))
    assert 299_000 < await redis.pttl(PREFIX + b"soon") <= 300_000
    assert 59_000 < await redis.pttl(PREFIX + b"over") <= 60_000
    assert await redis.pttl(PREFIX + b"ever") == -1
    await store.put(replace(ENTRY, key=b"ever", expires_at=2000.0))
    assert 999_000 < await redis.pttl(PREFIX + b"ever") <= 1_000_000


async def test_what_redis_expires_leaves_the_count(open_store, redis):
    store = open_store()
    await store.put(ENTRY)
    await store.put(replace(ENTRY, key=b"other"))
    # As if its time had come: gone, and in the past of the index.
    await redis.pexpire(PREFIX + ENTRY.key, 0)
    await redis.zadd("refrain:1:{0}:ends", {ENTRY.key: 1})
    await store.run_upkeep()
    stats = store.stats()
    assert (stats.entries, stats.bytes) == await counted(redis) == (1, encoded_size(ENTRY) + 2)
    assert stats.evictions == 0


async def test_a_lookup_cancelled_at_any_step_leaves_the_connection_to_the_others(open_store):
    store = open_store()
    entries = [example_entry(b"%d" % n, b"x" * n * 1000) for n in range(20)]
    await asyncio.gather(*map(store.put, entries))
    cancelled = 0
    for turns in range(20):
        asked = asyncio.create_task(store.get(b"7"))
        for _ in range(turns):
            await asyncio.sleep(0)
        asked.cancel()
        assert await store.get(b"%d" % turns) == entries[turns]
        [outcome] = await asyncio.gather(asked, return_exceptions=True)
        cancelled += isinstance(outcome, asyncio.CancelledError)
        assert isinstance(outcome, asyncio.CancelledError) or outcome == entries[7]
    assert cancelled > 3
    assert await asyncio.gather(*(store.get(entry.key) for entry in entries)) == entries


async def test_a_lookup_cancelled_while_redis_is_frozen_gives_no_one_its_answer(open_store, server):
    store = open_store()
    await store.put(ENTRY)
    await store.put(replace(ENTRY, key=b"other", result=b"other"))
    server.freeze()
    try:
        lost = asyncio.create_task(store.get(ENTRY.key))
        with pytest.raises(TimeoutError):
            await asyncio.wait_for(lost, 0.01)
        asked = asyncio.create_task(store.get(b"other"))
        await asyncio.sleep(0)
    finally:
        server.thaw()
    assert (await asked).result == b"other"
    assert await store.get(ENTRY.key) == ENTRY


async def in_time(call):
    """Return what a call comes to, once one ends within the bound."""
    async with asyncio.timeout(60):
        while True:
            with contextlib.suppress(StoreUnavailableError):
                return await call()


async def test_a_call_given_up_at_its_bound_gives_no_one_its_answer(open_store, server):
    store = open_store(seconds=0.05)
    patient = open_store()
    await patient.put(ENTRY)
    await patient.put(replace(ENTRY, key=b"other", result=b"other"))
    await store.get(b"unknown")
    server.freeze()
    try:
        with pytest.raises(StoreUnavailableError, match="in time"):
            await store.get(ENTRY.key)
        with pytest.raises(StoreUnavailableError, match="in time"):
            await store.put(ENTRY)
    finally:
        server.thaw()
    # On the connections of the calls that were given up, if they were still in use.
    assert (await in_time(lambda: store.get(b"other"))).result == b"other"
    await in_time(lambda: store.delete(b"other"))
    assert await in_time(lambda: store.get(b"other")) is None


async def test_a_cancelled_put_is_made_nevertheless(open_store):
    store = open_store()
    putting = asyncio.create_task(store.put(ENTRY))
    await asyncio.sleep(0)
    putting.cancel()
    with pytest.raises(asyncio.CancelledError):
        await putting
    await store.close()
    assert await open_store().get(ENTRY.key) == ENTRY


async def test_a_server_that_was_killed_and_is_back_is_used_again(redis_version, tmp_path):
    server = RunningRedis(tmp_path)
    server.start()
    store = RedisStore(server.url, max_bytes=ROOMY)
    try:
        await store.put(ENTRY)
        server.kill()
        for use in (store.get(ENTRY.key), store.put(ENTRY), store.delete(b""), store.run_upkeep()):
            with pytest.raises(StoreUnavailableError, match="cannot be reached"):
                await use
        server.start()
        assert await store.get(ENTRY.key) is None
        await store.put(ENTRY)
        assert await store.get(ENTRY.key) == ENTRY
        assert store.stats().entries == 1
    finally:
        await store.close()
        server.kill()


async def test_an_entry_over_its_share_is_refused(open_store):
    store = open_store(80_000)
    await store.put(ENTRY)
    with pytest.raises(EntryTooLargeError):
        await store.put(replace(ENTRY, result=b"x" * 10_000))
    assert await store.get(ENTRY.key) == ENTRY


async def test_an_entry_that_cannot_be_written_is_a_store_error(open_store):
    store = open_store()
    with pytest.raises(StoreError, match="NaN"):
        await store.put(replace(ENTRY, stored_at=float("nan")))


async def test_a_page_of_a_walk_ends_where_redis_would_be_held_up(open_store):
    store = open_store(64 << 20)
    keys = {number.to_bytes(32, "big") for number in range(9)}
    for key in keys:
        await store.put(replace(ENTRY, key=key, result=b"x" * (400 << 10)))
    pages, after = [], None
    while not pages or after is not None:
        page = await store.walk(after, 1000)
        pages.append([entry.key for entry in page.entries])
        after = page.after
    assert [len(page) for page in pages] == [3, 3, 3]
    assert {key for page in pages for key in page} == keys
