"""Gateways that share a real Redis: who wants a plain answer waits for the other's entry."""

import asyncio
import time
from collections import Counter
from types import SimpleNamespace

import pytest
from aiohttp import web

from gateway.cache.ports import StoreError
from gateway.cache.stores.redis import claims as claims_redis
from gateway.cache.stores.redis.store import RedisStore
from scripted_upstream import answer_by_default

SECONDS = 60


class Gate:
    """An upstream's answers, held until the test opens the gate."""

    def __init__(self, upstream):
        self.open = asyncio.Event()
        self.answer = answer_by_default
        upstream.answer = self.held

    async def held(self, request, body):
        await self.open.wait()
        return await self.answer(request, body)


@pytest.fixture
def gate(upstream):
    return Gate(upstream)


@pytest.fixture
def store_seconds():
    """How long a store that does not answer is waited for."""
    return 30.0


@pytest.fixture
def patient(patient, monkeypatch, store_seconds):
    monkeypatch.setattr("gateway.server.open.store.REDIS_SECONDS", store_seconds)
    monkeypatch.setattr("gateway.cache.stores.redis.claims.CALL_SECONDS", store_seconds)


@pytest.fixture
async def pair(start_gateway, server, redis, tmp_path, monkeypatch):
    monkeypatch.setenv("REFRAIN_SECRET", "ab" * 32)
    return [await start_gateway(store=server.url, data_dir=tmp_path / name) for name in "ab"]


@pytest.fixture
def refusals(monkeypatch):
    """How often each gateway was told that another makes the call."""
    told = Counter()
    take = claims_redis.RedisClaims.take

    async def counted(self, slot):
        taken = await take(self, slot)
        told[self] += not taken
        return taken

    monkeypatch.setattr(claims_redis.RedisClaims, "take", counted)
    return told


async def waiting(refusals, gateways):
    """Wait until so many gateways wait for a call: who does asks again and again."""
    async with asyncio.timeout(SECONDS):
        while sum(times > 1 for times in refusals.values()) < gateways:  # noqa: ASYNC110
            await asyncio.sleep(0)


async def lead_and_follow(pair, upstream, refusals, **second):
    """Ask both gateways the same; return once the second has found the first's call under way."""
    first, other = pair
    leading = asyncio.create_task(first.ask("same"))
    await asyncio.wait_for(upstream.arrived.wait(), SECONDS)
    following = asyncio.create_task(other.ask("same", **second))
    await waiting(refusals, 1)
    return leading, following


async def test_two_gateways_make_one_call(pair, upstream, gate, refusals):
    leading, following = await lead_and_follow(pair, upstream, refusals)
    gate.open.set()
    lead, follow = await leading, await following
    assert upstream.calls == 1
    assert lead.json == follow.json
    assert lead.cache == "refrain; fwd=miss; stored"
    assert follow.cache == "refrain; fwd=miss; collapsed"


async def test_a_plain_request_waits_for_the_entry_of_a_stream_elsewhere(
    pair, upstream, gate, refusals
):
    first, other = pair
    leading = asyncio.create_task(first.ask("same", stream=True))
    await asyncio.wait_for(upstream.arrived.wait(), SECONDS)
    following = asyncio.create_task(other.ask("same"))
    await waiting(refusals, 1)
    gate.open.set()
    assert (await leading).text == (await following).text == "You asked: same"
    assert (await following).cache == "refrain; fwd=miss; collapsed"
    assert upstream.calls == 1


@pytest.mark.parametrize("stream", [False, True])
async def test_who_wants_a_stream_does_not_wait_for_a_call_elsewhere(pair, upstream, gate, stream):
    first, other = pair
    leading = asyncio.create_task(first.ask("same", stream=stream))
    await asyncio.wait_for(upstream.arrived.wait(), SECONDS)
    upstream.arrived.clear()
    following = asyncio.create_task(other.ask("same", stream=True))
    await asyncio.wait_for(upstream.arrived.wait(), SECONDS)
    gate.open.set()
    assert (await following).text == (await leading).text
    assert upstream.calls == 2


async def test_a_call_that_fails_is_made_again_by_who_waited(pair, upstream, gate, refusals):
    failed = []

    async def fail_once(request, body):
        if not failed:
            failed.append(True)
            return web.json_response({"error": {"message": "no"}}, status=500)
        return await answer_by_default(request, body)

    gate.answer = fail_once
    leading, following = await lead_and_follow(pair, upstream, refusals)
    gate.open.set()
    assert (await leading).status == 500
    assert (await following).text == "You asked: same"
    assert upstream.calls == 2


