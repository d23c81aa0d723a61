"""What a holder with limits pays for odd requests, and for streams that it does not read."""

import asyncio
import json
import time
from hashlib import sha256
from typing import Any, NamedTuple

import orjson
import pytest
from aiohttp import web

from running_gateway import start_app
from scripted_upstream import DONE, chunk

TPM = 10_000_000
CHAT = "/v1/chat/completions"
HEADERS = {"Authorization": "Bearer gk-shop", "Content-Type": "application/json"}
LONG = "word " * 8_000
"""10,000 tokens at four bytes each."""


@pytest.fixture
def keys(tmp_path, monkeypatch):
    """The file with a holder who has limits, at a time that stands still."""
    noon = time.time() // 86_400 * 86_400 + 43_200
    monkeypatch.setattr(time, "time", lambda: noon)
    path = tmp_path / "keys"
    digest = sha256(b"gk-shop").hexdigest()
    path.write_text(f"shop {digest} tpm={TPM} concurrency=1\n")
    return path


async def used(gateway):
    """Return the tokens that the holder has used, once no request of its is under way."""
    while (reply := await gateway.post(CHAT, b"{}", headers=HEADERS)).status == 429:
        pass
    return TPM - int(reply.headers["x-ratelimit-remaining-tokens"])


async def charged(gateway, before=0):
    """Return the tokens that the holder has used since, once it has used any."""
    while (tokens := await used(gateway)) == before:
        pass
    return tokens - before


def event(kind: str, **data: Any) -> bytes:
    return f"event: {kind}\ndata: ".encode() + orjson.dumps({"type": kind, **data}) + b"\n\n"


def usage_chunk(prompt: int, completion: int) -> bytes:
    usage = {"prompt_tokens": prompt, "completion_tokens": completion}
    return b"data: " + orjson.dumps({"id": "c", "choices": [], "usage": usage}) + b"\n\n"


async def stream(request: web.Request) -> web.StreamResponse:
    response = web.StreamResponse(headers={"Content-Type": "text/event-stream"})
    await response.prepare(request)
    return response


def odd(**changes: Any) -> bytes:
    body = {"model": "m", "messages": [{"role": "user", "content": LONG}], **changes}
    return json.dumps({"stream": True, **body}).encode()


ODD = {
    "a number as user": odd(user=5),
    "a number as text": odd(max_tokens="16"),
    "half of a surrogate pair": odd(messages=[{"role": "user", "content": LONG + "\ud800"}]),
    "the same in a field that nobody reads": odd(metadata={"a": "\udc00"}),
    "parts that are texts": odd(messages=[{"role": "user", "content": [LONG]}]),
    "options of its own": odd(user=5, stream_options={"include_obfuscation": False}),
    "options that say no": odd(user=5, stream_options={"include_usage": False}),
    "no options": odd(user=5, stream_options=None),
    "no model": odd(model=None),
    "a stream that is one": odd(stream=1),
    "a stream in words": odd(stream="true"),
}


async def test_an_odd_stream_is_charged_what_its_upstream_says(start_gateway, upstream, keys):
    async def answer(request, body):
        response = await stream(request)
        await response.write(chunk(delta={"content": "Hi"}) + chunk(finish_reason="stop"))
        if (body.get("stream_options") or {}).get("include_usage"):
            await response.write(usage_chunk(12_345, 6))
        await response.write(DONE)
        return response

    upstream.answer = answer
    gateway = await start_gateway(gateway_keys=keys)
    for name, raw in ODD.items():
        before = await used(gateway)
        reply = await gateway.post(CHAT, raw, headers=HEADERS)
        assert reply.cache == "refrain; fwd=bypass; detail=unknown-shape", name
        assert b"usage" not in reply.raw  # the client did not request it
        assert await charged(gateway, before) == 12_351, name
        sent = {**upstream.bodies[-1], "stream_options": None}
        assert sent == {**json.loads(raw), "stream_options": None}


SHORT = [{"role": "user", "content": "invoice"}]


def tool(properties: Any) -> Any:
    return {"type": "function", "function": {"name": "f", "parameters": {"properties": properties}}}


