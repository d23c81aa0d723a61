"""A pool of real servers that fail in every way: who answers, and what the client is told."""

import asyncio
from collections.abc import AsyncIterator
from typing import Any

import pytest
from aiohttp import web
from faulty_upstreams import (
    CLOSED,
    EVENTS,
    Answers,
    StartServer,
    answers_nothing,
    begins_with_an_error,
    breaks_after_a_word,
    breaks_after_head,
    ends_after_a_word,
    pool,
    resets,
    says,
    servers,
    shown,
    stalls,
    stalls_after_head,
    status,
)

from gateway.upstream.pool.health import FAILED_OF_WINDOW
from running_gateway import StartGateway
from scripted_upstream import DONE, chunk


@pytest.fixture
async def server() -> AsyncIterator[StartServer]:
    async with servers() as start:
        yield start


FAILS_BEFORE_THE_FIRST_BYTE = {
    "500": (status(500), "upstream-status"),
    "502": (status(502), "upstream-status"),
    "504": (status(504), "upstream-status"),
    "429": (status(429), "upstream-limited"),
    "503": (status(503), "upstream-limited"),
    "an error for a stream": (begins_with_an_error, "upstream-status"),
    "an empty answer": (answers_nothing, "upstream-broke"),
    "reset before the head": (resets, "upstream-broke"),
    "reset after the head": (breaks_after_head, "upstream-broke"),
    "stalled before the head": (stalls, "upstream-timeout"),
    "stalled after the head": (stalls_after_head, "upstream-timeout"),
}


@pytest.mark.parametrize(
    ("bad", "why"), FAILS_BEFORE_THE_FIRST_BYTE.values(), ids=FAILS_BEFORE_THE_FIRST_BYTE.keys()
)
async def test_who_fails_before_the_first_byte_is_replaced_unseen(
    start_gateway: StartGateway, server: StartServer, bad: Answers, why: str
):
    first, second = await server(bad), await server(says("Hello from b."))
    patience = {"first_token_timeout": 0.5} if why == "upstream-timeout" else {}
    gateway = await pool(start_gateway, {"url": f"{first.url}/v1", **patience}, second)

    reply = await gateway.ask(stream=True)

    assert (reply.status, reply.text) == (200, "Hello from b.")
    assert reply.headers["X-Refrain-Upstream"] == f'b; tried="a={why}"'
    assert (first.calls, second.calls) == (1, 1)


async def test_who_cannot_be_reached_is_replaced(start_gateway: StartGateway, server: StartServer):
    gateway = await pool(start_gateway, {"url": CLOSED}, await server(says("Hello.")))
    reply = await gateway.ask()
    assert reply.text == "Hello."
    assert reply.headers["X-Refrain-Upstream"] == 'b; tried="a=upstream-unreachable"'


async def test_where_nobody_answers_the_client_is_told_who_was_tried(start_gateway: StartGateway):
    gateway = await pool(start_gateway, {"url": CLOSED}, {"url": CLOSED})
    reply = await gateway.ask()
    assert (reply.status, reply.json["error"]["code"]) == (502, "upstream-unreachable")
    tried = reply.headers["X-Refrain-Upstream"]
    assert tried.startswith('tried="a=upstream-unreachable, b=upstream-unreachable')
    assert reply.cache == "refrain; fwd=miss; detail=upstream-unreachable"


async def test_a_connection_that_breaks_before_the_head_is_made_anew_once(
    start_gateway: StartGateway, server: StartServer
):
    first = await server(resets)
    gateway = await pool(start_gateway, first)
    assert (await gateway.ask("one")).json["error"]["code"] == "upstream-broke"
    assert first.calls == 2

    async def resets_once(request: web.Request, body: dict[str, Any]) -> web.StreamResponse:
        first.answer = says("Hello.")
        return await resets(request, body)

    first.answer = resets_once
    reply = await gateway.ask("two")
    assert reply.text == "Hello."
    assert reply.headers["X-Refrain-Upstream"] == 'a; tried="a=upstream-broke"'
    assert first.calls == 4


