"""Who learns from a refusal: the upstream that refused and then answered, for one client alone."""

import asyncio
from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from typing import Any

import orjson
import pytest
from aiohttp import web
from faulty_upstreams import Answers, StartServer, policy_with, pool, says, servers, status

from gateway.protocol.http.cache_status import Reason
from gateway.upstream.call import drive
from gateway.upstream.pool.retry_budget import MOST, Budget
from gateway.upstream.tries import MOST_CALLS, Facts, Failure, Kind, Pays, Send
from running_gateway import RunningGateway, StartGateway, start_app
from scripted_upstream import ScriptedUpstream

ASKED = "stream_options"


@pytest.fixture
async def server() -> AsyncIterator[StartServer]:
    async with servers() as start:
        yield start


def one_after_another(answers: Iterator[Answers], then: Answers) -> Answers:
    async def answer(request: web.Request, body: dict[str, Any]) -> web.StreamResponse:
        return await next(answers, then)(request, body)

    return answer


def got_usage_option(one: ScriptedUpstream) -> list[bool]:
    return [ASKED in body for body in one.bodies]


async def streamed_by(gateway: RunningGateway, client: str, question: str) -> int:
    turns = [{"role": "user", "content": question}]
    body = orjson.dumps({"model": "m", "stream": True, "messages": turns})
    key = {"Authorization": f"Bearer {client}"}
    return (await gateway.post("/v1/chat/completions", body, headers=key)).status


async def test_an_upstream_learns_nothing_from_the_answer_of_another(
    start_gateway: StartGateway, server: StartServer, caplog: pytest.LogCaptureFixture
):
    refusals = iter([status(400), status(429, Retry_After="30")])
    first = await server(one_after_another(refusals, says("From a.")))
    second = await server(says("From b."))
    gateway = await pool(start_gateway, first, {"url": f"{second.url}/v1", "tier": 2})
    for question in ("one", "two"):
        assert (await gateway.ask(question, stream=True)).status == 200
    assert got_usage_option(first) == [True, False]
    assert got_usage_option(second)[-1]
    assert not [line for line in caplog.messages if "refuses what the gateway adds" in line]


async def test_a_refusal_of_one_clients_request_changes_no_other_clients(
    start_gateway: StartGateway, server: StartServer
):
    only = await server(one_after_another(iter([status(400)]), says("Fine.")))
    gateway = await start_gateway(upstream=(f"{only.url}/v1",))
    for client in ("ann", "bob", "ann"):
        assert await streamed_by(gateway, client, f"for {client}, {only.calls}") == 200
    assert got_usage_option(only) == [True, False, True, False]


async def test_in_a_search_for_an_id_the_upstream_learns_that_refused(
    start_gateway: StartGateway, tmp_path: Path
):
    """The search goes on behind the first refusal, and must end where it would have ended."""
    runners, got, owner = [], dict[str, list[bool]](), "a"

    async def start(name: str) -> str:
        got[name] = []

        async def answer(request: web.Request) -> web.Response:
            if request.method != "POST":
                return web.json_response({"object": "list", "data": []})
            got[name].append("prompt_cache_key" in await request.json())
            if got[name][-1]:
                refused = {"message": "Unrecognized argument: prompt_cache_key"}
                return web.json_response({"error": refused}, status=400)
            if name != owner:
                return web.json_response({"error": {"message": "no response"}}, status=404)
            found = {"id": "resp_2", "object": "response", "status": "completed", "output": []}
            return web.json_response(found)

        app = web.Application()
        app.router.add_route("*", "/{tail:.*}", answer)
        runner, url = await start_app(app)
        runners.append(runner)
        return url

    policy = policy_with(tmp_path, "hints: {cache_key: on}")
    urls = {name: await start(name) for name in "ab"}
    named = [{"name": name, "url": f"{url}/v1"} for name, url in urls.items()]
    gateway = await start_gateway(upstream=(), upstreams=named, policy=policy)
    for number in range(2):
        body = {"model": "m", "input": f"Hi {number}", "previous_response_id": f"resp_{number}"}
        reply = await gateway.post("/v1/responses", orjson.dumps(body))
        assert reply.status == 200
        assert reply.headers["X-Refrain-Upstream"].startswith(owner)
    assert sum(got[owner]) == 1, "what was learned of the owner spares the second refusal"
    for runner in runners:
        await runner.cleanup()


async def test_a_request_that_names_an_unknown_model_costs_one_call(
    start_gateway: StartGateway, server: StartServer
):
    async def answer(_request: web.Request, _body: dict[str, Any]) -> web.Response:
        error = {"code": "model_not_found", "message": "The model `m` does not exist"}
        return web.json_response({"error": error}, status=400)

    only = await server(answer)
    gateway = await start_gateway(upstream=(f"{only.url}/v1",))
    reply = await gateway.ask("one", stream=True)
    assert (reply.status, only.calls) == (400, 1)


async def test_an_empty_retry_budget_changes_no_rewrite_that_nobody_refuses(
    start_gateway: StartGateway, server: StartServer, tmp_path: Path
):
    """The order of tools is part of the prefix: a flickering order would cost each prefix hit."""
    only = await server(status(400))
    policy = policy_with(tmp_path, "prefix: {tools: sorted}")
    gateway = await start_gateway(upstream=(f"{only.url}/v1",), policy=policy)
    for number in range(3 * int(MOST)):
        await streamed_by(gateway, f"client {number}", f"{number}")
    assert not got_usage_option(only)[-1], "the budget is empty: nothing is added"
    only.answer = says("Fine.")
    tools = [{"type": "function", "function": {"name": name}} for name in "ba"]
    turns = [{"role": "user", "content": "one"}]
    body = orjson.dumps({"model": "m", "stream": True, "messages": turns, "tools": tools})
    reply = await gateway.post("/v1/chat/completions", body)
    assert "tools" in reply.headers["X-Refrain-Rewrite"].split(";")[0]
    assert [tool["function"]["name"] for tool in only.bodies[-1]["tools"]] == ["a", "b"]
    assert not got_usage_option(only)[-1]


async def test_a_lone_upstreams_wait_is_passed_on_and_ends_no_other_call(
    start_gateway: StartGateway, server: StartServer
):
    only = await server(status(429, Retry_After="3600"))
    gateway = await start_gateway(upstream=(f"{only.url}/v1",))
    for question in ("one", "two"):
        calls = only.calls
        reply = await gateway.ask(question)
        assert (reply.status, reply.headers["Retry-After"]) == (429, "3600")
        assert only.calls > calls


class Failed:
    name = "a"
    failure = Failure(Kind.FAILED, Reason.UPSTREAM_STATUS)


async def test_a_retry_that_was_paid_for_and_not_sent_is_given_back():
    """Its client leaves while the retry waits in the queue."""

    class Queue:
        waiting = asyncio.Event()
        paid = False

        async def send(self, step: Send) -> Failed:
            if step.pays is Pays.NOTHING:
                return Failed()
            self.paid = not budget.has_retry
            self.waiting.set()
            await asyncio.Event().wait()
            raise AssertionError("nobody wakes it")

        def facts(self, last: Failed) -> Facts:
            return Facts(MOST_CALLS - 1, 0.0, has_reply=True)

    budget, queue = Budget(), Queue()
    while budget.has_retry:
        budget.spend()
    budget.give_back()
    call = asyncio.create_task(drive(queue, budget))
    async with asyncio.timeout(10):
        await queue.waiting.wait()
    assert queue.paid
    call.cancel()
    await asyncio.gather(call, return_exceptions=True)
    assert budget.has_retry