async def test_an_answer_that_is_not_stored_is_asked_for_by_who_waited(
    pair, upstream, gate, refusals
):
    async def cut(request, body):
        from scripted_upstream import completion

        return web.json_response(completion("cut", finish_reason="length"))

    gate.answer = cut
    leading, following = await lead_and_follow(pair, upstream, refusals)
    gate.open.set()
    assert (await leading).status == (await following).status == 200
    assert upstream.calls == 2


@pytest.fixture
async def third(pair, start_gateway, server, tmp_path):
    return await start_gateway(store=server.url, data_dir=tmp_path / "c")


async def test_of_several_who_waited_for_nothing_none_waits_again(
    pair, third, upstream, gate, refusals
):
    together = asyncio.Barrier(2)

    async def cut(request, body):
        from scripted_upstream import completion

        if upstream.calls > 1:
            await asyncio.wait_for(together.wait(), SECONDS)
        return web.json_response(completion("cut", finish_reason="length"))

    gate.answer = cut
    leading, following = await lead_and_follow(pair, upstream, refusals)
    late = asyncio.create_task(third.ask("same"))
    await waiting(refusals, 2)
    gate.open.set()
    assert [(await each).status for each in (leading, following, late)] == [200] * 3
    assert upstream.calls == 3


async def test_when_the_one_who_called_is_gone_who_waited_calls(pair, upstream, gate, refusals):
    leading, following = await lead_and_follow(pair, upstream, refusals)
    leading.cancel()
    await asyncio.wait_for(upstream.cancelled.wait(), SECONDS)
    gate.open.set()
    assert (await following).text == "You asked: same"
    assert upstream.calls == 2


async def test_a_waiting_client_that_leaves_disturbs_nobody(pair, upstream, gate, refusals):
    leading, following = await lead_and_follow(pair, upstream, refusals)
    following.cancel()
    gate.open.set()
    assert (await leading).text == "You asked: same"
    # That it has left is noticed a moment later: until then, others may join its wait.
    assert (await pair[1].ask("same")).text == "You asked: same"
    assert upstream.calls == 1


@pytest.mark.parametrize("store_seconds", [1.0])
async def test_when_redis_freezes_who_waits_calls(pair, upstream, gate, refusals, server):
    leading, following = await lead_and_follow(pair, upstream, refusals)
    upstream.arrived.clear()
    server.freeze()
    try:
        await asyncio.wait_for(upstream.arrived.wait(), SECONDS)
        gate.open.set()
        assert (await leading).text == (await following).text == "You asked: same"
    finally:
        server.thaw()
    assert upstream.calls == 2


async def test_tenants_do_not_wait_for_one_another(pair, upstream, gate):
    first, other = pair
    leading = asyncio.create_task(first.ask("same", headers={"Authorization": "Bearer a"}))
    await asyncio.wait_for(upstream.arrived.wait(), SECONDS)
    upstream.arrived.clear()
    following = asyncio.create_task(other.ask("same", headers={"Authorization": "Bearer b"}))
    await asyncio.wait_for(upstream.arrived.wait(), SECONDS)
    gate.open.set()
    assert (await leading).status == (await following).status == 200
    assert upstream.calls == 2


async def test_no_claim_is_left_when_all_is_over(pair, upstream, gate, redis, refusals):
    leading, following = await lead_and_follow(pair, upstream, refusals)
    gate.open.set()
    await asyncio.gather(leading, following)
    for gateway in pair:
        await gateway.stop()
    assert await redis.keys("*:c:*") == []


POLICY = """
version: 1
default: {exact: on, semantic: off, freshness: 100s, grace: 10m, scope: tenant, pii: bypass}
"""


@pytest.fixture
async def four(start_gateway, server, redis, tmp_path, monkeypatch):
    """Gateways of one store under a clock that the test moves."""
    ahead = [0.0]
    shim = SimpleNamespace(
        time=lambda: time.time() + ahead[0],
        perf_counter=time.perf_counter,
        monotonic=time.monotonic,
    )
    monkeypatch.setattr("gateway.app.time", shim)
    monkeypatch.setenv("REFRAIN_SECRET", "ab" * 32)
    policy = tmp_path / "policy.yaml"
    policy.write_text(POLICY)
    gateways = [
        await start_gateway(store=server.url, data_dir=tmp_path / name, policy=policy)
        for name in "abcd"
    ]
    return gateways, ahead


