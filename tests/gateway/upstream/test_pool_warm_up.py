"""An upstream that comes back computes what is used most before clients are sent there."""

import asyncio
from collections.abc import AsyncIterator
from typing import Any

import pytest
from aiohttp import web
from faulty_upstreams import CLOSED, says, stalls, status

from gateway.protocol.http.cache_status import Reason
from gateway.upstream.pool.health import State
from gateway.upstream.pool.prefix_chain import PromptChains
from gateway.upstream.pool.routing import Load, PrefixAware
from gateway.upstream.pool.table import Call, PoolTable
from gateway.upstream.pool.upstream_state import Member
from gateway.upstream.pool.watch.probes import Prober
from gateway.upstream.pool.watch.warm_up import MOST, WarmUp
from gateway.upstream.request import Outgoing
from gateway.upstream.wire.http_client import HttpUpstream
from policies.decision import Endpoint
from running_gateway import RunningGateway, StartGateway, start_app
from scripted_upstream import ScriptedUpstream

LONG = "You are careful. " * 100


def chat(number: int = 0, model: str = "m") -> dict[str, Any]:
    turns = [{"role": "system", "content": f"{LONG}{number}"}, {"role": "user", "content": "Hi"}]
    return {"model": model, "messages": turns}


class Ward:
    """Two upstreams, of which ``fresh`` was ejected and answers probes again."""

    def __init__(self, fresh: ScriptedUpstream, seconds: float, rate: int | None = None) -> None:
        self.fresh = fresh
        self.now = 100.0
        self.upstreams = {
            "old": HttpUpstream(CLOSED, name="old"),
            "fresh": HttpUpstream(f"{fresh.url}/v1", name="fresh"),
        }
        self.routing = PrefixAware()
        members = [
            Member("old", ("m", "n"), max_concurrency=1),
            Member("fresh", ("m", "o"), requests_per_minute=rate),
        ]
        self.table = PoolTable(members, self.routing, self.now)
        self.table.record_probe("fresh", Reason.UPSTREAM_STATUS, self.now, for_sure=True)
        self.states: list[State] = []
        self.warm_up = WarmUp(
            self.upstreams,
            self.table,
            lambda: self.now,
            chains=PromptChains(shared=True),
            seconds=seconds,
        )
        paths = {"old": (), "fresh": ("/readyz",)}
        self.prober = Prober(
            self.upstreams,
            paths,
            self.table,
            lambda: self.now,
            lambda: None,
            warm=self.warm_up.warm,
        )

    @property
    def state(self) -> State:
        return self.table.upstreams["fresh"].health.state(self.now)

    def fill_the_other(self) -> None:
        """Have as many requests under way at the other upstream as it takes."""
        call = self.table.acquire(Outgoing("/v1/chat/completions", (), b"", "n"), self.now)
        assert isinstance(call, Call)

    def used(self, *bodies: dict[str, Any], **headers: str) -> None:
        for body in bodies:
            for _ in range(2):
                self.warm_up.note(Endpoint.CHAT, body, headers, b"scope")


async def ready(_request: web.Request) -> web.Response:
    return web.json_response({"status": "ready"})


@pytest.fixture
async def fresh() -> AsyncIterator[ScriptedUpstream]:
    scripted = ScriptedUpstream(says("x"))
    app = web.Application()
    app.router.add_post("/v1/chat/completions", scripted.handle)
    app.router.add_get("/readyz", ready)
    runner, scripted.url = await start_app(app)
    yield scripted
    await runner.cleanup()


@pytest.fixture
async def ward(fresh: ScriptedUpstream) -> AsyncIterator[Ward]:
    one = Ward(fresh, seconds=30.0)
    for upstream in one.upstreams.values():
        await upstream.open()
    yield one
    for upstream in one.upstreams.values():
        await upstream.close()


