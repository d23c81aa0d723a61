"""Requests and upstreams that mean harm, or are merely odd: each was once a defect."""

import asyncio
import gzip
import io
import threading
from collections.abc import Awaitable, Callable, Iterator
from typing import Any

import orjson
import pytest
from aiohttp import web

from gateway.protocol import conversation
from gateway.protocol.conversation import prompt_text
from gateway.protocol.request import LARGE_BYTES, CacheRequest, read_request
from running_gateway import RunningGateway, StartGateway
from scripted_upstream import DONE, ScriptedUpstream, chunk, completion, stream_of


async def raw_exchange(gateway: RunningGateway, head: list[str], body: bytes) -> bytes:
    """Send a request line by line, as no client library would, and return the reply's head."""
    port = int(gateway.url.rpartition(":")[2])
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    lines = [*head, "Host: a", f"Content-Length: {len(body)}", "Connection: close", "", ""]
    writer.write("\r\n".join(lines).encode() + body)
    reply = await asyncio.wait_for(reader.read(), 60)
    writer.close()
    await writer.wait_closed()
    return reply.partition(b"\r\n\r\n")[0]


BODY = orjson.dumps({"model": "m", "messages": [{"role": "user", "content": "hi"}]})
POST = "POST /v1/chat/completions HTTP/1.1"


async def test_the_query_is_part_of_the_key(gateway: RunningGateway, upstream: ScriptedUpstream):
    await gateway.post("/v1/chat/completions?key=anna", BODY)
    other = await gateway.post("/v1/chat/completions?key=bert", BODY)

    assert other.cache == "refrain; fwd=miss; stored"
    assert upstream.requests[1].query_string == "key=bert"
    assert "hit" in (await gateway.post("/v1/chat/completions?key=anna", BODY)).cache


async def test_every_line_of_a_repeated_header_counts(
    gateway: RunningGateway, upstream: ScriptedUpstream
):
    await raw_exchange(gateway, [POST, "Authorization: Bearer gw"], BODY)
    for second in ("Bearer anna", "Bearer bert"):
        lines = [POST, "Authorization: Bearer gw", f"Authorization: {second}"]
        assert b"refrain; fwd=miss; stored" in await raw_exchange(gateway, lines, BODY)
    lines = [POST, "Cache-Control: max-age=100", "Cache-Control: no-store"]
    assert b"detail=no-store" in await raw_exchange(gateway, lines, BODY)
    assert upstream.calls == 4


@pytest.mark.parametrize(
    "path",
    ["/v1/../secret", "/v1/%2e%2e/secret", "/v1/a/..%2f..%2fb", "/v1/%252e%252e/b", "/v1/..;/b"],
)
async def test_no_path_leads_out_of_the_base_url(
    gateway: RunningGateway, upstream: ScriptedUpstream, path: str
):
    head = await raw_exchange(gateway, [f"GET {path} HTTP/1.1"], b"")
    assert b" 404 " in head
    assert upstream.requests == []


async def test_a_body_that_is_not_what_its_encoding_says_is_400(gateway: RunningGateway):
    reply = await gateway.post(
        "/v1/chat/completions", b"not gzip", headers={"Content-Encoding": "gzip"}
    )
    assert reply.status == 400
    assert reply.json["error"].keys() == {"message", "type", "param", "code"}


async def test_an_encoded_body_is_understood(gateway: RunningGateway, upstream: ScriptedUpstream):
    packed = gzip.compress(BODY)
    reply = await gateway.post("/v1/chat/completions", packed, headers={"Content-Encoding": "gzip"})
    assert reply.cache == "refrain; fwd=miss; stored"
    assert upstream.raw == [BODY]
    assert "hit" in (await gateway.post("/v1/chat/completions", BODY)).cache


async def test_a_defect_of_ours_is_500_in_openai_form(
    gateway: RunningGateway, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
):
    def broken(*_of: Any) -> bytes:
        raise ZeroDivisionError

    monkeypatch.setattr("gateway.cache.key.canonical_form", broken)
    reply = await gateway.ask("secret words")

    assert reply.status == 500
    assert reply.json["error"]["code"] == "internal-error"
    assert "ZeroDivisionError" in caplog.text
    assert "secret words" not in caplog.text


async def test_a_reply_is_asked_for_as_the_client_asked(
    gateway: RunningGateway, upstream: ScriptedUpstream
):
    await raw_exchange(gateway, ["GET /v1/files HTTP/1.1"], b"")
    await raw_exchange(gateway, ["GET /v1/files HTTP/1.1", "Accept-Encoding: br"], b"")
    first, second = (request.headers for request in upstream.requests)
    assert "Accept-Encoding" not in first
    assert "User-Agent" not in first
    assert second["Accept-Encoding"] == "br"


