"""Upstreams that declare nothing: each model goes where it is listed. Pages are no answers."""

import asyncio
import threading
from collections.abc import AsyncIterator, Callable
from contextlib import AsyncExitStack
from dataclasses import dataclass, field
from hashlib import sha256
from pathlib import Path
from typing import Any

import orjson
import pytest
from aiohttp import web
from raw_upstream import StartRaw, raw_servers, sends, whole

from gateway.protocol.request import LARGE_BYTES
from gateway.upstream.pool.routing import LeastLoaded
from gateway.upstream.pool.table import LACK_SECONDS, Call, PoolTable
from gateway.upstream.pool.upstream_state import Member
from gateway.upstream.pool.watch.probes import (
    MODELS_SECONDS,
    MODELS_SOONEST,
    ModelLists,
    listing_of,
)
from gateway.upstream.request import Outgoing
from gateway.upstream.wire.http_client import HttpUpstream
from running_gateway import RunningGateway, StartGateway, start_app
from scripted_upstream import completion

HTML = b"Content-Type: text/html\r\n"
PAGE = b"<!doctype html><title>Log in</title>"


@dataclass
class Host:
    """A server of some models, that says so."""

    models: tuple[str, ...] = ()
    listed: tuple[str, ...] | None = None
    """What its list says, if it is not the models."""
    strict: bool = True
    asked: list[str] = field(default_factory=list)
    lists: int = 0
    hangs: bool = False
    url: str = ""

    async def handle(self, request: web.Request) -> web.StreamResponse:
        if request.path == "/v1/models":
            self.lists += 1
            if self.hangs:
                await asyncio.Event().wait()
            names = self.models if self.listed is None else self.listed
            return web.json_response({"data": [{"id": name, "object": "model"} for name in names]})
        model = (await request.json())["model"]
        self.asked.append(model)
        if self.strict and model not in self.models:
            error = {"message": f"The model `{model}` does not exist.", "code": "model_not_found"}
            return web.json_response({"error": error}, status=404)
        return web.json_response(completion(f"By {self.models}."))


StartHost = Callable[..., Any]


@pytest.fixture
async def host() -> AsyncIterator[StartHost]:
    async with AsyncExitStack() as stack:

        async def start(*models: str, **facts: Any) -> Host:
            one = Host(models, **facts)
            app = web.Application()
            app.router.add_route("*", "/{tail:.*}", one.handle)
            runner, one.url = await start_app(app)
            stack.push_async_callback(runner.cleanup)
            return one

        yield start


@pytest.fixture
async def raw() -> AsyncIterator[StartRaw]:
    async with raw_servers() as start:
        yield start


async def short(start: StartGateway, *hosts: Host) -> RunningGateway:
    return await start(upstream=tuple(f"{one.url}/v1" for one in hosts))


async def ask(gateway: RunningGateway, model: str, number: int = 0) -> int:
    reply = await gateway.ask(f"question {number}", model=model)
    return reply.status


async def test_two_upstreams_of_different_models_work_at_once(
    start_gateway: StartGateway, host: StartHost
):
    # They would answer for any model, as some servers do.
    first, second = await host("a", strict=False), await host("b", strict=False)
    gateway = await short(start_gateway, first, second)
    for number in range(3):
        assert [await ask(gateway, model, number) for model in "ab"] == [200, 200]
    assert (first.asked, second.asked) == (["a"] * 3, ["b"] * 3)


async def test_a_model_of_a_list_that_comes_late_is_searched(
    start_gateway: StartGateway, host: StartHost
):
    first, second = await host("a", listed=()), await host("b", listed=())
    gateway = await short(start_gateway, first, second)
    for number in range(6):
        assert [await ask(gateway, model, number) for model in "ab"] == [200, 200]
    # Each was asked once for the other's model, and remembered.
    assert first.asked.count("b") <= 1
    assert second.asked.count("a") <= 1


