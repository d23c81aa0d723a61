"""Embeddings over HTTP, item by item: what was asked before is not asked again."""

import base64
import struct
from typing import Any

import openai
import orjson
import pytest
from aiohttp import web

from policies.pii.scan import PiiScanner
from running_gateway import RunningGateway, StartGateway
from scripted_upstream import ScriptedUpstream

PATH = "/v1/embeddings"


def vector_of(item: Any) -> list[float]:
    """Return a vector that tells its input, exact in 32 bits."""
    codes = item if isinstance(item, list) else [ord(character) for character in item]
    return [float(len(codes)), float(sum(codes)), 0.5]


def written(vector: list[float], form: str | None) -> Any:
    if form != "base64":
        return vector
    return base64.b64encode(struct.pack(f"<{len(vector)}f", *vector)).decode()


def items_of(given: Any) -> list[Any]:
    return [given] if isinstance(given, str) or isinstance(given[0], int) else given


async def embed(_request: web.Request, body: dict[str, Any]) -> web.StreamResponse:
    """Answer as OpenAI does; ten tokens an input."""
    items = items_of(body["input"])
    data = [
        {
            "object": "embedding",
            "index": place,
            "embedding": written(vector_of(item), body.get("encoding_format")),
        }
        for place, item in enumerate(items)
    ]
    tokens = 10 * len(items)
    usage = {"prompt_tokens": tokens, "total_tokens": tokens}
    reply = {"object": "list", "data": data, "model": body["model"], "usage": usage}
    return web.json_response(reply)


@pytest.fixture(autouse=True)
def _embedding(upstream: ScriptedUpstream) -> None:
    upstream.answer = embed


async def ask(gateway: RunningGateway, given: Any, *, headers: Any = None, **fields: Any) -> Any:
    body = {"model": "m", "input": given, **fields}
    return await gateway.post(PATH, orjson.dumps(body), headers=headers)


def vectors(reply: Any) -> list[Any]:
    assert [one["index"] for one in reply.json["data"]] == list(range(len(reply.json["data"])))
    return [one["embedding"] for one in reply.json["data"]]


@pytest.mark.parametrize("given", ["a", ["a"], [1, 2], [[1, 2]], ["a", "b"], [[1], [2, 3]]])
async def test_the_second_time_is_an_exact_hit_and_the_same_reply(gateway, upstream, given):
    first = await ask(gateway, given)
    second = await ask(gateway, given)
    assert first.cache == "refrain; fwd=miss; stored"
    assert second.cache.startswith("refrain; hit; ttl=")
    assert second.cache.endswith("detail=exact")
    assert "Age" in second.headers
    assert second.json == first.json
    assert upstream.calls == 1


async def test_a_batch_asks_for_what_is_missing_and_is_put_together_in_order(gateway, upstream):
    await ask(gateway, "b")
    await ask(gateway, ["d", "e"])
    reply = await ask(gateway, ["a", "b", "c", "d"])
    assert upstream.bodies[-1] == {"model": "m", "input": ["a", "c"]}
    assert vectors(reply) == [vector_of(item) for item in "abcd"]
    assert reply.cache == 'refrain; fwd=miss; stored; detail="partial; items=2/4"'
    assert reply.json["usage"] == {"prompt_tokens": 20, "total_tokens": 20}
    assert reply.json["model"] == "m"
    again = await ask(gateway, ["d", "c", "b", "a"])
    assert again.cache.startswith("refrain; hit")
    assert vectors(again) == [vector_of(item) for item in "dcba"]
    assert upstream.calls == 3


async def test_a_batch_of_token_arrays_is_taken_apart_too(gateway, upstream):
    await ask(gateway, [1, 2])
    reply = await ask(gateway, [[3], [1, 2]])
    assert upstream.bodies[-1]["input"] == [[3]]
    assert vectors(reply) == [vector_of([3]), vector_of([1, 2])]


async def test_an_input_that_comes_twice_is_answered_twice(gateway, upstream):
    first = await ask(gateway, ["a", "a", "b"])
    second = await ask(gateway, ["a", "a", "b"])
    assert vectors(first) == vectors(second) == [vector_of(item) for item in "aab"]
    assert second.json == first.json
    third = await ask(gateway, ["b", "b"])
    assert vectors(third) == [vector_of("b")] * 2
    assert upstream.calls == 1


async def test_usage_is_told_only_where_it_was_counted(gateway):
    await ask(gateway, ["a", "b"])
    alone = await ask(gateway, "a")
    assert alone.json["usage"] == {"prompt_tokens": 0, "total_tokens": 0}
    assert set(alone.json) == {"object", "data", "model", "usage"}
    await ask(gateway, "c")
    both = await ask(gateway, ["a", "b", "c"])
    assert both.json["usage"] == {"prompt_tokens": 30, "total_tokens": 30}


