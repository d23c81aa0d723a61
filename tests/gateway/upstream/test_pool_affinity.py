"""What one upstream of several keeps for its clients: who names it is sent there."""

from collections.abc import AsyncIterator, Awaitable, Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import orjson
import pytest
from aiohttp import web
from faulty_upstreams import CLOSED, EVENTS, pool

from gateway.upstream.pool.pass_through import sticky_id_in
from running_gateway import Asked, RunningGateway, StartGateway, start_app


@dataclass
class Keeper:
    """A server that keeps its responses, and refuses what it does not know as it is told."""

    name: str
    refuses: tuple[int, str]
    refuses_hints: bool = False
    url: str = ""
    stop: Callable[[], Awaitable[None]] | None = None
    kept: list[str] = field(default_factory=list)
    asked: list[str] = field(default_factory=list)

    async def respond(self, request: web.Request) -> web.StreamResponse:
        body = await request.json()
        conversation = body.get("conversation")
        named = body.get("previous_response_id") or conversation
        named = named["id"] if isinstance(named, dict) else named
        self.asked.append(str(named))
        if self.refuses_hints and "prompt_cache_key" in body:
            return web.json_response({"error": {"message": "What key?"}}, status=400)
        if named is not None and named not in self.kept:
            status, code = self.refuses
            error = {"message": f"{named} was not found.", "code": code}
            return web.json_response({"error": error}, status=status)
        made = f"resp_{self.name}{len(self.kept)}"
        self.kept.append(made)
        text = {"type": "output_text", "text": f"From {self.name}.", "annotations": []}
        message = {"type": "message", "role": "assistant", "content": [text]}
        response = {"id": made, "object": "response", "status": "completed", "output": [message]}
        if not body.get("stream"):
            return web.json_response(response)
        reply = web.StreamResponse(headers=EVENTS)
        await reply.prepare(request)
        for kind in ("response.created", "response.completed"):
            event = orjson.dumps({"type": kind, "response": response})
            await reply.write(b"event: %s\ndata: %s\n\n" % (kind.encode(), event))
        return reply

    async def other(self, request: web.Request) -> web.StreamResponse:
        if request.path == "/v1/models":  # a pool reads the lists at start
            return web.Response(status=404)
        self.asked.append(f"{request.method} {request.path}")
        known = request.method == "POST" or request.path.split("/")[3] in self.kept
        return web.json_response({"at": self.name}, status=200 if known else 404)


StartKeeper = Callable[..., Awaitable[Keeper]]


@pytest.fixture
async def keeper() -> AsyncIterator[StartKeeper]:
    """Start servers by name, with what they say of ids that they do not know."""
    runners = []

    async def start(name: str, status: int = 404, code: str = "not_found") -> Keeper:
        one = Keeper(name, (status, code))
        app = web.Application()
        app.router.add_post("/v1/responses", one.respond)
        app.router.add_route("*", "/{tail:.*}", one.other)
        runner, url = await start_app(app)
        one.url, one.stop = f"{url}/v1", runner.cleanup
        runners.append(runner)
        return one

    yield start
    for runner in runners:
        await runner.cleanup()


async def before(start: StartGateway, *keepers: Any, **settings: Any) -> RunningGateway:
    """Start a gateway that asks the keepers in this order."""
    listed = [
        {"url": one.url, "tier": tier} if isinstance(one, Keeper) else {**one, "tier": tier}
        for tier, one in enumerate(keepers, 1)
    ]
    return await pool(start, *listed, **settings)


async def respond(gateway: RunningGateway, **named: Any) -> Asked:
    body = {"model": "m", "input": "Hello", **named}
    return await gateway.post("/v1/responses", orjson.dumps(body))


NOT_KNOWN = [(404, "not_found"), (400, "previous_response_not_found"), (400, "unsupported")]


@pytest.mark.parametrize(("status", "code"), NOT_KNOWN)
async def test_who_keeps_a_response_is_asked_for_once_and_known_from_then_on(
    start_gateway: StartGateway, keeper: StartKeeper, status: int, code: str
):
    first, second = await keeper("a", status, code), await keeper("b")
    gateway = await before(start_gateway, first, second)
    second.kept.append("resp_old")

    reply = await respond(gateway, previous_response_id="resp_old")
    assert reply.headers["X-Refrain-Upstream"] == 'b; tried="a=not-kept"'
    # Both what was named and what was made are known to be there now.
    for named in ("resp_old", reply.json["id"]):
        again = await respond(gateway, previous_response_id=named)
        assert (again.status, again.headers["X-Refrain-Upstream"]) == (200, "b")
    assert first.asked == ["resp_old"]
    assert (await respond(gateway)).headers["X-Refrain-Upstream"] == "a"


@pytest.mark.parametrize("stream", [False, True])
async def test_what_an_upstream_made_is_found_there_though_others_come_before_it(
    start_gateway: StartGateway, keeper: StartKeeper, *, stream: bool
):
    first, second = await keeper("a"), await keeper("b")
    gateway = await before(start_gateway, first, second)
    second.kept.append("conv_1")
    made = await respond(gateway, conversation={"id": "conv_1"}, stream=stream)
    assert made.status == 200
    reply = await respond(gateway, previous_response_id=second.kept[-1])
    assert (reply.status, reply.headers["X-Refrain-Upstream"]) == (200, "b")
    assert first.asked == ["conv_1"]