async def test_a_model_that_nobody_has_costs_one_call_each_and_then_one(
    start_gateway: StartGateway, host: StartHost
):
    hosts = [await host("a"), await host("b"), await host("c")]
    gateway = await short(start_gateway, *hosts)
    reply = await gateway.ask(model="typo")
    assert (reply.status, reply.json["error"]["code"]) == (404, "model_not_found")
    assert sum(len(one.asked) for one in hosts) == 3
    assert await ask(gateway, "typo", 1) == 404
    assert sum(len(one.asked) for one in hosts) == 4


def test_a_model_that_an_upstream_lacks_is_searched_there_again_after_a_while():
    table = PoolTable([Member("a"), Member("b")], LeastLoaded(), 0.0)
    asked = Outgoing("/v1/chat/completions", (), b"{}", "m", client="ann")
    for name in ("a", "b"):
        table.record_lack(name, asked, 0.0)
    assert not table.may_have(asked, "a")
    call = table.acquire(asked, LACK_SECONDS)
    assert isinstance(call, Call)
    assert table.may_have(asked, call.name)


def test_replicas_have_the_same_models_and_a_long_name_is_no_model():
    members = [Member(f"a#{number}") for number in range(9)]
    table = PoolTable(members, LeastLoaded(), 0.0)
    asked = Outgoing("/v1/chat/completions", (), b"{}", "m")
    table.record_lack(members[0].name, asked, 0.0)
    assert not table.may_have(asked, members[0].name)
    table = PoolTable([Member("a"), Member("b")], LeastLoaded(), 0.0)
    asked = Outgoing("/v1/chat/completions", (), b"{}", "m" * 400)
    table.record_lack("a", asked, 0.0)
    assert not table.may_have(asked, "a")


async def test_globs_rule_where_they_are_declared(start_gateway: StartGateway, host: StartHost):
    first, second = await host("a", strict=False), await host("b")
    listed = [
        {"name": "one", "url": f"{first.url}/v1", "models": ["b*"]},
        {"name": "two", "url": f"{second.url}/v1", "tier": 2},
    ]
    gateway = await start_gateway(upstream=(), upstreams=listed)
    assert await ask(gateway, "b") == 200
    assert (first.asked, second.asked) == (["b"], [])
    assert await ask(gateway, "c") == 404
    assert first.asked == ["b"]


def table(*names: str) -> PoolTable:
    return PoolTable([Member(name) for name in names], LeastLoaded(), 0.0)


def goes_to(pool: PoolTable, model: str, client: str | None = None) -> set[str]:
    outgoing = Outgoing("/v1/chat/completions", (), b"{}", model, client=client)
    calls = [pool.acquire(outgoing, 1.0) for _ in range(4)]
    for call in calls:
        assert isinstance(call, Call)
        pool.release(call)
    return {call.name for call in calls if isinstance(call, Call)}


def test_an_upstream_without_a_list_stays_a_candidate():
    pool = table("a", "b", "c")
    pool.record_models("a", frozenset({"x"}))
    pool.record_models("b", frozenset())
    assert goes_to(pool, "x") == {"a", "b", "c"}
    assert goes_to(pool, "y") == {"b", "c"}


def test_a_list_that_changes_changes_the_way():
    pool, wanted = table("a", "b"), list[str]()
    pool.unlisted = wanted.append
    pool.record_models("a", frozenset({"x"}))
    pool.record_models("b", frozenset({"y"}))
    assert (goes_to(pool, "x"), goes_to(pool, "z"), wanted) == ({"a"}, {"a", "b"}, ["z"])
    pool.record_lack("a", Outgoing("/v1/chat/completions", (), b"{}", "z", client="ann"), 0.0)
    assert (goes_to(pool, "z", "ann"), goes_to(pool, "z")) == ({"b"}, {"a", "b"})
    pool.record_models("a", frozenset({"x", "z"}))
    assert goes_to(pool, "z") == {"a"}