async def test_usage_that_is_no_number_is_not_added_up(gateway, upstream):
    async def odd(_request: web.Request, body: dict[str, Any]) -> web.StreamResponse:
        data = [{"object": "embedding", "index": 0, "embedding": vector_of(body["input"])}]
        usage = {"prompt_tokens": "10", "total_tokens": 10}
        reply = {"object": "list", "data": data, "model": "m", "usage": usage}
        return web.json_response(reply)

    upstream.answer = odd
    await ask(gateway, "a")
    await ask(gateway, "b")
    both = await ask(gateway, ["a", "b"])
    assert (both.status, both.json["usage"]) == (200, {"prompt_tokens": 0, "total_tokens": 20})


@pytest.mark.parametrize(
    "change", [{"encoding_format": "base64"}, {"dimensions": 2}, {"model": "n"}, {"unknown": 1}]
)
async def test_what_shapes_a_vector_is_part_of_the_key(gateway, upstream, change):
    await ask(gateway, ["a", "b"])
    changed = await ask(gateway, ["a", "b"], **change)
    assert changed.cache == "refrain; fwd=miss; stored"
    assert upstream.calls == 2


async def test_the_user_is_neutral_and_the_credential_is_not(gateway):
    await ask(gateway, ["a", "b"], user="ann")
    assert "hit" in (await ask(gateway, ["b", "a"], user="bob")).cache
    other = await ask(gateway, ["a", "b"], headers={"Authorization": "Bearer other"})
    assert other.cache == "refrain; fwd=miss; stored"


async def test_personal_data_bypasses_for_its_own_item_only(gateway, upstream):
    given = ["plain", "write to ann.miller@example.org", "simple"]
    first = await ask(gateway, given)
    assert first.cache == "refrain; fwd=miss; detail=pii"
    second = await ask(gateway, given)
    assert upstream.bodies[-1]["input"] == [given[1]]
    assert second.cache == 'refrain; fwd=miss; detail="partial; items=2/3; pii"'
    assert vectors(second) == vectors(first)
    alone = await ask(gateway, given[1])
    assert alone.cache == "refrain; fwd=bypass; detail=pii"


async def test_only_if_cached_wants_all_items(gateway, upstream):
    await ask(gateway, ["a", "b"])
    wanted = {"Cache-Control": "only-if-cached"}
    assert (await ask(gateway, ["b", "a"], headers=wanted)).status == 200
    refused = await ask(gateway, ["b", "c"], headers=wanted)
    assert refused.status == 504
    assert refused.cache == "refrain; detail=only-if-cached"
    assert upstream.calls == 1


async def test_no_store_and_no_cache_hold_for_batches(gateway, upstream):
    kept = await ask(gateway, ["a", "b"], headers={"Cache-Control": "no-store"})
    assert kept.cache == "refrain; fwd=bypass; detail=no-store"
    assert (await ask(gateway, ["a", "b"])).cache == "refrain; fwd=miss; stored"
    refreshed = await ask(gateway, ["a", "b"], headers={"Cache-Control": "no-cache"})
    assert refreshed.cache == "refrain; fwd=request; stored; detail=no-cache"
    assert upstream.calls == 3


async def test_an_upstreams_error_passes_and_names_the_inputs_as_the_client_sent_them(
    gateway, upstream
):
    await ask(gateway, "a")

    async def refuse(_request: web.Request, body: dict[str, Any]) -> web.StreamResponse:
        place = items_of(body["input"]).index("bad")
        error = {"message": f"input[{place}]", "type": "t", "param": None, "code": None}
        return web.json_response({"error": error}, status=400)

    upstream.answer = refuse
    reply = await ask(gateway, ["a", "bad"])
    assert (reply.status, reply.json["error"]["message"]) == (400, "input[1]")
    assert upstream.bodies[-1]["input"] == ["a", "bad"]


@pytest.mark.parametrize("status", [429, 500, 503])
async def test_an_upstream_in_trouble_is_not_asked_twice(gateway, upstream, status):
    await ask(gateway, "a")

    async def fail(_request: web.Request, _body: dict[str, Any]) -> web.StreamResponse:
        return web.json_response({"error": {"message": "busy"}}, status=status)

    upstream.answer = fail
    reply = await ask(gateway, ["a", "b"])
    assert (reply.status, reply.json) == (status, {"error": {"message": "busy"}})
    assert upstream.calls == 2


