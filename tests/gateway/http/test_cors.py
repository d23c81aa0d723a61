"""Pages of other origins: hits, errors and preflights are as readable as the upstream has it."""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import AsyncExitStack, asynccontextmanager
from hashlib import sha256
from types import SimpleNamespace
from typing import Any

import pytest
from aiohttp import web
from aiohttp.test_utils import make_mocked_request
from faulty_upstreams import CLOSED, pool

from gateway.server.http.cors import Cors
from running_gateway import RunningGateway, StartGateway, start_app
from scripted_upstream import ScriptedUpstream, answer_by_default

PAGE, OTHER, FOE = "https://page.example", "https://other.example", "https://foe.example"
ALLOWED = (PAGE, OTHER)
CHAT = "/v1/chat/completions"
ALLOW = "Access-Control-Allow-Origin"
PREFLIGHT = {
    "Access-Control-Request-Method": "POST",
    "Access-Control-Request-Headers": "authorization",
}

Start = Callable[..., Awaitable[RunningGateway]]


class Page(ScriptedUpstream):
    """An upstream that lets pages read; ``allows`` says what it answers to an origin."""

    def __init__(self) -> None:
        super().__init__()
        self.asked: list[web.Request] = []
        self.allows: Callable[[str], str | None] = lambda it: it if it in ALLOWED else None
        self.knows_options = True

    async def sign(self, request: web.Request, response: web.StreamResponse) -> None:
        allowed = self.allows(request.headers["Origin"]) if "Origin" in request.headers else None
        if allowed is not None and (self.knows_options or request.method != "OPTIONS"):
            response.headers[ALLOW] = allowed
            response.headers["Access-Control-Expose-Headers"] = "x-request-id"
            response.headers["Vary"] = "Origin"

    async def options(self, request: web.Request) -> web.Response:
        self.asked.append(request)
        assert not await request.read()
        fields = {"Access-Control-Allow-Methods": "POST", "X-Secret": "1", "Set-Cookie": "a=b"}
        return web.Response(status=200 if self.knows_options else 405, text="no", headers=fields)


@pytest.fixture
async def page() -> AsyncIterator[Page]:
    upstream = Page()
    app = web.Application()
    app.on_response_prepare.append(upstream.sign)
    app.router.add_post(CHAT, upstream.handle)
    app.router.add_route("OPTIONS", "/{tail:.*}", upstream.options)
    app.router.add_route("*", "/{tail:.*}", upstream.other)
    runner, upstream.url = await start_app(app)
    yield upstream
    await runner.cleanup()


@pytest.fixture
def start(start_gateway: StartGateway, page: Page, tmp_path: Any) -> Start:
    async def start(*, keys: bool = False, **settings: Any) -> RunningGateway:
        if keys:
            digest = sha256(b"gk-shop").hexdigest()
            (tmp_path / "keys").write_text(f"shop {digest} rpm=3 models=m\n")
            settings["gateway_keys"] = tmp_path / "keys"
        return await start_gateway(upstream=(f"{page.url}/v1",), **settings)

    return start


def from_page(origin: str = PAGE, **more: str) -> dict[str, str]:
    return {"Origin": origin, **more}


async def options(gateway: RunningGateway, path: str = CHAT, **headers: str) -> Any:
    sent = {**from_page(), **PREFLIGHT, **headers}
    async with gateway.session.options(gateway.url + path, headers=sent) as reply:
        return reply.status, reply.headers, await reply.read()


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize("knows_options", [True, False])
async def test_a_hit_is_as_readable_as_its_miss(
    start: Start, page: Page, stream: bool, knows_options: bool
):
    page.knows_options = knows_options
    gateway = await start()
    for status in ("miss", "hit", "hit"):
        told = await gateway.ask(stream=stream, headers=from_page())
        assert status in told.cache
        assert told.headers.getall(ALLOW) == [PAGE]
        assert told.headers["Access-Control-Expose-Headers"] == "x-request-id"
        assert "Origin" in told.headers["Vary"]
    assert not page.asked


async def test_an_entry_of_others_is_readable_by_the_pages_that_the_upstream_allows(
    start: Start, page: Page
):
    gateway = await start()
    assert ALLOW not in (await gateway.ask()).headers
    for _ in range(2):
        for origin, allowed in ((PAGE, PAGE), (OTHER, OTHER), (FOE, None)):
            told = await gateway.ask(headers=from_page(origin))
            assert (told.headers.get(ALLOW), "hit" in told.cache) == (allowed, True)
    assert [each.headers["Origin"] for each in page.asked] == [PAGE, OTHER, FOE]
    assert ALLOW not in (await gateway.ask()).headers


async def test_a_word_for_all_origins_holds_for_all(start: Start, page: Page):
    page.allows = lambda _: "*"
    gateway = await start()
    await gateway.ask(headers=from_page())
    for origin in (PAGE, OTHER, FOE):
        assert (await gateway.ask(headers=from_page(origin))).headers[ALLOW] == "*"
    assert not page.asked


