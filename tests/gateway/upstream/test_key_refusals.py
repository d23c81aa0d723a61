"""An upstream that refuses the gateway's own key: others answer, and operators see it."""

import itertools
import logging
from collections.abc import AsyncIterator, Awaitable, Callable
from dataclasses import dataclass, field
from hashlib import sha256
from pathlib import Path
from typing import Any

import orjson
import pytest
from aiohttp import web
from faulty_upstreams import EVENTS

from gateway.protocol.errors import UpstreamError
from gateway.protocol.http.cache_status import Reason
from gateway.upstream.pool.health import FIRST_REFUSAL, State
from gateway.upstream.pool.routing import LeastLoaded
from gateway.upstream.pool.table import Call, PoolTable
from gateway.upstream.pool.upstream_state import Member
from gateway.upstream.request import Outgoing
from gateway.upstream.tries import failure_of
from running_gateway import Asked, RunningGateway, StartGateway, start_app
from scripted_upstream import completion, stream_of

CHAT = {"model": "m", "messages": [{"role": "user", "content": "hi"}]}
ASKS: dict[str, Any] = {
    "/v1/chat/completions": CHAT,
    "/v1/completions": {"model": "m", "prompt": "hi"},
    "/v1/embeddings": {"model": "m", "input": "hi"},
    "/v1/responses": {"model": "m", "input": "hi"},
    "/v1/messages": {**CHAT, "max_tokens": 9},
    "/v1/messages/count_tokens": CHAT,
}
ANSWERS: dict[str, Any] = {
    "/v1/completions": {"choices": [{"index": 0, "text": "Fine.", "finish_reason": "stop"}]},
    "/v1/embeddings": {
        "object": "list",
        "model": "m",
        "data": [{"object": "embedding", "index": 0, "embedding": [1.0]}],
    },
    "/v1/responses": {"id": "r", "object": "response", "status": "completed", "output": []},
    "/tokenize": {"count": 3},
}
KEY = {"error": {"message": "Incorrect API key provided: sk-1", "code": "invalid_api_key"}}
REFUSALS: dict[str, tuple[int, Any]] = {
    "401": (401, KEY),
    "402": (402, {"error": {"message": "Insufficient credits", "code": 402}}),
    "403": (403, {"error": {"message": "Key limit exceeded"}}),
    "400": (400, [{"error": {"message": "API key expired. Renew the API key.", "code": 400}}]),
    "429": (429, {"error": {"message": "Check your billing", "code": "insufficient_quota"}}),
    "200": (200, {"error": {"message": "User not found.", "code": 401}}),
    "401 in HTML": (401, "<html>Your key is wrong</html>"),
}
BEARER = {"Authorization": "Bearer ann", "Cache-Control": "no-store"}
CASES = [
    *(("/v1/chat/completions", name) for name in REFUSALS),
    *((path, "401") for path in ASKS if "chat" not in path),
    ("/v1/embeddings", "200"),
    ("/v1/messages", "400"),
]
"""An endpoint, and how the upstream refuses."""


@dataclass
class Server:
    """Answers what ``refusal`` says, or like a model; a list of models is no call."""

    refusal: tuple[int, Any] | None = None
    models: tuple[str, ...] | None = None
    streams: bool = False
    kind: str = "application/json"
    """Of a refusal."""
    calls: list[str] = field(default_factory=list)
    url: str = ""

    async def handle(self, request: web.Request) -> web.StreamResponse:
        if request.path == "/v1/models":
            if self.models is None:
                return web.Response(status=404)
            return web.json_response({"data": [{"id": name} for name in self.models]})
        self.calls.append(request.path)
        body = await request.read()
        streamed = b'"stream":true' in body
        if self.refusal is not None:
            status, value = self.refusal
            if streamed and self.streams:
                return await _events(request, [b"data: %s\n\n" % orjson.dumps(value)])
            if isinstance(value, str):
                return web.Response(status=status, text=value, content_type="text/html")
            return web.json_response(value, status=status, content_type=self.kind)
        if streamed:
            return await _events(request, stream_of("Fine."))
        return web.json_response(ANSWERS.get(request.path, completion("Fine.")))