UNREAD = {
    **ODD,
    "a text in the name of a member": odd(messages=SHORT, user=5, tools=[tool({LONG: {}})]),
    "numbers": odd(messages=SHORT, user=5, tools=[tool({"enum": [12_345] * 8_000})]),
    "an attachment with a text beside": odd(
        user=5, messages=[{"type": "image_url", "role": "user", "content": LONG}]
    ),
}


async def test_what_no_upstream_says_of_an_odd_stream_is_estimated_by_all_of_it(
    start_gateway, upstream, keys
):
    async def answer(request, _body):
        response = await stream(request)
        await response.write(chunk(delta={"content": "Hi"}) + chunk(finish_reason="stop") + DONE)
        return response

    upstream.answer = answer
    gateway = await start_gateway(gateway_keys=keys)
    for name, raw in UNREAD.items():
        before = await used(gateway)
        assert (await gateway.post(CHAT, raw, headers=HEADERS)).status == 200, name
        assert 10_000 <= await charged(gateway, before) < 11_000, name


POLICY = """
version: 1
default: {exact: on, semantic: off, freshness: 1h, scope: tenant, pii: bypass}
rules:
  - name: short
    match: {content: {keywords: [invoice]}}
    max_prompt_tokens: 2000
"""


async def test_no_odd_request_evades_the_bound_of_a_rule(start_gateway, upstream, tmp_path):
    policy = tmp_path / "policy.yaml"
    policy.write_text(POLICY)
    gateway = await start_gateway(policy=policy)
    for name, raw in UNREAD.items():
        said = raw.replace(b"word word", b"invoice w", 1)
        reply = await gateway.post(CHAT, said, headers=HEADERS)
        assert (reply.status, reply.json["error"]["code"]) == (400, "prompt_too_long"), name
    assert upstream.calls == 0


class Wire(NamedTuple):
    """A stream in parts: the answer, its last word, and the usage, which sums to ``total``."""

    path: str
    body: dict[str, Any]
    answer: bytes
    last_word: bytes
    usage: bytes
    total: int
    api: str = "openai"


MESSAGES = [{"role": "user", "content": "Read it."}]
TEXT = {"id": "c", "object": "text_completion", "model": "m"}
START = {"id": "msg_1", "type": "message", "role": "assistant", "model": "m", "content": []}
RESPONSE = {"id": "resp_1", "object": "response", "model": "m", "output": []}
CHAT_STREAM = (
    chunk(delta={"role": "assistant", "content": "Hi"}),
    chunk(finish_reason="stop"),
    usage_chunk(69_000, 1_000) + DONE,
)


def written(**choice: Any) -> bytes:
    choices = [{"index": 0, "text": "", "finish_reason": None, **choice}]
    return b"data: " + orjson.dumps({**TEXT, "choices": choices}) + b"\n\n"


WIRES = {
    "chat": Wire(CHAT, {"messages": MESSAGES}, *CHAT_STREAM, 70_000),
    "odd chat": Wire(CHAT, {"messages": MESSAGES, "user": 5}, *CHAT_STREAM, 70_000),
    "completions": Wire(
        "/v1/completions",
        {"prompt": "Read it."},
        written(text="Hi"),
        written(finish_reason="stop"),
        usage_chunk(69_000, 1_000) + DONE,
        70_000,
    ),
    "responses": Wire(
        "/v1/responses",
        {"input": "Read it.", "store": False},
        event("response.created", response=RESPONSE)
        + event("response.output_text.delta", item_id="m", output_index=0, delta="Hi"),
        event("response.output_text.done", item_id="m", output_index=0, text="Hi"),
        event(
            "response.completed",
            response={**RESPONSE, "usage": {"input_tokens": 69_000, "output_tokens": 1_000}},
        ),
        70_000,
    ),
    "messages": Wire(
        "/v1/messages",
        {"messages": MESSAGES, "max_tokens": 9},
        event("message_start", message={**START, "usage": {"input_tokens": 9}})
        + event("content_block_start", index=0, content_block={"type": "text", "text": ""})
        + event("content_block_delta", index=0, delta={"type": "text_delta", "text": "Hi"}),
        event("content_block_stop", index=0),
        event(
            "message_delta",
            delta={"stop_reason": "end_turn"},
            usage={"input_tokens": 69_000, "output_tokens": 1_000},
        )
        + event("message_stop"),
        70_000,
        "anthropic",
    ),
    "translated messages": Wire(
        "/v1/messages", {"messages": MESSAGES, "max_tokens": 9}, *CHAT_STREAM, 70_000
    ),
}


