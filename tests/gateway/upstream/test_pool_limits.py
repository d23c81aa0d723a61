"""A pool at its limits: who is asked instead, who waits, and who is told to come back."""

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest
from aiohttp import web
from faulty_upstreams import Answers, StartServer, pool, says, servers, status

from gateway.server.context import RequestContext
from gateway.server.pipeline import Pipeline
from running_gateway import Asked, RunningGateway, StartGateway
from scripted_upstream import ScriptedUpstream, completion

POLICY = """
version: 1
default: {{exact: on, semantic: off, freshness: 1h, scope: tenant, pii: allow, {}}}
"""


@pytest.fixture
async def server() -> AsyncIterator[StartServer]:
    async with servers() as start:
        yield start


class Gate:
    """An answer that comes when the test lets it."""

    def __init__(self) -> None:
        self.open = asyncio.Event()
        self.asked: asyncio.Queue[dict[str, Any]] = asyncio.Queue()

    async def __call__(self, _request: web.Request, body: dict[str, Any]) -> web.StreamResponse:
        self.asked.put_nowait(body)
        await self.open.wait()
        return web.json_response(completion(f"To {body['messages'][-1]['content']}"))

    async def next(self) -> dict[str, Any]:
        async with asyncio.timeout(60):
            return await self.asked.get()


def limited(one: ScriptedUpstream, **settings: Any) -> dict[str, Any]:
    return {"url": f"{one.url}/v1", "max_concurrency": 1, **settings}


async def until_waiting(gateway: RunningGateway, number: int) -> None:
    """Wait until so many requests wait for room."""
    async with asyncio.timeout(60):
        while (
            f"refrain_upstream_waiting {number}.0".encode()
            not in (await gateway.get("/metrics")).raw
        ):
            pass


async def test_an_upstream_that_asks_for_rest_gets_it_and_others_are_asked(
    start_gateway: StartGateway, server: StartServer
):
    first = await server(status(429, Retry_After="30"))
    second = await server(says("Hello."))
    gateway = await pool(start_gateway, first, second)

    assert (await gateway.ask("one")).headers[
        "X-Refrain-Upstream"
    ] == 'b; tried="a=upstream-limited"'
    assert (await gateway.ask("two")).headers["X-Refrain-Upstream"] == "b"
    assert (first.calls, second.calls) == (1, 2)
    told = (await gateway.get("/readyz")).json["upstreams"]["a"]
    assert (told["state"], told["why"]) == ("paused", "upstream-limited")


@pytest.mark.parametrize("code", [429, 503])
async def test_where_all_rest_the_client_is_told_when_to_come_back(
    start_gateway: StartGateway, server: StartServer, code: int
):
    first = await server(status(code, Retry_After="40"))
    second = await server(status(code, Retry_After="20"))
    gateway = await pool(start_gateway, first, second)

    reply = await gateway.ask("one")
    assert (reply.status, reply.json) == (code, {"error": {"message": str(code)}})
    assert reply.headers.getall("Retry-After") == ["20"]
    reply = await gateway.ask("two")
    assert (reply.status, reply.json["error"]["code"]) == (429, "upstream-busy")
    assert 1 <= int(reply.headers["Retry-After"]) <= 20  # what is left of it
    assert reply.cache.endswith("detail=upstream-busy")
    assert (first.calls, second.calls) == (1, 1)


async def test_a_rest_without_bound_is_bounded(start_gateway: StartGateway, server: StartServer):
    gateway = await pool(start_gateway, await server(status(429, Retry_After="999999")))
    assert (await gateway.ask()).headers["Retry-After"] == "60"


async def test_who_is_at_its_limit_is_not_asked_and_a_higher_tier_is(
    start_gateway: StartGateway, server: StartServer
):
    gate = Gate()
    first, second = await server(gate), await server(says("Hello."))
    gateway = await pool(start_gateway, limited(first), {"url": f"{second.url}/v1", "tier": 2})

    waiting = asyncio.create_task(gateway.ask("one"))
    await gate.next()
    assert (await gateway.ask("two")).headers["X-Refrain-Upstream"] == "b"
    gate.open.set()
    assert (await waiting).headers["X-Refrain-Upstream"] == "a"