@pytest.mark.parametrize(
    "reply",
    [
        {"object": "list", "data": [], "model": "m"},
        {"object": "list", "data": [{"object": "embedding", "index": 1, "embedding": [1]}]},
        {"object": "list", "model": "m", "data": [{"object": "x", "index": 0, "embedding": [1]}]},
        {"object": "list", "model": "m", "data": [{"object": "embedding", "index": 0}]},
        [],
    ],
)
async def test_a_reply_that_is_not_understood_passes_and_is_not_stored(gateway, upstream, reply):
    await ask(gateway, "a")

    async def odd(_request: web.Request, _body: dict[str, Any]) -> web.StreamResponse:
        return web.json_response(reply)

    upstream.answer = odd
    answered = await ask(gateway, ["a", "b"])
    assert (answered.status, answered.json) == (200, reply)
    assert upstream.bodies[-1]["input"] == ["a", "b"]
    upstream.answer = embed
    assert 'items=1/2"' in (await ask(gateway, ["a", "b"])).cache


@pytest.mark.parametrize(
    ("given", "param", "code"),
    [
        (None, "input", "missing_required_parameter"),
        ([], "input", "empty_array"),
        ({}, "input", "invalid_type"),
        (1, "input", "invalid_type"),
        ([1, "a"], "input[1]", "invalid_type"),
        (["a", 1], "input[1]", "invalid_type"),
        (["a", ["b"]], "input[1]", "invalid_type"),
        ([[1], "a"], "input[1]", "invalid_type"),
        ([[1, True]], "input[0][1]", "invalid_type"),
        ([1.5], "input[0]", "invalid_type"),
    ],
)
async def test_what_openai_would_refuse_is_refused(gateway, upstream, given, param, code):
    reply = await ask(gateway, given)
    assert reply.status == 400
    assert (reply.json["error"]["param"], reply.json["error"]["code"]) == (param, code)
    assert upstream.calls == 0


async def test_the_largest_batch_and_a_long_token_array_are_taken(gateway, upstream):
    given = [f"text {number}" for number in range(2048)]
    assert (await ask(gateway, given)).cache == "refrain; fwd=miss; stored"
    again = await ask(gateway, given[::-1])
    assert again.cache.startswith("refrain; hit")
    assert vectors(again) == [vector_of(item) for item in given[::-1]]
    assert (await ask(gateway, [7] * 4096)).status == 200


async def test_a_reply_too_large_to_hold_passes_all_the_same(
    start_gateway: StartGateway, upstream: ScriptedUpstream
):
    gateway = await start_gateway(max_answer_bytes=1024)
    await ask(gateway, "a")
    given = ["a", *map(str, range(100))]
    reply = await ask(gateway, given)
    assert vectors(reply) == [vector_of(item) for item in given]
    assert reply.cache.startswith("refrain; fwd=miss")
    assert "stored" not in reply.cache


async def test_the_official_client_gets_what_it_asked_for(gateway, upstream):
    client = openai.AsyncOpenAI(base_url=f"{gateway.url}/v1", api_key="k", max_retries=0)
    async with client:
        first = await client.embeddings.create(model="m", input=["a", "b"])
        assert upstream.bodies[-1]["encoding_format"] == "base64"
        second = await client.embeddings.create(model="m", input=["c", "b"])
        assert upstream.bodies[-1]["input"] == ["c"]
        plain = await client.embeddings.create(model="m", input="b", encoding_format="float")
    assert [one.embedding for one in first.data] == [vector_of("a"), vector_of("b")]
    assert [one.embedding for one in second.data] == [vector_of("c"), vector_of("b")]
    assert [one.index for one in second.data] == [0, 1]
    assert plain.data[0].embedding == vector_of("b")


@pytest.mark.parametrize("words", [10, 2000])
async def test_what_stands_beside_the_inputs_is_scanned_once(gateway, monkeypatch, words):
    texts: list[str] = []
    scan = PiiScanner.scan

    def recorded(self: PiiScanner, text: str) -> str | None:
        texts.append(text)
        return scan(self, text)

    monkeypatch.setattr(PiiScanner, "is_clean", lambda _self, _text: False)
    monkeypatch.setattr(PiiScanner, "scan", recorded)
    given = [f"text {at}" for at in range(200)]
    reply = await ask(gateway, given, task={"note": "beside " * words})
    assert reply.cache == "refrain; fwd=miss; stored"
    assert sum("beside" in text for text in texts) == 1
    assert all(any(text == item for text in texts) for item in given)


async def test_personal_data_beside_the_inputs_keeps_a_batch_out(gateway, upstream):
    for _ in range(2):
        reply = await ask(gateway, ["a", "b"], task="for ada@example.com")
        assert reply.cache == "refrain; fwd=bypass; detail=pii"
    assert upstream.calls == 2


async def test_a_hit_of_a_request_that_would_be_streamed_is_plain(gateway, upstream):
    first, second = await ask(gateway, "a", stream=True), await ask(gateway, "a", stream=True)
    assert "hit" in second.cache
    assert second.json == first.json
    assert upstream.bodies == [{"model": "m", "input": "a", "stream": True}]
