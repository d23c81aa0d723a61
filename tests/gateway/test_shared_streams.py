"""Gateways that share a real Redis make one upstream call for a stream that both have missed."""

import asyncio
from pathlib import Path

import pytest
from aiohttp import web
from processes import Process

from gateway import shared_streams
from gateway.adapters.post_redis import RedisPost
from gateway.core.stream_messages import Kind, decode
from gateway.core.types import Reason
from gateway.shared_streams import SharedStreams
from scripted_upstream import DONE, answer_by_default, stream_of, usage_event

SECONDS = 60
SUPPORT = Path(__file__).parents[1] / "support"
QUESTION = {"model": "m", "messages": [{"role": "user", "content": "same"}], "stream": True}
EVENTS = stream_of("You asked: same")


class Stream:
    """An upstream's streams, whose events the test says one by one."""

    def __init__(self, upstream):
        self.said = asyncio.Queue()
        upstream.answer = self.answer

    def say(self, *events):
        for event in events:
            self.said.put_nowait(event)

    async def answer(self, request, body):
        if not body.get("stream"):
            return await answer_by_default(request, body)
        response = web.StreamResponse(headers={"Content-Type": "text/event-stream"})
        response.headers["X-Request-Id"] = "the leader's"
        await response.prepare(request)
        while True:
            event = await self.said.get()
            if event is None:
                request.transport.abort()
                return response
            await response.write(event)
            if event == DONE:
                return response


@pytest.fixture
def stream(upstream):
    return Stream(upstream)


@pytest.fixture
def store_seconds():
    """How long a store that does not answer is waited for."""
    return 30.0


@pytest.fixture
def patient(patient, monkeypatch, store_seconds):
    monkeypatch.setattr("gateway.stores.REDIS_SECONDS", store_seconds)
    monkeypatch.setattr("gateway.adapters.claims_redis.CALL_SECONDS", store_seconds)


@pytest.fixture
async def pair(start_gateway, server, redis, tmp_path, monkeypatch):
    monkeypatch.setenv("REFRAIN_SECRET", "ab" * 32)
    gateways = [await start_gateway(store=server.url, data_dir=tmp_path / name) for name in "ab"]
    async with asyncio.timeout(SECONDS):
        while len(await redis.pubsub_channels("refrain:1:streams:*")) < 2:
            pass
    return gateways


class Client:
    """A client of a stream, which reads as far as the test wants."""

    def __init__(self, reply):
        self.reply = reply
        self.raw = b""

    async def until(self, text):
        async with asyncio.timeout(SECONDS):
            while text not in self.raw:
                piece = await self.reply.content.readany()
                assert piece, self.raw
                self.raw += piece

    async def rest(self):
        async with asyncio.timeout(SECONDS):
            self.raw += await self.reply.read()
        return self.raw

    @property
    def cache(self):
        return self.reply.headers["Cache-Status"]


async def ask(gateway, url=None, headers=None, **changes):
    """Begin to ask, and return the reply's client once there is a head."""
    url = (url or gateway.url) + "/v1/chat/completions"
    asked = gateway.session.post(url, json={**QUESTION, **changes}, headers=headers)
    return Client(await asyncio.wait_for(asked, SECONDS))


async def lead_and_follow(pair, stream):
    stream.say(*EVENTS[:2])
    lead = await ask(pair[0])
    follow = await ask(pair[1])
    return lead, follow


async def test_a_stream_is_followed_from_its_beginning_and_live(pair, upstream, stream):
    lead, follow = await lead_and_follow(pair, stream)
    await follow.until(b'"You"')
    stream.say(EVENTS[2])
    await follow.until(b"asked")
    stream.say(*EVENTS[3:])
    assert await lead.rest() == await follow.rest() == b"".join(EVENTS)
    assert upstream.calls == 1
    assert lead.cache == "refrain; fwd=miss"
    assert follow.cache == "refrain; fwd=miss; collapsed"
    assert lead.reply.headers["X-Request-Id"] == "the leader's"
    assert follow.reply.headers["X-Request-Id"].startswith("req_")
    assert (await pair[1].ask("same")).cache.startswith("refrain; hit")


async def test_each_gets_usage_only_where_it_asked_and_a_plain_reply_where_it_wants_one(
    pair, upstream, stream
):
    lead, follow = await lead_and_follow(pair, stream)
    with_usage = await ask(pair[1], stream_options={"include_usage": True})
    plain = asyncio.create_task(pair[1].ask("same"))
    await with_usage.until(b'"You"')
    stream.say(*EVENTS[2:-1], usage_event(), DONE)
    assert b"prompt_tokens" not in await lead.rest()
    assert b"prompt_tokens" not in await follow.rest()
    assert b'"prompt_tokens":7' in await with_usage.rest()
    assert (await plain).text == "You asked: same"
    assert (await plain).cache.startswith("refrain; fwd=miss; collapsed")
    assert upstream.calls == 1