async def test_who_finds_no_room_waits_in_the_order_of_coming(
    start_gateway: StartGateway, server: StartServer
):
    gate = Gate()
    first = await server(gate)
    gateway = await pool(start_gateway, limited(first))

    asked = []
    for number, content in enumerate(("one", "two", "three")):
        asked.append(asyncio.create_task(gateway.ask(content)))
        if number:
            await until_waiting(gateway, number)
        else:
            await gate.next()
    gate.open.set()
    assert [(await one).text for one in asked] == ["To one", "To two", "To three"]
    assert [body["messages"][-1]["content"] for body in first.bodies] == ["one", "two", "three"]


async def test_who_leaves_the_queue_makes_no_call(start_gateway: StartGateway, server: StartServer):
    gate = Gate()
    first = await server(gate)
    gateway = await pool(start_gateway, limited(first))
    held = asyncio.create_task(gateway.ask("one"))
    await gate.next()
    left = asyncio.create_task(gateway.ask("two"))
    await until_waiting(gateway, 1)
    left.cancel()
    await until_waiting(gateway, 0)
    gate.open.set()
    await held
    assert (await gateway.ask("three")).text == "To three"
    assert first.calls == 2


async def test_a_full_queue_refuses_at_once(start_gateway: StartGateway, server: StartServer):
    gate = Gate()
    gateway = await pool(start_gateway, limited(await server(gate)), queue_size=0)
    held = asyncio.create_task(gateway.ask("one"))
    await gate.next()
    reply = await gateway.ask("two")
    assert (reply.status, reply.json["error"]["code"]) == (429, "upstream-busy")
    assert reply.headers["Retry-After"] == "10"
    gate.open.set()
    assert (await held).status == 200


async def test_a_client_that_fills_the_queue_makes_room_for_others(
    start_gateway: StartGateway, server: StartServer
):
    gate = Gate()
    first = await server(gate)
    gateway = await pool(start_gateway, limited(first), queue_size=3)

    def ask(client: str, number: int) -> "asyncio.Task[Asked]":
        # A project of one's own making makes nobody another client.
        headers = {"Authorization": f"Bearer {client}", "OpenAI-Project": str(number)}
        return asyncio.create_task(gateway.ask(f"{client}{number}", headers=headers))

    held = ask("many", 0)
    await gate.next()
    many = []
    for number in (1, 2, 3):
        many.append(ask("many", number))
        await until_waiting(gateway, number)
    few = ask("few", 1)
    assert (await many[2]).status == 429
    assert (await ask("many", 4)).status == 429
    gate.open.set()
    assert [(await one).status for one in (held, *many[:2], few)] == [200] * 4
    order = [body["messages"][-1]["content"] for body in first.bodies]
    assert order == ["many0", "many1", "few1", "many2"]


async def test_who_waited_too_long_is_told_to_come_back(
    start_gateway: StartGateway, server: StartServer
):
    gate = Gate()
    gateway = await pool(start_gateway, limited(await server(gate)), queue_timeout=0.05)
    held = asyncio.create_task(gateway.ask("one"))
    await gate.next()
    reply = await gateway.ask("two")
    assert (reply.status, reply.headers["Retry-After"]) == (429, "1")
    gate.open.set()
    assert (await held).status == 200


async def test_a_rate_is_kept(start_gateway: StartGateway, server: StartServer):
    first = await server(says("Hello."))
    rated = {"url": f"{first.url}/v1", "requests_per_minute": 2}
    gateway = await pool(start_gateway, rated)
    assert [(await gateway.ask(word)).status for word in ("one", "two", "three")] == [200, 200, 429]
    assert first.calls == 2


async def small_before(
    start: StartGateway, server: StartServer, tmp_path: Path, big: Answers
) -> tuple[RunningGateway, ScriptedUpstream, ScriptedUpstream]:
    policy = tmp_path / "policy.yaml"
    policy.write_text(POLICY.format("fallback_model: small"))
    first, second = await server(big), await server(says("From the small one."))
    gateway = await pool(
        start,
        limited(first, models=["big"]),
        {"url": f"{second.url}/v1", "models": ["small"]},
        policy=policy,
    )
    return gateway, first, second