async def test_four_gateways_refresh_a_stale_entry_once(four, upstream, gate, refusals):
    gateways, ahead = four
    gate.open.set()
    assert (await gateways[0].ask("same")).cache.endswith("stored")
    gate.open.clear()
    upstream.arrived.clear()
    ahead[0] = 150.0
    stale = await asyncio.gather(*(each.ask("same") for each in gateways))
    assert all("stale-while-revalidate" in reply.cache for reply in stale)
    await asyncio.wait_for(upstream.arrived.wait(), SECONDS)
    async with asyncio.timeout(SECONDS):
        while sum(refusals.values()) < len(gateways) - 1:  # noqa: ASYNC110
            await asyncio.sleep(0)
    gate.open.set()
    async with asyncio.timeout(SECONDS):
        for each in gateways:
            while "ttl=-" in (await each.ask("same")).cache:
                pass
    assert upstream.calls == 2


async def test_a_refresh_that_another_gateway_makes_still_answers_who_follows_it_here(
    four, upstream, gate, refusals
):
    gateways, ahead = four
    gate.open.set()
    await gateways[0].ask("same")
    gate.open.clear()
    ahead[0] = 150.0
    for each in gateways[:2]:
        assert "stale-while-revalidate" in (await each.ask("same")).cache
    # It refuses what is stale, and may follow the refresh that was begun here a moment ago.
    following = asyncio.create_task(
        gateways[1].ask("same", headers={"Cache-Control": "max-age=10"})
    )
    await asyncio.wait_for(upstream.arrived.wait(), SECONDS)
    gate.open.set()
    assert (await following).text == "You asked: same"


@pytest.fixture
async def stores(server, redis):
    opened = [RedisStore(server.url, max_bytes=1 << 20) for _ in range(2)]
    for store in opened:
        await store.begin()
    yield opened
    for store in opened:
        await store.close()


async def test_a_claim_is_one_process_alone_until_it_is_given_back(stores):
    a, b = (store.claims for store in stores)
    assert await a.take(b"slot")
    assert not await b.take(b"slot")
    assert not await a.take(b"slot")
    b.release(b"slot")
    assert await b.take(b"other")
    assert not await b.take(b"slot")
    a.release(b"slot")
    async with asyncio.timeout(SECONDS):
        while not await b.take(b"slot"):
            pass


async def test_the_claim_of_one_who_died_lapses(stores, monkeypatch):
    monkeypatch.setattr(claims_redis, "LEASE_SECONDS", 0.05)
    a, b = (store.claims for store in stores)
    assert await a.take(b"slot")
    a._renewing.cancel()
    async with asyncio.timeout(SECONDS):
        while not await b.take(b"slot"):
            pass


async def test_while_the_store_is_not_used_no_claim_is_asked_for(stores, redis):
    claims = stores[0].claims
    claims.usable = lambda: False
    await redis.config_resetstat()
    with pytest.raises(StoreError):
        await claims.take(b"slot")
    assert "cmdstat_set" not in await redis.info("commandstats")


async def given_back_in_vain(claims, redis, caplog):
    """Give a claim back while Redis is out of reach; return when that is known here."""
    await redis.config_set("requirepass", "secret")
    await redis.client_kill_filter(_type="normal", skipme=True)
    with caplog.at_level("DEBUG", "gateway.cache.stores.redis.claims"):
        claims.release(b"slot")
        async with asyncio.timeout(SECONDS):
            while "was not released" not in caplog.text:  # noqa: ASYNC110
                await asyncio.sleep(0)
    assert await redis.keys("*:c:slot")


async def test_a_claim_of_our_own_that_was_given_back_in_vain_is_taken_at_once(
    stores, redis, caplog, monkeypatch
):
    monkeypatch.setattr(claims_redis, "LEASE_SECONDS", 2.0 * SECONDS)
    monkeypatch.setattr(claims_redis, "RELEASE_PAUSE", 2.0 * SECONDS)
    ours, other = (store.claims for store in stores)
    assert await ours.take(b"slot")
    await given_back_in_vain(ours, redis, caplog)
    await redis.config_set("requirepass", "")
    assert await ours.take(b"slot")
    assert not await other.take(b"slot")


async def test_a_claim_that_was_given_back_in_vain_is_given_back_again(
    stores, redis, caplog, monkeypatch
):
    monkeypatch.setattr(claims_redis, "LEASE_SECONDS", 2.0 * SECONDS)
    ours, other = (store.claims for store in stores)
    assert await ours.take(b"slot")
    await given_back_in_vain(ours, redis, caplog)
    await redis.config_set("requirepass", "")
    async with asyncio.timeout(SECONDS):
        while not await other.take(b"slot"):
            pass


async def test_of_two_who_take_one_claim_at_once_in_one_process_one_gets_it(stores):
    claims = stores[0].claims
    assert sorted(await asyncio.gather(claims.take(b"slot"), claims.take(b"slot"))) == [False, True]