async def test_who_shares_a_call_gets_the_word_on_its_own_origin(start: Start, page: Page):
    go_on = asyncio.Event()

    async def answer(request: web.Request, body: dict[str, Any]) -> web.StreamResponse:
        await go_on.wait()
        return await answer_by_default(request, body)

    page.answer = answer
    gateway = await start()
    asks = [asyncio.create_task(gateway.ask(headers=from_page(each))) for each in (*ALLOWED, FOE)]
    await page.arrived.wait()
    go_on.set()
    told = await asyncio.gather(*asks)
    assert [each.headers.get(ALLOW) for each in told] == [PAGE, OTHER, None]


async def test_the_gateways_own_errors_are_readable(start: Start, page: Page):
    gateway = await start(keys=True)
    mine = from_page(Authorization="Bearer gk-shop")
    refused = [
        await gateway.ask(headers=from_page()),
        await gateway.ask(headers=from_page(FOE)),
        await gateway.ask(headers=mine, model="o3"),
        await gateway.post(CHAT, b"{", headers=mine),
        await gateway.post("/v1/Chat/completions", b"{}", headers=mine),
        await gateway.post(CHAT, b"{}", headers={**mine, "Content-Encoding": "br"}),
        await gateway.ask(headers=mine),
        await gateway.get("/v1/models", headers=mine),
    ]
    assert [each.status for each in refused] == [401, 401, 403, 400, 404, 415, 429, 429]
    assert {each.headers[ALLOW] for each in refused} == {PAGE, "*"}
    assert refused[1].headers[ALLOW] == "*"
    for path in ("/admin/status", "/metrics", "/readyz", "/healthz", "/ui"):
        assert ALLOW not in (await gateway.get(path, headers=from_page())).headers


async def test_an_upstream_that_is_gone_is_a_readable_error(start_gateway: StartGateway):
    gateway = await start_gateway(upstream=(CLOSED,))
    told = await gateway.ask(headers=from_page())
    assert (told.status, told.headers[ALLOW]) == (502, "*")


async def test_a_preflight_needs_no_key_and_brings_nothing_else(start: Start, page: Page):
    gateway = await start(keys=True)
    status, headers, body = await options(gateway, f"{CHAT}?a=b", Authorization="Bearer x", X="1")
    assert (status, headers[ALLOW], body) == (200, PAGE, b"")
    assert headers["Access-Control-Allow-Methods"] == "POST"
    assert headers["Cache-Status"] == "refrain; fwd=bypass"
    assert not {"X-Secret", "Set-Cookie"} & set(headers)
    [asked] = page.asked
    assert asked.path_qs == CHAT
    assert not {"Authorization", "X"} & set(asked.headers)
    assert asked.headers["Access-Control-Request-Headers"] == "authorization"
    status, headers, _ = await options(gateway, Origin=FOE)
    assert (status, ALLOW in headers) == (200, False)
    assert (await options(gateway, "/openai/v1/responses"))[0] == 200
    assert page.asked[-1].path == "/v1/responses"
    assert (await options(gateway, "/v1/Chat/completions"))[0] == 404
    # Without a preflight's headers, it is a request like any other.
    async with gateway.session.options(gateway.url + CHAT) as reply:
        assert reply.status == 401


async def test_what_a_preflight_said_holds_for_the_reply(start: Start, page: Page):
    gateway = await start()
    assert "miss" in (await gateway.ask()).cache
    await options(gateway)
    assert (await gateway.ask(headers=from_page())).headers[ALLOW] == PAGE
    assert len(page.asked) == 1


async def test_a_pool_lets_pages_read_too(start_gateway: StartGateway, page: Page):
    async with AsyncExitStack():
        gateway = await pool(start_gateway, {"url": CLOSED}, {"url": f"{page.url}/v1"})
        assert (await options(gateway))[1][ALLOW] == PAGE
        for _ in range(2):
            assert (await gateway.ask(headers=from_page())).headers[ALLOW] == PAGE
        assert (await gateway.get("/v1/models", headers=from_page())).headers[ALLOW] == PAGE


async def test_a_reply_waits_for_the_upstreams_word_no_longer_than_its_patience():
    answered, asked = asyncio.Event(), []

    @asynccontextmanager
    async def ask(path: Any, fields: Any) -> AsyncIterator[Any]:
        asked.append(dict(fields)["Origin"])
        await answered.wait()
        yield SimpleNamespace(status=204, headers=[(ALLOW, PAGE)])

    cors = Cors(ask, lambda: 0.0, patience=0.0)
    request: Any = make_mocked_request("POST", CHAT, headers=from_page())
    response = web.Response()
    await cors.complete(request, response)
    assert ALLOW not in response.headers
    answered.set()
    async with asyncio.timeout(30):
        while ALLOW not in response.headers:
            await cors.complete(request, response)
    assert asked == [PAGE]