async def test_under_load_a_smaller_model_answers_under_its_own_name(
    start_gateway: StartGateway, server: StartServer, tmp_path: Path
):
    gate = Gate()
    gateway, _, second = await small_before(start_gateway, server, tmp_path, gate)
    held = asyncio.create_task(gateway.ask("held", model="big"))
    await gate.next()

    reply = await gateway.ask("two", model="big")
    assert reply.text == "From the small one."
    assert reply.headers["X-Refrain-Model"] == "small"
    assert second.bodies[0]["model"] == "small"
    again = await gateway.ask("two", model="big")
    assert (again.headers["X-Refrain-Model"], "; hit" in again.cache) == ("small", True)
    direct = await gateway.ask("two", model="small")
    assert "; hit" in direct.cache
    assert "X-Refrain-Model" not in direct.headers
    assert second.calls == 1

    gate.open.set()
    assert (await held).text == "To held"
    calm = await gateway.ask("two", model="big")
    assert (calm.text, "fwd=miss" in calm.cache) == ("To two", True)
    assert "X-Refrain-Model" not in calm.headers


async def test_the_same_question_under_load_makes_one_call_of_the_smaller_model(
    start_gateway: StartGateway, server: StartServer, tmp_path: Path
):
    gate = Gate()
    gateway, first, second = await small_before(start_gateway, server, tmp_path, gate)
    held = asyncio.create_task(gateway.ask("held", model="big"))
    await gate.next()
    replies = await asyncio.gather(*(gateway.ask("same", model="big") for _ in range(8)))
    assert {reply.text for reply in replies} == {"From the small one."}
    assert {reply.headers["X-Refrain-Model"] for reply in replies} == {"small"}
    assert (first.calls, second.calls) == (1, 1)
    gate.open.set()
    await held


async def test_a_refusal_itself_makes_the_smaller_model_answer(
    start_gateway: StartGateway, server: StartServer, tmp_path: Path
):
    refuses = status(429, Retry_After="30")
    gateway, first, _ = await small_before(start_gateway, server, tmp_path, refuses)
    reply = await gateway.ask("one", model="big")
    assert (reply.status, reply.headers["X-Refrain-Model"]) == (200, "small")
    assert (await gateway.ask("two", model="big")).headers["X-Refrain-Model"] == "small"
    assert first.calls == 1


async def test_a_miss_of_the_smaller_model_that_ends_meanwhile_is_joined(
    start_gateway: StartGateway,
    server: StartServer,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
):
    look_up = Pipeline._look_up
    looked, resumed = asyncio.Event(), asyncio.Event()

    async def look_up_slowly(pipeline: Pipeline, context: RequestContext) -> Any:
        found = await look_up(pipeline, context)
        if context.observation.asked.fallback_model is not None:
            looked.set()
            await resumed.wait()
        return found

    monkeypatch.setattr(Pipeline, "_look_up", look_up_slowly)
    refuses = status(429, Retry_After="30")
    gateway, _, second = await small_before(start_gateway, server, tmp_path, refuses)
    falling_back = asyncio.create_task(gateway.ask("one", model="big"))
    async with asyncio.timeout(60):
        await looked.wait()
    direct = await gateway.ask("one", model="small")
    assert "fwd=miss" in direct.cache
    resumed.set()
    reply = await falling_back
    assert (reply.text, reply.headers["X-Refrain-Model"]) == ("From the small one.", "small")
    assert "collapsed" in reply.cache
    assert second.calls == 1


async def test_without_the_policys_word_nobody_gets_another_model(
    start_gateway: StartGateway, server: StartServer
):
    first, second = await server(status(429, Retry_After="30")), await server(says("no"))
    gateway = await pool(
        start_gateway,
        limited(first, models=["big"]),
        {"url": f"{second.url}/v1", "models": ["small"]},
    )
    assert (await gateway.ask("one", model="big")).status == 429
    assert (await gateway.ask("two", model="big")).status == 429
    assert second.calls == 0


async def test_a_client_whose_quota_is_spent_shuts_nobody_else_out(
    start_gateway: StartGateway, server: StartServer
):
    async def by_account(request: web.Request, body: dict[str, Any]) -> web.StreamResponse:
        spent = request.headers.get("Authorization") == "Bearer spent"
        answer = status(429, Retry_After="50") if spent else says("Hello.")
        return await answer(request, body)

    first, second = await server(by_account), await server(by_account)
    gateway = await pool(start_gateway, first, second)
    refused = await gateway.ask("one", headers={"Authorization": "Bearer spent"})
    assert (refused.status, refused.headers["Retry-After"]) == (429, "50")
    other = await gateway.ask("two", headers={"Authorization": "Bearer paid"})
    assert (other.status, other.text) == (200, "Hello.")
