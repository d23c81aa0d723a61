"""A pool of real servers and prompts that begin alike: where they go."""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from hashlib import sha256
from pathlib import Path
from typing import Any

import pytest
from aiohttp import web
from faulty_upstreams import status

from running_gateway import Asked, RunningGateway, StartGateway, start_app
from scripted_upstream import ScriptedUpstream, completion

SYSTEM = "You are a clerk who answers in one sentence. " * 200
TURN = {"role": "user", "content": "My order has not come. " * 60}
Answers = Callable[[web.Request, dict[str, Any]], Awaitable[web.StreamResponse]]
StartServers = Callable[..., Awaitable[list[ScriptedUpstream]]]


@pytest.fixture
async def servers() -> AsyncIterator[StartServers]:
    runners = []

    async def start(*answers: Answers) -> list[ScriptedUpstream]:
        started = [ScriptedUpstream(answer) for answer in answers]
        for one in started:
            app = web.Application()
            app.router.add_post("/v1/chat/completions", one.handle)
            runner, one.url = await start_app(app)
            runners.append(runner)
        return started

    yield start
    for runner in runners:
        await runner.cleanup()


async def pool(
    start: StartGateway, servers: list[ScriptedUpstream], *, routing: str = "prefix", **of_all: Any
) -> RunningGateway:
    listed = [
        {"name": name, "url": f"{one.url}/v1", "probe": "off", **of_all}
        for name, one in zip("abc", servers, strict=False)
    ]
    return await start(upstream=(), upstreams=listed, upstream_routing=routing)


def cached(tokens: int) -> Answers:
    """Answer, and say that so much of the prompt was found."""

    async def answer(_request: web.Request, _body: dict[str, Any]) -> web.StreamResponse:
        details = {"prompt_tokens_details": {"cached_tokens": tokens}}
        usage = {"prompt_tokens": 3000, "completion_tokens": 3, "total_tokens": 3003, **details}
        return web.json_response(completion("Fine.", usage=usage))

    return answer


class Held:
    """Answers when it is let go, or breaks where it is told to."""

    def __init__(self) -> None:
        self.go = asyncio.Event()
        self.breaks = False

    async def __call__(self, request: web.Request, _body: dict[str, Any]) -> web.StreamResponse:
        await self.go.wait()
        if self.breaks:
            self.breaks = False
            assert request.transport is not None
            request.transport.abort()
        return web.json_response(completion("Fine."))


async def turns(gateway: RunningGateway, *turns: Any) -> Asked:
    return await gateway.ask(messages=[{"role": "system", "content": SYSTEM}, *turns])


async def until(holds: Callable[[], Awaitable[bool]]) -> None:
    async with asyncio.timeout(60):
        while not await holds():
            pass


async def figure(gateway: RunningGateway, beginning: str) -> float:
    lines = (await gateway.get("/metrics")).raw.decode().splitlines()
    return sum(float(line.rpartition(" ")[2]) for line in lines if line.startswith(beginning))


async def burst(gateway: RunningGateway, count: int) -> list[asyncio.Task[Asked]]:
    """Begin requests that begin alike; return once all of them are under way at one upstream."""
    tasks = [
        asyncio.create_task(turns(gateway, {"role": "user", "content": f"Question {number}?"}))
        for number in range(count)
    ]

    async def all_begun() -> bool:
        return await figure(gateway, "refrain_upstream_in_flight{") == count

    await until(all_begun)
    return tasks


async def test_a_conversation_stays_where_it_began(
    start_gateway: StartGateway, servers: StartServers
):
    gateway = await pool(start_gateway, await servers(cached(0), cached(0), cached(0)))
    conversation: list[Any] = [TURN]
    first = await turns(gateway, *conversation)
    for number in range(3):
        conversation += [{"role": "assistant", "content": "Fine."}, {**TURN, "name": f"n{number}"}]
        later = await turns(gateway, *conversation)
        assert later.headers["X-Refrain-Upstream"] == first.headers["X-Refrain-Upstream"]
    assert await figure(gateway, "refrain_upstream_requests_total{") == 4
    name = first.headers["X-Refrain-Upstream"]
    label = f'refrain_upstream_requests_total{{route="prefix",upstream="{name}"}}'
    assert await figure(gateway, label) == 3


async def test_where_a_conversation_had_to_go_it_stays(
    start_gateway: StartGateway, servers: StartServers
):
    held = [Held(), Held()]
    for one in held:
        one.go.set()
    gateway = await pool(start_gateway, await servers(*held))
    first = (await turns(gateway, TURN)).headers["X-Refrain-Upstream"]
    other = "ba"["ab".index(first)]
    held["ab".index(first)].breaks = True
    failed_over = await turns(gateway, TURN, TURN)
    assert failed_over.headers["X-Refrain-Upstream"] == f'{other}; tried="{first}=upstream-broke"'
    assert (await turns(gateway, TURN, TURN, TURN)).headers["X-Refrain-Upstream"] == other


