"""A pool of real servers that fail in every way: who answers, and what the client is told."""

from collections.abc import AsyncIterator

import pytest
from faulty_upstreams import (
    CLOSED,
    Answers,
    StartServer,
    breaks_after_a_word,
    breaks_after_head,
    pool,
    resets,
    says,
    servers,
    stalls,
    stalls_after_head,
    status,
)

from running_gateway import StartGateway
from scripted_upstream import DONE


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


async def test_nothing_is_sent_again_after_the_first_byte(
    start_gateway: StartGateway, server: StartServer
):
    first, second = await server(breaks_after_a_word), await server(says("no"))
    gateway = await pool(start_gateway, first, second)

    reply = await gateway.ask(stream=True)

    assert reply.events[0]["choices"][0]["delta"]["content"] == "Half"
    assert reply.events[-1]["error"]["code"] == "upstream-broke"
    assert DONE not in reply.raw
    assert (first.calls, second.calls) == (1, 0)


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
