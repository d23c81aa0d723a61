"""State that only its maker can read: what holds it is sent there, from wherever it was learnt."""

import re
import tracemalloc
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import orjson
import pytest
from state_makers import PATHS, Maker, continued, makers, question

from gateway.server.http.pass_through import LEARNT_BYTES, _with_events_learnt
from gateway.upstream.pool.affinity import Learner
from running_gateway import Asked, RunningGateway, StartGateway

VALUE = re.compile(r"made-by-[a-z]+-\d+")


@pytest.fixture
async def both() -> AsyncIterator[list[Maker]]:
    """The first upstream, which gets what may go anywhere, and the second."""
    async with makers("east", "west") as started:
        yield started


async def before(start: StartGateway, both: list[Maker], **settings: Any) -> RunningGateway:
    """Start a gateway; its upstreams have Anthropic's API too, so no message is translated."""
    listed = [
        {"name": one.name, "url": one.url, "tier": tier, "probe": "off", "api": "anthropic"}
        for tier, one in enumerate(both, 1)
    ]
    return await start(upstream=(), upstreams=listed, **settings)


async def send(gateway: RunningGateway, kind: str, body: dict[str, Any], **headers: str) -> Asked:
    named = {name.replace("_", "-"): value for name, value in headers.items()}
    return await gateway.post(PATHS[kind], orjson.dumps(body), headers=named)


async def made_by_the_second(
    gateway: RunningGateway, both: list[Maker], kind: str, *, stream: bool = False, **headers: str
) -> str:
    """Return the state in an answer that the second upstream made while the first failed."""
    both[0].status = 500
    reply = await send(gateway, kind, question(kind, stream=stream), **headers)
    assert reply.status == 200, reply.raw
    both[0].status = 200
    return f"made-by-west-{both[1].count}"


WAYS = [(kind, how) for kind in PATHS for how in ("plain", "streamed, not stored")]
WAYS += [(kind, how) for kind in ("thinking", "reasoning") for how in ("streamed", "not stored")]


@pytest.mark.parametrize(("kind", "how"), WAYS)
async def test_what_holds_state_goes_to_its_maker_or_nowhere(
    start_gateway: StartGateway, both: list[Maker], *, kind: str, how: str
):
    gateway = await before(start_gateway, both)
    headers = {"Cache_Control": "no-store"} if "not stored" in how else {}
    stream = "streamed" in how
    value = await made_by_the_second(gateway, both, kind, stream=stream, **headers)
    reply = await send(gateway, kind, continued(kind, value, stream=stream))
    assert (reply.status, reply.headers["X-Refrain-Upstream"]) == (200, "west"), reply.raw

    both[1].status = 429
    for heat in (0.1, 0.2):  # the first time it is asked, the second time it pauses
        reply = await send(gateway, kind, continued(kind, value, temperature=heat))
        assert reply.status == 429, reply.raw
        assert 25 <= int(reply.headers["Retry-After"]) <= 30
    assert both[0].count == 0
    anew = await send(gateway, kind, question(kind, temperature=0.5))
    assert (anew.status, anew.headers["X-Refrain-Upstream"]) == (200, "east")


@pytest.mark.parametrize("kind", ["thinking", "reasoning", "gemini"])
async def test_a_maker_that_cannot_be_reached_is_to_be_asked_later(
    start_gateway: StartGateway, both: list[Maker], kind: str
):
    gateway = await before(start_gateway, both)
    value = await made_by_the_second(gateway, both, kind)
    await both[1].stop()
    for number in range(7):  # until its breaker is open, too
        reply = await send(gateway, kind, continued(kind, value, temperature=number / 10))
        assert reply.status == 503, reply.raw
        assert int(reply.headers["Retry-After"]) >= 1
    assert both[0].count == 0


@pytest.mark.parametrize("kind", ["thinking", "reasoning", "gemini"])
async def test_a_hit_brings_state_whose_maker_is_known_after_a_restart(
    start_gateway: StartGateway, both: list[Maker], kind: str
):
    gateway = await before(start_gateway, both)
    value = await made_by_the_second(gateway, both, kind)
    await gateway.stop()
    gateway = await before(start_gateway, both)
    hit = await send(gateway, kind, question(kind, stream=True))
    assert "; hit" in hit.cache
    assert value in hit.raw.decode()
    reply = await send(gateway, kind, continued(kind, value))
    assert (reply.status, reply.headers["X-Refrain-Upstream"]) == (200, "west")


