"""Declared context made shorter, over HTTP: what is sent, told, keyed, and what faults do."""

import asyncio
from typing import Any

import orjson
import pytest

from gateway.prompts.outcome import Compression, NotRewritten, PreparedRequest
from gateway.semantic.ports import SemanticUnavailableError
from gateway.server.prepare import Compressor
from policies.decision import Endpoint
from policies.format.load import parse_policy
from running_gateway import RunningGateway, StartGateway
from scripted_upstream import ScriptedUpstream

DEFAULT = "exact: on, semantic: off, freshness: 1h, scope: tenant, pii: bypass"
MARKED = "{documents: {begin: <d>, end: </d>}}"
HALF = "{documents: {begin: <d>, end: </d>}, keep: 50%}"
WIDE = '<d>{ "shop" :  "bread" }</d> What does it sell?'
PROSE = (
    "<d>The choir sings songs in the church of the old town.</d>"
    "<d>A long river flows through slow villages to the sea.</d>"
    "<d>Players of chess think about openings and endings.</d> Who sings?"
)


async def ruled(start_gateway: StartGateway, tmp_path: Any, compress: str) -> RunningGateway:
    policy = tmp_path / "policy.yaml"
    policy.write_text(f"version: 1\ndefault: {{{DEFAULT}, compress: {compress}}}\n")
    return await start_gateway(policy=policy)


async def test_context_is_sent_shorter_told_and_counted(
    start_gateway: StartGateway, upstream: ScriptedUpstream, tmp_path: Any
):
    gateway = await ruled(start_gateway, tmp_path, MARKED)
    reply = await gateway.ask(WIDE)
    assert reply.headers["X-Refrain-Compress"] == "minified; tokens=6; saved=2"
    assert upstream.bodies[0]["messages"][0]["content"] == (
        '<d>{"shop":"bread"}</d> What does it sell?'
    )
    page = (await gateway.get("/metrics")).raw.decode()
    assert 'refrain_compressed_total{rule="default",step="minified"} 1.0' in page
    assert 'refrain_compress_tokens_total{kind="saved",rule="default"} 2.0' in page


async def test_by_default_nothing_is_compressed(
    start_gateway: StartGateway, upstream: ScriptedUpstream
):
    reply = await (await start_gateway()).ask(WIDE)
    assert "X-Refrain-Compress" not in reply.headers
    assert upstream.bodies[0]["messages"][0]["content"] == WIDE


async def test_keys_are_those_of_the_request_as_it_was_asked(
    start_gateway: StartGateway, upstream: ScriptedUpstream, tmp_path: Any
):
    plain = await ruled(start_gateway, tmp_path, "off")
    await plain.ask(WIDE)
    await plain.stop()
    gateway = await ruled(start_gateway, tmp_path, MARKED)  # on the same store
    found = await gateway.ask(WIDE)
    assert found.cache.startswith("refrain; hit")
    assert "X-Refrain-Compress" not in found.headers
    assert (await gateway.ask(WIDE.replace("  ", " "))).cache == "refrain; fwd=miss; stored"
    assert upstream.calls == 2


async def test_the_markers_may_be_those_of_prefix(
    start_gateway: StartGateway, upstream: ScriptedUpstream, tmp_path: Any
):
    prefix = "prefix: {documents: {begin: <d>, end: </d>}}"
    gateway = await ruled(start_gateway, tmp_path, f"on, {prefix}")
    assert (await gateway.ask(WIDE)).headers["X-Refrain-Compress"].startswith("minified")
    assert '{"shop":"bread"}' in upstream.bodies[0]["messages"][0]["content"]


async def test_why_a_request_is_sent_as_it_was_is_told_and_counted(
    start_gateway: StartGateway, upstream: ScriptedUpstream, tmp_path: Any
):
    gateway = await ruled(start_gateway, tmp_path, HALF)
    for content, why in ((f"<d>{WIDE}", "nested-markers"), (PROSE, "no-encoder")):
        reply = await gateway.ask(content)
        assert reply.headers["X-Refrain-Compress"] == f"none; declined={why}"
        assert upstream.bodies[-1]["messages"][0]["content"] == content
        line = f'refrain_compress_declined_total{{reason="{why}",rule="default"}} 1.0'
        assert line in (await gateway.get("/metrics")).raw.decode()