async def test_a_failure_is_risked_at_one_other_upstream_and_then_told(
    start_gateway: StartGateway, server: StartServer
):
    bad = [await server(status(500)) for _ in range(3)]
    gateway = await pool(start_gateway, *bad)
    reply = await gateway.ask()
    assert (reply.status, reply.json) == (500, {"error": {"message": "500"}})
    assert reply.headers["X-Refrain-Upstream"] == 'b; tried="a=upstream-status"'
    assert [one.calls for one in bad] == [1, 1, 0]


@pytest.mark.parametrize("bad", [stalls, stalls_after_head])
async def test_a_client_that_leaves_a_stalled_upstream_frees_its_place(
    start_gateway: StartGateway, server: StartServer, bad: Answers
):
    first = await server(bad)
    gateway = await pool(start_gateway, {"url": f"{first.url}/v1", "max_concurrency": 1})
    asked = asyncio.create_task(gateway.ask("one", stream=True))
    async with asyncio.timeout(10):
        await first.arrived.wait()
    asked.cancel()
    async with asyncio.timeout(10):
        await first.cancelled.wait()
    first.answer = says("Hello.")
    assert (await gateway.ask("two")).text == "Hello."
    assert 'in_flight{upstream="a"} 0.0' in (await gateway.get("/metrics")).raw.decode()


async def test_a_stall_between_two_tokens_ends_the_stream_with_its_reason(
    start_gateway: StartGateway, server: StartServer
):
    async def stalls_after_a_word(request: web.Request, _: dict[str, Any]) -> web.StreamResponse:
        response = web.StreamResponse(headers=EVENTS)
        await response.prepare(request)
        await response.write(chunk(delta={"role": "assistant", "content": "Half"}))
        await asyncio.Event().wait()
        return response

    first = await server(stalls_after_a_word)
    gateway = await pool(start_gateway, first, between_tokens_timeout=0.05)
    reply = await gateway.ask(stream=True)
    assert reply.events[0]["choices"][0]["delta"]["content"] == "Half"
    assert DONE not in reply.raw
    assert "error" in reply.events[-1]
    assert first.calls == 1


@pytest.mark.parametrize("bad", [breaks_after_a_word, ends_after_a_word])
async def test_nothing_is_sent_again_after_the_first_byte(
    start_gateway: StartGateway, server: StartServer, bad: Answers
):
    first, second = await server(bad), await server(says("no"))
    gateway = await pool(start_gateway, first, second)

    reply = await gateway.ask(stream=True)

    assert reply.events[0]["choices"][0]["delta"]["content"] == "Half"
    assert reply.events[-1]["error"]["code"] == "upstream-broke"
    assert DONE not in reply.raw
    assert (first.calls, second.calls) == (1, 0)
    await shown(
        gateway, 'refrain_upstream_failures_total{reason="upstream-broke",upstream="a"} 1.0'
    )


@pytest.mark.parametrize("bad", [breaks_after_a_word, ends_after_a_word])
async def test_who_breaks_its_answers_off_is_ejected_in_the_end(
    start_gateway: StartGateway, server: StartServer, bad: Answers
):
    first, second = await server(bad), await server(says("Hello."))
    gateway = await pool(start_gateway, first, {"url": f"{second.url}/v1", "tier": 2})
    async with asyncio.timeout(30):
        while second.calls == 0:
            await gateway.ask(f"question {first.calls}", stream=True)
    assert first.calls == FAILED_OF_WINDOW


@pytest.mark.parametrize("code", [400, 401, 403, 404, 422])
async def test_what_an_upstream_says_of_the_request_passes(
    start_gateway: StartGateway, server: StartServer, code: int
):
    first, second = await server(status(code)), await server(says("no"))
    gateway = await pool(start_gateway, first, second)
    reply = await gateway.ask()
    assert (reply.status, reply.json) == (code, {"error": {"message": str(code)}})
    assert reply.headers["X-Refrain-Upstream"] == "a"
    assert second.calls == 0