@pytest.mark.parametrize("wire", WIRES.values(), ids=WIRES)
@pytest.mark.parametrize("leaves", ["after the last word", "before it"])
async def test_who_leaves_before_the_usage_is_charged_by_it(
    start_gateway, upstream, keys, wire, leaves
):
    has_left = asyncio.Event()

    async def answer(request, _body):
        response = await stream(request)
        early = wire.last_word if leaves == "after the last word" else b""
        await response.write(wire.answer + early)
        await has_left.wait()
        await response.write(wire.usage if early else wire.last_word + wire.usage)
        return response

    upstream.answer = answer
    listed = [{"url": f"{upstream.url}/v1", "api": wire.api, "probe": "off"}]
    gateway = await start_gateway(gateway_keys=keys, upstream=(), upstreams=listed)
    asked = {"model": "m", "stream": True, **wire.body}
    async with gateway.session.post(gateway.url + wire.path, json=asked, headers=HEADERS) as reply:
        assert reply.status == 200
        await reply.content.readany()
        reply.close()
    assert await used(gateway) == 0  # its call goes on
    has_left.set()
    assert await charged(gateway) == wire.total


async def test_who_leaves_in_the_middle_is_charged_what_is_known_and_the_call_ends(
    start_gateway, upstream, keys, monkeypatch
):
    monkeypatch.setattr("gateway.upstream.sharing.shared_response.ANSWER_SECONDS", 0.05)
    start = {**START, "usage": {"input_tokens": 7_000, "output_tokens": 1}}
    delta = {"type": "text_delta", "text": "x" * 1_000}

    async def answer(request, _body):
        response = await stream(request)
        await response.write(event("message_start", message=start))
        while True:
            await response.write(event("content_block_delta", index=0, delta=delta))
            await asyncio.sleep(0)

    upstream.answer = answer
    listed = [{"url": f"{upstream.url}/v1", "api": "anthropic", "probe": "off"}]
    gateway = await start_gateway(gateway_keys=keys, upstream=(), upstreams=listed)
    asked = {"model": "m", "stream": True, "max_tokens": 9, "messages": MESSAGES}
    url = f"{gateway.url}/v1/messages"
    async with gateway.session.post(url, json=asked, headers=HEADERS) as reply:
        await reply.content.readany()
        reply.close()
    await upstream.cancelled.wait()
    assert await charged(gateway) > 7_000


async def test_a_usage_without_a_last_event_is_charged(start_gateway, upstream, keys):
    async def answer(request, _body):
        response = await stream(request)
        await response.write(b"".join(CHAT_STREAM).removesuffix(DONE))
        return response

    upstream.answer = answer
    gateway = await start_gateway(gateway_keys=keys)
    assert (await gateway.ask(headers=HEADERS, stream=True)).status == 200
    assert await charged(gateway) == 70_000


async def test_a_call_that_goes_on_is_charged_when_the_gateway_stops(start_gateway, upstream, keys):
    async def answer(request, _body):
        response = await stream(request)
        await response.write(CHAT_STREAM[0] + CHAT_STREAM[1])
        await asyncio.Event().wait()

    upstream.answer = answer
    gateway = await start_gateway(gateway_keys=keys)
    asked = {"model": "m", "stream": True, "messages": [{"role": "user", "content": LONG}]}
    async with gateway.session.post(gateway.url + CHAT, json=asked, headers=HEADERS) as reply:
        await reply.content.readany()
        reply.close()
    assert await used(gateway) == 0
    await gateway.stop()
    again = await start_gateway(gateway_keys=keys)
    assert 10_000 <= await used(again) < 11_000


