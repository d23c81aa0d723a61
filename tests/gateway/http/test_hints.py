"""Hints over HTTP, against a provider that caches by marks as Anthropic does."""

import logging
from itertools import pairwise
from typing import Any

import orjson
import pytest
from aiohttp import web
from caching_provider import CachingProvider

from gateway.telemetry.prefix_metrics import ENOUGH
from running_gateway import Asked, RunningGateway, StartGateway
from scripted_upstream import Answer, ScriptedUpstream

LONG = "You are careful. " * 400
CLAUDE = "claude-sonnet-4-5"


async def ruled(start_gateway: StartGateway, tmp_path: Any, hints: str) -> RunningGateway:
    policy = tmp_path / "policy.yaml"
    policy.write_text(
        "version: 1\ndefault: {exact: on, semantic: off, freshness: 1h, scope: tenant, "
        f"pii: bypass, hints: {hints}}}\n"
    )
    return await start_gateway(policy=policy)


async def ask(gateway: RunningGateway, *turns: Any, system: Any = LONG, **more: Any) -> Asked:
    roles = ("user", "assistant")
    spoken = [
        {"role": roles[number % 2], "content": content} for number, content in enumerate(turns)
    ]
    messages = [{"role": "system", "content": system}, *spoken]
    return await gateway.ask(**{"model": CLAUDE, "messages": messages, **more})


def cached(reply: Asked) -> int:
    return int(reply.json["usage"]["prompt_tokens_details"]["cached_tokens"])


async def figure(gateway: RunningGateway, name: str) -> float:
    labels = f'{{model="{CLAUDE}",rule="default"}} '
    page = (await gateway.get("/metrics")).raw.decode()
    return float(page.split(f"\n{name}{labels}")[1].split("\n")[0])


async def test_other_questions_of_one_assistant_hit_the_providers_cache_and_the_share_is_told(
    start_gateway: StartGateway, upstream: ScriptedUpstream, tmp_path: Any
):
    upstream.answer = CachingProvider().answer
    gateway = await ruled(start_gateway, tmp_path, "{breakpoints: system}")
    first, second = await ask(gateway, "One?"), await ask(gateway, "Two?")
    assert (cached(first), first.headers["X-Refrain-Rewrite"]) == (0, "breakpoints")
    assert cached(second) > len(LONG) // 4
    total = sum(each.json["usage"]["prompt_tokens"] for each in (first, second))
    assert await figure(gateway, "refrain_prompt_tokens_total") == total
    assert await figure(gateway, "refrain_prompt_tokens_cached_total") == cached(second)
    assert await figure(gateway, "refrain_prompt_tokens_written_total") == cached(second)
    (route,) = (await gateway.get("/admin/prefix-hits")).json["routes"]
    assert (route["rule"], route["model"], route["calls"]) == ("default", CLAUDE, 2)
    assert route["share"] == pytest.approx(cached(second) / total, abs=1e-4)
    # A hit of the gateway's own cache asks nobody, and counts nothing.
    again = await ask(gateway, "Two?")
    assert again.cache.startswith("refrain; hit")
    assert (await gateway.get("/admin/prefix-hits")).json["routes"] == [route]


async def test_without_marks_such_a_provider_finds_nothing(
    start_gateway: StartGateway, upstream: ScriptedUpstream, tmp_path: Any
):
    upstream.answer = CachingProvider().answer
    gateway = await ruled(start_gateway, tmp_path, "off")
    replies = [await ask(gateway, question) for question in ("One?", "Two?")]
    assert [cached(reply) for reply in replies] == [0, 0]
    assert "X-Refrain-Rewrite" not in replies[1].headers


async def test_a_conversation_is_read_from_the_cache_up_to_its_last_exchange(
    start_gateway: StartGateway, upstream: ScriptedUpstream, tmp_path: Any
):
    upstream.answer = CachingProvider().answer
    gateway = await ruled(start_gateway, tmp_path, "{breakpoints: earlier}")
    turns = ["One?", "yes " * 400, "Two?", "yes " * 400, "Three?", "yes " * 400, "Four?"]
    found = [cached(await ask(gateway, *turns[:count])) for count in (1, 3, 5, 7)]
    assert found[0] == 0
    assert found[1] > len(LONG) // 4
    assert [later - one for one, later in pairwise(found[1:])] == [pytest.approx(400, abs=20)] * 2


async def test_a_client_with_marks_of_its_own_is_never_refused_for_ours(
    start_gateway: StartGateway, upstream: ScriptedUpstream, tmp_path: Any
):
    upstream.answer = CachingProvider().answer
    gateway = await ruled(start_gateway, tmp_path, "{breakpoints: earlier}")
    mark = {"cache_control": {"type": "ephemeral"}}
    for count in range(6):
        own = [{"type": "text", "text": f"Part {number}", **mark} for number in range(count)]
        last = [*own, {"type": "text", "text": f"{count}?"}]
        reply = await ask(gateway, "One?", "yes", last, system=[{"type": "text", "text": LONG}])
        assert reply.status == (200 if count <= 4 else 400)
        sent = upstream.raw[-1].count(b'"cache_control"')
        assert sent == max(count, min(4, count + 2))


