"""Reranking over HTTP: exact hits of complete results."""

from typing import Any

import orjson
import pytest
from aiohttp import web

from running_gateway import Asked, RunningGateway, StartGateway
from scripted_upstream import ScriptedUpstream

PATH = "/v1/rerank"
QUERY = "How do I reset my password?"
DOCUMENTS = ["Open the settings.", {"text": "We ship on Mondays."}, "Ask the office."]


def scored(*places: Any, score: Any = 0.5) -> list[dict[str, Any]]:
    return [{"index": place, "relevance_score": score} for place in places]


def answer_with(upstream: ScriptedUpstream, results: Any, **more: Any) -> None:
    async def answer(request: web.Request, _body: dict[str, Any]) -> web.StreamResponse:
        assert request.path == PATH
        return web.json_response({"id": "rerank-1", "model": "m", "results": results, **more})

    upstream.answer = answer


@pytest.fixture(autouse=True)
def _reranking(upstream: ScriptedUpstream) -> None:
    async def answer(request: web.Request, body: dict[str, Any]) -> web.StreamResponse:
        assert request.path == PATH
        places = range(len(body["documents"]))[: body.get("top_n") or None]
        results = scored(*reversed(places), score=0.25)
        usage = {"total_tokens": 11}
        return web.json_response(
            {"id": f"rerank-{upstream.calls}", "model": "m", "results": results, "usage": usage}
        )

    upstream.answer = answer


async def ask(gateway: RunningGateway, /, *, headers: Any = None, **fields: Any) -> Asked:
    body = {"model": "m", "query": QUERY, "documents": DOCUMENTS, **fields}
    return await gateway.post(PATH, orjson.dumps(body), headers=headers)


async def test_what_was_asked_before_is_answered_as_the_upstream_did(
    gateway: RunningGateway, upstream: ScriptedUpstream
):
    first = await ask(gateway, user="ann")
    second = await ask(gateway, user="bob")
    assert first.cache == "refrain; fwd=miss; stored"
    assert second.cache.startswith("refrain; hit;")
    assert second.raw == first.raw
    assert second.headers["Content-Type"] == "application/json"
    assert upstream.calls == 1


@pytest.mark.parametrize(
    "change",
    [
        {"documents": DOCUMENTS[::-1]},
        {"documents": DOCUMENTS[:2]},
        {"query": f"{QUERY}?"},
        {"top_n": 2},
        {"return_documents": True},
        {"max_tokens_per_doc": 100},
        {"truncate_prompt_tokens": 100},
        {"made_up_tomorrow": 1},
        {"model": "n"},
    ],
    ids=repr,
)
async def test_what_may_change_the_order_is_another_request(
    gateway: RunningGateway, upstream: ScriptedUpstream, change: dict[str, Any]
):
    await ask(gateway)
    assert (await ask(gateway, **change)).cache == "refrain; fwd=miss; stored"
    assert "hit" in (await ask(gateway, **change)).cache
    assert upstream.calls == 2


async def test_a_request_that_would_be_streamed_gets_the_same_plain_result(
    gateway: RunningGateway, upstream: ScriptedUpstream
):
    first, second = await ask(gateway, stream=True), await ask(gateway, stream=True)
    assert "hit" in second.cache
    assert second.raw == first.raw
    assert upstream.bodies == [
        {"model": "m", "query": QUERY, "documents": DOCUMENTS, "stream": True}
    ]


@pytest.mark.parametrize(
    ("fields", "results", "reason"),
    [
        ({}, scored(0, 1), "unclean"),
        ({}, [], "unclean"),
        ({"top_n": 2}, scored(0), "unclean"),
        ({"top_n": 2}, scored(0, 1, 2), "unclean"),
        ({}, scored(0, 1, 3), "unknown-shape"),
        ({}, scored(-1, 0, 1), "unknown-shape"),
        ({}, scored(0, 1, 1), "unknown-shape"),
        ({}, scored(0, 1, True), "unknown-shape"),
        ({}, scored(0, 1, 2, score=None), "unknown-shape"),
        ({}, scored(0, 1, 2, score="0.5"), "unknown-shape"),
        ({}, scored(0, 1, 2, score=float("nan")), "unknown-shape"),
        ({}, scored(0, 1, 2, score=float("inf")), "unknown-shape"),
        ({}, [*scored(0, 1), 2], "unknown-shape"),
        ({}, None, "unknown-shape"),
    ],
)
async def test_an_incomplete_result_is_passed_on_and_not_stored(
    gateway: RunningGateway,
    upstream: ScriptedUpstream,
    fields: dict[str, Any],
    results: Any,
    reason: str,
):
    answer_with(upstream, results)
    for _ in range(2):
        reply = await ask(gateway, **fields)
        assert (reply.status, reply.cache) == (200, f"refrain; fwd=miss; detail={reason}")
    assert upstream.calls == 2