async def _events(request: web.Request, events: list[bytes]) -> web.StreamResponse:
    response = web.StreamResponse(headers=EVENTS)
    await response.prepare(request)
    for event in events:
        await response.write(event)
    return response


StartServer = Callable[[Server], Awaitable[Server]]


@pytest.fixture
def ejected_for_long(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let no test race with the end of an ejection."""
    monkeypatch.setattr("gateway.upstream.pool.health.FIRST_REFUSAL", 60.0)


@pytest.fixture
async def server() -> AsyncIterator[StartServer]:
    runners = []

    async def start(one: Server) -> Server:
        app = web.Application()
        app.router.add_route("*", "/{tail:.*}", one.handle)
        runner, one.url = await start_app(app)
        runners.append(runner)
        return one

    yield start
    for runner in runners:
        await runner.cleanup()


@pytest.fixture
def own_key(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> dict[str, Any]:
    """Settings with which upstreams get a key of the gateway's."""
    monkeypatch.setenv("REFRAIN_UPSTREAM_API_KEY", "sk-1")
    monkeypatch.setenv("KEY_OF_ONE", "sk-1")
    keys = tmp_path / "keys"
    keys.write_text(f"ann {sha256(b'ann').hexdigest()}\nbob {sha256(b'bob').hexdigest()}\n")
    return {"gateway_keys": keys}


async def before(start: StartGateway, *servers: Server, **settings: Any) -> RunningGateway:
    listed = [
        {"name": name, "url": f"{one.url}/v1", "tier": tier, "probe": "off"}
        for tier, (name, one) in enumerate(zip("abc", servers, strict=False), 1)
    ]
    return await start(upstream=(), upstreams=listed, **settings)


async def ask(gateway: RunningGateway, path: str = "/v1/chat/completions", **more: Any) -> Asked:
    return await gateway.post(path, orjson.dumps({**ASKS[path], **more}), headers=BEARER)


def is_in_our_words(reply: Asked) -> bool:
    text = reply.raw.decode()
    told = (
        "sk-1",
        "API key",
        "key is wrong",
        "User not",
        "credit",
        "billing",
        "127.0.0.1",
        "Key l",
    )
    return "refuses requests of this gateway" in text and not any(word in text for word in told)


@pytest.mark.parametrize(("path", "refusal"), CASES)
@pytest.mark.usefixtures("ejected_for_long")
async def test_another_upstream_answers_and_operators_see_who_refused(
    start_gateway: StartGateway,
    server: StartServer,
    own_key: dict[str, Any],
    path: str,
    refusal: str,
):
    first, second = await server(Server(REFUSALS[refusal])), await server(Server())
    gateway = await before(start_gateway, first, second, **own_key)
    for _ in range(3):
        reply = await ask(gateway, path)
        assert (reply.status, reply.headers["X-Refrain-Upstream"][:1]) == (200, "b")
    assert len(first.calls) == 1
    state = (await gateway.get("/readyz")).json["upstreams"]["a"]
    assert (state["state"], state["why"]) == ("open", "upstream-refused")
    page = (await gateway.get("/metrics")).raw.decode()
    assert 'refrain_upstream_failures_total{reason="upstream-refused",upstream="a"} 1.0' in page
    assert 'refrain_upstream_state{state="open",upstream="a"} 1.0' in page


async def test_a_stream_that_begins_with_a_refusal_is_answered_by_another(
    start_gateway: StartGateway, server: StartServer, own_key: dict[str, Any]
):
    first, second = await server(Server((200, KEY), streams=True)), await server(Server())
    gateway = await before(start_gateway, first, second, **own_key)
    for number in range(3):
        assert (await ask(gateway, user=str(number), stream=True)).text == "Fine."
    assert len(first.calls) == 1


@pytest.mark.parametrize("several", [False, True])
@pytest.mark.parametrize("case", CASES, ids=" ".join)
@pytest.mark.usefixtures("ejected_for_long")
async def test_where_no_upstream_is_left_no_client_reads_that_its_key_is_wrong(
    start_gateway: StartGateway,
    server: StartServer,
    own_key: dict[str, Any],
    caplog: pytest.LogCaptureFixture,
    *,
    case: tuple[str, str],
    several: bool,
):
    path, refusal = case
    caplog.set_level(logging.INFO, "gateway.upstream")
    one = await server(Server(REFUSALS[refusal]))
    if several:
        gateway = await before(start_gateway, one, **own_key)
    else:
        gateway = await start_gateway(upstream=f"{one.url}/v1", **own_key)
    reply = await ask(gateway, path)
    assert reply.status == 502
    assert is_in_our_words(reply)
    if not path.startswith("/v1/messages"):
        assert reply.json["error"]["code"] == "upstream-refused"
    [state] = (await gateway.get("/readyz")).json["upstreams"].values()
    assert state["state"] == "open"
    assert state["why"] == "upstream-refused"
    lines = [record.getMessage() for record in caplog.records]
    assert any("it refuses the key that the gateway has for it (status" in line for line in lines)
    assert not any("sk-1" in line for line in lines)
    if not several:
        one.refusal = None
        assert (await ask(gateway, path)).status == 200
        [state] = (await gateway.get("/readyz")).json["upstreams"].values()
        assert state["state"] == "up"


@pytest.mark.usefixtures("ejected_for_long")
async def test_a_lone_stream_that_begins_with_a_refusal_ends_in_our_words(
    start_gateway: StartGateway, server: StartServer, own_key: dict[str, Any]
):
    one = await server(Server((200, KEY), streams=True))
    gateway = await start_gateway(upstream=f"{one.url}/v1", **own_key)
    reply = await ask(gateway, stream=True)
    assert is_in_our_words(reply)
    assert reply.events[-1]["error"]["code"] == "upstream-refused"
    [state] = (await gateway.get("/readyz")).json["upstreams"].values()
    assert (state["state"], state["why"]) == ("open", "upstream-refused")


@pytest.mark.parametrize("several", [False, True])
@pytest.mark.parametrize("refusal", REFUSALS.values(), ids=REFUSALS)
async def test_with_the_clients_own_key_a_refusal_is_its_answer(
    start_gateway: StartGateway, server: StartServer, refusal: tuple[int, Any], several: bool
):
    first, second = await server(Server(refusal)), await server(Server())
    if several:
        gateway = await before(start_gateway, first, second)
    else:
        gateway = await start_gateway(upstream=f"{first.url}/v1")
    reply = await ask(gateway)
    status, value = refusal
    if several and status == 429:
        assert reply.text == "Fine."  # such a reply was no answer before
        return
    assert reply.status == status
    assert reply.raw == (value.encode() if isinstance(value, str) else orjson.dumps(value)) or (
        reply.json == value
    )
    assert not second.calls


async def test_a_refused_content_is_an_answer_and_pauses_nothing(
    start_gateway: StartGateway, server: StartServer, own_key: dict[str, Any]
):
    flagged = {"error": {"code": 403, "message": "Bad.", "metadata": {"reasons": ["hate"]}}}
    first, second = await server(Server((403, flagged))), await server(Server())
    gateway = await before(start_gateway, first, second, **own_key)
    for _ in range(4):
        reply = await ask(gateway)
        assert (reply.status, reply.json) == (403, flagged)
    assert (len(first.calls), len(second.calls)) == (4, 0)
    assert (await gateway.get("/readyz")).json["upstreams"]["a"]["state"] == "up"


@pytest.mark.parametrize("refusal", REFUSALS.values(), ids=REFUSALS)
@pytest.mark.parametrize("path", ["/v1/files", "/v1/files/file-1"])
async def test_what_passes_through_goes_to_another_upstream(
    start_gateway: StartGateway,
    server: StartServer,
    own_key: dict[str, Any],
    path: str,
    refusal: tuple[int, Any],
):
    first, second = await server(Server(refusal)), await server(Server())
    gateway = await before(start_gateway, first, second, **own_key)
    sent = {**BEARER, "Accept-Encoding": "gzip"}
    reply = await gateway.get(path, headers=sent)
    assert reply.status == 200
    assert reply.headers["X-Refrain-Upstream"] == 'b; tried="a=upstream-refused"'
    alone = await start_gateway(
        upstream=f"{first.url}/v1", data_dir=gateway.data_dir / "other", **own_key
    )
    reply = await alone.get(path, headers=sent)
    assert reply.status == 502
    assert is_in_our_words(reply)


def test_a_refusing_upstream_is_tried_again_after_a_bounded_time():
    refused = failure_of(UpstreamError(502, "no", Reason.UPSTREAM_REFUSED, answered=True))
    table = PoolTable([Member("a"), Member("b")], LeastLoaded(), 0.0)
    now, tries = 0.0, []
    ann = Outgoing("/v1/chat/completions", (), b"{}", "m", client="ann")
    while now < 300.0:
        call = table.acquire(
            ann, now, {"b"} if table.upstreams["a"].can_accept(now, "ann") else set()
        )
        assert isinstance(call, Call)
        if call.name == "a":
            tries.append(now)
            table.record_failure(call, refused, now)
        table.release(call)
        now += 0.5
    waits = [after - at for at, after in itertools.pairwise(tries)]
    assert waits[0] == FIRST_REFUSAL
    assert max(waits) <= 30.5
    assert len(tries) > 8


def test_a_refusal_that_two_clients_meet_holds_for_all():
    refused = failure_of(UpstreamError(502, "no", Reason.UPSTREAM_REFUSED, answered=True))
    table = PoolTable([Member("a")], LeastLoaded(), 0.0)

    def meets(client: str) -> State:
        sent = Outgoing("/v1/chat/completions", (), b"{}", "m", client=client)
        call = table.acquire(sent, 1.0)
        assert isinstance(call, Call)
        table.record_failure(call, refused, 1.0)
        table.release(call)
        return table.upstreams["a"].health.state(1.0)

    assert [meets(client) for client in ("ann", "ann", "bob")] == [State.UP, State.UP, State.OPEN]


async def test_the_content_of_a_file_is_no_refusal_whatever_it_says(
    start_gateway: StartGateway, server: StartServer, own_key: dict[str, Any]
):
    one = await server(Server((200, KEY)))
    gateway = await start_gateway(upstream=f"{one.url}/v1", **own_key)
    reply = await gateway.get("/v1/files/file-1/content", headers=BEARER)
    assert (reply.status, reply.json) == (200, KEY)
    one.refusal = (401, KEY)
    reply = await gateway.get("/v1/files/file-1/content", headers=BEARER)
    assert reply.status == 502
    assert is_in_our_words(reply)


async def test_json_that_passes_through_goes_to_another_upstream(
    start_gateway: StartGateway, server: StartServer, own_key: dict[str, Any]
):
    first, second = await server(Server((401, KEY))), await server(Server())
    gateway = await before(start_gateway, first, second, **own_key)
    reply = await gateway.post("/v1/images/generations", b'{"model": "m"}', headers=BEARER)
    assert reply.status == 200
    assert (len(first.calls), len(second.calls)) == (1, 1)


async def test_a_file_that_looks_like_a_stream_passes_through(
    start_gateway: StartGateway, server: StartServer, own_key: dict[str, Any]
):
    text = 'data: {"error": {"code": 401, "message": "no"}}\n\nand so on'
    one = await server(Server((200, text)))
    gateway = await start_gateway(upstream=f"{one.url}/v1", **own_key)
    reply = await gateway.get("/v1/files/file-1/content", headers=BEARER)
    assert (reply.status, reply.raw.decode()) == (200, text)


@pytest.mark.parametrize("path", ["/v1/chat/completions", "/v1/files"])
async def test_a_refusal_whose_type_is_that_of_a_stream_is_no_answer(
    start_gateway: StartGateway, server: StartServer, own_key: dict[str, Any], path: str
):
    one = await server(Server((401, KEY), kind="text/event-stream"))
    gateway = await start_gateway(upstream=f"{one.url}/v1", **own_key)
    reply = await gateway.post(path, orjson.dumps({**CHAT, "stream": True}), headers=BEARER)
    assert reply.status == 502
    assert is_in_our_words(reply)


async def test_a_clients_own_key_is_not_refused_by_who_is_asked_for_an_unknown_model(
    start_gateway: StartGateway, server: StartServer
):
    lack = {"error": {"code": "model_not_found", "message": "The model does not exist"}}
    first, second = await server(Server((404, lack))), await server(Server((401, KEY)))
    gateway = await before(start_gateway, first, second)
    for _ in range(3):
        reply = await ask(gateway)
        assert (reply.status, reply.json) == (404, lack)
    second.refusal = None
    assert (await ask(gateway)).text == "Fine."
