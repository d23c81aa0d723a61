"""Coalescing over real connections: many clients, one call to the upstream."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack
from hashlib import sha256
from pathlib import Path
from typing import Any

import orjson
import pytest
from aiohttp import ClientResponse, ClientSession, TCPConnector, web

from gateway.upstream.sharing.flight_table import FlightTable
from running_gateway import RunningGateway, StartGateway
from scripted_upstream import DONE, ScriptedUpstream, completion, stream_of

ANSWER = stream_of("slowly does it")
BODY = {"model": "m", "messages": [{"role": "user", "content": "hi"}]}
CLIENTS = 60


@pytest.fixture
async def session() -> AsyncIterator[ClientSession]:
    async with ClientSession(connector=TCPConnector(limit=0)) as session:
        yield session


class Held:
    """An answer whose first piece is sent at once and whose rest waits for the test."""

    def __init__(self, upstream: ScriptedUpstream) -> None:
        self.go_on = asyncio.Event()
        upstream.answer = self.answer

    async def answer(self, request: web.Request, body: dict[str, Any]) -> web.StreamResponse:
        if not body.get("stream"):
            await self.go_on.wait()
            return web.json_response(completion("slowly does it"))
        response = web.StreamResponse(headers={"Content-Type": "text/event-stream"})
        await response.prepare(request)
        await response.write(ANSWER[0])
        await self.go_on.wait()
        await response.write(b"".join(ANSWER[1:]))
        return response


async def begun(
    stack: AsyncExitStack, session: ClientSession, gateway: RunningGateway
) -> ClientResponse:
    """Ask for a stream and read its first event."""
    url = f"{gateway.url}/v1/chat/completions"
    reply = await stack.enter_async_context(session.post(url, json={**BODY, "stream": True}))
    assert await reply.content.readexactly(len(ANSWER[0])) == ANSWER[0]
    return reply


async def test_many_clients_read_one_stream(
    gateway: RunningGateway, upstream: ScriptedUpstream, session: ClientSession
):
    held = Held(upstream)
    async with asyncio.timeout(60), AsyncExitStack() as stack:
        asked = [begun(stack, session, gateway) for _ in range(CLIENTS)]
        replies = await asyncio.gather(*asked)
        plain = asyncio.create_task(gateway.ask("hi"))
        held.go_on.set()
        for reply in replies:
            assert await reply.read() == b"".join(ANSWER[1:])
        assert (await plain).text == "slowly does it"
        headers = [reply.headers["Cache-Status"] for reply in replies]
    assert headers.count("refrain; fwd=miss") == 1
    assert headers.count("refrain; fwd=miss; collapsed") == CLIENTS - 1
    assert upstream.calls == 1
    assert "hit" in (await gateway.ask("hi")).cache
    page = (await gateway.get("/metrics")).raw.decode()
    [line] = [
        line
        for line in page.splitlines()
        if line.startswith("refrain_requests_total") and 'reason="collapsed"' in line
    ]
    assert 'outcome="miss"' in line
    assert float(line.split()[-1]) >= CLIENTS - 1


@pytest.mark.parametrize("streamed", [False, True])
async def test_however_the_many_come_there_is_one_call(
    gateway: RunningGateway, upstream: ScriptedUpstream, session: ClientSession, streamed: bool
):
    url = f"{gateway.url}/v1/chat/completions"

    async def ask() -> bytes:
        async with session.post(url, json={**BODY, "stream": streamed}) as reply:
            assert reply.status == 200
            return await reply.read()

    async with asyncio.timeout(60):
        raw = await asyncio.gather(*(ask() for _ in range(CLIENTS)))
    assert upstream.calls == 1
    assert all(one.endswith(DONE if streamed else b"}") for one in raw)


@pytest.mark.parametrize(("status", "seen"), [(400, 400), (401, 502), (404, 404), (429, 429)])
@pytest.mark.parametrize("pool", [False, True])
async def test_the_keys_of_one_gateway_repeat_no_refusal(
    start_gateway: StartGateway,
    upstream: ScriptedUpstream,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    *,
    status: int,
    seen: int,
    pool: bool,
):
    go_on, followed, follow = asyncio.Event(), [], FlightTable.follow

    def counted(table: Any, slot: Any, **options: Any) -> Any:
        if (flight := follow(table, slot, **options)) is not None:
            followed.append(flight)
        return flight

    monkeypatch.setattr(FlightTable, "follow", counted)

    async def answer(_request: web.Request, _body: dict[str, Any]) -> web.StreamResponse:
        await go_on.wait()
        return web.json_response({"error": {"message": "no"}}, status=status)

    upstream.answer = answer
    names = [f"gk-{number}" for number in range(6)]
    keys = tmp_path / "keys"
    keys.write_text("".join(f"team {sha256(name.encode()).hexdigest()}\n" for name in names))
    upstreams = {"upstream": (), "upstreams": [{"url": f"{upstream.url}/v1", "probe": "off"}]}
    gateway = await start_gateway(gateway_keys=keys, **(upstreams if pool else {}))
    asked = [
        asyncio.create_task(gateway.ask("same", headers={"Authorization": f"Bearer {name}"}))
        for name in names
    ]
    async with asyncio.timeout(60):
        while len(followed) < len(names) - 1:  # noqa: ASYNC110 - nothing tells of each
            await asyncio.sleep(0)
    go_on.set()
    replies = [await one for one in asked]
    assert {reply.status for reply in replies} == {seen}
    assert upstream.calls == 1
    assert all("authorization" not in request.headers for request in upstream.requests)


async def test_who_takes_only_a_stored_answer_looks_though_a_call_is_under_way(
    gateway: RunningGateway, upstream: ScriptedUpstream
) -> None:
    held = Held(upstream)
    waiting = asyncio.create_task(gateway.ask("hi"))
    await upstream.arrived.wait()
    stored = {"request": BODY, "answer": completion("from elsewhere")}
    assert (await gateway.post("/admin/load", orjson.dumps(stored))).json["stored"] is True
    reply = await gateway.ask("hi", headers={"Cache-Control": "only-if-cached"})
    assert (reply.status, reply.text) == (200, "from elsewhere")
    held.go_on.set()
    assert (await waiting).text == "slowly does it"