async def test_tokens_are_counted_once(seen, pair, stream):
    lead, follow = await lead_and_follow(pair, stream)
    await follow.until(b'"You"')
    stream.say(*EVENTS[2:-1], usage_event(), DONE)
    await lead.rest()
    await follow.rest()
    assert {(each.reason, each.prompt_tokens, each.stored) for each in await ended(seen, 2)} == {
        (None, 7, True),
        (Reason.COLLAPSED, None, False),
    }


@pytest.fixture
def seen(monkeypatch):
    """What both gateways observe; requested before they are made."""
    observed = asyncio.Queue()
    monkeypatch.setattr("gateway.app.log_request", observed.put_nowait)
    return observed


async def ended(seen, count):
    async with asyncio.timeout(SECONDS):
        return [await seen.get() for _ in range(count)]


async def test_the_call_goes_on_for_a_follower_elsewhere_who_is_then_charged(
    seen, pair, upstream, stream
):
    lead, follow = await lead_and_follow(pair, stream)
    await follow.until(b'"You"')
    lead.reply.close()
    stream.say(EVENTS[2])
    await follow.until(b"asked")
    stream.say(*EVENTS[3:-1], usage_event(), DONE)
    assert await follow.rest() == b"".join(EVENTS)
    assert not upstream.cancelled.is_set()
    assert {each.prompt_tokens for each in await ended(seen, 2)} == {None, 7}


async def test_with_the_last_follower_elsewhere_the_call_ends(pair, upstream, stream):
    lead, follow = await lead_and_follow(pair, stream)
    await follow.until(b'"You"')
    lead.reply.close()
    follow.reply.close()
    await asyncio.wait_for(upstream.cancelled.wait(), SECONDS)


async def test_a_failure_in_the_stream_reaches_followers_once(pair, upstream, stream):
    lead, follow = await lead_and_follow(pair, stream)
    await follow.until(b'"You"')
    stream.say(None)
    told, same = await lead.rest(), await follow.rest()
    assert told == same
    assert told.count(b'"error"') == 1
    assert b"[DONE]" not in told
    assert upstream.calls == 1


async def test_an_error_event_of_the_upstream_reaches_followers(pair, stream):
    lead, follow = await lead_and_follow(pair, stream)
    plain = asyncio.create_task(pair[1].ask("same"))
    await follow.until(b'"You"')
    stream.say(b'data: {"error": {"message": "overloaded"}}\n\n', DONE)
    assert await lead.rest() == await follow.rest()
    assert follow.raw.count(b"overloaded") == 1
    assert (await plain).status in (200, 502)


async def test_a_call_that_fails_before_its_stream_is_made_again(
    pair, upstream, stream, monkeypatch
):
    failing, joined = asyncio.Event(), asyncio.Event()
    serve = SharedStreams._serve

    def served(self, *arguments):
        serve(self, *arguments)
        joined.set()

    monkeypatch.setattr(SharedStreams, "_serve", served)

    async def refuse(request, body):
        await failing.wait()
        return web.json_response({"error": {"message": "no"}}, status=503)

    upstream.answer = refuse
    leading = asyncio.create_task(ask(pair[0]))
    await asyncio.wait_for(upstream.arrived.wait(), SECONDS)
    following = asyncio.create_task(ask(pair[1]))
    await asyncio.wait_for(joined.wait(), SECONDS)
    upstream.answer = stream.answer
    stream.say(*EVENTS)
    failing.set()
    assert (await leading).reply.status == 503
    assert await (await following).rest() == b"".join(EVENTS)
    assert upstream.calls == 2


async def test_tenants_share_no_stream(pair, upstream, stream):
    stream.say(EVENTS[0], EVENTS[1])
    lead = await ask(pair[0], headers={"Authorization": "Bearer a"})
    await lead.until(b'"You"')
    stream.say(*EVENTS[:2])
    other = await ask(pair[1], headers={"Authorization": "Bearer b"})
    assert upstream.calls == 2
    assert "collapsed" not in other.cache
    lead.reply.close()
    other.reply.close()


async def test_when_redis_dies_in_a_stream_who_leads_goes_on_and_who_follows_is_told(
    pair, server, stream
):
    lead, follow = await lead_and_follow(pair, stream)
    await follow.until(b'"You"')
    server.kill()
    try:
        assert b'"error"' in await follow.rest()
        assert b"[DONE]" not in follow.raw
        stream.say(*EVENTS[2:])
        assert await lead.rest() == b"".join(EVENTS)
    finally:
        server.start()


