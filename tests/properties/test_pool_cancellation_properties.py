"""The driver of a pool under any mix of faults and cancellations leaves nothing behind."""

import asyncio

from examples import some
from gated_upstream import GatedUpstream
from hypothesis import given, settings
from hypothesis import strategies as st

from gateway.protocol.errors import UpstreamError
from gateway.protocol.http.cache_status import Reason
from gateway.protocol.http.messages import read_up_to
from gateway.upstream.call import PooledUpstream
from gateway.upstream.pool.pool import UpstreamPool
from gateway.upstream.pool.routing import PrefixAware
from gateway.upstream.pool.table import PoolTable
from gateway.upstream.pool.upstream_state import Member
from gateway.upstream.pool.waiting_queue import Bounds
from gateway.upstream.request import Outgoing

FAULTS = {
    "broke": UpstreamError(502, "gone", Reason.UPSTREAM_BROKE),
    "nowhere": UpstreamError(502, "no", Reason.UPSTREAM_UNREACHABLE, sent=False),
    "timeout": UpstreamError(504, "late", Reason.UPSTREAM_TIMEOUT),
}
STEPS = st.one_of(
    st.tuples(st.just("ask"), st.integers(0, 2)),
    st.tuples(st.just("cancel"), st.integers(0, 9)),
    st.tuples(st.just("turn"), st.integers(1, 4)),
    st.tuples(st.just("fail"), st.sampled_from([*FAULTS])),
    st.tuples(st.just("refuse"), st.sampled_from([429, 500, 503])),
    st.tuples(st.just("head"), st.booleans()),
    st.tuples(st.just("answer"), st.just(0)),
    st.tuples(st.just("wait"), st.sampled_from([0.6, 3.0, 70.0])),
)
PREFIXES = ((), tuple(range(12)), tuple(range(9)))


class Rig:
    """Two gated upstreams with room for two requests each, behind one cold prefix."""

    def __init__(self) -> None:
        self.now = 0.0
        self.ups = {name: GatedUpstream() for name in "ab"}
        self.routing = PrefixAware()
        members = [Member("a", max_concurrency=2), Member("b", max_concurrency=2, tier=2)]
        self.table = PoolTable(members, self.routing, 0.0)
        self.pool = UpstreamPool(
            "pool", self.ups, self.table, Bounds(4), clock=lambda: self.now, jitter=lambda: 0.0
        )
        self.tasks: list[asyncio.Task[bytes]] = []
        self.heads: list = []
        self.clients = 0

    async def ask(self, prefix):
        self.clients += 1
        prompt, client = PREFIXES[prefix], self.clients % 3 % 2
        outgoing = Outgoing("/v1/chat/completions", (), b"{}", "m", prompt, client=client)

        async def asked() -> bytes:
            async with PooledUpstream(self.pool).send(outgoing) as reply:
                return await read_up_to(reply.read, 10**9)

        self.tasks.append(asyncio.create_task(asked()))

    async def cancel(self, place):
        if self.tasks:
            self.tasks[place % len(self.tasks)].cancel()

    async def turn(self, times):
        for _ in range(times):
            await asyncio.sleep(0)

    async def wait(self, seconds):
        self.now += seconds
        for name in "ab":
            self.table.record_probe(name, None, self.now, for_sure=False)
        self.pool.queue.admit()

    def waiting_for_a_head(self):
        calls = [call for up in self.ups.values() for call in up.calls]
        return [call for call in calls if call.lacks_a_head]

    async def fail(self, fault):
        started = [call for call in self.heads if not call.ended.is_set()]
        for call in (started or self.waiting_for_a_head())[:1]:
            call.fail(FAULTS[fault].again())

    async def refuse(self, status):
        for call in self.waiting_for_a_head()[:1]:
            call.plain({"error": {}}, status=status)

    async def head(self, with_a_byte):
        for call in self.waiting_for_a_head()[:1]:
            call.head()
            self.heads.append(call)
            if with_a_byte:
                call.say(b"data: {}\n\n")

    async def answer(self, _):
        for call in self.waiting_for_a_head()[:1]:
            call.plain({"n": 1})

    async def finish(self):
        for task in self.tasks:
            task.cancel()
        await asyncio.gather(*self.tasks, return_exceptions=True)
        self.pool.queue.close()


async def nothing_is_left_after(steps):
    rig = Rig()
    for name, value in steps:
        await getattr(rig, name)(value)
        busy = [one.in_flight for one in rig.table.upstreams.values()]
        assert max(busy) <= 2
        assert len(rig.pool.queue.waiting) <= 4
    await rig.finish()
    for name, one in rig.table.upstreams.items():
        assert (one.in_flight, one.trial_under_way, rig.routing.queued_blocks(name)) == (
            0,
            False,
            0,
        )
    assert len(rig.pool.queue.waiting) == 0


@settings(max_examples=some(150), deadline=None)
@given(st.lists(STEPS, max_size=40))
def test_whatever_happens_all_counters_are_zero_in_the_end(steps):
    asyncio.run(nothing_is_left_after(steps))