async def test_a_large_request_is_compressed_too(
    start_gateway: StartGateway, upstream: ScriptedUpstream, tmp_path: Any
):
    gateway = await ruled(start_gateway, tmp_path, f"{MARKED}")
    rows = orjson.dumps({str(i): i for i in range(5000)}, option=orjson.OPT_INDENT_2).decode()
    reply = await gateway.ask(f"<d>{rows}</d> What is 7?")
    assert reply.headers["X-Refrain-Compress"].startswith("minified; tokens=")
    assert "\n" not in upstream.bodies[0]["messages"][0]["content"]


class Encoder:
    """The encoder's port, with an answer of the test's."""

    name = digest = "fake"

    def __init__(self, answer: Any) -> None:
        self.answer = answer

    async def embed(self, texts: Any) -> Any:
        return await self.answer(texts)


async def told(answer: Any, seconds: float = 30.0) -> Any:
    text = f"version: 1\ndefault: {{{DEFAULT}, compress: {HALF}}}\n"
    decision = parse_policy(text, "p.yaml").default
    body = {"model": "m", "messages": [{"role": "user", "content": PROSE}]}
    came = PreparedRequest(body, orjson.dumps(body))
    sent = await Compressor(Encoder(answer), seconds).compress(Endpoint.CHAT, decision, came)
    if sent.compression is not None and sent.compression.refused:
        assert (sent.body, sent.raw) == (came.body, came.raw)
    return sent


async def test_passages_far_from_the_question_go():
    async def near_first(texts: Any) -> Any:
        assert texts[0].strip() == "Who sings?"
        return [(1.0, 0.0), (1.0, 0.0), *[(0.0, 1.0)] * (len(texts) - 2)]

    result = await told(near_first)
    assert result.body["messages"][0]["content"] == (
        "<d>The choir sings songs in the church of the old town.</d><d></d><d></d> Who sings?"
    )


async def raises(error: Exception) -> Any:
    raise error


@pytest.mark.parametrize(
    ("answer", "why"),
    [
        (lambda _: raises(SemanticUnavailableError("unavailable")), NotRewritten.NO_ENCODER),
        (lambda _: raises(SemanticUnavailableError("text-too-long")), NotRewritten.NO_ENCODER),
        (lambda _: raises(SemanticUnavailableError("timeout")), NotRewritten.TIMEOUT),
        (lambda _: raises(RuntimeError("boom")), NotRewritten.FAULT),
        (lambda _: asyncio.sleep(0, [(1.0,)]), NotRewritten.FAULT),
        (lambda _: asyncio.sleep(0, []), NotRewritten.FAULT),
    ],
)
async def test_a_fault_of_the_encoder_sends_the_request_as_it_was(answer, why):
    assert (await told(answer)).compression == Compression(refused=why)


async def test_an_encoder_that_does_not_answer_is_given_up():
    given_up = await told(lambda _: asyncio.Event().wait(), 0.01)
    assert given_up.compression == Compression(refused=NotRewritten.TIMEOUT)


async def test_who_did_not_ask_for_shorter_context_gets_no_answer_to_it(
    start_gateway: StartGateway, upstream: ScriptedUpstream, tmp_path: Any
):
    policy = tmp_path / "policy.yaml"
    policy.write_text(
        f"version: 1\ndefault: {{{DEFAULT}}}\n"
        "rules:\n"
        "  - {name: short, match: {header: {X-Team: short}}, "
        f"compress: {HALF}}}\n"
    )
    gateway = await start_gateway(policy=policy)
    assert "X-Refrain-Compress" in (await gateway.ask(WIDE, headers={"X-Team": "short"})).headers
    assert "fwd=miss" in (await gateway.ask(WIDE)).cache
    assert upstream.bodies[1]["messages"][0]["content"] == WIDE
    for headers in ({}, {"X-Team": "short"}):
        assert "; hit" in (await gateway.ask(WIDE, headers=headers)).cache
