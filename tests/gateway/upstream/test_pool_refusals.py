"""What the gateway adds to requests, and upstreams that refuse it: each is sent what suits it."""

from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import orjson
import pytest
from aiohttp import web
from faulty_upstreams import Answers, StartServer, pool, says, servers, status

from backend.runtime.chat_template import ChatTemplate, ChatTemplateError
from running_gateway import Asked, StartGateway
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
    chat = ChatTemplate(template, {})

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


def second_choice(one: ScriptedUpstream) -> dict[str, Any]:
    return {"url": f"{one.url}/v1", "tier": 2}


async def test_only_who_refuses_stream_options_is_not_asked_for_usage(
    start_gateway: StartGateway, server: StartServer
):
    first = await server(refuses("stream_options", says("From a.")))
    second = await server(says("From b."))
    gateway = await pool(start_gateway, first, second_choice(second))

    for question in ("one", "two"):
        assert (await gateway.ask(question, stream=True)).text == "From a."
    assert sent(first, "stream_options") == [True, False, False]

    first.answer = status(500)
    assert (await gateway.ask("three", stream=True)).text == "From b."
    assert sent(first, "stream_options") == [True, False, False, False]
    assert sent(second, "stream_options") == [True]


async def test_hints_are_left_out_where_they_are_refused_and_told_where_they_are_taken(
    start_gateway: StartGateway, server: StartServer, tmp_path: Path
):
    policy = tmp_path / "policy.yaml"
    policy.write_text(
        "version: 1\ndefault: {exact: on, semantic: off, freshness: 1h, scope: tenant, "
        "pii: bypass, hints: {cache_key: on}}\n"
    )
    first = await server(refuses("prompt_cache_key", says("From a.")))
    second = await server(says("From b."))
    gateway = await pool(start_gateway, first, second_choice(second), policy=policy)

    for question in ("one", "two"):
        reply = await gateway.ask(question)
        assert reply.headers["X-Refrain-Rewrite"] == 'none; declined="cache-key=refused"'
    assert sent(first, "prompt_cache_key") == [True, False, False]

    first.answer = status(500)
    reply = await gateway.ask("three")
    assert (reply.text, reply.headers["X-Refrain-Rewrite"]) == ("From b.", "cache-key")
    assert sent(second, "prompt_cache_key") == [True]


@pytest.fixture
def moves_dates(tmp_path: Path) -> Path:
    policy = tmp_path / "policy.yaml"
    policy.write_text(
        "version: 1\ndefault: {exact: on, semantic: off, freshness: 1h, scope: tenant, "
        "pii: bypass, prefix: {volatile: [dates]}}\n"
    )
    return policy


async def test_values_move_only_where_the_template_takes_two_turns_of_the_user(
    start_gateway: StartGateway, server: StartServer, moves_dates: Path
):
    first = await server(renders(ALTERNATING, says("From a.")))
    second = await server(says("From b."))
    gateway = await pool(start_gateway, first, second_choice(second), policy=moves_dates)

    async def ask(question: str) -> Asked:
        return await gateway.ask(messages=[SYSTEM, {"role": "user", "content": question}])

    for question in ("one", "two"):
        reply = await ask(question)
        assert reply.headers["X-Refrain-Rewrite"] == 'none; declined="volatile=refused"'
    assert sent(first, "[date-1]") == [True, False, False]
    assert first.bodies[-1]["messages"][0] == SYSTEM

    first.answer = status(500)
    reply = await ask("three")
    assert (reply.text, reply.headers["X-Refrain-Rewrite"]) == ("From b.", "volatile")
    assert sent(second, "[date-1]") == [True]


async def test_whose_template_fails_with_a_fault_is_sent_no_values_that_moved_the_next_time(
    start_gateway: StartGateway, server: StartServer, moves_dates: Path
):
    first = await server(renders(ALTERNATING, says("From a."), 500))
    second = await server(says("From b."))
    gateway = await pool(start_gateway, first, second_choice(second), policy=moves_dates)

    told = [
        (await gateway.ask(messages=[SYSTEM, {"role": "user", "content": question}])).text
        for question in ("one", "two", "three")
    ]

    assert told == ["From b.", "From a.", "From a."]
    assert sent(first, "[date-1]") == [True, False, False]
