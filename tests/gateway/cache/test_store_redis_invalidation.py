"""Two gateways' stores on one real Redis: neither serves from memory what the other changed."""

import asyncio
from contextlib import asynccontextmanager
from dataclasses import replace

import pytest

from gateway.cache.ports import StoreError
from gateway.cache.stores.conformance import check_store, example_entry
from gateway.cache.stores.memory import MemoryStore
from gateway.cache.stores.redis.invalidation import PROVEN_SECONDS
from gateway.cache.stores.redis.store import RedisStore
from gateway.cache.stores.tiered import TieredStore
from running_redis import RedisCluster, RunningRedis

OLD = example_entry(b"key", b"old")
NEW = replace(OLD, result=b"new")
SECONDS = 60


class ToldInvalidations:
    """A store's invalidations, which also tell the test what the tier in memory was told."""

    def __init__(self, invalidations):
        self.invalidations = invalidations
        self.current = invalidations.current
        self.told = asyncio.Queue()

    def listen(self, changed, lost):
        def changed_and_told(key):
            changed(key)
            self.told.put_nowait(key)

        def lost_and_told():
            lost()
            self.told.put_nowait(None)

        self.invalidations.listen(changed_and_told, lost_and_told)


class Gateway:
    """One gateway's store; events tell what it has heard of the others."""

    def __init__(self, url, *, patience=10.0, proven=SECONDS, **options):
        self.cold = RedisStore(
            url, max_bytes=1 << 20, seconds=patience, proven_seconds=proven, **options
        )
        self.hot = MemoryStore(max_bytes=1 << 20)
        invalidations = ToldInvalidations(self.cold.invalidations)
        self.told = invalidations.told
        self.store = TieredStore(self.hot, self.cold, self.cold.touch, invalidations)

    async def proven(self):
        await asyncio.wait_for(self.cold.invalidations.proven.wait(), SECONDS)

    async def until(self, what):
        """Wait until the store has been told of a changed key, or to forget everything (None)."""
        async with asyncio.timeout(SECONDS):
            while await self.told.get() != what:
                pass

    def serves_hot(self, key=OLD.key):
        """Tell what is answered without asking anybody."""
        asking = self.store.get(key)
        try:
            asking.send(None)
        except StopIteration as answered:
            return answered.value
        finally:
            asking.close()
        return None


@asynccontextmanager
async def gateways(url, count=2, **options):
    """Open gateways that have heard that nothing is to be heard."""
    opened = [Gateway(url, **options) for _ in range(count)]
    try:
        for gateway in opened:
            await gateway.store.get(b"begin")
            await gateway.proven()
            while not gateway.told.empty():
                gateway.told.get_nowait()
        yield opened
    finally:
        for gateway in opened:
            await gateway.store.close()


async def test_the_tiers_over_redis_keep_the_contract(server, redis):
    databases = iter(range(16))

    async def make(max_bytes):
        cold = RedisStore(f"{server.url}/{next(databases)}", max_bytes=max_bytes, seconds=10)
        store = TieredStore(MemoryStore(max_bytes=1 << 22), cold, cold.touch, cold.invalidations)
        await store.get(b"begin")
        await asyncio.wait_for(cold.invalidations.proven.wait(), SECONDS)
        return store

    await check_store(make)


@pytest.mark.parametrize("change", ["put", "delete"])
async def test_a_change_by_one_leaves_the_memory_of_the_other(server, redis, change):
    async with gateways(server.url) as (a, b):
        await a.store.put(OLD)
        await b.until(OLD.key)
        assert await b.store.get(OLD.key) == OLD
        assert a.serves_hot() == b.serves_hot() == OLD
        await (a.store.put(NEW) if change == "put" else a.store.delete(OLD.key))
        await b.until(OLD.key)
        assert b.serves_hot() is None
        assert await b.store.get(OLD.key) == (NEW if change == "put" else None)
        assert a.serves_hot() == (NEW if change == "put" else None)


async def test_a_hot_hit_asks_redis_nothing(server, redis):
    async with gateways(server.url) as (a, b):
        await a.store.put(OLD)
        await b.until(OLD.key)
        await b.store.get(OLD.key)
        await redis.config_resetstat()
        for _ in range(100):
            assert await b.store.get(OLD.key) == OLD
            assert await a.store.get(OLD.key) == OLD
        assert "cmdstat_mget" not in await redis.info("commandstats")


async def test_a_put_of_ones_own_stays_hot_after_it_was_announced(server, redis):
    async with gateways(server.url) as (a, b):
        for n in range(50):
            await a.store.put(example_entry(b"%d" % n))
        await b.until(b"49")
        # What B has heard, A has heard or will: the next change is announced after it.
        await b.store.put(OLD)
        await a.until(OLD.key)
        assert all(a.serves_hot(b"%d" % n) is not None for n in range(50))