@pytest.mark.parametrize("top_n", [None, 0, 3, 10])
async def test_without_a_smaller_number_all_documents_are_wanted(
    gateway: RunningGateway, upstream: ScriptedUpstream, top_n: int | None
):
    # Scores need not be shares: some models give numbers of any size.
    answer_with(upstream, scored(2, 0, 1, score=-(10**30)), meta={"tokens": {"input_tokens": 9}})
    for expected in ("stored", "hit"):
        assert expected in (await ask(gateway, top_n=top_n)).cache


@pytest.mark.parametrize(
    "change",
    [
        {"query": "Who is ada@example.com?"},
        {"documents": ["ada@example.com"]},
        {"documents": [{"text": "ada@example.com"}]},
        {"documents": [{"text": "a", "by": "ada@example.com"}]},
        {"user": "ada@example.com"},
    ],
    ids=repr,
)
async def test_personal_data_in_query_or_documents_is_not_stored(
    gateway: RunningGateway, upstream: ScriptedUpstream, change: dict[str, Any]
):
    for _ in range(2):
        assert (await ask(gateway, **change)).cache == "refrain; fwd=bypass; detail=pii"
    assert upstream.calls == 2


async def test_personal_data_in_a_result_is_not_stored(
    gateway: RunningGateway, upstream: ScriptedUpstream
):
    answer_with(upstream, [each | {"document": "ada@example.com"} for each in scored(0, 1, 2)])
    assert (await ask(gateway)).cache == "refrain; fwd=miss; detail=pii"


@pytest.mark.parametrize(
    ("fields", "param", "code"),
    [
        ({"query": None}, "query", "missing_required_parameter"),
        ({"documents": None}, "documents", "missing_required_parameter"),
        ({"query": 5}, "query", "invalid_type"),
        ({"documents": "a"}, "documents", "invalid_type"),
        ({"documents": ["a", 5]}, "documents[1]", "invalid_type"),
        ({"documents": ["a", None]}, "documents[1]", "invalid_type"),
        ({"top_n": "many"}, "top_n", "invalid_type"),
        ({"return_documents": []}, "return_documents", "invalid_type"),
    ],
)
async def test_what_no_server_takes_is_refused_in_openais_form(
    gateway: RunningGateway,
    upstream: ScriptedUpstream,
    fields: dict[str, Any],
    param: str,
    code: str,
):
    reply = await ask(gateway, **fields)
    assert reply.status == 400
    error = reply.json["error"]
    assert (error["type"], error["param"], error["code"]) == ("invalid_request_error", param, code)
    assert upstream.calls == 0


@pytest.mark.parametrize(
    "fields",
    [
        {"query": {"content": [{"type": "text", "text": "a"}]}},
        {"documents": {"content": [{"type": "text", "text": "a"}]}},
        {"documents": []},
        {"top_n": "2"},
        {"model": None},
    ],
)
async def test_what_some_servers_take_is_forwarded_as_it_came(
    gateway: RunningGateway, upstream: ScriptedUpstream, fields: dict[str, Any]
):
    answer_with(upstream, [])
    for _ in range(2):
        reply = await ask(gateway, **fields)
        assert reply.status == 200
        assert reply.cache.startswith("refrain; fwd=bypass")
    assert upstream.bodies[-1] == {"model": "m", "query": QUERY, "documents": DOCUMENTS, **fields}


async def test_a_rule_matches_the_endpoint_and_the_query(
    start_gateway: StartGateway, upstream: ScriptedUpstream, tmp_path: Any
):
    policy = tmp_path / "policy.yaml"
    settings = "semantic: on\n  freshness: 1h\n  scope: tenant\n  pii: bypass\n"
    policy.write_text(
        "version: 1\nrules:\n  - name: searches\n"
        f"    match: {{endpoint: {PATH}, content: {{keywords: password}}}}\n"
        "    exact: off\n    semantic: off\n"
        f"default:\n  exact: on\n  {settings}"
    )
    gateway = await start_gateway(policy=policy)
    for _ in range(2):
        assert (await ask(gateway)).cache == "refrain; fwd=bypass; detail=policy"
        assert (await ask(gateway, query="When do you ship?")).status == 200
    assert upstream.calls == 3


async def test_the_official_form_of_a_failure_is_passed_on(
    gateway: RunningGateway, upstream: ScriptedUpstream
):
    async def refuse(_request: web.Request, _body: dict[str, Any]) -> web.StreamResponse:
        return web.json_response({"message": "no such model"}, status=404)

    upstream.answer = refuse
    reply = await ask(gateway)
    assert (reply.status, reply.json) == (404, {"message": "no such model"})
    assert reply.cache == "refrain; fwd=miss; detail=upstream-status"
