"""What the gateway adds to requests: who accepts it gets it, and a refusal costs one retry."""

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import orjson
import pytest
from aiohttp import web
from faulty_upstreams import Answers, StartServer, policy_with, pool, resets, says, servers, status

from backend.tokenizer.chat_template import ChatTemplate, ChatTemplateError
from gateway.upstream.additions import REFUSED_SECONDS, RefusedAdditions
from gateway.upstream.pool.retry_budget import MOST
from gateway.upstream.tries import MOST_SAME_RETRIES
from running_gateway import StartGateway
from scripted_upstream import ScriptedUpstream

ALTERNATING = """
{%- for message in messages[1:] %}
    {%- if (message.role == 'user') != (loop.index0 % 2 == 0) %}
        {{- raise_exception('Conversation roles must alternate user/assistant/...') }}
    {%- endif %}
{%- endfor %}
"""
SYSTEM = {"role": "system", "content": "It is 2026-11-22. Be brief, and say what you know."}


@pytest.fixture
async def server() -> AsyncIterator[StartServer]:
    async with servers() as start:
        yield start


def refuses(word: str, then: Answers) -> Answers:
    """Refuse requests that have the word, as servers do that do not know a field."""

    async def answer(request: web.Request, body: dict[str, Any]) -> web.StreamResponse:
        if word in orjson.dumps(body).decode():
            error = {"message": f"Unrecognized request argument: {word}"}
            return web.json_response({"error": error}, status=400)
        return await then(request, body)

    return answer


def renders(template: str, then: Answers, code: int = 400) -> Answers:
    """Refuse what the template refuses, as servers do that put prompts together by it."""
    chat = ChatTemplate({"default": template}, {})

    async def answer(request: web.Request, body: dict[str, Any]) -> web.StreamResponse:
        try:
            chat.render(
                body["messages"],
                add_generation_prompt=True,
                continue_final_message=False,
                tools=None,
                variables={},
            )
        except ChatTemplateError as refused:
            return web.json_response({"error": {"message": str(refused)}}, status=code)
        return await then(request, body)

    return answer


def sent(one: ScriptedUpstream, word: str) -> list[bool]:
    return [word in orjson.dumps(body).decode() for body in one.bodies]


def fails_once(then: Answers) -> Answers:
    """Fail the first request only."""
    answers = iter([status(500)])

    async def answer(request: web.Request, body: dict[str, Any]) -> web.StreamResponse:
        return await next(answers, then)(request, body)

    return answer


def warned(caplog: pytest.LogCaptureFixture) -> list[str]:
    return [record.getMessage() for record in caplog.records if record.levelname == "WARNING"]


def second_choice(one: ScriptedUpstream) -> dict[str, Any]:
    return {"url": f"{one.url}/v1", "tier": 2}


async def test_what_is_sent_depends_on_what_the_upstream_accepts_that_is_chosen(
    start_gateway: StartGateway, server: StartServer, tmp_path: Path
):
    first, second, third = [await server(says(f"From {name}.")) for name in "abc"]
    gateway = await pool(
        start_gateway,
        {"url": f"{first.url}/v1", "accepts": ["hints"]},
        {"url": f"{second.url}/v1", "accepts": ["stream-usage"], "tier": 2},
        {"url": f"{third.url}/v1", "tier": 3},
        policy=policy_with(tmp_path, "hints: {cache_key: on}"),
    )
    told = []
    for one in (first, second, third):
        reply = await gateway.ask(f"{len(told)}?", stream=True)
        told.append((reply.text, reply.headers["X-Refrain-Rewrite"]))
        one.answer = status(429, Retry_After="60")

    declined = 'none; declined="cache-key=refused"'
    assert told == [
        ("From a.", "cache-key"),
        ("From b.", declined),
        ("From c.", "cache-key"),
    ]
    assert sent(first, "stream_options") == [False, False]
    assert sent(first, "prompt_cache_key") == [True, True]
    assert sent(second, "stream_options") == [True, True]
    assert sent(second, "prompt_cache_key") == [False, False]
    assert sent(third, "stream_options") == sent(third, "prompt_cache_key") == [True]


