"""A Redis that evicts by itself, is full, refuses or forgets: what is counted, what is told."""

import asyncio
import random
from dataclasses import replace

import pytest

from gateway.cache.ports import StoreError, StoreFullError, StoreRefusedError, StoreUnavailableError
from gateway.cache.stores.conformance import example_entry
from gateway.cache.stores.redis.store import RedisStore
from running_redis import VERSIONS, RunningRedis

REDIS_VERSIONS = VERSIONS
ENTRY = example_entry()
STEM = "refrain:1:{0}:"
INDEX = ("used", "ends", "size", "total")


@pytest.fixture(autouse=True)
async def mended(redis):
    yield
    await redis.config_set("maxmemory", 0)
    await redis.config_set("maxmemory-policy", "noeviction")
    await redis.execute_command("REPLICAOF", "NO", "ONE")


@pytest.fixture
async def store(server, redis):
    opened = RedisStore(server.url, max_bytes=1 << 24, seconds=10, upkeep_seconds=3600)
    yield opened
    await opened.close()


async def counted(redis):
    """Return entries and bytes as they really are."""
    names = await redis.keys(f"{STEM}e:*")  # SCAN may tell a name twice
    return len(names), sum([await redis.strlen(name) for name in names])


def figures(store):
    return store.stats().entries, store.stats().bytes


async def filled(store, count, size=500):
    entries = [example_entry(b"%d" % n, b"x" * size) for n in range(count)]
    await asyncio.gather(*map(store.put, entries))
    return entries


