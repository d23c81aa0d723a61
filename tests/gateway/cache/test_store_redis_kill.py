"""kill -9 of writer or Redis at any moment of a write: what is there is whole and counted."""

import asyncio
import random

import pytest
from redis.asyncio import Redis
from store_writer import LANES, MAX_BYTES, check_kept, killed_writer, whole, written

from gateway.cache.ports import StoreError
from gateway.cache.stores.entry_codec import encoded_size
from gateway.cache.stores.redis.store import RedisStore
from running_redis import RunningRedis


@pytest.fixture
def server(redis_version, tmp_path):
    redis = RunningRedis(tmp_path)
    redis.start()
    yield redis
    redis.kill()


async def test_a_writer_killed_at_any_moment_leaves_whole_entries_and_an_exact_count(server):
    rng = random.Random(5)
    start = 0
    for _ in range(5):
        lines = rng.randrange(8, 120)
        acknowledged = await asyncio.to_thread(killed_writer, "redis", server.url, start, lines)
        store = RedisStore(server.url, max_bytes=MAX_BYTES, seconds=10)
        try:
            found = await whole(store)
            check_kept(found, acknowledged)
            await store.run_upkeep()
            assert store.stats().entries == len(found)
            assert store.stats().bytes == sum(encoded_size(entry) for _, entry in found.values())
        finally:
            await store.close()
        start = max(acknowledged.values()) + 1


async def test_a_redis_killed_at_any_moment_costs_entries_and_breaks_none(server):
    rng = random.Random(6)
    store = RedisStore(server.url, max_bytes=MAX_BYTES, seconds=10)

    async def write(lane, puts, until, reached, stopped):
        for n in range(10_000):
            try:
                await store.put(written(lane, n))
                puts.append(n)
                if len(puts) >= until:
                    reached.set()
            except StoreError:
                if stopped.is_set():
                    return
                await asyncio.sleep(0)

    try:
        for _ in range(4):
            reached, stopped = asyncio.Event(), asyncio.Event()
            puts, until = [], rng.randrange(1, 120)
            writing = [
                asyncio.create_task(write(lane, puts, until, reached, stopped))
                for lane in range(LANES)
            ]
            await asyncio.wait_for(reached.wait(), 60)
            server.kill()
            stopped.set()
            await asyncio.gather(*writing)
            server.start()
            await whole(store)
            await store.run_upkeep()
            async with Redis.from_url(server.url) as redis:
                names = [name async for name in redis.scan_iter(match="refrain:1:{0}:e:*")]
                assert store.stats().entries == len(names)
    finally:
        await store.close()