@pytest.mark.parametrize("stream", [False, True])
async def test_a_signature_that_a_translated_call_carries_goes_to_its_maker(
    start_gateway: StartGateway, both: list[Maker], *, stream: bool
):
    listed = [
        {"name": one.name, "url": one.url, "tier": tier, "probe": "off"}
        for tier, one in enumerate(both, 1)
    ]
    gateway = await start_gateway(upstream=(), upstreams=listed)
    asked = {"role": "user", "content": "Is it?"}
    body = {"model": "gemini", "max_tokens": 9, "messages": [asked], "stream": stream}
    both[0].status = 500
    reply = await gateway.post("/v1/messages", orjson.dumps(body))
    both[0].status = 200
    found = re.search(r'"id": ?"(call_1[^"]+)"', reply.raw.decode())
    assert found is not None
    call = {"type": "tool_use", "id": found[1], "name": "look", "input": {}}
    result = {"type": "tool_result", "tool_use_id": found[1], "content": "7"}
    body["messages"] = [
        asked,
        {"role": "assistant", "content": [call]},
        {"role": "user", "content": [result]},
    ]
    for status in (200, 429):
        both[1].status = status
        again = {**body, "temperature": status / 1000}
        reply = await gateway.post("/v1/messages", orjson.dumps(again))
        assert (reply.status, both[0].count) == (status, 0), reply.raw


async def test_nobody_learns_who_made_state_for_another(
    start_gateway: StartGateway, both: list[Maker]
):
    gateway = await before(start_gateway, both)
    mine, theirs = {"Authorization": "Bearer a"}, {"Authorization": "Bearer b"}
    value = await made_by_the_second(gateway, both, "reasoning", **mine)
    reply = await send(gateway, "reasoning", continued("reasoning", value), **theirs)
    assert (reply.status, reply.headers["X-Refrain-Upstream"]) == (400, "east")
    reply = await send(gateway, "reasoning", continued("reasoning", value), **mine)
    assert (reply.status, reply.headers["X-Refrain-Upstream"]) == (200, "west")


async def test_who_shares_answers_shares_what_they_bring(
    start_gateway: StartGateway, both: list[Maker], tmp_path: Path
):
    policy = tmp_path / "policy.yaml"
    policy.write_text(
        "version: 1\ndefault: {exact: on, semantic: off, freshness: 1h, scope: public, "
        "pii: bypass}\n"
    )
    gateway = await before(start_gateway, both, policy=policy)
    value = await made_by_the_second(gateway, both, "reasoning", Authorization="Bearer a")
    other = {"Authorization": "Bearer b"}
    assert "; hit" in (await send(gateway, "reasoning", question("reasoning"), **other)).cache
    reply = await send(gateway, "reasoning", continued("reasoning", value), **other)
    assert (reply.status, reply.headers["X-Refrain-Upstream"]) == (200, "west")


async def test_another_model_answers_by_itself(start_gateway: StartGateway, both: list[Maker]):
    listed = [
        {"name": one.name, "url": one.url, "models": [models], "probe": "off"}
        for one, models in zip(both, ("gemini", "det*"), strict=True)
    ]
    gateway = await start_gateway(upstream=(), upstreams=listed)
    assert (await send(gateway, "gemini", question("gemini"))).status == 200
    # The upstream of the other model gets what it may be able to use.
    body = {**continued("gemini", "made-by-east-1"), "model": "details"}
    reply = await send(gateway, "details", body)
    assert reply.headers["X-Refrain-Upstream"] == "west"


@pytest.fixture
async def apart(start_gateway: StartGateway, both: list[Maker]) -> RunningGateway:
    """A gateway of which other paths go to ``west`` and all that may go anywhere to ``east``."""
    listed = [
        {"name": one.name, "url": one.url, "tier": tier, "probe": "off"}
        for tier, one in ((2, both[1]), (1, both[0]))
    ]
    return await start_gateway(upstream=(), upstreams=listed)


def part(**content: Any) -> dict[str, Any]:
    return {"role": "user", "content": [content]}