async def test_what_redis_evicted_leaves_the_count(store, redis):
    await filled(store, 1000)
    for n in random.Random(4).sample(range(1000), 400):
        await redis.delete(f"{STEM}e:{n}")
    for _ in range(1000 // 256 + 1):
        await store.run_upkeep()
    assert figures(store) == await counted(redis)
    assert figures(store)[0] == 600
    assert store.stats().evictions == 0


async def test_a_redis_that_evicts_at_random_keeps_serving_and_is_counted_right(store, redis):
    await redis.config_set("maxmemory", 3_000_000)
    await redis.config_set("maxmemory-policy", "allkeys-random")
    for n in range(1500):
        entry = example_entry(b"%d" % n, b"x" * 2000)
        await store.put(entry)
        assert await store.get(entry.key) in (entry, None)
        if n % 100 == 99:
            await store.run_upkeep()
    await redis.config_set("maxmemory", 0)
    for _ in range(1500 // 256 + 2):
        await store.run_upkeep()
    assert figures(store) == await counted(redis)
    assert 0 < figures(store)[0] < 1500


@pytest.mark.parametrize("lost", [*((part,) for part in INDEX), INDEX], ids=str)
async def test_an_index_that_was_lost_is_made_anew(store, redis, lost):
    entries = await filled(store, 700)
    await store.put(replace(ENTRY, expires_at=float("inf")))
    await store.run_upkeep()
    true = await counted(redis)
    await redis.delete(*(STEM + part for part in lost))
    await store.put(example_entry(b"1", b"x" * 500))
    await store.run_upkeep()
    await store.run_upkeep()
    assert figures(store) == true == await counted(redis)
    for part in ("used", "ends"):
        assert await redis.zcard(STEM + part) == 701
    assert await redis.zscore(STEM + "ends", ENTRY.key) == float("inf")
    assert not await redis.exists(STEM + "repair")
    assert await store.get(entries[0].key) == entries[0]
    met = {entry.key for entry in (await store.walk(None, 1000)).entries}
    assert len(met) == 701


async def test_of_several_gateways_one_makes_the_index_anew(store, server, redis):
    await filled(store, 50)
    other = RedisStore(server.url, max_bytes=1 << 24, seconds=10, upkeep_seconds=3600)
    await store.run_upkeep()
    await redis.delete(STEM + "size")
    await redis.config_resetstat()
    await asyncio.gather(store.run_upkeep(), other.run_upkeep())
    await asyncio.gather(store.run_upkeep(), other.run_upkeep())
    assert figures(store) == figures(other) == await counted(redis)
    assert (await redis.info("commandstats"))["cmdstat_scan"]["calls"] <= 2
    await other.close()


async def test_a_repair_that_was_broken_off_is_begun_again(store, redis):
    await filled(store, 50)
    await redis.hset(STEM + "total", "repairing", 1)  # by one who died long ago
    await redis.zrem(STEM + "used", "7")
    await store.run_upkeep()
    assert figures(store) == await counted(redis)
    assert await redis.zcard(STEM + "used") == 50
    assert not await redis.hexists(STEM + "total", "repairing")


async def test_a_full_redis_makes_room_among_our_entries(store, redis):
    # Redis 7 takes 25 KB at the first use of each command, so also when room is made.
    await redis.config_set("maxmemory", (await redis.info("memory"))["used_memory"] + 1_000_000)
    for n in range(500):
        entry = example_entry(b"%d" % n, b"x" * 3000)
        await store.put(entry)
        assert await store.get(entry.key) == entry
    assert store.stats().evictions > 100
    assert figures(store) == await counted(redis)


async def test_a_redis_full_of_what_is_not_ours_says_what_to_do_and_changes_nothing(store, redis):
    await store.put(ENTRY)
    await redis.config_set("maxmemory", 1)
    with pytest.raises(StoreError, match="Redis is full: raise its maxmemory") as error:
        await store.put(replace(ENTRY, key=b"other", result=b"x" * 5000))
    assert not isinstance(error.value, StoreUnavailableError)
    assert await redis.keys(STEM + "e:*") == []  # it gave way as far as it could
    await store.run_upkeep()
    await redis.config_set("maxmemory", 0)
    await store.put(ENTRY)
    await store.run_upkeep()
    assert figures(store) == await counted(redis) == (1, figures(store)[1])


async def test_in_a_redis_full_of_what_is_not_ours_an_entry_takes_the_place_of_another(
    store, redis
):
    await store.put(ENTRY)
    await redis.config_set("maxmemory", 1)
    other = replace(ENTRY, key=b"oth")
    await store.put(other)
    assert (await store.get(ENTRY.key), await store.get(other.key)) == (None, other)
    assert store.stats().evictions == 1
    assert figures(store) == await counted(redis)


async def test_from_a_full_redis_can_be_read_and_deleted(store, redis):
    await store.put(ENTRY)
    await redis.config_set("maxmemory", 1)
    assert await store.get(ENTRY.key) == ENTRY
    await store.delete(ENTRY.key)
    assert await store.get(ENTRY.key) is None
    assert figures(store) == (0, 0)


async def test_a_read_only_replica_is_read_and_told(store, server, redis):
    await store.put(ENTRY)
    await redis.config_set("replica-serve-stale-data", "yes")
    await redis.execute_command("REPLICAOF", "127.0.0.1", "1")
    assert await store.get(ENTRY.key) == ENTRY
    for change in (store.put(ENTRY), store.delete(ENTRY.key)):
        with pytest.raises(StoreError, match="read-only replica: name the primary"):
            await change
    assert await store.get(ENTRY.key) == ENTRY


@pytest.mark.parametrize(
    ("rule", "told"),
    [
        ("-@all +@connection", "docs/operations/deploy.md"),
        ("+@all -publish resetchannels", "docs/operations/deploy.md"),
    ],
)
async def test_a_user_without_permission_is_told(server, redis, rule, told):
    await redis.execute_command("ACL", "SETUSER", "me", "on", ">hush", "~refrain:*", *rule.split())
    store = RedisStore(server.url.replace("//", "//me:hush@"), max_bytes=1 << 20)
    try:
        with pytest.raises(StoreError, match=told) as error:
            await store.put(ENTRY)
        assert "hush" not in str(error.value)
        assert await counted(redis) == (0, 0)
    finally:
        await store.close()


async def test_the_documented_permissions_are_enough(server, redis):
    from pathlib import Path

    text = (Path(__file__).parents[3] / "docs" / "operations" / "deploy.md").read_text()
    rules = text.partition("of an ACL user: `")[2].partition("`")[0].split()
    assert "~refrain:*" in rules
    await redis.execute_command("ACL", "SETUSER", "me", "on", ">hush", "resetchannels", *rules)
    store = RedisStore(server.url.replace("//", "//me:hush@"), max_bytes=1 << 20)
    store.invalidations.listen(lambda key: None, lambda: None)
    try:
        await store.put(ENTRY)
        assert await store.get(ENTRY.key) == ENTRY
        await redis.delete(STEM + "used")
        await store.run_upkeep()
        await store.run_upkeep()
        assert [entry.key for entry in (await store.walk(None, 9)).entries] == [ENTRY.key]
        await store.delete(ENTRY.key)
        await asyncio.wait_for(store.invalidations.proven.wait(), 60)
    finally:
        await store.close()


async def test_a_wrong_password_is_told_without_it(server, redis):
    await redis.config_set("requirepass", "right")
    try:
        for url in (server.url, server.url.replace("//", "//:hush@")):
            store = RedisStore(url, max_bytes=1 << 20)
            with pytest.raises(StoreUnavailableError, match="password") as error:
                await store.get(b"key")
            assert "hush" not in str(error.value)
            await store.close()
    finally:
        await redis.config_set("requirepass", "")


@pytest.mark.parametrize(
    ("url", "told"),
    [
        ("redis://127.0.0.1:1", "cannot be reached"),
        ("redis://nobody.invalid", "cannot be reached"),
        ("unix:///nowhere.sock", "cannot be reached"),
        ("redis+cluster://127.0.0.1:1", "cannot be reached"),
        ("rediss://127.0.0.1:1", "cannot be reached"),
    ],
)
async def test_a_redis_that_is_not_there_is_told(url, told):
    store = RedisStore(url, max_bytes=1 << 20)
    for use in (store.get(b"key"), store.put(ENTRY), store.walk(None, 1)):
        with pytest.raises(StoreUnavailableError, match=told):
            await use
    await store.close()


async def test_a_server_without_a_cluster_is_told(server, redis):
    store = RedisStore(server.url.replace("redis:", "redis+cluster:"), max_bytes=1 << 20)
    with pytest.raises(StoreError, match="no cluster"):
        await store.get(b"key")
    await store.close()


async def test_a_client_that_speaks_in_clear_to_tls_or_the_reverse_is_told(server, redis):
    store = RedisStore(server.url.replace("redis:", "rediss:"), max_bytes=1 << 20)
    with pytest.raises(StoreUnavailableError, match=r"cannot be reached|did not answer"):
        await store.get(b"key")
    await store.close()


@pytest.mark.parametrize(
    ("answer", "told_as", "kind"),
    [
        ("-LOADING Redis is loading the dataset in memory", "is loading", StoreUnavailableError),
        ("-MISCONF Redis is configured to save RDB", "cannot save to disk", StoreRefusedError),
        ("-NOREPLICAS Not enough good replicas", "too few replicas", StoreRefusedError),
        ("-MASTERDOWN Link with MASTER is down", "without its primary", StoreUnavailableError),
        ("-BUSY Redis is busy running a script", "somebody's script", StoreUnavailableError),
        ("-CLUSTERDOWN The cluster is down", "cluster is down", StoreUnavailableError),
        ("-TRYAGAIN Multiple keys request", "moving these keys", StoreError),
        ("-MOVED 1 127.0.0.1:1", "redis\\+cluster", StoreUnavailableError),
        ("-OOM command not allowed", "raise its maxmemory", StoreFullError),
        ("-READONLY You can't write", "read-only replica", StoreRefusedError),
        ("-NOAUTH Authentication required.", "wants a password", StoreUnavailableError),
        ("-NOPERM this user has no permissions", "may not do this", StoreRefusedError),
        ("-ERR DB index is out of range", "no database of this number", StoreUnavailableError),
        ("-ERR max number of clients reached", "raise its maxclients", StoreUnavailableError),
        ("-ERR This instance has cluster support disabled", "no cluster", StoreUnavailableError),
        ("-DENIED Redis is running in protected mode", "protected mode", StoreUnavailableError),
        ("-ERR unknown command EVALSHA, hush", "refused the command", StoreRefusedError),
    ],
)
async def test_what_redis_answers_is_told_with_its_remedy(answer, told_as, kind):
    """By a socket that says the same to everything: states that are hard to bring about."""

    async def say(reader, writer):
        asked = await reader.read(1000)
        if b"HELLO" in asked:
            writer.write(b"%0\r\n")
            asked = await reader.read(1000)
        while asked:
            writer.write(answer.encode() + b"\r\n")
            asked = await reader.read(1000)
        writer.close()

    fake = await asyncio.start_server(say, "127.0.0.1", 0)
    port = fake.sockets[0].getsockname()[1]
    store = RedisStore(f"redis://127.0.0.1:{port}", max_bytes=1 << 20)
    async with fake:
        with pytest.raises(StoreError, match=told_as) as error:
            await store.get(b"key")
        await store.close()
    assert type(error.value) is kind
    assert "hush" not in str(error.value)


async def test_a_node_of_a_cluster_is_told(redis_version, tmp_path):
    server = RunningRedis(tmp_path, **{"cluster-enabled": "yes"})
    server.start()
    store = RedisStore(server.url, max_bytes=1 << 20)
    with pytest.raises(StoreError, match="cluster is down"):
        await store.get(b"key")
    await store.close()
    server.kill()
