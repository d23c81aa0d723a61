"""Wrapped data keys in a real Redis: agreement, ends, forgetting; encrypted entries over it."""

import asyncio
import math

import pytest

from gateway.cache.pii_scan import Scans
from gateway.cache.ports import StoreUnavailableError
from gateway.cache.quality.quarantine import QuarantineFile
from gateway.cache.stores.conformance import example_entry
from gateway.cache.stores.encrypted import SealedStore, parse_master_keys
from gateway.cache.stores.redis.link import RedisLink
from gateway.cache.stores.redis.store import RedisScopeKeys, RedisStore
from gateway.cache.writer import CacheWriter
from gateway.server.admin.operations import forget_scope
from running_redis import RunningRedis

NOW = 1_800_000_000.0
MASTER = "m:" + "A" * 43 + "="


@pytest.fixture
async def make_keys(server, redis):
    links = []

    def make():
        links.append(RedisLink(server.url, seconds=10))
        return RedisScopeKeys(links[-1], clock=lambda: NOW)

    yield make
    for link in links:
        await link.close()


async def test_gateways_agree_on_a_scopes_key(make_keys):
    one, two = make_keys(), make_keys()
    assert await one.find(b"t", b"m") is None
    told = await asyncio.gather(
        *(keys.ensure(b"t", b"m", b"%d" % n, NOW + 9) for n, keys in enumerate([one, two] * 8))
    )
    assert len(set(told)) == 1
    assert await two.find(b"t", b"m") == told[0]
    assert await two.ensure(b"t", b"other", b"x", NOW + 9) == b"x"
    await one.forget(b"t")
    assert await two.find(b"t", b"m") is None
    assert await two.find(b"t", b"other") is None


async def test_a_key_is_kept_as_long_as_any_of_its_entries(make_keys, redis):
    keys = make_keys()

    async def left():
        [name] = await redis.keys("refrain:1:scope:*")
        milliseconds = await redis.pttl(name)
        return milliseconds if milliseconds < 0 else math.ceil(milliseconds / 1000 / 100) * 100

    await keys.ensure(b"t", b"m", b"1", NOW + 1000)
    assert await left() == 1000
    await keys.ensure(b"t", b"m", b"2", NOW + 500)
    assert await left() == 1000
    await keys.ensure(b"t", b"other", b"2", NOW + 2000)
    assert await left() == 2000
    await keys.ensure(b"t", b"m", b"2", math.inf)
    assert await left() == -1
    await keys.ensure(b"t", b"m", b"2", NOW + 10)
    assert await left() == -1
    assert await keys.find(b"t", b"m") == b"1"


async def test_encrypted_entries_in_redis_show_no_word_and_can_be_forgotten(
    server, redis, make_keys, tmp_path
):
    store = SealedStore(
        RedisStore(server.url, max_bytes=1 << 20, seconds=10),
        parse_master_keys(MASTER),
        make_keys(),
        clock=lambda: NOW,
    )
    try:
        entry = example_entry(b"k" * 32, b'{"a":"canary-answer"}')
        await store.put(entry)
        assert await store.get(entry.key) == entry
        await redis.config_set("rdbcompression", "no")
        everything = b""
        async for name in redis.scan_iter():
            everything += name + (await redis.dump(name) or b"")
        for word in (b"canary", b"reset my password", b"example", b"s" * 32):
            assert word not in everything
        writer = CacheWriter(store, None, Scans(), lambda: NOW, QuarantineFile(tmp_path / "q"))
        assert await forget_scope(entry.scope, writer=writer, forget_keys=store.forget) == 1
        assert await store.get(entry.key) is None
        assert await redis.keys("refrain:1:scope:*") == []
    finally:
        await store.close()


async def test_a_redis_that_is_gone_is_the_store_being_gone(tmp_path):
    gone = RunningRedis(tmp_path / "gone")
    gone.start()
    gone.kill()
    link = RedisLink(gone.url, seconds=10)
    keys = RedisScopeKeys(link, clock=lambda: NOW)
    with pytest.raises(StoreUnavailableError):
        await keys.find(b"t", b"m")
    await link.close()