async def test_what_all_upstreams_accept_may_be_another_thing_for_one(
    start_gateway: StartGateway, server: StartServer
):
    first, second = [await server(says("Fine.")) for _ in range(2)]
    gateway = await pool(
        start_gateway,
        first,
        {**second_choice(second), "accepts": ["stream-usage"]},
        upstream_accepts=[],
    )
    await gateway.ask("one", stream=True)
    first.answer = status(429, Retry_After="60")
    await gateway.ask("two", stream=True)
    assert sent(first, "stream_options") == [False, False]
    assert sent(second, "stream_options") == [True]


async def test_a_refused_request_goes_to_the_same_upstream_as_the_client_sent_it(
    start_gateway: StartGateway, server: StartServer, tmp_path: Path
):
    first = await server(fails_once(says("From a.")))
    second = await server(refuses("prompt_cache_key", says("From b.")))
    gateway = await pool(
        start_gateway,
        first,
        second_choice(second),
        policy=policy_with(tmp_path, "hints: {cache_key: on}, prefix: {tools: sorted}"),
    )
    tools = [
        {"type": "function", "function": {"name": name, "parameters": {"type": "object"}}}
        for name in "ba"
    ]
    turns = [{"role": "user", "content": "one"}]
    asked = orjson.dumps({"model": "m", "stream": True, "messages": turns, "tools": tools})
    reply = await gateway.post("/v1/chat/completions", asked)

    assert (reply.status, reply.text) == (200, "From b.")
    assert reply.headers["X-Refrain-Upstream"] == 'b; tried="a=upstream-status"'
    rewritten = 'none; declined="tools=refused, cache-key=refused"'
    assert reply.headers["X-Refrain-Rewrite"] == rewritten
    assert (first.calls, second.calls) == (1, 2)
    assert second.raw[0] != second.raw[1] == asked


async def test_what_was_refused_is_learned_once_and_one_line_tells_of_the_setting(
    start_gateway: StartGateway, server: StartServer, caplog: pytest.LogCaptureFixture
):
    only = await server(refuses("stream_options", says("Fine.")))
    gateway = await pool(start_gateway, only)
    for question in ("one", "two"):
        assert (await gateway.ask(question, stream=True)).text == "Fine."
    assert (await gateway.ask("three", stream=True, model="another")).text == "Fine."
    assert sent(only, "stream_options") == [True, False, False, True, False]
    line, _ = warned(caplog)
    assert line.startswith("upstream a refuses what the gateway adds (status 400)")
    assert "accepts: [hints] " in line


async def test_what_was_refused_is_tried_again_after_a_while():
    now = 0.0
    refused = RefusedAdditions(lambda: now)
    assert refused.note("a", "ann", "m", frozenset({"hints"})) is not None
    assert refused.note("a", "ann", "m", frozenset({"hints"})) is None
    assert refused.of("a", "ann", "m") == {"hints"}
    others = ("a", "ann", "other"), ("b", "ann", "m"), ("a", "bob", "m"), ("a", None, "m")
    assert not any(refused.of(*other) for other in others)
    now = REFUSED_SECONDS + 1
    assert not refused.of("a", "ann", "m")


async def test_what_is_refused_as_the_client_sent_it_is_the_clients_and_nobody_is_warned(
    start_gateway: StartGateway, server: StartServer, caplog: pytest.LogCaptureFixture
):
    only = await server(status(422))
    gateway = await pool(start_gateway, only)
    reply = await gateway.ask("one", stream=True)
    assert (reply.status, reply.json) == (422, {"error": {"message": "422"}})
    assert sent(only, "stream_options") == [True, False]
    assert not warned(caplog)


@pytest.mark.parametrize("code", [400, 500])
async def test_a_template_that_refuses_moved_values_gets_them_where_they_came(
    start_gateway: StartGateway,
    server: StartServer,
    tmp_path: Path,
    caplog: pytest.LogCaptureFixture,
    code: int,
):
    only = await server(renders(ALTERNATING, says("Fine."), code))
    policy = policy_with(tmp_path, "prefix: {volatile: [dates]}")
    gateway = await start_gateway(upstream=(f"{only.url}/v1",), policy=policy)
    for question in ("one", "two"):
        reply = await gateway.ask(messages=[SYSTEM, {"role": "user", "content": question}])
        assert reply.headers["X-Refrain-Rewrite"] == 'none; declined="volatile=refused"'
    # A server error may have had another cause: it is not learned.
    assert sent(only, "[date-1]") == [True, False, *([] if code == 400 else [True]), False]
    assert only.bodies[-1]["messages"][0] == SYSTEM
    lines = [line for line in warned(caplog) if "adds" in line]
    assert len(lines) == (1 if code == 400 else 0)
    assert all(line.endswith("set prefix: {volatile: off} in the policy") for line in lines)