async def test_a_put_that_was_given_up_and_is_made_after_all_leaves_no_old_copy(server, redis):
    async with gateways(server.url, 1) as (a,):
        await a.store.put(OLD)
        putting = asyncio.create_task(a.store.put(NEW))
        await asyncio.sleep(0)
        putting.cancel()
        with pytest.raises(asyncio.CancelledError):
            await putting
        # Nobody waits for the put any more, so a read may come before it and keep the old.
        await a.hot.put(OLD)
        await a.until(OLD.key)
        assert a.serves_hot() is None
        assert await a.store.get(OLD.key) == NEW


async def test_a_read_that_a_change_elsewhere_overtakes_is_not_kept(server, redis):
    async with gateways(server.url) as (a, b):
        await a.store.put(OLD)
        await b.until(OLD.key)
        cold_get, reached, gate = b.cold.get, asyncio.Event(), asyncio.Event()

        async def held(key):
            found = await cold_get(key)
            reached.set()
            await gate.wait()
            return found

        b.cold.get = held
        reading = asyncio.create_task(b.store.get(OLD.key))
        await reached.wait()
        await a.store.put(NEW)
        await b.until(OLD.key)
        gate.set()
        assert await reading == OLD
        assert b.serves_hot() is None


async def test_while_the_connection_is_cut_memory_serves_nothing(server, redis):
    async with gateways(server.url) as (a, b):
        await a.store.put(OLD)
        await b.until(OLD.key)
        await b.store.get(OLD.key)
        assert b.serves_hot() == OLD
        # Nobody gets in or out: what listens is killed and cannot come back.
        await redis.config_set("maxclients", 1)
        try:
            await redis.client_kill_filter(_type="pubsub", skipme=True)
            await b.until(None)
            assert b.serves_hot() is None
            assert b.hot.stats().entries == 0
        finally:
            await redis.config_set("maxclients", 1000)
        await b.proven()
        assert await b.store.get(OLD.key) == OLD
        assert b.serves_hot() == OLD


async def test_if_redis_is_frozen_memory_soon_serves_nothing(server, redis):
    async with gateways(server.url, 1, proven=PROVEN_SECONDS) as (a,):
        await a.store.put(OLD)
        server.freeze()
        try:
            await a.until(None)
            assert a.serves_hot() is None
        finally:
            server.thaw()
        await a.proven()
        assert await a.store.get(OLD.key) == OLD


async def test_after_a_flush_memory_forgets_too(server, redis):
    async with gateways(server.url, 1) as (a,):
        await a.store.put(OLD)
        await redis.flushall()
        await a.until(None)
        assert await a.store.get(OLD.key) is None


async def test_after_a_restart_that_lost_everything_memory_forgets_too(redis_version, tmp_path):
    server = RunningRedis(tmp_path)
    server.start()
    try:
        async with gateways(server.url, 1) as (a,):
            await a.store.put(OLD)
            server.kill()
            await a.until(None)
            assert a.serves_hot() is None
            with pytest.raises(StoreError):
                await a.store.get(OLD.key)
            server.start()
            await a.proven()
            assert await a.store.get(OLD.key) is None
            await a.store.put(NEW)
            assert a.serves_hot() == NEW
    finally:
        server.kill()


@pytest.mark.parametrize(
    "message",
    [b"", b"nonsense", b"0 x y z k", b"99 e 1 a:1 k", b"0 e 1 a k", b"0 e 99 a:1 k", b"\xff"],
)
async def test_what_is_no_announcement_empties_memory_at_worst(server, redis, message):
    async with gateways(server.url, 1) as (a,):
        await a.store.put(OLD)
        await redis.publish("refrain:1:changes", message)
        await a.until(None)
        assert a.serves_hot() is None
        await a.proven()
        assert await a.store.get(OLD.key) == OLD
        assert a.serves_hot() == OLD


async def test_a_change_that_nobody_was_told_of_is_noticed_at_the_next_beat(server, redis):
    async with gateways(server.url, 1) as (a,):
        await a.store.put(OLD)
        await redis.hincrby("refrain:1:{0}:total", "seq", 1)
        await a.until(None)
        assert a.serves_hot() is None


async def test_in_a_cluster_a_change_reaches_every_memory(redis_version, tmp_path):
    cluster = RedisCluster(tmp_path)
    cluster.start()
    try:
        async with gateways(cluster.url) as (a, b):
            entries = [example_entry(b"%d" % n, b"old") for n in range(32)]
            for entry in entries:
                await a.store.put(entry)
                await b.until(entry.key)
                assert await b.store.get(entry.key) == entry
                assert b.serves_hot(entry.key) == entry
            for entry in entries:
                await a.store.put(replace(entry, result=b"new"))
                await b.until(entry.key)
                assert (await b.store.get(entry.key)).result == b"new"
    finally:
        cluster.kill()
