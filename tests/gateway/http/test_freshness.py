"""Staleness over HTTP: graces, absolute expiry, and what a request's directives change of them."""

import asyncio
import time
from types import SimpleNamespace
from typing import Any

import pytest
from aiohttp import web

from gateway.server.prepare import Outbox
from gateway.upstream.request import Exchange
from running_gateway import Asked, RunningGateway, StartGateway
from scripted_upstream import ScriptedUpstream, chunk, completion

POLICY = """
version: 1
default:
  exact: on
  semantic: off
  freshness: 100s
  grace: {grace}
  scope: tenant
  pii: bypass
"""


class Clock:
    """Wall-clock time under the test's control."""

    def __init__(self) -> None:
        self.ahead = 0.0

    def __call__(self) -> float:
        return time.time() + self.ahead


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    clock = Clock()
    shim = SimpleNamespace(time=clock, perf_counter=time.perf_counter, monotonic=time.monotonic)
    monkeypatch.setattr("gateway.app.time", shim)
    return clock


@pytest.fixture
def start(start_gateway: StartGateway, tmp_path: Any, clock: Clock) -> Any:
    async def started(grace: str = "{while_revalidate: 50s, if_error: 200s}") -> RunningGateway:
        policy = tmp_path / "policy.yaml"
        policy.write_text(POLICY.replace("{grace}", grace))
        return await start_gateway(policy=policy)

    return started


class Answers:
    """Answers each call with its number, or as it is told to."""

    def __init__(self) -> None:
        self.calls = 0
        self.status = 200
        self.gate: asyncio.Event | None = None
        self.ended = asyncio.Event()
        self.called = asyncio.Event()

    async def __call__(self, _request: web.Request, _body: dict[str, Any]) -> web.StreamResponse:
        self.calls += 1
        number = self.calls
        if self.gate is not None:
            self.called.set()
            await self.gate.wait()
        if self.status != 200:
            return web.json_response({"error": {"message": "no"}}, status=self.status)
        return web.json_response(completion(f"Answer {number}"))


@pytest.fixture
def answers(upstream: ScriptedUpstream) -> Answers:
    upstream.answer = answers = Answers()
    return answers


def control(value: str) -> dict[str, str]:
    return {"Cache-Control": value}


async def until_fresh(gateway: RunningGateway, text: str) -> Asked:
    """Ask until a fresh answer is there: a refresh has no client to tell."""
    async with asyncio.timeout(60):
        while True:
            reply = await gateway.ask(headers=control("only-if-cached, min-fresh=1"))
            if reply.status == 200 and reply.text == text:
                return reply


async def test_within_its_grace_a_stale_answer_is_served_at_once_and_refreshed_once(
    start: Any, clock: Clock, answers: Answers
):
    gateway = await start()
    await gateway.ask()
    answers.gate = asyncio.Event()
    clock.ahead = 112
    for _ in range(5):
        stale = await gateway.ask()
        assert stale.text == "Answer 1"
        assert stale.cache.startswith("refrain; hit; ttl=-1")
        assert stale.cache.endswith('; detail="exact; stale-while-revalidate"')
        assert int(stale.headers["Age"]) in (112, 113)
    answers.gate.set()
    fresh = await until_fresh(gateway, "Answer 2")
    assert fresh.cache in (
        "refrain; hit; ttl=100; detail=exact",
        "refrain; hit; ttl=99; detail=exact",
    )
    assert answers.calls == 2
    page = (await gateway.get("/metrics")).raw.decode()
    assert 'outcome="hit",reason="stale-while-revalidate"' in page
    assert 'outcome="refresh"' in page