async def test_what_nobody_keeps_is_told_as_the_last_of_them_does_and_makes_nobody_ill(
    start_gateway: StartGateway, keeper: StartKeeper
):
    gateway = await before(start_gateway, await keeper("a"), await keeper("b"))
    for _ in range(4):
        reply = await respond(gateway, previous_response_id="resp_none")
        assert (reply.status, reply.json["error"]["code"]) == (404, "not_found")
        assert reply.headers["X-Refrain-Upstream"] == 'b; tried="a=not-kept"'
    states = (await gateway.get("/readyz")).json["upstreams"].values()
    assert [one["state"] for one in states] == ["up", "up"]


async def test_an_id_is_found_although_all_refuse_what_the_gateway_adds(
    start_gateway: StartGateway, keeper: StartKeeper, tmp_path: Path
):
    first, second = await keeper("a"), await keeper("b")
    first.refuses_hints = second.refuses_hints = True
    policy = tmp_path / "policy.yaml"
    policy.write_text(
        "version: 1\ndefault: {exact: on, semantic: off, freshness: 1h, scope: tenant, "
        "pii: bypass, hints: {cache_key: on}}\n"
    )
    gateway = await before(start_gateway, first, second, policy=policy)
    first.kept.append("resp_old")
    reply = await respond(gateway, previous_response_id="resp_old")
    assert (reply.status, reply.headers["X-Refrain-Upstream"][:1]) == (200, "a")
    assert (len(first.asked), len(second.asked)) == (2, 1)


async def test_all_are_asked_who_may_keep_it(start_gateway: StartGateway, keeper: StartKeeper):
    keepers = [await keeper(name) for name in "abcdef"]
    gateway = await before(start_gateway, *keepers)
    keepers[-1].kept.append("resp_old")
    reply = await respond(gateway, previous_response_id="resp_old")
    assert (reply.status, reply.headers["X-Refrain-Upstream"][:1]) == (200, "f")


async def test_it_is_not_said_that_nobody_keeps_it_while_one_cannot_be_asked(
    start_gateway: StartGateway, keeper: StartKeeper
):
    out_of_reach, limited = {"url": CLOSED}, await keeper("b")
    gateway = await before(start_gateway, out_of_reach, await keeper("a"))
    reply = await respond(gateway, previous_response_id="resp_old")
    assert (reply.status, reply.json["error"]["code"]) == (503, "upstream-unreachable")
    assert reply.headers["X-Refrain-Upstream"] == 'tried="a=upstream-unreachable, b=not-kept"'

    rated = {"url": limited.url, "requests_per_minute": 1, "models": ["m"]}
    gateway = await before(start_gateway, rated, {"url": (await keeper("a")).url})
    assert (await respond(gateway)).headers["X-Refrain-Upstream"] == "a"
    reply = await respond(gateway, previous_response_id="resp_old")
    assert (reply.status, reply.json["error"]["code"]) == (503, "upstream-busy")
    assert int(reply.headers["Retry-After"]) >= 1


async def test_nobody_stands_in_for_who_keeps_it(start_gateway: StartGateway, keeper: StartKeeper):
    first, second = await keeper("a"), await keeper("b")
    gateway = await before(start_gateway, first, second)
    made = (await respond(gateway)).json["id"]
    assert first.stop is not None
    await first.stop()
    reply = await respond(gateway, previous_response_id=made)
    assert (reply.status, second.asked) == (502, [])
    assert (await respond(gateway)).headers["X-Refrain-Upstream"].startswith("b")


@pytest.mark.parametrize("path", ["/v1/responses/resp_old/input_items", "/v1/files/file-1?x=1"])
async def test_a_path_that_names_it_is_found_where_it_is_kept(
    start_gateway: StartGateway, keeper: StartKeeper, path: str
):
    first, second = await keeper("a"), await keeper("b")
    gateway = await before(start_gateway, first, second)
    second.kept += ["resp_old", "file-1"]
    reply = await gateway.get(path)
    assert (reply.json, reply.headers["X-Refrain-Upstream"]) == (
        {"at": "b"},
        'b; tried="a=not-kept"',
    )
    assert (await gateway.get(path)).headers["X-Refrain-Upstream"] == "b"
    assert first.asked == [f"GET {path.partition('?')[0]}"]


async def test_what_is_made_by_a_path_is_made_once(
    start_gateway: StartGateway, keeper: StartKeeper
):
    first, second = await keeper("a"), await keeper("b")
    gateway = await before(start_gateway, first, second)
    assert (await gateway.post("/v1/batches", b"{}")).json == {"at": "a"}
    assert (await gateway.post("/v1/responses/resp_1/cancel", b"{}")).json == {"at": "a"}
    assert second.asked == []


async def test_where_one_cannot_be_asked_it_is_not_said_that_there_is_no_such_thing(
    start_gateway: StartGateway, keeper: StartKeeper
):
    first, second = await keeper("a"), await keeper("b")
    gateway = await before(start_gateway, first, {"url": CLOSED}, second)
    reply = await gateway.get("/v1/files/file-1")
    assert (reply.status, reply.json["error"]["code"]) == (502, "upstream-unreachable")
    gateway = await before(start_gateway, first, second)
    assert (await gateway.get("/v1/files/file-1")).status == 404


@pytest.mark.parametrize(
    ("path", "named"),
    [
        ("/v1/files/file-1/content?x=/v1/files/2", "file-1"),
        ("/v1/chat/completions/chatcmpl-1", "chatcmpl-1"),
        ("/v1/fine_tuning/jobs/ft-1/events", "ft-1"),
        ("/v1/files", ""),
        ("/v1/files/", ""),
        ("/v1/files?after=file-1", ""),
        ("/v1/audio/speech", ""),
        ("/v1/models/m", ""),
        ("/other/v1/files/file-1", ""),
    ],
)
def test_what_a_path_names(path: str, named: str):
    assert sticky_id_in(path) == named
