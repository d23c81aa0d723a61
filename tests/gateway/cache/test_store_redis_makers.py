"""Makers in a real Redis: bounded, and the same for all gateways of one store."""

import orjson
import pytest
from state_makers import PATHS, continued, makers, question

from gateway.cache.ports import StoreError
from gateway.cache.stores.redis.link import RedisLink
from gateway.cache.stores.redis.makers import RedisMakers


@pytest.fixture
async def link(server, redis):
    link = RedisLink(server.url, seconds=30.0)
    yield link
    await link.close()


async def test_full_makers_forget_the_oldest(link, redis):
    one, other = (RedisMakers(link, seconds=30.0, most=2) for _ in "ab")
    digests = [bytes([number]) * 16 for number in range(6)]
    for digest in digests:
        await one.add([digest], f"u{digest[0]}")
    assert await other.find(digests) == {digest: f"u{digest[0]}" for digest in digests[2:]}
    await one.add([digests[5]], "u9")
    assert await other.find([digests[5]]) == {digests[5]: "u9"}
    for name in await redis.keys("*makers*"):
        assert 0 < await redis.ttl(name) <= 30 * 86_400


async def test_a_store_that_is_not_used_is_not_asked(link):
    with pytest.raises(StoreError):
        await RedisMakers(link, lambda: False, seconds=30.0).find([bytes(16)])


@pytest.mark.parametrize("kind", ["thinking", "reasoning", "gemini"])
async def test_another_gateway_knows_who_made_what_a_client_brings(
    start_gateway, server, redis, tmp_path, monkeypatch, *, kind
):
    monkeypatch.setenv("REFRAIN_SECRET", "ab" * 32)
    monkeypatch.setattr("gateway.server.open.store.REDIS_SECONDS", 30.0)
    async with makers("east", "west") as both:
        listed = [
            {"name": one.name, "url": one.url, "tier": tier, "probe": "off", "api": "anthropic"}
            for tier, one in enumerate(both, 1)
        ]
        first, second = [
            await start_gateway(
                upstream=(), upstreams=listed, store=server.url, data_dir=tmp_path / name
            )
            for name in "ab"
        ]
        both[0].status = 500
        asked = orjson.dumps(question(kind))
        assert (await first.post(PATHS[kind], asked)).status == 200
        both[0].status = 200
        assert "; hit" in (await second.post(PATHS[kind], asked)).cache
        for more, status in ({"temperature": 0.1}, 200), ({"temperature": 0.2}, 429):
            both[1].status = status
            body = continued(kind, "made-by-west-1", **more)
            reply = await second.post(PATHS[kind], orjson.dumps(body))
            assert reply.status == status, reply.raw
            assert both[0].count == 0