@pytest.mark.parametrize(
    ("body", "names"),
    [
        ({"data": [{"id": "models/gemini"}]}, {"models/gemini", "gemini"}),
        ({"data": [{"id": "llama:latest"}]}, {"llama:latest", "llama"}),
        ({"data": [{"id": "a"}, {"id": 5}, "b"]}, {"a"}),
        ({"data": [{"id": "a"}], "has_more": True}, set()),
        ({"data": []}, set()),
        ({"models": []}, None),
        ([], None),
    ],
)
def test_what_a_list_names(body: Any, names: set[str] | None):
    listing = listing_of(orjson.dumps(body))
    assert (None if listing is None else set(listing.names)) == names


async def test_lists_are_read_again_in_time_and_soon_if_a_model_is_wanted(host: StartHost):
    one, now, told = await host("a"), [0.0], list[frozenset[str]]()
    upstream = HttpUpstream(f"{one.url}/v1", name="a")
    await upstream.open()
    lists = ModelLists({"a": upstream}, lambda: now[0], lambda _, names: told.append(names))
    try:
        await lists.read_all(5.0)
        assert told == [frozenset({"a"})]
        one.models = ("a", "b")
        for seconds, due in ((MODELS_SOONEST, False), (MODELS_SECONDS, True)):
            now[0] = seconds
            assert lists.is_due("a") is due
        await lists.read("a")
        lists.want("c")
        assert not lists.is_due("a")
        now[0] += MODELS_SOONEST
        assert lists.is_due("a")
        one.listed = ()
        await lists.read("a")
        assert told[1:] == [frozenset({"a", "b"}), frozenset()]
    finally:
        await upstream.close()


async def test_the_list_of_models_comes_in_time_with_what_is_known(
    start_gateway: StartGateway, host: StartHost
):
    first, second = await host("a"), await host("b")
    gateway = await short(start_gateway, first, second)
    first.hangs = True
    async with asyncio.timeout(5):
        reply = await gateway.get("/v1/models")
    assert [model["id"] for model in reply.json["data"]] == ["a", "b"]


NO_ANSWERS = {
    "a page": whole(PAGE, kind=HTML),
    "a page as JSON": whole(PAGE),
    "nothing": whole(b""),
    "nothing of no type": b"HTTP/1.1 204 No Content\r\n\r\n",
    "a word": whole(b"OK", kind=b"Content-Type: text/plain\r\n"),
    "half a completion": whole(b'{"id": "c", "choices": [{"index": 0,'),
    "a long page": whole(PAGE + b"x" * 200_000, kind=HTML),
    "a page that was created": whole(PAGE, kind=HTML, status=b"201 Created"),
}


@pytest.mark.parametrize("streamed", [False, True])
@pytest.mark.parametrize("reply", NO_ANSWERS.values(), ids=NO_ANSWERS)
async def test_a_page_is_answered_by_another_upstream_or_a_fault(
    start_gateway: StartGateway, raw: StartRaw, host: StartHost, reply: bytes, *, streamed: bool
):
    page, good = await raw(sends(reply)), await host("m", strict=False)
    listed = [
        {"name": "a", "url": page.url, "probe": "off"},
        {"name": "b", "url": f"{good.url}/v1", "tier": 2, "probe": "off"},
    ]
    gateway = await start_gateway(upstream=(), upstreams=listed)
    told = await gateway.ask("one", stream=streamed)
    assert (told.status, told.headers["X-Refrain-Upstream"]) == (200, 'b; tried="a=upstream-broke"')
    alone = await start_gateway(upstream=page.url, data_dir=gateway.data_dir / "other")
    for number in range(3):
        told = await alone.ask(f"question {number}", stream=streamed)
        assert (told.status, told.json["error"]["code"]) == (502, "upstream-broke")
        assert b"Log in" not in told.raw
    [state] = (await alone.get("/readyz")).json["upstreams"].values()
    # On a busy machine the ejection of half a second may be over.
    assert (state["state"] in ("open", "trial"), state["why"]) == (True, "upstream-broke")


