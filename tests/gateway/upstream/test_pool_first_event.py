"""Streams that begin with what is no answer: comments, errors, an end. Another upstream answers."""

import asyncio
from collections.abc import AsyncIterator
from dataclasses import replace
from typing import Any

import orjson
import pytest
from aiohttp import web
from faulty_upstreams import EVENTS, Answers, StartServer, pool, resets, says, servers, stalls
from gated_upstream import GatedUpstream
from prometheus_client import CollectorRegistry

from gateway.protocol.errors import UpstreamError
from gateway.protocol.http.cache_status import Reason
from gateway.protocol.http.messages import read_up_to
from gateway.upstream.call import PooledUpstream
from gateway.upstream.pool.health import Trial
from gateway.upstream.pool.metrics import UpstreamMetrics
from gateway.upstream.pool.pool import UpstreamPool
from gateway.upstream.pool.routing import LeastLoaded
from gateway.upstream.pool.table import PoolTable
from gateway.upstream.pool.upstream_state import Member
from gateway.upstream.pool.waiting_queue import Bounds
from gateway.upstream.request import Outgoing, Served
from gateway.upstream.wire.first_token import HELD_BYTES, HELD_SECONDS
from gateway.upstream.wire.translated import RefusedReply
from running_gateway import StartGateway
from scripted_upstream import DONE, chunk, usage_event

PING = b": OPENROUTER PROCESSING\n\n"
ROLE = chunk(delta={"role": "assistant", "content": ""})
ERROR = b'data: {"error": {"message": "The engine is dead.", "code": 500}}\n\n'


@pytest.fixture
async def server() -> AsyncIterator[StartServer]:
    async with servers() as start:
        yield start


async def ends(_request: web.Request, _body: Any) -> web.StreamResponse:
    return web.Response()


def sends(*pieces: bytes, then: Answers = ends) -> Answers:
    """Begin a stream with these writes, and go on as told."""

    async def answer(request: web.Request, body: dict[str, Any]) -> web.StreamResponse:
        response = web.StreamResponse(headers=EVENTS)
        await response.prepare(request)
        for piece in pieces:
            await response.write(piece)
        await then(request, body)
        return response

    return answer


NO_ANSWERS = {
    "a comment and an error": (sends(PING, ERROR), "upstream-status"),
    "an error in two reads": (sends(ERROR[:20], ERROR[20:]), "upstream-status"),
    "an error with its kind": (sends(b"event: error\r\n", ERROR), "upstream-status"),
    "an error after the role": (sends(ROLE, ERROR), "upstream-status"),
    "comments and a reset": (sends(PING, PING, then=resets), "upstream-broke"),
    "blank lines and an end": (sends(b"\n\n", b"\n\n"), "upstream-broke"),
    "the end alone": (sends(DONE), "upstream-broke"),
    "a comment and the end": (sends(PING, DONE), "upstream-broke"),
    "the role and the end": (sends(ROLE, DONE), "upstream-broke"),
    "usage of nothing": (sends(usage_event(), DONE), "upstream-broke"),
    "half an event": (sends(b'data: {"choices"'), "upstream-broke"),
    "a comment and a stall": (sends(PING, then=stalls), "upstream-timeout"),
}


@pytest.mark.parametrize(("bad", "why"), NO_ANSWERS.values(), ids=NO_ANSWERS.keys())
async def test_a_stream_that_begins_with_no_answer_is_replaced_unseen(
    start_gateway: StartGateway, server: StartServer, bad: Answers, why: str
):
    first, second = await server(bad), await server(says("Hello from b."))
    patience = {"first_token_timeout": 0.5} if why == "upstream-timeout" else {}
    gateway = await pool(start_gateway, {"url": f"{first.url}/v1", **patience}, second)

    reply = await gateway.ask(stream=True)

    assert (reply.status, reply.text) == (200, "Hello from b.")
    assert reply.headers["X-Refrain-Upstream"] == f'b; tried="a={why}"'
    assert not reply.raw.startswith(b":")


async def test_what_was_held_back_comes_with_the_answer(
    start_gateway: StartGateway, server: StartServer
):
    pieces = [b"\n", PING, ROLE, PING, chunk(delta={"content": "Hi"}), chunk(finish_reason="stop")]
    gateway = await pool(start_gateway, await server(sends(*pieces, DONE)))
    assert (await gateway.ask(stream=True)).raw == b"".join([*pieces, DONE])


async def test_of_one_upstream_alone_a_stream_without_a_choice_is_a_failure(
    start_gateway: StartGateway, server: StartServer
):
    alone = await server(sends(PING, usage_event(), DONE))
    gateway = await start_gateway(upstream=(f"{alone.url}/v1",))
    raw = (await gateway.ask(stream=True)).raw
    assert DONE not in raw
    error = orjson.loads(raw.removeprefix(PING).removeprefix(b"data: "))["error"]
    assert error["code"] == "upstream-broke"