async def test_an_upload_keeps_its_length(gateway: RunningGateway, upstream: ScriptedUpstream):
    await raw_exchange(gateway, ["POST /v1/files HTTP/1.1"], b"abc")
    headers = upstream.requests[0].headers
    assert headers["Content-Length"] == "3"
    assert "Transfer-Encoding" not in headers


async def test_headers_of_one_connection_do_not_travel(
    gateway: RunningGateway, upstream: ScriptedUpstream
):
    async def answer(_request: web.Request, _body: dict[str, Any]) -> web.StreamResponse:
        headers = {"Connection": "X-Hop", "X-Hop": "1", "X-End": "2", "Cache-Status": "cdn; hit"}
        return web.json_response(completion("a"), headers=headers)

    upstream.answer = answer
    lines = [POST, "Connection: X-Mine", "X-Mine: 1", "X-Theirs: 2", "Proxy-Authorization: s"]
    head = await raw_exchange(gateway, lines, BODY)

    sent = upstream.requests[0].headers
    assert "X-Mine" not in sent
    assert "Proxy-Authorization" not in sent
    assert sent["X-Theirs"] == "2"
    assert b"X-Hop" not in head
    assert b"X-End: 2" in head
    assert b"Cache-Status: cdn; hit, refrain; fwd=miss; stored" in head


def streaming(events: list[bytes]) -> Callable[..., Awaitable[web.StreamResponse]]:
    async def answer(request: web.Request, _body: dict[str, Any]) -> web.StreamResponse:
        response = web.StreamResponse(headers={"Content-Type": "text/event-stream"})
        await response.prepare(request)
        for event in events:
            await response.write(event)
        return response

    return answer


async def test_a_last_event_without_its_blank_line_still_counts(
    gateway: RunningGateway, upstream: ScriptedUpstream
):
    upstream.answer = streaming([*stream_of("all of it")[:-1], b"data: [DONE]\n"])
    first = await gateway.ask(stream=True)
    assert first.raw.endswith(b"data: [DONE]\n")
    assert "hit" in (await gateway.ask(stream=True)).cache


async def test_an_odd_stream_still_reaches_the_client_byte_for_byte(
    gateway: RunningGateway, upstream: ScriptedUpstream
):
    odd = [
        b": comment\n\n",
        b'event: x\r\ndata: {"choices": 5}\r\n\r\n',
        chunk(delta={"role": "assistant"}, logprobs=None),
        chunk(delta={"content": "a"}, logprobs={"content": [{"token": "a"}]}),
        b"data: " + b"[" * 3000 + b"\n\n",
        chunk(finish_reason="stop"),
        DONE,
    ]
    upstream.answer = streaming(odd)
    assert (await gateway.ask(stream=True)).raw == b"".join(odd)


async def test_an_error_that_only_quotes_the_client_changes_nothing(
    gateway: RunningGateway, upstream: ScriptedUpstream
):
    async def answer(_request: web.Request, body: dict[str, Any]) -> web.StreamResponse:
        error = {"error": {"message": f"I do not like {body['messages'][0]['content']}"}}
        return web.json_response(error, status=400)

    upstream.answer = answer
    for _ in range(2):
        assert (await gateway.ask("stream_options", stream=True)).status == 400
    asked = ["stream_options" in body for body in upstream.bodies]
    assert asked == [True, False, True, False]


async def test_a_second_done_is_only_passed_on(gateway: RunningGateway, upstream: ScriptedUpstream):
    upstream.answer = streaming([*stream_of("once"), DONE])
    assert (await gateway.ask(stream=True)).raw.count(DONE) == 2
    assert "hit" in (await gateway.ask(stream=True)).cache


async def test_a_client_that_stops_reading_is_let_go(
    start_gateway: StartGateway, upstream: ScriptedUpstream
):
    async def answer(request: web.Request, _body: dict[str, Any]) -> web.StreamResponse:
        response = web.StreamResponse(headers={"Content-Type": "text/event-stream"})
        await response.prepare(request)
        while True:
            await response.write(chunk(delta={"content": "x" * 65536}))

    upstream.answer = answer
    gateway = await start_gateway(client_timeout=0.1)
    port = int(gateway.url.rpartition(":")[2])
    _, writer = await asyncio.open_connection("127.0.0.1", port, limit=1024)
    body = orjson.dumps({**orjson.loads(BODY), "stream": True})
    writer.write(f"{POST}\r\nHost: a\r\nContent-Length: {len(body)}\r\n\r\n".encode() + body)
    await asyncio.wait_for(upstream.cancelled.wait(), 60)
    writer.close()