class Preparation:
    """Preparations of requests to send, which wait until ``done`` is set."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.count = 0
        self.done = asyncio.Event()
        self.fault: Exception | None = None
        exchange = Outbox.exchange

        async def slow(outbox: Outbox, *args: Any) -> Exchange:
            self.count += 1
            await self.done.wait()
            if self.fault is not None:
                raise self.fault
            return await exchange(outbox, *args)

        monkeypatch.setattr(Outbox, "exchange", slow)


async def test_a_stale_answer_waits_for_no_preparation_and_one_is_made_for_all(
    start: Any, clock: Clock, answers: Answers, monkeypatch: pytest.MonkeyPatch
):
    gateway = await start()
    await gateway.ask()
    preparation = Preparation(monkeypatch)
    clock.ahead = 112
    async with asyncio.timeout(60):
        replies = await asyncio.gather(*(gateway.ask(stream=n % 2 == 0) for n in range(8)))
    assert [reply.text for reply in replies] == ["Answer 1"] * 8
    assert (preparation.count, answers.calls) == (1, 1)
    preparation.done.set()
    await until_fresh(gateway, "Answer 2")
    assert (preparation.count, answers.calls) == (1, 2)


async def test_a_preparation_that_fails_is_told_and_tried_again(
    start: Any,
    clock: Clock,
    answers: Answers,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
):
    gateway = await start()
    await gateway.ask()
    preparation = Preparation(monkeypatch)
    preparation.fault = ZeroDivisionError()
    clock.ahead = 112
    assert (await gateway.ask()).text == "Answer 1"
    preparation.done.set()
    async with asyncio.timeout(60):
        while "a call to the upstream failed" not in caplog.text:
            page = (await gateway.get("/metrics")).raw.decode()
    assert 'outcome="error",reason="internal-error"' in page
    preparation.fault = None
    assert (await gateway.ask()).text == "Answer 1"
    await until_fresh(gateway, "Answer 2")


async def test_a_stream_is_served_stale_as_well(start: Any, clock: Clock, answers: Answers):
    gateway = await start()
    await gateway.ask()
    clock.ahead = 112
    stale = await gateway.ask(stream=True)
    assert stale.text == "Answer 1"
    assert "stale-while-revalidate" in stale.cache


async def test_past_its_grace_a_stale_answer_is_not_served(
    start: Any, clock: Clock, answers: Answers
):
    gateway = await start()
    await gateway.ask()
    clock.ahead = 151
    reply = await gateway.ask()
    assert (reply.cache, reply.text) == ("refrain; fwd=stale; stored", "Answer 2")


@pytest.mark.parametrize("directive", ["no-cache", "max-age=500", "min-fresh=0", "max-stale=5"])
async def test_what_the_request_refuses_no_grace_serves(
    start: Any, clock: Clock, answers: Answers, directive: str
):
    gateway = await start()
    await gateway.ask()
    clock.ahead = 112
    reply = await gateway.ask(headers=control(directive))
    assert (reply.cache, reply.text) == ("refrain; fwd=stale; stored", "Answer 2")
    answers.status = 503
    clock.ahead = 2 * 112
    failed = await gateway.ask(headers=control(directive))
    assert (failed.status, failed.cache) == (503, "refrain; fwd=stale; detail=upstream-status")


async def test_only_if_cached_is_served_stale_and_asks_nobody(
    start: Any, clock: Clock, answers: Answers
):
    gateway = await start()
    await gateway.ask()
    clock.ahead = 112
    reply = await gateway.ask(headers=control("only-if-cached"))
    assert "stale-while-revalidate" in reply.cache
    clock.ahead = 151
    assert (await gateway.ask(headers=control("only-if-cached"))).status == 504
    assert answers.calls == 1


@pytest.mark.parametrize("status", [500, 502, 503, 504])
@pytest.mark.parametrize("stream", [False, True])
async def test_where_the_upstream_fails_a_stale_answer_is_served(
    start: Any, clock: Clock, answers: Answers, status: int, stream: bool
):
    gateway = await start("{if_error: 200s}")
    await gateway.ask()
    answers.status = status
    clock.ahead = 112
    stale = await gateway.ask(stream=stream)
    assert (stale.status, stale.text) == (200, "Answer 1")
    assert stale.cache.startswith("refrain; hit; ttl=-1")
    assert stale.cache.endswith('; detail="exact; stale-if-error"')
    assert answers.calls == 2
    clock.ahead = 301
    gone = await gateway.ask(stream=stream)
    assert (gone.status, gone.cache) == (status, "refrain; fwd=stale; detail=upstream-status")


@pytest.mark.parametrize(("failed_at", "status"), [(250, 200), (350, 503)])
async def test_grace_and_age_are_those_of_the_moment_in_which_the_upstream_failed(
    start: Any, clock: Clock, answers: Answers, failed_at: int, status: int
):
    gateway = await start("{if_error: 200s}")
    await gateway.ask()
    answers.status, answers.gate = 503, asyncio.Event()
    clock.ahead = 112
    asking = asyncio.create_task(gateway.ask())
    await answers.called.wait()
    clock.ahead = failed_at
    answers.gate.set()
    late = await asking
    assert (late.status, "fwd=stale" in late.cache) == (status, status != 200)
    if status == 200:
        assert "ttl=-15" in late.cache
        assert int(late.headers["Age"]) in (failed_at, failed_at + 1)


@pytest.mark.parametrize("status", [400, 401, 404, 429, 501])
async def test_what_the_upstream_means_to_say_is_passed_on(
    start: Any, clock: Clock, answers: Answers, status: int
):
    gateway = await start("{if_error: 200s}")
    await gateway.ask()
    answers.status = status
    clock.ahead = 112
    assert (await gateway.ask()).status == status


async def test_an_upstream_that_cannot_be_reached_is_a_failure_too(
    start: Any, clock: Clock, upstream: ScriptedUpstream
):
    async def broken(request: web.Request, _body: dict[str, Any]) -> web.StreamResponse:
        assert request.transport is not None
        request.transport.abort()
        return web.Response()

    gateway = await start("{if_error: 200s}")
    await gateway.ask()
    upstream.answer = broken
    clock.ahead = 112
    assert "stale-if-error" in (await gateway.ask()).cache
    clock.ahead = 301
    failed = await gateway.ask()
    assert (failed.status, failed.cache) == (502, "refrain; fwd=stale; detail=upstream-broke")


async def test_once_an_answer_has_begun_nothing_stands_in_for_it(
    start: Any, clock: Clock, upstream: ScriptedUpstream
):
    async def half(request: web.Request, _body: dict[str, Any]) -> web.StreamResponse:
        response = web.StreamResponse(headers={"Content-Type": "text/event-stream"})
        await response.prepare(request)
        await response.write(chunk(delta={"role": "assistant", "content": "Half"}))
        assert request.transport is not None
        request.transport.abort()
        return response

    gateway = await start("{if_error: 200s}")
    await gateway.ask()
    upstream.answer = half
    clock.ahead = 112
    broken = await gateway.ask(stream=True)
    assert broken.cache == "refrain; fwd=stale"
    assert b"Half" in broken.raw
    assert b"You asked" not in broken.raw
    assert b"[DONE]" not in broken.raw


async def test_a_request_may_ask_for_less_grace_when_the_upstream_fails(
    start: Any, clock: Clock, answers: Answers
):
    gateway = await start("{if_error: 200s}")
    await gateway.ask()
    answers.status = 503
    clock.ahead = 112
    assert (await gateway.ask(headers=control("stale-if-error=5"))).status == 503
    for directives in ("stale-if-error=60", "max-age=90, stale-if-error=60"):
        assert "stale-if-error" in (await gateway.ask(headers=control(directives))).cache
    clock.ahead = 301
    assert (await gateway.ask(headers=control("stale-if-error=1000"))).status == 503


async def test_a_hit_never_extends_a_life(start: Any, clock: Clock, answers: Answers):
    gateway = await start("off")
    await gateway.ask()
    for clock.ahead in (30, 60, 90, 98):
        hit = await gateway.ask()
        assert hit.cache in (
            f"refrain; hit; ttl={100 - clock.ahead}; detail=exact",
            f"refrain; hit; ttl={99 - clock.ahead}; detail=exact",
        )
    clock.ahead = 101
    assert (await gateway.ask()).cache == "refrain; fwd=stale; stored"


async def test_a_failed_refresh_leaves_the_stale_answer_and_is_tried_again(
    start: Any, clock: Clock, answers: Answers
):
    gateway = await start()
    await gateway.ask()
    answers.status = 503
    clock.ahead = 112
    async with asyncio.timeout(60):
        while answers.calls < 3:
            assert (await gateway.ask()).text == "Answer 1"
    answers.status = 200
    async with asyncio.timeout(60):
        while (await gateway.ask()).text == "Answer 1":
            pass


async def test_with_jitter_entries_of_one_moment_expire_at_different_ones(
    start_gateway: StartGateway, tmp_path: Any, clock: Clock, answers: Answers
):
    policy = tmp_path / "policy.yaml"
    policy.write_text(POLICY.replace("{grace}", "off") + "  jitter: 50%\n")
    gateway = await start_gateway(policy=policy)
    ttls = set()
    for number in range(8):
        await gateway.ask(f"Question {number}?")
        hit = await gateway.ask(f"Question {number}?")
        ttls.add(int(hit.cache.partition("ttl=")[2].partition(";")[0]))
    assert len(ttls) > 3
    assert all(49 <= ttl <= 100 for ttl in ttls)


@pytest.mark.parametrize("ahead", [60.0, 7_200.0, 1e9])
async def test_what_was_stored_by_a_clock_that_was_ahead_is_asked_anew(
    start: Any, clock: Clock, ahead: float
):
    gateway = await start()
    clock.ahead = ahead
    for _ in range(3):
        reply = await gateway.ask("What is a rake?")
    assert "; hit; " in reply.cache
    clock.ahead = 0.0
    assert "; hit" not in (await gateway.ask("What is a rake?")).cache
    assert "; hit; " in (await gateway.ask("What is a rake?")).cache