class Rig:
    """A pool of two at a test's own clock, and a request to it."""

    def __init__(self) -> None:
        self.now = 0.0
        self.ups = {"a": GatedUpstream(), "b": GatedUpstream()}
        table = PoolTable([Member(name) for name in self.ups], LeastLoaded(), self.now)
        self.pool = UpstreamPool("pool", self.ups, table, Bounds(), clock=lambda: self.now)
        self.asked = asyncio.create_task(self._ask())

    async def _ask(self) -> bytes:
        outgoing = Outgoing("/v1/chat/completions", (), b"{}", "m", streamed=True)
        async with PooledUpstream(self.pool).send(outgoing) as reply:
            return await reply.read()


async def test_comments_are_held_back_for_a_while_only():
    rig = Rig()
    call = await rig.ups["a"].next_call()
    call.head()
    for rig.now in (0.0, HELD_SECONDS - 0.1):
        call.say(PING)
        await call.taken()
        assert not rig.asked.done()
    rig.now = HELD_SECONDS
    call.say(PING)
    assert await rig.asked == 3 * PING
    assert not rig.ups["b"].calls


async def test_no_more_is_held_back_than_a_bound():
    rig = Rig()
    call = await rig.ups["a"].next_call()
    call.head()
    call.say(b":" + bytes(HELD_BYTES))
    assert len(await rig.asked) == HELD_BYTES + 1


async def test_who_fails_behind_comments_is_replaced_and_they_are_not_sent():
    rig = Rig()
    call = await rig.ups["a"].next_call()
    call.head()
    call.say(PING, PING)
    call.fail(UpstreamError(502, "gone", Reason.UPSTREAM_BROKE))
    other = await rig.ups["b"].next_call()
    assert call.ended.is_set()
    other.head()
    other.say(chunk(delta={"content": "Hi"}))
    assert await rig.asked == chunk(delta={"content": "Hi"})


@pytest.mark.parametrize(
    ("told", "counted"),
    [
        (b'{"code": 400, "message": "The prompt is too long."}', []),
        (b'{"type": "invalid_request_error"}', []),
        (b'{"code": "insufficient_quota"}', [Reason.UPSTREAM_LIMITED]),
        (b'{"code": 500}', [Reason.UPSTREAM_STATUS]),
    ],
)
async def test_a_stream_that_is_an_error_counts_once_or_not_at_all(
    told: bytes, counted: list[Reason]
):
    up, registry = GatedUpstream(), CollectorRegistry()
    table = PoolTable([Member("a")], LeastLoaded(), 0.0)
    upstreams = UpstreamPool("pool", {"a": up}, table, Bounds(), metrics=UpstreamMetrics(registry))

    async def ask() -> None:
        async with PooledUpstream(upstreams).send(
            Outgoing("/v1/chat/completions", (), b"{}", "m")
        ) as reply:
            assert await read_up_to(reply.read, 10**6) == b'data: {"error": %b}\n\n' % told
            raise UpstreamError(502, "It is an error.", Reason.UPSTREAM_BROKE)

    asked = asyncio.create_task(ask())
    call = await up.next_call()
    call.head()
    call.say(b'data: {"error": %b}\n\n' % told)
    call.end()
    with pytest.raises(UpstreamError):
        await asked
    failures = {
        sample.labels["reason"]: sample.value
        for metric in registry.collect()
        for sample in metric.samples
        if sample.name == "refrain_upstream_failures_total"
    }
    assert failures == {reason.value: 1.0 for reason in counted}


class Unsent:
    """An upstream that the request cannot be translated for."""

    def send(self, outgoing: Outgoing) -> RefusedReply:
        del outgoing
        return RefusedReply(Served("a"), b"{}")


async def test_a_request_that_was_not_sent_says_nothing_of_the_upstream():
    table = PoolTable([Member("a")], LeastLoaded(), 0.0)
    upstream = table.upstreams["a"]
    trial = Trial(1.0, Reason.UPSTREAM_BROKE)
    upstream.health = replace(upstream.health, breaker=trial)
    upstreams = UpstreamPool("pool", {"a": Unsent()}, table, Bounds(), clock=lambda: 1.0)
    for _ in range(2):
        async with PooledUpstream(upstreams).send(
            Outgoing("/v1/messages", (), b"{}", "m")
        ) as reply:
            assert reply.status == 400
            assert await read_up_to(reply.read, 10) == b"{}"
    assert upstream.health.breaker == trial
    assert not upstream.trial_under_way
    assert upstream.in_flight == 0
