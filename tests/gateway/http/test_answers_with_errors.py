"""An answer that is complete, and has an error beside it, is passed on and not stored."""

from typing import Any

import orjson
import pytest
from aiohttp import web

from running_gateway import RunningGateway
from scripted_upstream import ScriptedUpstream, completion

ASK = {
    "/v1/chat/completions": {"model": "m", "messages": [{"role": "user", "content": "hi"}]},
    "/v1/completions": {"model": "m", "prompt": "hi"},
}
VECTOR = {"object": "embedding", "index": 0, "embedding": [1.0]}


@pytest.mark.parametrize("error", [{"message": "cut"}, "cut", {}, False])
@pytest.mark.parametrize("path", ASK)
async def test_a_choice_beside_an_error_is_not_stored(
    gateway: RunningGateway, upstream: ScriptedUpstream, path: str, error: Any
):
    async def answer(_request: web.Request, body: dict[str, Any]) -> web.StreamResponse:
        told = completion("Fine.")
        if "prompt" in body:
            told["choices"] = [{"index": 0, "text": "Fine.", "finish_reason": "stop"}]
        return web.json_response({**told, "error": error})

    upstream.answer = answer
    for _ in range(2):
        reply = await gateway.post(path, orjson.dumps(ASK[path]))
        assert reply.json["error"] == error
        assert reply.cache.endswith("detail=unclean")
    assert upstream.calls == 2


async def test_an_error_of_null_is_none(gateway: RunningGateway, upstream: ScriptedUpstream):
    async def answer(_request: web.Request, _body: dict[str, Any]) -> web.StreamResponse:
        return web.json_response({**completion("Fine."), "error": None})

    upstream.answer = answer
    assert "stored" in (await gateway.ask()).cache


@pytest.mark.parametrize("texts", ["a", ["a", "b"]])
async def test_vectors_beside_an_error_are_not_stored(
    gateway: RunningGateway, upstream: ScriptedUpstream, texts: Any
):
    async def answer(_request: web.Request, body: dict[str, Any]) -> web.StreamResponse:
        count = len(body["input"])
        data = [{**VECTOR, "index": place} for place in range(count)]
        told = {"object": "list", "model": "m", "data": data, "error": {"message": "cut"}}
        return web.json_response(told)

    upstream.answer = answer
    for _ in range(2):
        sent = orjson.dumps({"model": "m", "input": texts})
        assert "stored" not in (await gateway.post("/v1/embeddings", sent)).cache
    assert upstream.calls == 2
