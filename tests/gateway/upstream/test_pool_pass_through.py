"""What passes through a pool: one list of models, and paths of which the gateway knows nothing."""

from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import AsyncExitStack
from hashlib import sha256
from pathlib import Path
from typing import Any

import pytest
from aiohttp import web
from faulty_upstreams import CLOSED, pool

from gateway.upstream.pool.pass_through import merge
from gateway.upstream.pool.upstream_state import Member
from running_gateway import StartGateway, start_app

StartListing = Callable[..., Awaitable[dict[str, Any]]]
KEYS = {"a": "key-of-a", "b": "key-of-b"}


@pytest.fixture
async def listing() -> AsyncIterator[StartListing]:
    """Start upstreams with these models that say who they are and what key they got."""
    runners = []

    async def start(name: str, *models: str, status: int = 200) -> dict[str, Any]:
        async def list_models(_: web.Request) -> web.Response:
            data = [{"id": model, "object": "model", "owned_by": name} for model in models]
            return web.json_response({"object": "list", "data": data}, status=status)

        async def other(request: web.Request) -> web.Response:
            told = {
                "at": name,
                "path": request.path_qs,
                "key": request.headers.get("Authorization"),
                "body": (await request.read()).decode(),
            }
            return web.json_response(told)

        app = web.Application()
        app.router.add_get("/v1/models", list_models)
        app.router.add_route("*", "/{tail:.*}", other)
        runner, url = await start_app(app)
        runners.append(runner)
        return {"url": f"{url}/v1"}

    yield start
    for runner in runners:
        await runner.cleanup()


async def test_the_list_of_models_is_that_of_all_those_for_conversations_first(
    start_gateway: StartGateway, listing: StartListing
):
    gateway = await pool(
        start_gateway,
        await listing("a", "chat-a", "text-embedding-3", "shared"),
        await listing("b", "shared", "qwen-b", "hidden"),
        models={"b": ["shared", "qwen*"]},
    )
    reply = await gateway.get("/v1/models")
    models = reply.json["data"]
    assert [(model["id"], model["owned_by"]) for model in models] == [
        ("chat-a", "a"),
        ("shared", "a"),
        ("qwen-b", "b"),
        ("text-embedding-3", "a"),
    ]
    assert reply.cache == "refrain; fwd=bypass"


async def test_an_upstream_that_lists_nothing_is_left_out(
    start_gateway: StartGateway, listing: StartListing
):
    gateway = await pool(
        start_gateway, {"url": CLOSED}, await listing("b", status=500), await listing("c", "m")
    )
    assert [model["id"] for model in (await gateway.get("/v1/models")).json["data"]] == ["m"]


@pytest.mark.parametrize("failing", [0, 1, 2, 3])
async def test_one_replica_lists_the_models_of_its_upstream_the_next_if_it_fails(
    start_gateway: StartGateway, tmp_path: Path, failing: int
):
    asked = dict[str, None]()

    async def listed(request: web.Request) -> web.Response:
        asked[request.host] = None  # a GET that breaks off is sent there once more
        failed = len(asked) <= failing
        if failed and len(asked) == 2 and request.transport is not None:
            request.transport.abort()
        data = {"object": "list", "data": [{"id": "m"}]}
        return web.json_response(data, status=500 if failed else 200)

    async def ready(_: web.Request) -> web.Response:
        return web.json_response({})

    async with AsyncExitStack() as stack:
        addresses = []
        for _ in range(5):
            app = web.Application()
            app.router.add_get("/v1/models", listed)
            app.router.add_get("/readyz", ready)
            runner, url = await start_app(app)
            stack.push_async_callback(runner.cleanup)
            addresses.append(url.removeprefix("http://"))
        file = tmp_path / "replicas.txt"
        file.write_text("\n".join(addresses))
        one = {"name": "gpu", "url": "http://gpu/v1", "discover": {"file": file}}
        gateway = await start_gateway(upstream=(), upstreams=(one,))
        reply = await gateway.get("/v1/models")
    assert len(asked) == min(failing + 1, 3)
    assert reply.status == (200 if failing < 3 else 500)


async def test_where_nobody_lists_the_first_error_passes(
    start_gateway: StartGateway, listing: StartListing
):
    gateway = await pool(start_gateway, {"url": CLOSED}, await listing("b", "m", status=401))
    assert (await gateway.get("/v1/models")).status == 401
    gateway = await pool(start_gateway, {"url": CLOSED}, {"url": CLOSED})
    reply = await gateway.get("/v1/models")
    assert (reply.status, reply.json["error"]["code"]) == (502, "upstream-unreachable")


async def test_any_other_path_goes_to_the_first_that_can_be_reached(
    start_gateway: StartGateway, listing: StartListing
):
    gateway = await pool(start_gateway, {"url": CLOSED}, await listing("b"), await listing("c"))
    for _ in range(2):
        reply = await gateway.post("/v1/files?x=1", b'{"a": 1}')
        assert (reply.json["at"], reply.json["path"]) == ("b", "/v1/files?x=1")
        assert reply.json["body"] == '{"a": 1}'
        assert reply.headers["X-Refrain-Upstream"].startswith("b")


async def test_a_model_is_asked_about_where_it_is_served(
    start_gateway: StartGateway, listing: StartListing
):
    gateway = await pool(
        start_gateway,
        await listing("a"),
        await listing("b"),
        models={"a": ["gpt*"], "b": ["org/*"]},
    )
    assert (await gateway.get("/v1/models/org/m")).json["at"] == "b"
    assert (await gateway.get("/v1/models/gpt-9")).json["at"] == "a"


async def test_each_upstream_gets_its_own_key_and_no_clients(
    start_gateway: StartGateway,
    listing: StartListing,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
):
    keys = tmp_path / "keys"
    keys.write_text(f"ann {sha256(b'clients-key').hexdigest()}\n")
    (tmp_path / "b-key").write_text("key-of-b\n")
    monkeypatch.setenv("KEY_OF_A", "key-of-a")
    gateway = await pool(
        start_gateway,
        {**await listing("a"), "models": ["gpt*"], "api_key_env": "KEY_OF_A"},
        {**await listing("b"), "models": ["org/*"], "api_key_file": tmp_path / "b-key"},
        gateway_keys=keys,
    )
    bearer = {"Authorization": "Bearer clients-key"}
    for model, at in (("gpt-9", "a"), ("org/m", "b")):
        reply = await gateway.get(f"/v1/models/{model}", headers=bearer)
        assert (reply.json["at"], reply.json["key"]) == (at, f"Bearer {KEYS[at]}")


def test_names_that_no_conversation_is_held_with_come_last():
    ids = ["bge-m3", "org/e5-large", "qwen3", "whisper-1", "gpt-image-1", "storage-chat", "tts-1"]
    models = [{"id": one} for one in ids]
    assert [one["id"] for one in merge([(Member("a"), models)])][:2] == ["qwen3", "storage-chat"]
