"""One request of a client makes at most so many calls, in any sequence of faults.

Real gateway, real clients of upstreams, real connections. Only the servers are scripted: each call
meets the next fault. Calls are counted by the credential that a client sends.
"""

import asyncio
import shutil
import tempfile
from collections import Counter
from contextlib import AsyncExitStack
from pathlib import Path
from typing import Any

import orjson
import pytest
from aiohttp import ClientSession, web
from faulty_upstreams import (
    CLOSED,
    answers_nothing,
    begins_with_an_error,
    breaks_after_a_word,
    breaks_after_head,
    resets,
    says,
    stalls,
    status,
)
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st

from gateway.app import create_app
from gateway.settings import Settings
from gateway.upstream.tries import MOST_CALLS
from running_gateway import start_app
from scripted_upstream import completion

FEW = settings(max_examples=25, database=None, suppress_health_check=list(HealthCheck))
UP, DOWN, SMALL = "up", "down", "small"
"""Upstreams: one that serves, one that nothing listens on, one of the fallback model."""

POLICY = """version: 1
default:
  {exact: on, semantic: off, freshness: 1h, scope: team, pii: allow, coalescing: {followers: 9},
   fallback_model: small, hints: {cache_key: on}, prefix: {volatile: [dates]}}
"""


async def no_such_model(_request: web.Request, _body: dict[str, Any]) -> web.StreamResponse:
    error = {"message": "The model does not exist.", "code": "model_not_found", "param": "model"}
    return web.json_response({"error": error}, status=404)


async def no_such_id(_request: web.Request, _body: dict[str, Any]) -> web.StreamResponse:
    return web.json_response({"error": {"message": "No response with id resp_1."}}, status=404)


async def half_a_batch(_request: web.Request, _body: dict[str, Any]) -> web.StreamResponse:
    return web.json_response({"object": "list", "data": [{"embedding": [1.0], "index": 0}]})


FAULTS = {
    "answers": says("Fine."),
    "400": status(400),
    "401": status(401),
    "403": status(403),
    "422": status(422),
    "429": status(429),
    "429 for a minute": status(429, Retry_After="60"),
    "500": status(500),
    "503": status(503),
    "529": status(529),
    "model unknown": no_such_model,
    "id unknown": no_such_id,
    "half a batch": half_a_batch,
    "resets": resets,
    "stalls": stalls,
    "empty": answers_nothing,
    "error in a stream": begins_with_an_error,
    "breaks after the head": breaks_after_head,
    "breaks after a word": breaks_after_a_word,
}

DATED = "It is 2026-11-22. Be brief, and say what you know."
REQUESTS: dict[str, tuple[str, dict[str, Any]]] = {
    "plain": ("/v1/chat/completions", {"messages": [{"role": "user", "content": "Hi"}]}),
    "streamed": (
        "/v1/chat/completions",
        {"messages": [{"role": "user", "content": "Hi"}], "stream": True},
    ),
    "values to move": (
        "/v1/chat/completions",
        {
            "messages": [
                {"role": "system", "content": DATED},
                {"role": "user", "content": "Hi"},
            ],
            "stream": True,
        },
    ),
    "messages": (
        "/v1/messages",
        {
            "messages": [{"role": "user", "content": "Hi"}],
            "max_tokens": 9000,
            "stream": True,
            "thinking": {"type": "enabled", "budget_tokens": 8000},
        },
    ),
    "names an id": ("/v1/responses", {"input": "Hi", "previous_response_id": "resp_1"}),
    "a batch": ("/v1/embeddings", {"input": ["a", "b", "c"]}),
    "passes through": ("/v1/moderations", {"input": "Hi"}),
}
SEARCHES = {"names an id"}
"""Requests of which every upstream is asked."""


class Servers:
    """Upstreams whose calls meet the given faults, one after the other, again and again."""

    def __init__(self, faults: list[str]) -> None:
        self.faults, self.calls, self.met = faults, Counter[str](), 0

    async def handle(self, request: web.Request) -> web.StreamResponse:
        if request.method != "POST":
            return web.json_response({"object": "list", "data": []})
        self.calls[request.headers.get("Authorization", "")] += 1
        fault = self.faults[self.met % len(self.faults)]
        self.met += 1
        body = await request.json()
        if fault == "answers" and "input" in body:
            return web.json_response(completion("Fine."))
        return await FAULTS[fault](request, body)


async def calls_of(
    kind: str, faults: list[str], upstreams: list[str], clients: int
) -> tuple[Counter[str], int]:
    """Send one request of each client at once; return the calls that each one caused."""
    folder = Path(tempfile.mkdtemp(prefix="refrain-"))
    servers = Servers(faults)
    async with AsyncExitStack() as stack:
        stack.callback(shutil.rmtree, folder, ignore_errors=True)
        app = web.Application()
        app.router.add_route("*", "/{tail:.*}", servers.handle)
        runner, url = await start_app(app)
        stack.push_async_callback(runner.cleanup)
        policy = folder / "policy.yaml"
        policy.write_text(POLICY)
        listed = [
            {
                "name": f"u{number}",
                "url": CLOSED if one == DOWN else f"{url}/v1",
                "probe": "off",
                "models": ["small"] if one == SMALL else ["m"],
                "first_token_timeout": 0.2,
                "read_timeout": 0.2,
            }
            for number, one in enumerate(upstreams)
        ]
        gateway, gateway_url = await start_app(
            create_app(
                Settings(upstream=(), upstreams=listed, data_dir=folder / "data", policy=policy),
                semantic_socket=None,
            )
        )
        stack.push_async_callback(gateway.cleanup)
        session = await stack.enter_async_context(ClientSession())

        async def ask(client: int) -> None:
            path, body = REQUESTS[kind]
            headers = {"Authorization": f"Bearer {client}", "Content-Type": "application/json"}
            raw = orjson.dumps({"model": "m", **body})
            async with session.post(gateway_url + path, data=raw, headers=headers) as reply:
                await reply.content.read()

        await asyncio.gather(*map(ask, range(clients)), return_exceptions=True)
    return servers.calls, len(upstreams)


@pytest.fixture
def rich(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let the retry budget bound nothing here."""
    monkeypatch.setattr("gateway.upstream.pool.retry_budget.Budget.spend", lambda _self: True)


@FEW
@given(
    st.sampled_from([*REQUESTS]),
    st.lists(st.sampled_from([*FAULTS]), min_size=1, max_size=10),
    st.lists(st.sampled_from([UP, UP, UP, DOWN, SMALL]), min_size=1, max_size=7),
    st.integers(1, 3),
)
@example("values to move", ["500", "400"], [UP] * 5, 1)
@example("messages", ["400", "503"], [UP] * 7, 1)
@example("messages", ["503"] * 5 + ["400", "503"], [UP] * 5 + [SMALL] * 5, 1)
@example("streamed", ["400", "resets", "resets", "503"], [UP] * 5, 3)
@example("names an id", ["id unknown", "503"], [UP] * 7, 1)
@example("a batch", ["half a batch", "500", "resets"], [UP] * 5, 1)
@example("plain", ["model unknown", "401"], [UP] * 7, 2)
@example("passes through", ["resets"], [UP] * 7, 1)
def test_one_request_makes_at_most_so_many_calls(
    rich: None, kind: str, faults: list[str], upstreams: list[str], clients: int
):
    calls, number = asyncio.run(calls_of(kind, faults, upstreams, clients))
    most = MOST_CALLS + (number if kind in SEARCHES else 0)
    assert all(count <= most for count in calls.values()), calls
