"""What OpenAI refuses and other servers take is forwarded as it came, and never looked up."""

import json
from pathlib import Path
from typing import Any

import pytest
from aiohttp import web

from running_gateway import StartGateway
from scripted_upstream import ScriptedUpstream, completion, stream_of

ASKED = [{"role": "user", "content": "hi"}]
CHAT, COMPLETIONS = "/v1/chat/completions", "/v1/completions"
EMBEDDINGS, RESPONSES = "/v1/embeddings", "/v1/responses"

ODD = {
    "no model": (CHAT, {"messages": ASKED}),
    "numbers as strings": (CHAT, {"model": "m", "messages": ASKED, "max_tokens": "16"}),
    "a user that is a number": (CHAT, {"model": "m", "messages": ASKED, "user": 5}),
    "parts that are strings": (
        CHAT,
        {"model": "m", "messages": [{"role": "user", "content": ["a", "b"]}]},
    ),
    "prompt embeddings": (COMPLETIONS, {"model": "m", "prompt_embeds": "AAAA"}),
    "no prompt": (COMPLETIONS, {"model": "m", "stream": False}),
    "a chat to embed": (EMBEDDINGS, {"model": "m", "messages": ASKED}),
    "parts to embed": (EMBEDDINGS, {"model": "m", "input": [{"type": "text", "text": "x"}]}),
    "a response without a model": (RESPONSES, {"input": "hi", "store": False}),
    "a switch as a string": (CHAT, {"model": "m", "messages": ASKED, "stream": "false"}),
    "a switch as a number": (CHAT, {"model": "m", "messages": ASKED, "logprobs": 1}),
    "a number as a switch": (COMPLETIONS, {"model": "m", "prompt": "a", "logprobs": True}),
    "pairs of a bias": (CHAT, {"model": "m", "messages": ASKED, "logit_bias": [[1, -5]]}),
    "tokens in place of messages": (CHAT, {"model": "m", "input_ids": [1, 2]}),
    "more inputs than OpenAI takes": (EMBEDDINGS, {"model": "m", "input": ["a"] * 2049}),
    "half an emoji": (CHAT, {"model": "m", "messages": [{"role": "user", "content": "\ud83d"}]}),
    "half an emoji in a key": (CHAT, {"model": "m", "messages": ASKED, "\udc00": 1}),
}


@pytest.mark.parametrize("name", ODD)
async def test_it_is_forwarded_as_it_came_each_time(
    name: str, start_gateway: StartGateway, upstream: ScriptedUpstream
) -> None:
    path, body = ODD[name]
    raw = json.dumps(body).encode()

    async def answer(request: web.Request, _: dict[str, Any]) -> web.StreamResponse:
        return web.Response(
            body=b'{"answer": %d}' % upstream.calls, content_type="application/json"
        )

    upstream.answer = answer
    gateway = await start_gateway()
    for call in (1, 2):
        reply = await gateway.post(path, raw)
        assert (reply.status, reply.raw) == (200, b'{"answer": %d}' % call)
        assert reply.cache == "refrain; fwd=bypass; detail=unknown-shape"
    assert upstream.raw == [raw, raw]


async def test_its_tenant_is_salted_all_the_same(
    start_gateway: StartGateway, upstream: ScriptedUpstream
) -> None:
    async def answer(request: web.Request, _: dict[str, Any]) -> web.StreamResponse:
        return web.json_response({})

    upstream.answer = answer
    gateway = await start_gateway(upstream_cache_salt=True)
    for key, given in (("a", {}), ("b", {}), ("b", {"cache_salt": "mine"})):
        raw = json.dumps({"messages": ASKED, **given}).encode()
        reply = await gateway.post(CHAT, raw, headers={"Authorization": f"Bearer {key}"})
        assert reply.status == 200
    one, other, own = (body["cache_salt"] for body in upstream.bodies)
    assert one != other == own


async def test_only_if_cached_is_refused(start_gateway: StartGateway) -> None:
    gateway = await start_gateway()
    raw = json.dumps({"messages": ASKED}).encode()
    reply = await gateway.post(CHAT, raw, headers={"Cache-Control": "only-if-cached"})
    assert reply.status == 504


async def test_the_prompt_is_bounded_all_the_same(
    start_gateway: StartGateway, tmp_path: Path
) -> None:
    policy = tmp_path / "policy.yaml"
    default = (Path("policies") / "default.yaml").read_text()
    policy.write_text(default.replace("default:\n", "default:\n  max_prompt_tokens: 10\n", 1))
    gateway = await start_gateway(policy=policy)
    raw = json.dumps({"messages": [{"role": "user", "content": "word " * 100}]}).encode()
    reply = await gateway.post(CHAT, raw)
    assert reply.status == 400
    assert "prompt-too-long" in reply.cache


TICKET = 12345678901234567890123


async def test_a_plain_answer_keeps_long_numbers_when_it_is_streamed(
    start_gateway: StartGateway, upstream: ScriptedUpstream
) -> None:
    async def answer(request: web.Request, _: dict[str, Any]) -> web.StreamResponse:
        return web.json_response(completion("a", ticket=TICKET))

    upstream.answer = answer
    gateway = await start_gateway()
    assert (await gateway.ask()).cache == "refrain; fwd=miss; stored"
    hit = await gateway.ask(stream=True)
    assert hit.cache.startswith("refrain; hit")
    assert b'"ticket":%d,' % TICKET in hit.raw


async def test_a_streamed_answer_keeps_long_numbers_when_it_is_plain(
    start_gateway: StartGateway, upstream: ScriptedUpstream
) -> None:
    async def answer(request: web.Request, _: dict[str, Any]) -> web.StreamResponse:
        first, *rest = stream_of("a")
        first = first.replace(b'{"id"', b'{"ticket":%d,"usage":null,"id"' % TICKET)
        return web.Response(body=b"".join((first, *rest)), content_type="text/event-stream")

    upstream.answer = answer
    gateway = await start_gateway()
    assert b'"ticket":%d,' % TICKET in (await gateway.ask(stream=True)).raw
    hit = await gateway.ask()
    assert hit.cache.startswith("refrain; hit")
    assert b'"ticket":%d,' % TICKET in hit.raw
