"""kill -9 of writer or Redis at any moment of a write: what is there is whole and counted."""

import asyncio
import random
import subprocess
import sys

import pytest
from redis.asyncio import Redis

from gateway.adapters.store_conformance import example_entry
from gateway.adapters.store_redis import RedisStore
from gateway.core.entry_codec import encoded_size
from gateway.ports import StoreError
from running_redis import RunningRedis

MAX_BYTES = 2 << 20
LANES = 8
KEYS_A_LANE = 10

WRITER = f"""
import asyncio, sys
from gateway.adapters.store_redis import RedisStore
sys.path[:0] = sys.argv[2:4]
from test_store_redis_kill import written

async def write(store, lane):
    n = int(sys.argv[4])
    while True:
        await store.put(written(lane, n))
        print(lane, n, flush=True)
        n += 1

async def main():
    store = RedisStore(sys.argv[1], max_bytes={MAX_BYTES}, seconds=10, upkeep_seconds=0.01)
    await asyncio.gather(*(write(store, lane) for lane in range({LANES})))

asyncio.run(main())
"""


def written(lane, n):
    """The n-th entry of a lane: keys are reused, the answer tells which put it was."""
    size = 50 + (n * 7919 + lane) % 20_000
    return example_entry(key(lane, n), b"%d " % n + bytes([n % 256]) * size)


def key(lane, n):
    return b"%d:%d" % (lane, n % KEYS_A_LANE)


@pytest.fixture
def server(tmp_path):
    redis = RunningRedis(tmp_path)
    redis.start()
    yield redis
    redis.kill()


def killed_writer(url, start, lines):
    """Run a writer until it has reported so many puts, kill it, return the last put by lane."""
    here = str(__file__).rpartition("/")[0]
    process = subprocess.Popen(
        [sys.executable, "-c", WRITER, url, here, f"{here}/../support", str(start)],
        stdout=subprocess.PIPE,
        text=True,
    )
    acknowledged = {}
    try:
        for _ in range(lines):
            lane, n = map(int, process.stdout.readline().split())
            acknowledged[lane] = n
        process.kill()
        for line in process.stdout:
            if line.endswith("\n"):
                lane, n = map(int, line.split())
                acknowledged[lane] = n
    finally:
        process.kill()
        process.wait()
        process.stdout.close()
    return acknowledged


async def whole(store):
    """Return what is found by lane and place, after checking that each is what was once put."""
    found = {}
    for lane in range(LANES):
        for place in range(KEYS_A_LANE):
            entry = await store.get(key(lane, place))
            if entry is not None:
                n = int(entry.result.split(b" ", 1)[0])
                assert entry == written(lane, n)
                found[lane, place] = n, entry
    return found


async def test_a_writer_killed_at_any_moment_leaves_whole_entries_and_an_exact_count(server):
    rng = random.Random(5)
    start = 0
    for _ in range(5):
        acknowledged = await asyncio.to_thread(
            killed_writer, server.url, start, rng.randrange(8, 300)
        )
        store = RedisStore(server.url, max_bytes=MAX_BYTES, seconds=10)
        try:
            found = await whole(store)
            for lane, n in acknowledged.items():
                # The reported put is there, or the one after it that took its key meanwhile.
                assert found[lane, n % KEYS_A_LANE][0] >= n
            await store.tend()
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
            puts, until = [], rng.randrange(1, 300)
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
            await store.tend()
            async with Redis.from_url(server.url) as redis:
                names = [name async for name in redis.scan_iter(match="refrain:1:{0}:e:*")]
                assert store.stats().entries == len(names)
    finally:
        await store.close()