@pytest.mark.parametrize("code", [400, 401, 413])
async def test_a_prompt_that_was_refused_is_not_believed_to_be_computed(
    start_gateway: StartGateway, servers: StartServers, code: int
):
    gateway = await pool(start_gateway, await servers(status(code), status(code)))
    for _ in range(2):
        assert (await turns(gateway, TURN)).status == code
    assert await figure(gateway, 'refrain_upstream_requests_total{route="cold"') == 2


async def test_a_burst_that_begins_alike_goes_to_one_upstream_at_once(
    start_gateway: StartGateway, servers: StartServers
):
    held = Held()
    started = await servers(held, held)
    gateway = await pool(start_gateway, started)
    tasks = await burst(gateway, 4)

    async def all_there() -> bool:
        in_flight = await figure(gateway, "refrain_upstream_in_flight{")
        return in_flight == sum(one.calls for one in started) == 4

    await until(all_there)
    assert sorted(one.calls for one in started) == [0, 4]
    held.go.set()
    assert {reply.status for reply in await asyncio.gather(*tasks)} == {200}


async def test_where_the_first_of_a_burst_fails_the_others_are_answered(
    start_gateway: StartGateway, servers: StartServers
):
    held = Held()
    held.breaks = True
    started = await servers(held, held)
    gateway = await pool(start_gateway, started)
    tasks = await burst(gateway, 4)
    held.go.set()
    assert {reply.status for reply in await asyncio.gather(*tasks)} == {200}


async def test_a_client_that_leaves_leaves_nothing_behind(
    start_gateway: StartGateway, servers: StartServers
):
    held = Held()
    gateway = await pool(start_gateway, await servers(held))
    tasks = await burst(gateway, 3)
    for task in tasks:
        task.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)

    async def none_left() -> bool:
        return await figure(gateway, "refrain_upstream_in_flight{") == 0

    await until(none_left)
    held.go.set()
    assert (await turns(gateway, TURN)).status == 200


async def test_by_load_alone_a_conversation_means_nothing(
    start_gateway: StartGateway, servers: StartServers
):
    started = await servers(cached(0), cached(0))
    gateway = await pool(start_gateway, started, routing="load")
    await turns(gateway, TURN)
    await turns(gateway, TURN, TURN)
    assert [one.calls for one in started] == [2, 0]
    label = 'refrain_upstream_requests_total{route="balance",upstream="a"}'
    assert await figure(gateway, label) == 2


@pytest.fixture
def holders(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Keys of a spy and of a victim; the gateway has one of its own for all upstreams."""
    monkeypatch.setenv("REFRAIN_UPSTREAM_API_KEY", "sk-upstream")
    file = tmp_path / "keys"
    lines = [f"{name} {sha256(f'gk-{name}'.encode()).hexdigest()}\n" for name in ("spy", "victim")]
    file.write_text("".join(lines))
    return file


async def routes(gateway: RunningGateway) -> dict[str, float]:
    """Return the number of requests by route."""
    page = (await gateway.get("/metrics")).raw.decode()
    found: dict[str, float] = {}
    for line in page.splitlines():
        if line.startswith("refrain_upstream_requests_total{"):
            route = line.partition('route="')[2].partition('"')[0]
            found[route] = found.get(route, 0) + float(line.rpartition(" ")[2])
    return found


async def test_a_prompt_that_another_holder_asked_before_is_routed_as_if_nobody_had(
    start_gateway: StartGateway, servers: StartServers, holders: Path
):
    listed = [
        {"name": name, "url": f"{one.url}/v1", "probe": "off"}
        for name, one in zip("ab", await servers(cached(0), cached(0)), strict=True)
    ]
    gateway = await start_gateway(upstream=(), upstreams=listed, gateway_keys=holders)

    async def ask(holder: str, text: str) -> dict[str, float]:
        messages = [{"role": "system", "content": SYSTEM}, {"role": "user", "content": text}]
        headers = {"Authorization": f"Bearer gk-{holder}"}
        assert (await gateway.ask(messages=messages, headers=headers)).status == 200
        return await routes(gateway)

    assert (await ask("victim", "one")).get("prefix", 0) == 0
    assert (await ask("victim", "two"))["prefix"] == 1
    assert (await ask("spy", "three"))["prefix"] == 1
    assert (await ask("spy", "four"))["prefix"] == 2
