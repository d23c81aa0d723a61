"""Upstreams that lie about their health, flap or come back: probes over real sockets."""

import asyncio
from collections.abc import AsyncIterator
from functools import partial
from typing import Any

import pytest
from aiohttp import web
from faulty_upstreams import CLOSED, pool, says

from gateway.background import running
from gateway.protocol.http.cache_status import Reason
from gateway.upstream.pool.health import State
from gateway.upstream.pool.routing import LeastLoaded
from gateway.upstream.pool.table import PoolTable
from gateway.upstream.pool.upstream_state import Member
from gateway.upstream.pool.watch.probes import PATHS, Prober
from gateway.upstream.wire.http_client import HttpUpstream
from running_gateway import StartGateway, start_app
from scripted_upstream import ScriptedUpstream


class Patient:
    """An upstream whose every path answers as the test says, and counts."""

    def __init__(self) -> None:
        self.paths: dict[str, Any] = {}
        self.asked: list[str] = []
        self.chat = says("Hello.")
        self.url = ""

    async def handle(self, request: web.Request) -> web.StreamResponse:
        self.asked.append(request.path)
        if request.path == "/v1/chat/completions":
            return await self.chat(request, await request.json())
        if request.path not in self.paths:
            return web.Response(status=404)
        status, body = self.paths[request.path]
        return web.json_response(body, status=status)


@pytest.fixture
async def patient() -> AsyncIterator[Patient]:
    one = Patient()
    app = web.Application()
    app.router.add_route("*", "/{tail:.*}", one.handle)
    runner, one.url = await start_app(app)
    yield one
    await runner.cleanup()


class Clinic:
    """A prober of one upstream, and the clock."""

    def __init__(self, url: str, *paths: str) -> None:
        self.now = 100.0
        self.upstream = HttpUpstream(url, name="a", read_seconds=5.0)
        self.table = PoolTable([Member("a")], LeastLoaded(), self.now)
        self.probed = asyncio.Event()
        self.prober = Prober(
            {"a": self.upstream},
            {"a": paths or PATHS},
            self.table,
            lambda: self.now,
            self.probed.set,
        )

    @property
    def state(self) -> State:
        return self.table.upstreams["a"].health.state(self.now)

    def close_breaker(self) -> None:
        self.table.record_probe("a", Reason.UPSTREAM_STATUS, self.now, for_sure=True)


@pytest.fixture
async def clinic(patient: Patient) -> AsyncIterator[Clinic]:
    one = Clinic(f"{patient.url}/v1")
    await one.upstream.open()
    yield one
    await one.upstream.close()


@pytest.mark.parametrize(
    ("paths", "asked"),
    [
        ({"/readyz": (200, {})}, ["/readyz"]),
        ({"/health": (200, {})}, ["/readyz", "/health"]),
        ({"/v1/models": (200, {})}, ["/readyz", "/health", "/v1/models"]),
        ({"/v1/models": (401, {})}, ["/readyz", "/health", "/v1/models"]),
        ({}, ["/readyz", "/health", "/v1/models"]),
    ],
)
async def test_a_probe_takes_the_first_path_that_there_is_and_keeps_to_it(
    patient: Patient, clinic: Clinic, paths: dict[str, Any], asked: list[str]
):
    patient.paths = paths
    await clinic.prober.probe("a")
    assert (clinic.state, patient.asked) == (State.UP, asked)
    patient.asked.clear()
    await clinic.prober.probe("a")
    assert patient.asked == (asked[-1:] if paths else asked)


async def test_an_engine_that_says_it_is_not_ready_is_ejected_at_once(
    patient: Patient, clinic: Clinic
):
    patient.paths = {"/readyz": (503, {"status": "unavailable", "reasons": ["engine: loading"]})}
    await clinic.prober.probe("a")
    assert clinic.state is State.OPEN
    patient.paths = {"/readyz": (200, {})}
    await clinic.prober.probe("a")
    assert clinic.state is State.TRIAL


async def test_two_failed_probes_leave_an_idle_upstream_alone():
    clinic = Clinic(CLOSED)
    await clinic.upstream.open()
    try:
        await clinic.prober.probe("a")
        assert clinic.state is State.UP
        await clinic.prober.probe("a")
        assert clinic.state is State.OPEN
    finally:
        await clinic.upstream.close()


async def test_a_probe_is_made_when_it_is_due_and_only_once(
    patient: Patient, clinic: Clinic, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr("gateway.upstream.pool.watch.probes._LONGEST_WAIT", 0.0)
    monkeypatch.setattr("gateway.upstream.pool.watch.probes._SHORTEST_WAIT", 0.0)
    patient.paths = {"/readyz": (200, {})}
    clinic.close_breaker()
    async with running("probes", partial(clinic.prober.watch, "a")):
        for _ in range(100):
            await asyncio.sleep(0)
        assert patient.asked == []
        clinic.now = clinic.table.probe_at("a", 10.0)
        async with asyncio.timeout(10):
            await clinic.probed.wait()
        for _ in range(100):
            await asyncio.sleep(0)
    assert (patient.asked, clinic.state) == (["/readyz"], State.TRIAL)


async def test_a_lone_upstream_is_probed_only_while_it_is_out(
    patient: Patient, clinic: Clinic, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr("gateway.upstream.pool.watch.probes._LONGEST_WAIT", 0.0)
    monkeypatch.setattr("gateway.upstream.pool.watch.probes._SHORTEST_WAIT", 0.0)
    patient.paths = {"/readyz": (200, {})}
    clinic.prober.is_lone = True
    async with running("probes", partial(clinic.prober.watch, "a")):
        clinic.now = 1e9  # a long silence
        for _ in range(100):
            await asyncio.sleep(0)
        assert (patient.asked, clinic.state) == ([], State.UP)
        clinic.close_breaker()
        clinic.now = clinic.table.probe_at("a", 10.0)
        async with asyncio.timeout(10):
            await clinic.probed.wait()
    assert (patient.asked, clinic.state) == (["/readyz"], State.TRIAL)


async def test_a_server_that_lies_about_its_health_costs_no_client_an_answer(
    start_gateway: StartGateway, patient: Patient, upstream: ScriptedUpstream
):
    async def fails(_request: web.Request, _body: dict[str, Any]) -> web.StreamResponse:
        return web.json_response({"error": {"message": "no"}}, status=500)

    patient.paths, patient.chat = {"/readyz": (200, {})}, fails
    gateway = await pool(start_gateway, {"url": f"{patient.url}/v1", "probe": "auto"}, upstream)
    for number in range(8):
        assert (await gateway.ask(f"question {number}")).status == 200
    assert patient.asked.count("/v1/chat/completions") < 8
    assert (await gateway.get("/readyz")).json["upstreams"]["a"]["state"] in ("open", "trial")
    page = (await gateway.get("/metrics")).raw.decode()
    assert 'refrain_upstream_failures_total{reason="upstream-status",upstream="a"}' in page


async def test_a_gateway_is_ready_once_one_of_its_upstreams_is(
    start_gateway: StartGateway, patient: Patient
):
    patient.paths = {"/readyz": (503, {"reasons": ["engine: loading"]})}
    gateway = await pool(start_gateway, {"url": f"{patient.url}/v1"}, {"url": f"{patient.url}/v1"})
    reply = await gateway.get("/readyz")
    assert (reply.status, reply.json["reasons"]) == (503, ["engine: loading"])
    patient.paths = {"/readyz": (200, {})}
    assert (await gateway.get("/readyz")).status == 200