async def test_a_server_error_is_no_reason_to_send_again_what_has_no_moved_values(
    start_gateway: StartGateway, server: StartServer
):
    only = await server(status(500))
    gateway = await start_gateway(upstream=(f"{only.url}/v1",))
    assert (await gateway.ask("one", stream=True)).status == 500
    assert sent(only, "stream_options") == [True]


async def test_no_addition_fails_one_of_many_requests_at_a_time(
    start_gateway: StartGateway, server: StartServer
):
    only = await server(refuses("stream_options", says("Fine.")))
    gateway = await start_gateway(upstream=(f"{only.url}/v1",))
    asks = [gateway.ask(f"{number}", stream=True) for number in range(3 * int(MOST))]
    assert {reply.text for reply in await asyncio.gather(*asks)} == {"Fine."}


async def test_a_server_error_is_not_sent_again_once_others_have_emptied_the_retry_budget(
    start_gateway: StartGateway, server: StartServer, tmp_path: Path
):
    let_go, arrived = asyncio.Event(), asyncio.Event()
    template = renders(ALTERNATING, says("Fine."), 500)

    async def answer(request: web.Request, body: dict[str, Any]) -> web.StreamResponse:
        if body["messages"][-1]["content"] == "wait":
            arrived.set()
            await let_go.wait()
        return await template(request, body)

    only = await server(answer)
    policy = policy_with(tmp_path, "prefix: {volatile: [dates]}")
    gateway = await start_gateway(upstream=(f"{only.url}/v1",), policy=policy)
    waits = [SYSTEM, {"role": "user", "content": "wait"}]
    waiting = asyncio.create_task(gateway.ask(messages=waits))
    async with asyncio.timeout(10):
        await arrived.wait()
    for number in range(60):
        calls = only.calls
        turns = [SYSTEM, {"role": "user", "content": f"{number}"}]
        await gateway.ask(messages=turns, model=f"m{number}")
        if only.calls - calls == 1:
            break
    calls = only.calls
    let_go.set()
    assert ((await waiting).status, only.calls) == (500, calls)


async def test_if_the_second_call_fails_the_client_gets_the_first_answer(
    start_gateway: StartGateway, server: StartServer
):
    only = await server(refuses("stream_options", resets))
    gateway = await start_gateway(upstream=(f"{only.url}/v1",))
    reply = await gateway.ask("one", stream=True)
    error = {"message": "Unrecognized request argument: stream_options"}
    assert (reply.status, reply.json) == (400, {"error": error})
    first, *others = sent(only, "stream_options")
    assert first
    assert not any(others)
    assert 1 <= len(others) <= 1 + MOST_SAME_RETRIES


async def test_the_request_as_the_client_sent_it_keeps_the_tenants_salt(
    start_gateway: StartGateway, server: StartServer
):
    only = await server(refuses("stream_options", says("Fine.")))
    gateway = await start_gateway(upstream=(f"{only.url}/v1",), upstream_cache_salt=True)
    assert (await gateway.ask("one", stream=True)).text == "Fine."
    first, second = (body["cache_salt"] for body in only.bodies)
    assert first == second


async def test_context_that_was_sent_as_it_came_is_not_told_to_be_shorter(
    start_gateway: StartGateway, server: StartServer, tmp_path: Path
):
    only = await server(refuses("stream_options", says("Fine.")))
    policy = policy_with(tmp_path, "compress: {documents: {begin: <d>, end: </d>}}")
    gateway = await start_gateway(upstream=(f"{only.url}/v1",), policy=policy)
    question = '<d>{ "shop" :  "bread" }</d> What does it sell?'
    reply = await gateway.ask(question, stream=True)
    assert reply.headers["X-Refrain-Compress"] == "none; declined=refused"
    assert [body["messages"][0]["content"] == question for body in only.bodies] == [False, True]
