"""Prompts rewritten on their way to the upstream, over HTTP: what is sent, told and keyed."""

import asyncio
from typing import Any

import orjson
import pytest

from running_gateway import RunningGateway, StartGateway
from scripted_upstream import ScriptedUpstream

SCHEMA = {"type": "object", "properties": {"b": {"type": "string"}, "a": {"type": "string"}}}
IN_ORDER = {"properties": {"b": {"type": "string"}, "a": {"type": "string"}}, "type": "object"}


def tools(*names: str, schema: Any = SCHEMA) -> list[dict[str, Any]]:
    return [
        {"type": "function", "function": {"name": name, "parameters": schema}} for name in names
    ]


async def ruled(start_gateway: StartGateway, tmp_path: Any, prefix: str) -> RunningGateway:
    policy = tmp_path / "policy.yaml"
    policy.write_text(
        "version: 1\ndefault: {exact: on, semantic: off, freshness: 1h, scope: tenant, "
        f"pii: bypass, prefix: {prefix}}}\n"
    )
    return await start_gateway(policy=policy)


async def metric(gateway: RunningGateway, line: str) -> bool:
    return line in (await gateway.get("/metrics")).raw.decode()


async def test_by_default_only_the_keywords_of_tool_schemas_move(
    start_gateway: StartGateway, upstream: ScriptedUpstream
):
    gateway = await start_gateway()
    reply = await gateway.ask(tools=tools("b", "a"), seed=1)
    assert reply.headers["X-Refrain-Rewrite"] == "schema-keys"
    assert upstream.bodies == [
        {
            "model": "m",
            "messages": [{"role": "user", "content": "How do I reset my password?"}],
            "tools": tools("b", "a"),
            "seed": 1,
        }
    ]
    sent = orjson.dumps(upstream.bodies[0])
    assert sent.count(orjson.dumps(IN_ORDER)) == 2
    line = 'refrain_rewrites_total{rewrite="schema-keys",rule="default"} 1.0'
    assert await metric(gateway, line)


async def test_a_request_that_needs_nothing_is_sent_as_it_came_and_nothing_is_told(
    start_gateway: StartGateway, upstream: ScriptedUpstream
):
    gateway = await start_gateway()
    raw = b'{ "model": "m", "messages": [{"role": "user", "content": "tools"}], "tools": [] }'
    reply = await gateway.post("/v1/chat/completions", raw)
    assert "X-Refrain-Rewrite" not in reply.headers
    assert upstream.raw == [raw]


async def test_the_policy_sorts_tools_and_switches_all_of_it_off(
    start_gateway: StartGateway, upstream: ScriptedUpstream, tmp_path: Any
):
    gateway = await ruled(start_gateway, tmp_path, "{tools: sorted}")
    reply = await gateway.ask(tools=tools("b", "a"))
    assert reply.headers["X-Refrain-Rewrite"] == "schema-keys, tools"
    assert [tool["function"]["name"] for tool in upstream.bodies[0]["tools"]] == ["a", "b"]
    other = await ruled(start_gateway, tmp_path, "off")
    reply = await other.ask("And now?", tools=tools("b", "a"))
    assert "X-Refrain-Rewrite" not in reply.headers
    assert orjson.dumps(upstream.bodies[1]["tools"]) == orjson.dumps(tools("b", "a"))


