"""An upstream without a pool that fails and comes back: ``/readyz``, metrics and log say so."""

import asyncio
import logging
import time
from typing import Any

import orjson
import pytest
from aiohttp import web
from faulty_upstreams import CLOSED, EVENTS, breaks_after_a_word, says, status
from ports import closed_port

from gateway.protocol.cache_status import Reason
from gateway.protocol.errors import UpstreamError
from gateway.upstream.failure_log import EVERY_SECONDS, FailureLog
from running_gateway import RunningGateway, StartGateway
from scripted_upstream import ScriptedUpstream, stream_of


@pytest.fixture(autouse=True)
def info(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO, "gateway.upstream")


async def state_of(gateway: RunningGateway) -> dict[str, Any]:
    reply = await gateway.get("/readyz")
    assert reply.status == 200  # hits are served
    [state] = reply.json["upstreams"].values()
    return dict(state)


def events(caplog: pytest.LogCaptureFixture) -> list[str]:
    """Return what the list of events shows of the upstream, without its name."""
    found = [one for one in caplog.records if getattr(one, "fields", {}).get("event") == "upstream"]
    return [one.getMessage().rpartition("/v1")[2].lstrip(": ") for one in found]


async def test_a_dead_upstream_is_a_problem_from_its_first_failed_call(
    start_gateway: StartGateway,
):
    with closed_port() as port:
        gateway = await start_gateway(upstream=f"http://127.0.0.1:{port}/v1")
        fine = {"state": "up", "why": None, "in_flight": 0}
        assert await state_of(gateway) == fine
        for number in range(3):
            assert (await gateway.ask(f"question {number}")).status == 502
        failing = await state_of(gateway)
        since = failing.pop("since")
        assert failing == fine | {"state": "failing", "why": "upstream-unreachable"}
        assert 0 <= time.time() - since < 60
        page = (await gateway.get("/metrics")).raw.decode()
    named = f'upstream="http://127.0.0.1:{port}/v1"'
    for line in (
        f'refrain_upstream_failures_total{{reason="upstream-unreachable",{named}}} 3.0',
        f'refrain_upstream_requests_total{{route="only",{named}}} 3.0',
        f'refrain_upstream_state{{state="failing",{named}}} 1.0',
        f'refrain_upstream_state{{state="up",{named}}} 0.0',
        f"refrain_upstream_in_flight{{{named}}} 0.0",
    ):
        assert line in page.splitlines(), line


async def test_the_first_good_call_ends_it_with_one_event(
    gateway: RunningGateway, upstream: ScriptedUpstream, caplog: pytest.LogCaptureFixture
):
    good, upstream.answer = upstream.answer, status(500)
    assert (await gateway.ask()).status == 500
    assert (await state_of(gateway))["why"] == "upstream-status"
    upstream.answer = good
    for number in range(3):
        assert (await gateway.ask(f"question {number}")).status == 200
    assert await state_of(gateway) == {"state": "up", "why": None, "in_flight": 0}
    assert events(caplog) == ["it answered with status 500", "answers again"]


async def test_a_refused_request_is_an_answer(gateway: RunningGateway, upstream: ScriptedUpstream):
    upstream.answer = status(500)
    await gateway.ask()
    upstream.answer = status(404)
    assert (await gateway.ask()).status == 404
    assert (await state_of(gateway))["state"] == "up"


async def test_a_stream_that_breaks_is_a_failure_and_does_not_end_one(
    gateway: RunningGateway, upstream: ScriptedUpstream, caplog: pytest.LogCaptureFixture
):
    upstream.answer = breaks_after_a_word
    for _ in range(2):
        await gateway.ask(stream=True)
    assert (await state_of(gateway))["why"] == "upstream-broke"
    upstream.answer = says("Hello")
    assert (await gateway.ask(stream=True)).text == "Hello"
    assert (await state_of(gateway))["state"] == "up"
    assert events(caplog)[1:] == ["answers again"]


async def test_a_stream_that_was_answered_before_the_outage_does_not_end_it(
    gateway: RunningGateway, upstream: ScriptedUpstream
):
    may_end = asyncio.Event()

    async def waits(request: web.Request, _body: dict[str, Any]) -> web.StreamResponse:
        response = web.StreamResponse(headers=EVENTS)
        await response.prepare(request)
        first, *others = stream_of("Hello")
        await response.write(first)
        await may_end.wait()
        for event in others:
            await response.write(event)
        return response

    upstream.answer = waits
    body = {"model": "m", "messages": [{"role": "user", "content": "long"}], "stream": True}
    async with gateway.session.post(
        f"{gateway.url}/v1/chat/completions",
        data=orjson.dumps(body),
        headers={"Content-Type": "application/json"},
    ) as reply:
        await reply.content.readany()
        upstream.answer = status(503)
        assert (await gateway.ask("another")).status == 503
        may_end.set()
        await reply.read()
    assert (await state_of(gateway))["why"] == "upstream-status"


async def test_requests_beside_calls_neither_begin_nor_end_an_outage(
    start_gateway: StartGateway, gateway: RunningGateway, upstream: ScriptedUpstream
):
    dead = await start_gateway(upstream=CLOSED, data_dir=gateway.data_dir / "other")
    assert (await dead.get("/v1/files")).status == 502
    assert (await state_of(dead))["state"] == "up"
    upstream.answer = status(500)
    await gateway.ask()
    assert (await gateway.get("/v1/files")).status == 201
    assert (await state_of(gateway))["state"] == "failing"
    page = (await gateway.get("/metrics")).raw.decode()
    assert f'requests_total{{route="only",upstream="{upstream.url}/v1"}} 1.0' in page


def test_an_outage_without_a_line_ends_without_one(caplog: pytest.LogCaptureFixture):
    clock, counted = [0.0], list[Reason]()
    failures = FailureLog("gpu-1", lambda: clock[0], lambda: 1000.0 + clock[0])
    failures.count = counted.append
    gone = UpstreamError(502, "gone", Reason.UPSTREAM_BROKE, detail="it left")

    def comes_and_goes() -> None:
        failures.note_failed_call(gone)
        assert failures.outage is not None
        assert failures.outage.since == 1000.0 + clock[0]
        failures.end_outage(failures.outage)
        assert failures.outage is None

    for clock[0] in (0.0, 1.0, 2.0, EVERY_SECONDS):
        comes_and_goes()
    assert [record.getMessage() for record in caplog.records] == [
        "upstream gpu-1: it left",
        "upstream gpu-1 answers again",
        "upstream gpu-1: it left (2 more since the last line)",
        "upstream gpu-1 answers again",
    ]
    assert counted == [Reason.UPSTREAM_BROKE] * 4


def test_an_outage_that_is_over_ends_no_later_one():
    failures = FailureLog("gpu-1")
    failures.count = lambda _reason: None
    failures.note_failed_call(UpstreamError(504, "slow", Reason.UPSTREAM_TIMEOUT))
    former = failures.outage
    assert former is not None
    failures.end_outage(former)
    failures.note_status(500)
    failures.end_outage(former)
    assert failures.outage is not None
    assert failures.outage.why is Reason.UPSTREAM_STATUS


def test_a_pool_has_the_states_of_its_upstreams(caplog: pytest.LogCaptureFixture):
    failures = FailureLog("gpu-1")
    failures.note_failed_call(UpstreamError(504, "slow", Reason.UPSTREAM_TIMEOUT))
    assert failures.outage is None
    assert "upstream gpu-1: slow" in caplog.text
