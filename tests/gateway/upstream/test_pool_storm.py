"""Many clients before upstreams that fail at random: everybody gets an end, and nothing is left."""

import asyncio
import random
from collections.abc import AsyncIterator
from typing import Any

import pytest
from aiohttp import web
from faulty_upstreams import (
    Answers,
    StartServer,
    breaks_after_a_word,
    breaks_after_head,
    pool,
    resets,
    says,
    servers,
    shown,
    status,
)

from running_gateway import StartGateway
from scripted_upstream import DONE

CLIENTS = 60


@pytest.fixture
async def server() -> AsyncIterator[StartServer]:
    async with servers() as start:
        yield start


def moody(name: str, seed: int) -> Answers:
    moods = [says(f"From {name}."), resets, breaks_after_head, breaks_after_a_word]
    moods += [status(500), status(429, Retry_After="0"), status(503, Retry_After="0")]
    drawn = random.Random(seed)

    async def answer(request: web.Request, body: dict[str, Any]) -> web.StreamResponse:
        mood = drawn.choices(moods, [8, 1, 1, 1, 1, 1, 1])[0]
        return await mood(request, body)

    return answer


async def test_a_storm_leaves_no_call_and_nobody_without_an_end(
    start_gateway: StartGateway, server: StartServer
):
    ups = [await server(moody(name, seed)) for seed, name in enumerate("abc")]
    listed = [{"url": f"{one.url}/v1", "max_concurrency": 8} for one in ups]
    gateway = await pool(start_gateway, *listed, queue_timeout=60)

    replies = await asyncio.gather(
        *(gateway.ask(f"question {number}", stream=True) for number in range(CLIENTS))
    )

    whole = 0
    for reply in replies:
        if reply.status != 200:
            assert reply.status in (429, 500, 502, 503)
            assert reply.json["error"]["message"]
        elif reply.raw.endswith(DONE):
            assert reply.text in ("From a.", "From b.", "From c.")
            whole += 1
        else:
            assert "error" in reply.events[-1]
            assert reply.events[0]["choices"][0]["delta"]["content"] == "Half"
    assert whole
    for name in "abc":
        await shown(gateway, f'refrain_upstream_in_flight{{upstream="{name}"}} 0.0')
    await shown(gateway, "refrain_upstream_waiting 0.0")


async def test_followers_of_a_stream_do_not_see_that_it_was_answered_elsewhere(
    start_gateway: StartGateway, server: StartServer
):
    let_go = asyncio.Event()

    async def resets_when_told(request: web.Request, body: dict[str, Any]) -> web.StreamResponse:
        await let_go.wait()
        return await resets(request, body)

    first, second = await server(resets_when_told), await server(says("Hello."))
    gateway = await pool(start_gateway, first, second)
    asked = [asyncio.create_task(gateway.ask("same", stream=True)) for _ in range(6)]
    async with asyncio.timeout(10):
        await first.arrived.wait()
    let_go.set()
    replies = [await one for one in asked]
    assert {reply.text for reply in replies} == {"Hello."}
    told = {reply.headers["X-Refrain-Upstream"] for reply in replies if "hit" not in reply.cache}
    assert told == {'b; tried="a=upstream-broke"'}
    assert (first.calls, second.calls) == (1, 1)
