"""The pool's driver where tasks are cancelled: what was begun is ended, and who waits goes on."""

import asyncio
from dataclasses import replace

import pytest
from gated_upstream import GatedUpstream

from gateway.protocol.errors import UpstreamError
from gateway.protocol.http.cache_status import Reason
from gateway.protocol.http.messages import read_up_to
from gateway.upstream.call import PooledUpstream
from gateway.upstream.pool.health import State
from gateway.upstream.pool.pool import UpstreamPool
from gateway.upstream.pool.retry_budget import MOST
from gateway.upstream.pool.routing import LeastLoaded
from gateway.upstream.pool.table import PoolTable
from gateway.upstream.pool.upstream_state import Member
from gateway.upstream.pool.waiting_queue import Bounds
from gateway.upstream.request import Outgoing

OUTGOING = Outgoing("/v1/chat/completions", (), b"{}", "m")
BROKE = UpstreamError(502, "gone", Reason.UPSTREAM_BROKE)
NOWHERE = UpstreamError(502, "no", Reason.UPSTREAM_UNREACHABLE, sent=False)


class Rig:
    """A pool of gated upstreams with room for one request each."""

    def __init__(self, *names: str) -> None:
        self.now = 0.0
        self.ups = {name: GatedUpstream() for name in names}
        members = [Member(name, max_concurrency=1) for name in names]
        self.table = PoolTable(members, LeastLoaded(), self.now)
        self.pool = UpstreamPool(
            "pool", self.ups, self.table, Bounds(), clock=lambda: self.now, jitter=lambda: 0.0
        )

    async def ask(self) -> bytes:
        async with PooledUpstream(self.pool).send(OUTGOING) as reply:
            return await read_up_to(reply.read, 10**9)

    def in_flight(self) -> list[int]:
        return [one.in_flight for one in self.table.upstreams.values()]


async def begun(rig: Rig) -> "asyncio.Task[bytes]":
    task = asyncio.create_task(rig.ask())
    await asyncio.sleep(0)
    return task


async def test_who_is_let_in_and_cancelled_in_the_same_turn_gives_the_place_on():
    rig = Rig("a")
    held = rig.table.acquire(OUTGOING, 0.0)
    second, third = await begun(rig), await begun(rig)
    assert len(rig.pool.queue.waiting) == 2
    rig.pool.release(held)
    second.cancel()
    await asyncio.gather(second, return_exceptions=True)
    (await rig.ups["a"].next_call()).plain({"n": 3})
    assert await third == b'{"n":3}'
    assert (rig.in_flight(), len(rig.pool.queue.waiting)) == ([0], 0)


@pytest.mark.parametrize("after_head", [False, True])
async def test_a_cancelled_request_leaves_its_upstream(after_head: bool):
    rig = Rig("a")
    task = await begun(rig)
    call = await rig.ups["a"].next_call()
    if after_head:
        call.head()
        await asyncio.sleep(0)
    task.cancel()
    await asyncio.gather(task, return_exceptions=True)
    assert (call.ended.is_set(), rig.in_flight()) == (True, [0])
    assert rig.table.upstreams["a"].health.state(0.0) is State.UP


async def test_a_failure_that_cannot_be_retried_costs_no_retry_budget():
    rig = Rig("a")
    task = asyncio.create_task(rig.ask())
    (await rig.ups["a"].next_call()).plain({}, 500)
    assert await task == b"{}"
    assert all(rig.pool.retry_budget.spend() for _ in range(int(MOST)))


async def test_a_retry_goes_to_its_upstream_whatever_it_names():
    rig = Rig("a", "b")
    rig.pool.affinity.note(["resp_1"], b"", "a")

    async def retried() -> bytes:
        async with PooledUpstream(rig.pool).send(
            replace(OUTGOING, sticky_id="resp_1", pinned="b")
        ) as reply:
            return await read_up_to(reply.read, 10**9)

    task = asyncio.create_task(retried())
    (await rig.ups["b"].next_call()).plain({"n": 1})
    assert await task == b'{"n":1}'
    assert rig.ups["a"].calls == []


async def test_a_request_cancelled_between_two_tries_leaves_both():
    rig = Rig("a", "b")
    task = await begun(rig)
    (await rig.ups["a"].next_call()).fail(BROKE)
    call = await rig.ups["b"].next_call()
    assert rig.in_flight() == [0, 1]
    task.cancel()
    await asyncio.gather(task, return_exceptions=True)
    assert (call.ended.is_set(), rig.in_flight()) == (True, [0, 0])


async def test_a_refusal_is_left_before_the_next_is_asked_for_its_answer():
    rig = Rig("a", "b")
    task = await begun(rig)
    refused = await rig.ups["a"].next_call()
    refused.plain({"error": {}}, status=503)
    answered = await rig.ups["b"].next_call()
    assert refused.ended.is_set()
    answered.plain({"n": 1})
    assert await task == b'{"n":1}'
    assert rig.in_flight() == [0, 0]


async def test_the_same_is_asked_three_times_at_most_where_nothing_was_sent():
    rig = Rig("a")
    task = await begun(rig)
    for _ in range(3):
        (await rig.ups["a"].next_call()).fail(NOWHERE)
    with pytest.raises(UpstreamError) as told:
        await task
    assert told.value.tried == (("a", Reason.UPSTREAM_UNREACHABLE),) * 3
    assert (len(rig.ups["a"].calls), rig.in_flight()) == (3, [0])


async def test_a_request_that_cannot_be_written_leaves_its_upstream(monkeypatch):
    rig = Rig("a")

    def send(outgoing: Outgoing) -> None:
        raise ValueError("control characters")

    monkeypatch.setattr(rig.ups["a"], "send", send)
    with pytest.raises(ValueError, match="control characters"):
        await rig.ask()
    assert rig.in_flight() == [0]