async def test_a_passed_stream_that_its_client_leaves_is_charged_by_its_usage(start_gateway, keys):
    has_left = asyncio.Event()

    async def answer(request):
        response = await stream(request)
        await response.write(event("image_generation.partial_image", b64_json="A" * 100))
        await has_left.wait()
        usage = {"input_tokens": 50, "output_tokens": 4_000, "total_tokens": 4_050}
        await response.write(event("image_generation.completed", b64_json="B", usage=usage))
        return response

    app = web.Application()
    app.router.add_post("/v1/images/generations", answer)
    runner, server = await start_app(app)
    gateway = await start_gateway(gateway_keys=keys, upstream=(f"{server}/v1",))
    asked = {"model": "m", "stream": True, "prompt": "a cat"}
    url = f"{gateway.url}/v1/images/generations"
    async with gateway.session.post(url, json=asked, headers=HEADERS) as reply:
        assert reply.status == 200
        await reply.content.readany()
        reply.close()
    assert (await gateway.get("/healthz")).status == 200  # by now it knows
    has_left.set()
    assert await charged(gateway) == 4_050
    await runner.cleanup()


async def test_a_passed_request_that_its_client_leaves_is_charged_what_it_asked_for(
    start_gateway, keys
):
    has_come, has_left = asyncio.Event(), asyncio.Event()

    async def answer(request):
        await request.read()
        has_come.set()
        await has_left.wait()
        return web.json_response({"data": []})

    app = web.Application()
    app.router.add_post("/v1/images/generations", answer)
    runner, server = await start_app(app)
    gateway = await start_gateway(gateway_keys=keys, upstream=(f"{server}/v1",))
    url, asked = f"{gateway.url}/v1/images/generations", {"model": "m", "prompt": LONG}
    waits = asyncio.create_task(gateway.session.post(url, json=asked, headers=HEADERS))
    await has_come.wait()
    waits.cancel()
    assert 10_000 <= await charged(gateway) < 11_000
    has_left.set()
    await runner.cleanup()


def vectors(number: int, tokens: int) -> web.Response:
    rows = [{"object": "embedding", "index": at, "embedding": [0.1, 0.2]} for at in range(number)]
    usage = {"prompt_tokens": tokens, "total_tokens": tokens}
    return web.json_response({"object": "list", "model": "e", "data": rows, "usage": usage})


async def test_a_batch_pays_for_a_call_whose_answer_was_of_no_use(start_gateway, upstream, keys):
    """The missing items get a vector too many. Then the whole batch is asked for, in vain."""
    is_odd = False

    async def answer(request, body):
        number = len(body["input"])
        if not is_odd:
            return vectors(number, 5)
        if number < 3:
            return vectors(number + 1, 700)
        request.transport.abort()
        return web.Response()

    upstream.answer = answer
    gateway = await start_gateway(gateway_keys=keys)

    async def ask(*texts):
        body = orjson.dumps({"model": "e", "input": texts})
        return await gateway.post("/v1/embeddings", body, headers=HEADERS)

    assert (await ask("a")).status == 200
    before = await used(gateway)
    is_odd = True
    assert (await ask("a", "b", "c")).status == 502
    assert await charged(gateway, before) >= 700


async def test_a_refresh_asks_for_no_usage_since_nobody_pays_for_it(
    start_gateway, upstream, keys, tmp_path, monkeypatch
):
    policy = tmp_path / "policy.yaml"
    policy.write_text(
        "version: 1\ndefault: {exact: on, semantic: off, freshness: 100s,"
        " grace: {while_revalidate: 50s}, scope: tenant, pii: allow}\n"
    )
    refreshed, now = asyncio.Event(), time.time()
    monkeypatch.setattr(time, "time", lambda: now)
    asked: list[bool] = []

    async def answer(request, body):
        asked.append("stream_options" in body)
        if "stream_options" in body:
            return web.json_response({"error": {"message": "no such field"}}, status=400)
        response = await stream(request)
        await response.write(chunk(delta={"content": "Hi"}) + chunk(finish_reason="stop") + DONE)
        if len(asked) > 2:
            refreshed.set()
        return response

    upstream.answer = answer
    gateway = await start_gateway(gateway_keys=keys, policy=policy)
    messages = [{"role": "user", "content": "hi"}]
    body = orjson.dumps({"model": "m", "messages": messages, "stream": True})
    await gateway.post(CHAT, body, headers=HEADERS)
    assert asked == [True, False], "a request with limits asks for usage"
    now += 120
    assert "stale" in (await gateway.post(CHAT, body, headers=HEADERS)).cache
    await asyncio.wait_for(refreshed.wait(), 60)
    assert asked == [True, False, False]