@pytest.mark.parametrize("store_seconds", [1.0])
async def test_a_frozen_redis_is_waited_for_in_bounds(pair, server, stream):
    lead, follow = await lead_and_follow(pair, stream)
    await follow.until(b'"You"')
    server.freeze()
    try:
        assert b'"error"' in await follow.rest()
        stream.say(*EVENTS[2:])
        assert await lead.rest() == b"".join(EVENTS)
    finally:
        server.thaw()


async def test_a_claim_of_one_who_died_costs_a_bounded_wait(pair, upstream, stream, monkeypatch):
    monkeypatch.setattr(shared_streams, "JOIN_SECONDS", 0.05)

    async def nobody(self, slot):
        return b"dead"

    async def taken(self, slot):
        return False

    monkeypatch.setattr("gateway.adapters.claims_redis.RedisClaims.take", taken)
    monkeypatch.setattr("gateway.adapters.claims_redis.RedisClaims.holder", nobody)
    stream.say(*EVENTS)
    assert await (await ask(pair[0])).rest() == b"".join(EVENTS)
    assert upstream.calls == 1


def drop(monkeypatch, *dropped):
    """Lose these messages on their way."""
    send = RedisPost.send

    async def lossy(self, to, data):
        message = decode(data)
        if (message.kind, message.number) not in dropped:
            await send(self, to, data)

    monkeypatch.setattr(RedisPost, "send", lossy)


async def test_a_piece_that_is_lost_is_noticed(pair, stream, monkeypatch):
    lead, follow = await lead_and_follow(pair, stream)
    await follow.until(b'"You"')
    lost = asyncio.Event()
    send = RedisPost.send

    async def lossy(self, to, data):
        if decode(data).kind is Kind.PIECE and not lost.is_set():
            lost.set()
        else:
            await send(self, to, data)

    monkeypatch.setattr(RedisPost, "send", lossy)
    stream.say(EVENTS[2])
    await asyncio.wait_for(lost.wait(), SECONDS)
    stream.say(*EVENTS[3:])
    assert await lead.rest() == b"".join(EVENTS)
    assert (await follow.rest()).startswith(b"".join(EVENTS[:2]) + b'data: {"error"')
    assert b"[DONE]" not in follow.raw


async def test_a_follower_that_is_heard_of_no_more_holds_no_call(
    pair, upstream, stream, monkeypatch
):
    drop(monkeypatch, (Kind.STAY, 0))
    lead, follow = await lead_and_follow(pair, stream)
    await follow.until(b'"You"')
    monkeypatch.setattr(shared_streams, "SILENCE_SECONDS", 0.5)
    lead.reply.close()
    await asyncio.wait_for(upstream.cancelled.wait(), SECONDS)
    assert b'"error"' in await follow.rest()


async def test_when_the_process_that_leads_is_killed_followers_are_told(
    pair, server, upstream, stream, tmp_path
):
    leader = Process(
        str(SUPPORT / "serve_app.py"), f"{upstream.url}/v1", server.url, str(tmp_path / "c")
    )
    try:
        url = (await asyncio.to_thread(leader.wait_for_line, "http")).strip()
        stream.say(*EVENTS[:2])
        lead = await ask(pair[0], url)
        await lead.until(b'"You"')
        follow = await ask(pair[1])
        await follow.until(b'"You"')
        assert upstream.calls == 1
    finally:
        leader.popen.kill()
        await asyncio.to_thread(leader.stop)
    assert b'"error"' in await follow.rest()
    assert b"[DONE]" not in follow.raw
    assert upstream.calls == 1


@pytest.fixture
def encrypted(monkeypatch):
    monkeypatch.setenv("REFRAIN_ENCRYPTION_KEYS", "2026a:" + "A" * 43 + "=")


async def test_with_encryption_nothing_readable_passes_through_redis(
    encrypted, pair, redis, upstream, stream
):
    passed = await watched(pair, redis, stream)
    assert upstream.calls == 1
    assert b"asked" not in passed
    assert b"text/event-stream" not in passed


async def test_without_encryption_it_passes_in_clear(pair, redis, stream):
    assert b"asked" in await watched(pair, redis, stream)


async def watched(pair, redis, stream):
    """Return all messages that one followed stream takes."""
    async with redis.pubsub() as watching:
        await watching.psubscribe("refrain:1:streams:*")
        lead, follow = await lead_and_follow(pair, stream)
        await follow.until(b'"You"')
        stream.say(*EVENTS[2:])
        assert await lead.rest() == await follow.rest() == b"".join(EVENTS)
        passed = []
        async with asyncio.timeout(SECONDS):
            while not passed or decode(passed[-1]).kind is not Kind.LEAVE:
                message = await watching.get_message(timeout=1.0)
                if message is not None and message["type"] == "pmessage" and message["data"]:
                    passed.append(message["data"])
    return b"".join(passed)