async def test_it_is_taken_back_only_when_what_is_used_most_is_computed(ward: Ward):
    async def answer(request: web.Request, body: dict[str, Any]) -> web.StreamResponse:
        ward.states.append(ward.state)
        return await says("x")(request, body)

    ward.fresh.answer = answer
    ward.used(*(chat(number) for number in range(3)))
    await ward.prober.probe("fresh")
    assert ward.states == [State.OPEN] * 3
    assert ward.state is State.TRIAL
    for body, request in zip(ward.fresh.bodies, ward.fresh.requests, strict=True):
        assert body["messages"][0]["content"].startswith(LONG)
        assert body["messages"][1:] == [{"role": "user", "content": "."}]
        assert body["max_tokens"] == 1
        assert request.headers["X-Refrain-Priority"] == "low"


async def test_the_router_knows_what_it_has(ward: Ward):
    ward.used(chat())
    await ward.prober.probe("fresh")
    asked = PromptChains(shared=True).of(Endpoint.CHAT, chat(), {}, scope=b"scope")
    loads = [Load("fresh", 0), Load("old", 0)]
    best = ward.routing.order(asked, loads)[0]
    assert (best.name, best.blocks_hit) == ("fresh", len(asked))


async def test_one_that_was_well_all_the_time_is_sent_nothing(ward: Ward):
    ward.used(chat())
    await ward.prober.probe("fresh")
    await ward.prober.probe("fresh")
    assert len(ward.fresh.bodies) == 1


async def test_it_is_sent_nothing_of_a_model_that_it_or_no_other_serves(ward: Ward):
    ward.used(chat(model="n"), chat(model="o"))
    await ward.prober.probe("fresh")
    assert ward.fresh.bodies == []
    assert ward.state is State.TRIAL


async def test_where_no_other_is_well_it_is_not_kept_from_clients(ward: Ward):
    ward.used(chat())
    ward.table.record_probe("old", Reason.UPSTREAM_STATUS, ward.now, for_sure=True)
    await ward.prober.probe("fresh")
    assert (ward.fresh.bodies, ward.state) == ([], State.TRIAL)


async def test_where_no_other_has_room_it_is_not_kept_from_clients(ward: Ward):
    ward.used(chat())
    ward.fill_the_other()
    await ward.prober.probe("fresh")
    assert (ward.fresh.bodies, ward.state) == ([], State.TRIAL)


async def test_a_warm_up_ends_where_the_others_fill_up_meanwhile(ward: Ward):
    async def answer(request: web.Request, body: dict[str, Any]) -> web.StreamResponse:
        ward.fill_the_other()
        return await says("x")(request, body)

    ward.fresh.answer = answer
    ward.used(chat(1), chat(2))
    await ward.prober.probe("fresh")
    assert (len(ward.fresh.bodies), ward.state) == (1, State.TRIAL)


async def test_what_is_sent_counts_as_clients_requests_do(fresh: ScriptedUpstream):
    ward = Ward(fresh, seconds=30.0, rate=2)
    ward.used(*(chat(number) for number in range(3)))
    for upstream in ward.upstreams.values():
        await upstream.open()
    await ward.prober.probe("fresh")
    assert (len(fresh.bodies), ward.state) == (2, State.TRIAL)
    assert not ward.table.upstreams["fresh"].can_accept(ward.now)
    for upstream in ward.upstreams.values():
        await upstream.close()


async def test_a_warm_up_ends_where_the_others_fail_meanwhile(ward: Ward):
    async def answer(request: web.Request, body: dict[str, Any]) -> web.StreamResponse:
        ward.table.record_probe("old", Reason.UPSTREAM_STATUS, ward.now, for_sure=True)
        return await says("x")(request, body)

    ward.fresh.answer = answer
    ward.used(chat(1), chat(2))
    await ward.prober.probe("fresh")
    assert (len(ward.fresh.bodies), ward.state) == (1, State.TRIAL)


