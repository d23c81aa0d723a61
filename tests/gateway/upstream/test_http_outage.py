"""A lone upstream that fails and comes back: ``/readyz``, metrics and log say so, as of a pool."""

import asyncio
import logging
from typing import Any

import pytest
from faulty_upstreams import CLOSED, status
from ports import closed_port

from gateway.upstream.pool.health import PROBES_IN_A_ROW
from running_gateway import RunningGateway, StartGateway
from scripted_upstream import ScriptedUpstream

UP = {"state": "up", "why": None, "in_flight": 0}


@pytest.fixture(autouse=True)
def info(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO, "gateway.upstream")


@pytest.fixture(autouse=True)
def ejected_for_long(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let no test race with the end of an ejection."""
    monkeypatch.setattr("gateway.upstream.pool.health.FIRST_EJECTION", 60.0)


async def state_of(gateway: RunningGateway) -> dict[str, Any]:
    reply = await gateway.get("/readyz")
    assert reply.status == 200  # hits are served
    [state] = reply.json["upstreams"].values()
    return dict(state)


def events(caplog: pytest.LogCaptureFixture) -> list[str]:
    """Return what the list of events shows of the upstream, without its name."""
    found = [one for one in caplog.records if getattr(one, "fields", {}).get("event") == "upstream"]
    return [one.getMessage().split(maxsplit=2)[2] for one in found]


async def test_a_dead_upstream_is_a_problem_from_its_first_failed_call(
    start_gateway: StartGateway,
):
    with closed_port() as port:
        gateway = await start_gateway(upstream=f"http://127.0.0.1:{port}/v1")
        assert await state_of(gateway) == UP
        assert (await gateway.ask()).status == 502
        assert await state_of(gateway) == UP | {"state": "open", "why": "upstream-unreachable"}
        page = (await gateway.get("/metrics")).raw.decode()
    named = f'upstream="127.0.0.1:{port}"'
    for line in (
        f'refrain_upstream_failures_total{{reason="upstream-unreachable",{named}}} 3.0',
        f'refrain_upstream_state{{state="open",{named}}} 1.0',
        f'refrain_upstream_state{{state="up",{named}}} 0.0',
        f"refrain_upstream_in_flight{{{named}}} 0.0",
    ):
        assert line in page.splitlines(), line


async def test_the_first_good_call_ends_it(
    gateway: RunningGateway, upstream: ScriptedUpstream, caplog: pytest.LogCaptureFixture
):
    good, upstream.answer = upstream.answer, status(500)
    for number in range(3):
        assert (await gateway.ask(f"question {number}")).status == 500
    assert (await state_of(gateway))["why"] == "upstream-status"
    upstream.answer = good
    assert (await gateway.ask()).status == 200
    assert await state_of(gateway) == UP
    assert events(caplog)[0] == "it answered with status 500"
    assert events(caplog)[-1] == "is up"


async def test_a_refused_request_is_an_answer(gateway: RunningGateway, upstream: ScriptedUpstream):
    upstream.answer = status(500)
    for number in range(3):
        await gateway.ask(f"question {number}")
    upstream.answer = status(404)
    assert (await gateway.ask()).status == 404
    assert (await state_of(gateway))["state"] == "up"


async def test_requests_beside_calls_end_no_outage(
    start_gateway: StartGateway, gateway: RunningGateway, upstream: ScriptedUpstream
):
    dead = await start_gateway(upstream=CLOSED, data_dir=gateway.data_dir / "other")
    assert (await dead.get("/v1/files")).status == 502
    upstream.answer = status(500)
    for number in range(3):
        await gateway.ask(f"question {number}")
    assert (await gateway.get("/v1/files")).status == 201
    assert (await state_of(gateway))["state"] == "trial"  # it answers, as it would a probe


async def test_a_request_beside_calls_counts_as_one_probe_whatever_its_tries(
    start_gateway: StartGateway,
):
    dead = await start_gateway(upstream=CLOSED)
    states = []
    for _ in range(PROBES_IN_A_ROW):
        assert (await dead.get("/v1/files")).status == 502
        states.append((await state_of(dead))["state"])
    assert states == ["up"] * (PROBES_IN_A_ROW - 1) + ["open"]


async def test_a_lone_upstream_gets_every_call_whatever_its_state(
    gateway: RunningGateway, upstream: ScriptedUpstream
):
    upstream.answer = status(500)
    for number in range(3):
        await gateway.ask(f"question {number}")
    assert (await state_of(gateway))["state"] == "open"
    asks = [gateway.ask(f"another {number}") for number in range(10)]
    assert [reply.status for reply in await asyncio.gather(*asks)] == [500] * 10
    assert upstream.calls == 13