async def test_a_key_is_sent_that_other_tenants_do_not_share(
    start_gateway: StartGateway, upstream: ScriptedUpstream, tmp_path: Any
):
    gateway = await ruled(start_gateway, tmp_path, "{cache_key: on, retention: 24h}")
    for tenant, question in (("a", "One?"), ("a", "Two?"), ("b", "One?")):
        headers = {"Authorization": f"Bearer {tenant}"}
        reply = await ask(gateway, question, headers=headers)
        assert reply.headers["X-Refrain-Rewrite"] == "cache-key, retention"
    keys = [body["prompt_cache_key"] for body in upstream.bodies]
    assert keys[0] == keys[1] != keys[2]
    assert {body["prompt_cache_retention"] for body in upstream.bodies} == {"24h"}


async def test_the_cache_key_is_that_of_the_request_without_hints(
    start_gateway: StartGateway, upstream: ScriptedUpstream, tmp_path: Any
):
    for hints, outcome in (("off", "fwd=miss"), ("{breakpoints: system, cache_key: on}", "hit")):
        gateway = await ruled(start_gateway, tmp_path, hints)  # on the same store
        assert (await ask(gateway, "One?")).cache.startswith(f"refrain; {outcome}")
        await gateway.stop()
    assert upstream.calls == 1


def refusing(word: str, plain: Answer) -> Answer:
    async def answer(request: web.Request, body: dict[str, Any]) -> web.StreamResponse:
        if word in orjson.dumps(body).decode():
            error = {"message": f"Unrecognized request argument: {word}", "type": "invalid"}
            return web.json_response({"error": error}, status=400)
        return await plain(request, body)

    return answer


@pytest.mark.parametrize("stream", [False, True])
async def test_a_request_whose_hints_are_refused_is_sent_once_more_without(
    start_gateway: StartGateway, upstream: ScriptedUpstream, tmp_path: Any, *, stream: bool
):
    upstream.answer = refusing("prompt_cache_retention", upstream.answer)
    gateway = await ruled(start_gateway, tmp_path, "{cache_key: on, retention: 24h}")
    for number in range(3):
        reply = await ask(gateway, f"{number}?", stream=stream)
        assert (reply.status, reply.text) == (200, f"You asked: {number}?")
        told = 'none; declined="cache-key=refused, retention=refused"'
        assert reply.headers["X-Refrain-Rewrite"] == told
        assert reply.cache.startswith("refrain; fwd=miss")
        assert (await ask(gateway, f"{number}?", stream=stream)).cache.startswith("refrain; hit")
    with_key = ["prompt_cache_key" in body for body in upstream.bodies]
    assert with_key == [True, False, False, False]  # a refusal is learned once
    line = 'refrain_rewrites_declined_total{reason="refused",rewrite="cache-key",rule="default"} 3'
    assert line in (await gateway.get("/metrics")).raw.decode()


async def test_a_refusal_for_another_reason_is_the_clients(
    start_gateway: StartGateway, upstream: ScriptedUpstream, tmp_path: Any
):
    upstream.answer = refusing("seed", upstream.answer)
    gateway = await ruled(start_gateway, tmp_path, "{cache_key: on}")
    for _ in range(2):
        before = upstream.calls
        refused = await ask(gateway, "One?", seed=1)
        assert (refused.status, upstream.calls - before) == (400, 2)
        assert (await ask(gateway, f"Good {before}?")).headers["X-Refrain-Rewrite"] == "cache-key"


async def test_marks_that_never_hit_are_warned_of_once(
    start_gateway: StartGateway,
    upstream: ScriptedUpstream,
    tmp_path: Any,
    caplog: pytest.LogCaptureFixture,
):
    upstream.answer = CachingProvider().answer
    gateway = await ruled(start_gateway, tmp_path, "{breakpoints: system}")
    with caplog.at_level(logging.WARNING, "gateway.telemetry.prefix_metrics"):
        for number in range(ENOUGH + 2):
            await ask(gateway, "One?", system=f"It is {number}. {LONG}")
    (warned,) = (record.getMessage() for record in caplog.records)
    assert warned.startswith(f"the hints of rule default never hit: {ENOUGH} calls of '{CLAUDE}'")
    assert await figure(gateway, "refrain_hints_never_hit") == 1
    assert (await gateway.get("/readyz")).json["hints_never_hit"] == [f"default {CLAUDE}"]