@pytest.mark.parametrize("path", ["/v1/chat/completions", "/v1/files"])
async def test_a_body_that_never_comes_is_408(start_gateway: StartGateway, path: str):
    gateway = await start_gateway(client_timeout=0.05)
    port = int(gateway.url.rpartition(":")[2])
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    writer.write(f"POST {path} HTTP/1.1\r\nHost: a\r\nContent-Length: 100\r\n\r\n".encode())
    head = await asyncio.wait_for(reader.readuntil(b"\r\n\r\n"), 60)
    assert b" 408 " in head
    writer.close()


async def test_a_cookie_that_the_upstream_sets_is_no_other_clients(
    start_gateway: StartGateway, upstream: ScriptedUpstream
):
    async def answer(_request: web.Request, _body: dict[str, Any]) -> web.StreamResponse:
        response = web.json_response(completion("Fine."))
        response.set_cookie("session", "annas")
        return response

    upstream.answer = answer
    # By its name: cookies of addresses are not kept by most clients.
    named = upstream.url.replace("127.0.0.1", "localhost")
    gateway = await start_gateway(upstream=(f"{named}/v1",))
    anna = await gateway.ask(headers={"Authorization": "Bearer anna"})
    assert "annas" in anna.headers["Set-Cookie"]
    await gateway.ask(headers={"Authorization": "Bearer bert"})
    await gateway.get("/v1/models", headers={"Authorization": "Bearer bert"})
    assert [request.headers.get("Cookie") for request in upstream.requests] == [None] * 3


async def test_an_upstream_cannot_speak_in_the_gateways_name(
    gateway: RunningGateway, upstream: ScriptedUpstream
):
    async def forges(_request: web.Request, _body: dict[str, Any]) -> web.StreamResponse:
        told = ("Upstream", "Model", "Rewrite", "Compress")
        headers = {f"X-Refrain-{name}": "forged" for name in told}
        return web.json_response(completion("Hi."), headers={**headers, "X-Other": "kept"})

    upstream.answer = forges
    for question in ("one", "one", "two"):
        reply = await gateway.ask(question)
        assert [name for name in reply.headers if name.startswith("X-Refrain-")] == []
    assert reply.headers["X-Other"] == "kept"


@pytest.mark.parametrize("item", [b"{}", b"1.0", b"1e308"])
async def test_hundreds_of_thousands_of_values_are_refused(
    gateway: RunningGateway, upstream: ScriptedUpstream, item: bytes
):
    many = b'{"model": "m", "messages": [], "x": [' + (item + b",") * 510_000 + b"0]}"
    reply = await gateway.post("/v1/chat/completions", io.BytesIO(many))  # type: ignore[arg-type]
    assert (reply.status, reply.json["error"]["code"]) == (413, "request_too_large")
    assert reply.cache == "refrain; detail=invalid-request"
    assert upstream.calls == 0


def large_body(size: int) -> Any:
    body = {"model": "m", "messages": [{"role": "user", "content": "x" * size}]}
    return io.BytesIO(orjson.dumps(body))  # aiohttp warns of plain bytes


async def test_the_loop_serves_others_while_a_large_body_is_read(
    gateway: RunningGateway, monkeypatch: pytest.MonkeyPatch
):
    reads, may_end = threading.Event(), threading.Event()

    def read(*of: Any, **named: Any) -> CacheRequest:
        reads.set()
        assert may_end.wait(60)
        return read_request(*of, **named)

    monkeypatch.setattr("gateway.server.http.handlers.read_request", read)
    sizes = (LARGE_BYTES, 5 * LARGE_BYTES)  # with the parser of the hot path, and without
    asked = [
        asyncio.create_task(gateway.post("/v1/chat/completions", large_body(size)))
        for size in sizes
    ]
    assert await asyncio.to_thread(reads.wait, 60)
    assert (await gateway.get("/healthz")).status == 200
    may_end.set()
    assert [(await each).status for each in asked] == [200, 200]


@pytest.mark.parametrize("text", ["[" * 510_000, "[[[[[[ {" * 75_000])
async def test_brackets_in_a_text_are_no_objects(gateway: RunningGateway, text: str):
    body = {"model": "m", "messages": [{"role": "user", "content": text}]}
    raw = io.BytesIO(orjson.dumps(body))
    reply = await gateway.post("/v1/chat/completions", raw)  # type: ignore[arg-type]
    assert reply.status == 200