async def test_what_is_left_with_a_reason_is_told_and_counted(
    start_gateway: StartGateway, upstream: ScriptedUpstream, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr("gateway.prompts.rewrite.tool_rules.MAX_TOOL_BYTES", 1000)
    gateway = await start_gateway()
    huge = tools("a", schema={"type": "object", "description": "x" * 1000})
    reply = await gateway.ask(tools=huge)
    assert reply.headers["X-Refrain-Rewrite"] == 'none; declined="schema-keys=too-large"'
    assert orjson.dumps(upstream.bodies[0]["tools"]) == orjson.dumps(huge)
    line = (
        'refrain_rewrites_declined_total{reason="too-large",rewrite="schema-keys",rule="default"}'
    )
    assert await metric(gateway, f"{line} 1.0")


async def test_keys_are_those_of_the_request_as_it_was_asked(
    start_gateway: StartGateway, upstream: ScriptedUpstream, tmp_path: Any
):
    plain = await ruled(start_gateway, tmp_path, "off")
    assert (await plain.ask(tools=tools("b", "a"))).cache == "refrain; fwd=miss; stored"
    await plain.stop()
    rewriting = await ruled(start_gateway, tmp_path, "{tools: sorted}")  # on the same store
    found = await rewriting.ask(tools=tools("b", "a"))
    assert found.cache.startswith("refrain; hit")
    assert "X-Refrain-Rewrite" not in found.headers
    assert (await rewriting.ask(tools=tools("a", "b"))).cache == "refrain; fwd=miss; stored"
    for asked in (tools("a", "b"), tools("b", "a")):
        assert (await rewriting.ask(tools=asked)).cache.startswith("refrain; hit")
    assert upstream.calls == 2


async def test_a_large_request_is_rewritten_too(
    start_gateway: StartGateway, upstream: ScriptedUpstream
):
    gateway = await start_gateway()
    reply = await gateway.ask("x" * 200_000, tools=tools("a"))
    assert reply.headers["X-Refrain-Rewrite"] == "schema-keys"
    assert orjson.dumps(upstream.bodies[0]["tools"][0]["function"]["parameters"]) == orjson.dumps(
        IN_ORDER
    )


STABLE = "You are the assistant of a shop. Answer in one sentence, from the catalogue only."
NOW = "2026-11-22T01:03:42.123Z"


def timed(now: str = NOW, question: str = "What is new?") -> list[dict[str, Any]]:
    return [
        {"role": "system", "content": f"{STABLE} It is {now}."},
        {"role": "user", "content": question},
    ]


@pytest.mark.parametrize("stream", [False, True], ids=["plain", "streamed"])
async def test_volatile_values_reach_the_upstream_behind_the_stable_prefix(
    start_gateway: StartGateway, upstream: ScriptedUpstream, tmp_path: Any, stream: bool
):
    gateway = await ruled(start_gateway, tmp_path, "{volatile: timestamps}")
    reply = await gateway.ask(messages=timed(), stream=stream)
    assert reply.headers["X-Refrain-Rewrite"] == "volatile"
    system, block, last = upstream.bodies[0]["messages"]
    assert system["content"] == f"{STABLE} It is [timestamp-1]."
    assert block["role"] == "user"
    assert block["content"].endswith(f"\n[timestamp-1] = {NOW}")
    assert last == timed()[1]
    again = await gateway.ask(messages=timed())
    assert again.cache.startswith("refrain; hit")
    later = await gateway.ask(messages=timed("2026-11-22T01:03:43.123Z"))
    assert later.cache == "refrain; fwd=miss; stored"
    assert upstream.bodies[1]["messages"][0] == system


async def test_whoever_follows_a_call_is_told_what_was_done_to_its_prompt(
    start_gateway: StartGateway, upstream: ScriptedUpstream
):
    async def answer(request: Any, body: Any) -> Any:
        await all_asked.wait()
        return await plain(request, body)

    all_asked = asyncio.Event()
    plain, upstream.answer = upstream.answer, answer
    gateway = await start_gateway()
    asked = [asyncio.create_task(gateway.ask(tools=tools("b", "a"))) for _ in range(3)]
    await upstream.arrived.wait()
    all_asked.set()
    replies = [await each for each in asked]
    for reply in replies:  # one that came late may be a hit
        told = None if reply.cache.startswith("refrain; hit") else "schema-keys"
        assert reply.headers.get("X-Refrain-Rewrite") == told
    page = (await gateway.get("/metrics")).raw.decode()
    line = f'refrain_rewrites_total{{rewrite="schema-keys",rule="default"}} {upstream.calls}.0'
    assert line in page


async def test_a_rewrite_that_fails_fails_no_request(
    start_gateway: StartGateway,
    upstream: ScriptedUpstream,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
):
    def broken(*_: Any, **__: Any) -> None:
        raise RuntimeError("it quotes the prompt")

    monkeypatch.setattr("gateway.server.prepare.rewrite", broken)
    gateway = await start_gateway()
    reply = await gateway.ask(tools=tools("b"))
    assert reply.status == 200
    assert reply.headers["X-Refrain-Rewrite"] == 'none; declined="schema-keys=fault"'
    assert orjson.dumps(upstream.bodies[0]["tools"]) == orjson.dumps(tools("b"))
    assert "a prompt could not be rewritten (RuntimeError)" in caplog.text
    assert "quotes" not in caplog.text


@pytest.mark.parametrize("bound", ["INLINE_BYTES", "INLINE_PIECES"])
async def test_a_rewrite_that_takes_too_long_is_given_up(
    bound: str,
    start_gateway: StartGateway,
    upstream: ScriptedUpstream,
    monkeypatch: pytest.MonkeyPatch,
):
    monkeypatch.setattr(f"gateway.server.prepare.{bound}", 0)
    monkeypatch.setattr("gateway.server.prepare.SECONDS", 0.0)
    gateway = await start_gateway()
    reply = await gateway.ask(tools=tools("b"))
    assert reply.headers["X-Refrain-Rewrite"] == 'none; declined="schema-keys=timeout"'
    assert orjson.dumps(upstream.bodies[0]["tools"]) == orjson.dumps(tools("b"))


async def test_documents_that_a_tenants_requests_share_go_first(
    start_gateway: StartGateway, upstream: ScriptedUpstream, tmp_path: Any
):
    shared = '{documents: {begin: "<d>", end: "</d>", order: shared}}'
    gateway = await ruled(start_gateway, tmp_path, shared)
    sent = []
    for number, names in enumerate(["x", "x", "y", "y", "abxy", "yxcd"]):
        system = "".join(f"<d>{name}</d>" for name in names)
        messages = [{"role": "system", "content": system}, timed(question=f"And {number}?")[1]]
        await gateway.ask(messages=messages, headers={"Authorization": "Bearer one"})
        content = upstream.bodies[-1]["messages"][0]["content"]
        sent.append(content.replace("<d>", "").replace("</d>", ""))
    assert [each[:2] for each in sent[4:]] == ["xy", "xy"]