@pytest.mark.parametrize("code", [500, 400, 429])
async def test_a_fault_ends_it_keeps_nobody_out_and_is_not_sent_again(ward: Ward, code: int):
    ward.fresh.answer = status(code)
    ward.used(chat(1), chat(2))
    await ward.prober.probe("fresh")
    assert (len(ward.fresh.bodies), ward.state) == (1, State.TRIAL)
    assert len(ward.warm_up.prefixes.worth_most(ward.now)) == 1


async def test_the_number_is_bounded(ward: Ward):
    ward.used(*(chat(number) for number in range(MOST + 3)))
    await ward.prober.probe("fresh")
    assert len(ward.fresh.bodies) == MOST


async def test_an_upstream_that_stalls_is_waited_for_no_longer_than_allowed(
    fresh: ScriptedUpstream,
):
    ward = Ward(fresh, seconds=0.05)
    fresh.answer = stalls
    ward.used(chat())
    for upstream in ward.upstreams.values():
        await upstream.open()
    async with asyncio.timeout(60):
        await ward.prober.probe("fresh")
    assert ward.state is State.TRIAL
    for upstream in ward.upstreams.values():
        await upstream.close()


async def test_what_came_with_a_clients_credential_is_not_recorded_unless_it_stays_here(ward: Ward):
    ward.used(chat(), authorization="Bearer client")
    assert ward.warm_up.prefixes.worth_most(ward.now) == []
    own = WarmUp(ward.upstreams, ward.table, lambda: ward.now, own_credentials=True)
    for _ in range(2):
        own.note(Endpoint.CHAT, chat(), {"authorization": "Bearer gateway-key"}, b"scope")
    assert len(own.prefixes.worth_most(ward.now)) == 1


@pytest.mark.parametrize("name", ["cookie", "x-goog-api-key", "openai-organization"])
async def test_who_shows_who_they_are_in_another_way_is_not_recorded_either(ward: Ward, name: str):
    ward.used(chat(), **{name: "client"})
    assert ward.warm_up.prefixes.worth_most(ward.now) == []


async def figure(gateway: RunningGateway, beginning: str) -> float:
    lines = (await gateway.get("/metrics")).raw.decode().splitlines()
    return sum(float(line.rpartition(" ")[2]) for line in lines if line.startswith(beginning))


FORBIDDEN = f"Call {LONG}Anna at anna.smith@example.com. "


@pytest.mark.parametrize("why", ["nothing", "no-store", "pii"])
async def test_behind_the_gateway_a_restarted_upstream_is_warm_before_its_first_client(
    start_gateway: StartGateway, upstream: ScriptedUpstream, fresh: ScriptedUpstream, why: str
):
    fresh.answer = status(500)
    listed = [
        {"name": "a", "url": f"{fresh.url}/v1", "probe": "/readyz"},
        {"name": "b", "url": f"{upstream.url}/v1", "probe": "off"},
    ]
    gateway = await start_gateway(
        upstream=(), upstreams=listed, upstream_routing="load", upstream_warm_up=True
    )
    kept_back = [{"role": "system", "content": FORBIDDEN if why == "pii" else LONG * 2}]
    headers = {"Cache-Control": "no-store"} if why == "no-store" else {}
    while why != "nothing" and len(upstream.bodies) < 2:
        reply = await gateway.ask(
            messages=[*kept_back, chat()["messages"][1]], seed=len(upstream.bodies), headers=headers
        )
        assert f"detail={why}" in reply.headers["Cache-Status"]
    while len(fresh.bodies) < 3 or len(upstream.bodies) < 4:  # fails until it is ejected
        assert (await gateway.ask(messages=chat()["messages"], seed=len(upstream.bodies))).status
    fresh.answer = says("x")
    fresh.bodies.clear()
    async with asyncio.timeout(60):
        while not await figure(gateway, 'refrain_upstream_warmed_total{upstream="a"}'):
            pass
    assert fresh.bodies[0]["max_tokens"] == 1
    assert fresh.bodies[0]["messages"][0] == chat()["messages"][0]
    assert kept_back[0] not in [turn for body in fresh.bodies for turn in body["messages"]]