@pytest.mark.parametrize("many", [b'{"a": 1}, ', b"[ ], ", b'{ "a": "[" }, '])
async def test_objects_are_counted_however_they_are_written(gateway: RunningGateway, many: bytes):
    raw = b'{"model": "m", "messages": [], "x": [' + many * 500_001 + b"1]}"
    reply = await gateway.post("/v1/chat/completions", io.BytesIO(raw))  # type: ignore[arg-type]
    assert reply.status == 413


async def test_a_large_prompt_is_read_for_the_scan_off_the_event_loop(
    gateway: RunningGateway, monkeypatch: pytest.MonkeyPatch
):
    threads = []

    def read(*given: Any) -> str | None:
        threads.append(threading.current_thread())
        return prompt_text(*given)

    monkeypatch.setattr("gateway.server.context.prompt_text", read)
    assert (await gateway.ask("short")).status == 200
    assert (await gateway.ask("long " * 20_000)).status == 200
    assert [each is threading.main_thread() for each in threads] == [True, False]


@pytest.fixture
def name_readers(monkeypatch: pytest.MonkeyPatch) -> list[threading.Thread]:
    """The threads in which texts beside the prompt are read, from now on."""
    threads = []
    names = conversation.names

    def read(value: Any) -> Iterator[str]:
        if "ann" in str(value):
            threads.append(threading.current_thread())
        return names(value)

    monkeypatch.setattr(conversation, "names", read)
    return threads


async def test_large_texts_beside_the_prompt_are_read_off_the_event_loop(
    gateway: RunningGateway, name_readers: list[threading.Thread]
):
    assert (await gateway.ask("one", user="ann")).cache.endswith("; stored")
    assert (await gateway.ask("two", user="ann " * 20_000)).cache.endswith("; stored")
    assert [each is threading.main_thread() for each in name_readers] == [True, False]


async def test_texts_beside_the_prompt_are_not_read_where_the_answer_is_not_stored(
    gateway: RunningGateway, name_readers: list[threading.Thread]
):
    no_store = {"Cache-Control": "no-store"}
    assert (await gateway.ask("one", user="ann", headers=no_store)).status == 200
    assert name_readers == []


@pytest.mark.parametrize(
    ("status", "said"),
    [
        (422, {"detail": [{"type": "extra_forbidden", "loc": ["body"], "msg": "not permitted"}]}),
        (400, {"error": "bad request"}),
        (400, {"error": {"message": "Unknown parameter: 'stream_options'."}}),
    ],
)
async def test_a_refusal_is_tried_once_without_stream_options(
    gateway: RunningGateway, upstream: ScriptedUpstream, status: int, said: dict[str, Any]
):
    async def answer(request: web.Request, body: dict[str, Any]) -> web.StreamResponse:
        if "stream_options" in body:
            return web.json_response(said, status=status)
        return await streaming(stream_of("fine"))(request, body)

    upstream.answer = answer
    for question in ("one", "two"):
        reply = await gateway.ask(question, stream=True)
        assert (reply.text, reply.cache) == ("fine", "refrain; fwd=miss")
    assert ["stream_options" in body for body in upstream.bodies] == [True, False, False]
    assert "hit" in (await gateway.ask("one", stream=True)).cache
    own = await gateway.ask("three", stream=True, stream_options={"include_usage": True})
    assert own.status == status


def unasked(*, apart: bool) -> list[bytes]:
    """Return a stream whose upstream always reports usage, in a chunk of its own or not."""
    usage = {"prompt_tokens": 7, "completion_tokens": 3, "total_tokens": 10}
    *words, stop, done = stream_of("Hello.")
    last = orjson.loads(stop[6:])
    own = b"data: " + orjson.dumps({**last, "choices": [], "usage": usage}) + b"\n\n"
    beside = b"data: " + orjson.dumps({**last, "usage": usage}) + b"\n\n"
    return [*words, stop, own, done] if apart else [*words, beside, done]


async def test_usage_beside_a_choice_stays_in_the_stream(
    gateway: RunningGateway, upstream: ScriptedUpstream
):
    upstream.answer = streaming(unasked(apart=False))
    assert (await gateway.ask(stream=True)).raw == b"".join(unasked(apart=False))


async def test_usage_that_comes_unasked_stays_where_the_upstream_is_not_asked_for_it(
    start_gateway: StartGateway, upstream: ScriptedUpstream
):
    gateway = await start_gateway(upstream_accepts=["hints"])
    upstream.answer = streaming(unasked(apart=True))
    whole = b"".join(unasked(apart=True))
    assert (await gateway.ask("one", stream=True)).raw == whole
    assert not any("stream_options" in body for body in upstream.bodies)
    assert (await gateway.ask("one")).json["usage"]["total_tokens"] == 10