NAMING_A_FILE = [
    ("details", {"messages": [part(type="file", file={"file_id": "ID"})]}),
    ("reasoning", {"input": [part(type="input_file", file_id="ID")]}),
    ("reasoning", {"input": [part(type="input_image", file_id="ID")]}),
    ("reasoning", {"input": "Hi", "tools": [{"type": "file_search", "vector_store_ids": ["ID"]}]}),
    (
        "reasoning",
        {
            "input": "Hi",
            "tools": [
                {"type": "code_interpreter", "container": {"type": "auto", "file_ids": ["ID"]}}
            ],
        },
    ),
    ("reasoning", {"input": "Hi", "tools": [{"type": "code_interpreter", "container": "ID"}]}),
    ("reasoning", {"input": [{"type": "item_reference", "id": "ID"}]}),
    ("reasoning", {"input": "Hi", "conversation": "ID"}),
]


@pytest.mark.parametrize(("kind", "named"), NAMING_A_FILE)
async def test_what_names_an_object_goes_where_a_path_made_it(
    apart: RunningGateway, both: list[Maker], kind: str, named: dict[str, Any]
):
    made = (await apart.post("/v1/files", b"{}")).json["id"]
    anywhere = await send(apart, kind, question(kind))
    assert anywhere.headers["X-Refrain-Upstream"] == "east"
    body = orjson.loads(orjson.dumps(question(kind) | named).replace(b'"ID"', f'"{made}"'.encode()))
    reply = await send(apart, kind, body)
    assert (reply.status, reply.headers["X-Refrain-Upstream"]) == (200, "west"), reply.raw


async def test_a_compacted_conversation_goes_on_where_it_was_compacted(
    apart: RunningGateway, both: list[Maker]
):
    reply = await apart.post("/v1/responses/compact", b'{"input": "Hi"}')
    [item] = reply.json["output"]
    body = continued("compaction", item["encrypted_content"])
    reply = await send(apart, "compaction", body)
    assert (reply.status, reply.headers["X-Refrain-Upstream"]) == (200, "west")


@pytest.mark.parametrize(
    ("path", "body"),
    [
        ("/v1/batches", {"input_file_id": "ID", "endpoint": "/v1/chat/completions"}),
        ("/v1/vector_stores", {"name": "docs", "file_ids": ["ID"]}),
        ("/v1/fine_tuning/jobs", {"model": "reasoning", "training_file": "ID"}),
        ("/v1/responses/input_tokens", {"model": "reasoning", "previous_response_id": "ID"}),
        (
            "/v1/responses/compact",
            {
                "model": "compact",
                "input": [{"type": "compaction", "encrypted_content": "ID"}],
            },
        ),
        (
            "/v1/messages/batches",
            {
                "requests": [
                    {"params": {"messages": [{"content": [{"type": "x", "signature": "ID"}]}]}}
                ]
            },
        ),
    ],
)
async def test_what_another_path_is_sent_goes_where_it_was_made(
    start_gateway: StartGateway, both: list[Maker], *, path: str, body: dict[str, Any]
):
    gateway = await before(start_gateway, both)
    value = await made_by_the_second(gateway, both, "items")
    raw = orjson.dumps(body).replace(b'"ID"', f'"{value}"'.encode())
    reply = await gateway.post(path, raw)
    assert (reply.status, reply.headers["X-Refrain-Upstream"]) == (200, "west"), reply.raw
    both[1].status = 429
    reply = await gateway.post(path, raw)
    assert (reply.status, reply.headers["Retry-After"]) == (429, "30")
    await both[1].stop()
    reply = await gateway.post(path, raw)
    assert (reply.status, reply.headers["Retry-After"]) == (503, "1")
    anywhere = await gateway.post(path, b"{}")
    assert anywhere.headers["X-Refrain-Upstream"] == "east"


async def test_an_event_without_an_end_passes_and_is_not_held():
    learnt: list[str] = []
    piece = bytes(LEARNT_BYTES // 4).replace(b"\0", b"x")
    event = b'data: {"encrypted_content": "ours"}\n\n'

    async def endless() -> AsyncIterator[bytes]:
        yield event
        for _ in range(64):
            yield piece

    learner = Learner(lambda values, _: learnt.extend(values), lambda: [b""], keeps=True)
    passed = 0
    tracemalloc.start()
    async for each in _with_events_learnt(endless(), learner):
        passed += len(each)
    _, most = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert passed == len(event) + 64 * len(piece)
    assert learnt == ["ours"]
    assert most < 4 * LEARNT_BYTES
