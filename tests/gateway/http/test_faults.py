"""Bad input, and an upstream that is down, slow or dies: what the client is told, in which form."""

import asyncio
import logging
import os
from pathlib import Path
from typing import Any

import orjson
import pytest
from aiohttp import web
from ports import closed_port

from running_gateway import RunningGateway, StartGateway
from scripted_upstream import ScriptedUpstream, chunk, completion

MESSAGES = [{"role": "user", "content": "hi"}]


def body(**changes: Any) -> bytes:
    fields = {"model": "m", "messages": MESSAGES, **changes}
    return orjson.dumps({name: value for name, value in fields.items() if value is not ...})


BAD = {
    "invalid JSON": (b'{"model": ', None, None),
    "not an object": (b"[1]", None, None),
    "empty": (b"", None, None),
    "invalid UTF-8": (b'{"model": "\xff"}', None, None),
    "duplicate key": (b'{"model": "m", "model": "n", "messages": []}', None, None),
    "deep duplicate": (
        b'{"model": "m", "messages": [{"role": "user", "content": "a", "content": "b"}]}',
        None,
        None,
    ),
    "model a number": (body(model=1), "model", "invalid_type"),
    "model of 20 KB": (body(model="/m" * 10_000), "model", None),
    "missing messages": (body(messages=...), "messages", "missing_required_parameter"),
    "no role": (
        body(messages=[{"content": "a"}]),
        "messages[0].role",
        "missing_required_parameter",
    ),
    "temperature a string": (body(temperature="hot"), "temperature", "invalid_type"),
}


@pytest.mark.parametrize(("raw", "param", "code"), BAD.values(), ids=BAD.keys())
async def test_bad_input_is_refused_at_once_in_openai_form(
    gateway: RunningGateway,
    upstream: ScriptedUpstream,
    raw: bytes,
    param: str | None,
    code: str | None,
):
    reply = await gateway.post("/v1/chat/completions", raw)

    assert reply.status == 400
    error = reply.json["error"]
    assert error.keys() == {"message", "type", "param", "code"}
    assert error["type"] == "invalid_request_error"
    assert error["message"]
    assert (error["param"], error["code"]) == (param, code)
    assert upstream.calls == 0
    assert (await gateway.ask()).status == 200


async def test_a_connection_stays_usable_after_bad_input(gateway: RunningGateway):
    port = int(gateway.url.rpartition(":")[2])
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    for raw, status in ((b"{", b"400"), (body(), b"200"), (body(messages=[]), b"400")):
        head = (
            f"POST /v1/chat/completions HTTP/1.1\r\nHost: a\r\nContent-Length: {len(raw)}\r\n\r\n"
        )
        writer.write(head.encode() + raw)
        async with asyncio.timeout(60):
            reply = await reader.readuntil(b"\r\n\r\n")
            assert reply.split(b" ", 2)[1] == status
            length = int(reply.lower().partition(b"content-length:")[2].split(b"\r\n")[0])
            await reader.readexactly(length)
    writer.close()
    await writer.wait_closed()


async def test_a_body_over_the_limit_is_413(start_gateway: StartGateway):
    gateway = await start_gateway(max_body_bytes=2048)
    reply = await gateway.ask("x" * 4096)

    assert reply.status == 413
    assert reply.json["error"].keys() == {"message", "type", "param", "code"}


async def test_unknown_paths_are_404_in_openai_form(gateway: RunningGateway):
    for path in ("/", "/nothing", "/v2/chat/completions"):
        reply = await gateway.get(path)
        assert reply.status == 404
        assert reply.json["error"]["code"] == "unknown_url"


@pytest.mark.parametrize("streamed", [False, True])
async def test_an_upstream_that_is_down_is_502_with_the_reason(
    start_gateway: StartGateway, streamed: bool
):
    with closed_port() as port:
        gateway = await start_gateway(upstream=(f"http://127.0.0.1:{port}/v1",))
        reply = await gateway.ask(stream=streamed)

        assert reply.status == 502
        assert reply.json["error"]["code"] == "upstream-unreachable"
        assert reply.json["error"]["type"] == "upstream_error"
        assert reply.cache == "refrain; fwd=miss; detail=upstream-unreachable"
        models = await gateway.get("/v1/models")
        assert models.status == 502
        assert models.json["error"]["code"] == "upstream-unreachable"


async def test_an_upstream_that_accepts_and_stalls_is_504(
    start_gateway: StartGateway, upstream: ScriptedUpstream
):
    async def answer(_request: web.Request, _body: dict[str, Any]) -> web.StreamResponse:
        await asyncio.Event().wait()
        raise AssertionError

    upstream.answer = answer
    gateway = await start_gateway(read_timeout=0.2)
    reply = await gateway.ask()

    assert reply.status == 504
    assert reply.json["error"]["code"] == "upstream-timeout"