async def test_a_page_passes_through_only_where_it_may_be_asked_for(
    start_gateway: StartGateway, raw: StartRaw
):
    gateway = await start_gateway(upstream=(await raw(sends(whole(PAGE, kind=HTML)))).url)
    for path in ("/v1/files", "/v1/fine_tuning/jobs"):
        reply = await gateway.get(path)
        assert (reply.status, reply.json["error"]["code"]) == (502, "upstream-broke")
    assert (await gateway.post("/v1/moderations", b'{"input": "hi"}')).status == 502
    assert (await gateway.get("/v1/files/file-1/content")).raw == PAGE
    browser = {"Accept": "text/html,application/xhtml+xml"}
    assert (await gateway.get("/v1/docs", headers=browser)).raw == PAGE


@pytest.mark.parametrize(
    "kind", [b"audio/mpeg", b"application/octet-stream", b"text/plain", b"image/png"]
)
async def test_other_bytes_pass_through_as_they_come(
    start_gateway: StartGateway, raw: StartRaw, kind: bytes
):
    sound = bytes(range(256)) * 500
    server = await raw(sends(whole(sound, kind=b"Content-Type: " + kind + b"\r\n")))
    gateway = await start_gateway(upstream=server.url)
    reply = await gateway.post("/v1/audio/speech", b'{"model": "tts-1", "input": "hi"}')
    assert (reply.status, reply.raw) == (200, sound)


async def test_a_listed_model_that_is_refused_is_no_answer_to_the_client(
    start_gateway: StartGateway, host: StartHost, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setenv("REFRAIN_UPSTREAM_API_KEY", "sk-1")
    keys = tmp_path / "keys"
    keys.write_text(f"ann {sha256(b'ann').hexdigest()}\n")
    first = await host("a", listed=("a", "b"))
    alone = await start_gateway(upstream=f"{first.url}/v1", gateway_keys=keys)
    bearer = {"Authorization": "Bearer ann"}
    async with asyncio.timeout(30):
        while not first.lists:
            await alone.get("/healthz")
    assert (await alone.ask(model="a", headers=bearer)).status == 200
    told = await alone.ask(model="b", headers=bearer)
    assert (told.status, told.json["error"]["code"]) == (502, "upstream-refused")
    assert (await alone.ask(model="c", headers=bearer)).status == 404
    second = await host("b", strict=False)
    urls = (f"{first.url}/v1", f"{second.url}/v1")
    several = await start_gateway(
        upstream=urls, gateway_keys=keys, data_dir=alone.data_dir / "other"
    )
    for number in range(4):
        told = await several.ask(f"{number}", model="b", headers=bearer)
        assert told.status == 200
    assert first.asked.count("b") <= 2
    states = (await several.get("/readyz")).json["upstreams"].values()
    assert {state["state"] for state in states} == {"up"}


async def test_a_model_is_searched_where_a_list_leaves_it_out(
    start_gateway: StartGateway, host: StartHost
):
    # Lists leave aliases out, such as Anthropic's `-latest` and OpenRouter's `:online`.
    first, second = await host("x", "x-latest", listed=("x",)), await host("y", listed=())
    gateway = await short(start_gateway, first, second)
    assert [await ask(gateway, "x-latest", number) for number in range(3)] == [200] * 3
    assert second.asked.count("x-latest") == 1
    assert await ask(gateway, "typo") == 404


async def test_a_large_request_too_is_refused_by_the_thread_that_owns_the_table(
    start_gateway: StartGateway, host: StartHost, monkeypatch: pytest.MonkeyPatch
):
    threads = list[threading.Thread]()
    refuse = PoolTable.refuse_unknown

    def watched(table: PoolTable, model: str) -> None:
        threads.append(threading.current_thread())
        refuse(table, model)

    monkeypatch.setattr(PoolTable, "refuse_unknown", watched)
    one = await host("a")
    named = [{"name": "one", "url": f"{one.url}/v1", "models": ["a"]}]
    gateway = await start_gateway(upstream=(), upstreams=named, unknown_models="refuse")
    long = "word " * (LARGE_BYTES // 4)
    assert (await gateway.ask(long, model="typo")).status == 404
    assert (await gateway.ask(long, model="a")).status == 200
    assert threads
    assert set(threads) == {threading.current_thread()}