@pytest.mark.parametrize("status", [400, 401, 404, 429, 500, 503])
async def test_errors_of_the_upstream_pass_unchanged_and_are_not_stored(
    gateway: RunningGateway, upstream: ScriptedUpstream, status: int
):
    error = {"error": {"message": "no", "type": "t", "param": None, "code": "c"}}

    async def answer(_request: web.Request, _body: dict[str, Any]) -> web.StreamResponse:
        return web.json_response(error, status=status, headers={"Retry-After": "7"})

    upstream.answer = answer
    for streamed in (False, True):
        reply = await gateway.ask(stream=streamed)
        assert (reply.status, reply.json, reply.headers["Retry-After"]) == (status, error, "7")
        assert reply.cache == "refrain; fwd=miss; detail=upstream-status"
    # The stream is sent once more without what the gateway had added.
    assert upstream.calls == (3 if status in (400, 422) else 2)


async def test_an_upstream_that_dies_mid_stream_becomes_an_error_event(
    gateway: RunningGateway, upstream: ScriptedUpstream
):
    async def answer(request: web.Request, _body: dict[str, Any]) -> web.StreamResponse:
        response = web.StreamResponse(headers={"Content-Type": "text/event-stream"})
        await response.prepare(request)
        await response.write(chunk(delta={"role": "assistant", "content": "half"}))
        assert request.transport is not None
        request.transport.abort()
        return response

    upstream.answer = answer
    reply = await gateway.ask(stream=True)

    assert reply.events[0]["choices"][0]["delta"]["content"] == "half"
    assert reply.events[-1]["error"].keys() == {"message", "type", "param", "code"}
    assert reply.events[-1]["error"]["code"] == "upstream-broke"
    assert b"[DONE]" not in reply.raw
    assert (await gateway.ask(stream=True)).cache == "refrain; fwd=miss"


async def test_an_upstream_that_dies_in_a_plain_answer_is_502(
    gateway: RunningGateway, upstream: ScriptedUpstream
):
    async def answer(request: web.Request, _body: dict[str, Any]) -> web.StreamResponse:
        response = web.StreamResponse(headers={"Content-Type": "application/json"})
        response.content_length = 1000
        await response.prepare(request)
        await response.write(b'{"half":')
        assert request.transport is not None
        request.transport.abort()
        return response

    upstream.answer = answer
    reply = await gateway.ask()
    assert reply.status == 502
    assert reply.json["error"]["code"] == "upstream-broke"


async def test_an_answer_over_the_limit_passes_whole_but_is_not_stored(
    start_gateway: StartGateway, upstream: ScriptedUpstream
):
    async def answer(_request: web.Request, _body: dict[str, Any]) -> web.StreamResponse:
        return web.json_response(completion("x" * 100_000))

    upstream.answer = answer
    gateway = await start_gateway(max_answer_bytes=4096)
    for _ in range(2):
        reply = await gateway.ask()
        assert len(reply.text) == 100_000
        assert reply.cache == "refrain; fwd=miss; detail=too-large"
    assert upstream.calls == 2


async def test_a_broken_policy_edit_keeps_the_last_good_policy(
    start_gateway: StartGateway, upstream: ScriptedUpstream, tmp_path: Path
):
    policy = tmp_path / "policy.yaml"
    rest = "exact: on, semantic: off, scope: tenant, pii: bypass"
    good = f"default: {{{rest}, freshness: 1h}}\n"
    policy.write_text(f"version: 1\n{good}")
    gateway = await start_gateway(policy=policy)
    await gateway.ask()
    policy.write_text(f"version: 1\ndefault: {{{rest}, freshness: soon}}\n")

    async with asyncio.timeout(60):
        while (report := (await gateway.get("/readyz")).json)["policy"]["problem"] is None:
            pass
    assert f"{policy}:2" in report["policy"]["problem"]
    assert report["status"] == "ready"
    assert "hit" in (await gateway.ask()).cache

    policy.write_text(f"version: 1\ngeneration: 2\n{good}")
    async with asyncio.timeout(60):
        while (report := (await gateway.get("/readyz")).json)["policy"]["generation"] != 2:
            pass
    assert report["policy"]["problem"] is None
    assert (await gateway.ask()).cache == "refrain; fwd=miss; stored"
    assert upstream.calls == 2


def no_folder(file: Path) -> None:
    file.mkdir()


def no_pipe(file: Path) -> None:
    os.mkfifo(file)


@pytest.mark.parametrize("make", [no_folder, no_pipe])
async def test_a_store_file_that_is_none_costs_the_hits_and_is_a_problem_with_one_line(
    start_gateway: StartGateway, tmp_path: Path, caplog: pytest.LogCaptureFixture, make: Any
):
    caplog.set_level(logging.INFO, "gateway")
    data_dir = tmp_path / "data"
    data_dir.mkdir()
    make(data_dir / "entries.sqlite3")
    gateway = await start_gateway(data_dir=data_dir)
    for n in range(20):
        reply = await gateway.ask(f"question {n}")
        assert (reply.status, "stored" in reply.cache) == (200, False)
    ready = await gateway.get("/readyz")
    assert ready.status == 200
    assert ready.json["store"]["problem"] == "not answering"
    assert "entries.sqlite3" in ready.json["store"]["why"]
    assert len([line for line in caplog.messages if line.startswith("store:")]) == 1
    assert len(caplog.records) < 10
