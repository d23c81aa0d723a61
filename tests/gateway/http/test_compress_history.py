"""Summaries over HTTP: written behind the request's back, used when they keep the facts."""

import asyncio
from typing import Any

import pytest
from aiohttp import web

from running_gateway import RunningGateway
from scripted_upstream import ScriptedUpstream, completion

POLICY = """
version: 1
default: {exact: on, semantic: off, freshness: 1h, scope: tenant, pii: allow,
  compress: {history: 2}}
"""
LONG = "We talk about bread and about rivers for a while. " * 20
MARK = "sum up the beginning"
PENDING = "none; declined=summary-pending"


class Talk:
    """A gateway whose upstream writes summaries as told, and a conversation with it."""

    def __init__(self, gateway: RunningGateway, upstream: ScriptedUpstream) -> None:
        self.gateway, self.upstream = gateway, upstream
        self.summary: Any = "They talk of order 17."
        self.topics = ("order 17", "more", "yet more")
        upstream.answer = self.answer

    async def answer(self, _request: web.Request, body: dict[str, Any]) -> web.StreamResponse:
        if MARK in str(body["messages"][0]["content"]):
            if isinstance(self.summary, int):
                return web.json_response({"error": {}}, status=self.summary)
            return web.json_response(completion(self.summary))
        return web.json_response(completion("Yes."))

    async def ask(self, last: str = "And now?", **headers: str) -> str:
        turns: list[dict[str, Any]] = []
        for topic in self.topics:
            turns.append({"role": "user", "content": f"{LONG}It is {topic}."})
            turns.append({"role": "assistant", "content": "So it is."})
        turns.append({"role": "user", "content": last})
        sent = {name.replace("_", "-"): value for name, value in headers.items()}
        reply = await self.gateway.ask(messages=turns, headers=sent)
        assert reply.status == 200
        return reply.headers.get("X-Refrain-Compress", "")

    async def ask_until_known(self, last: str, **headers: str) -> str:
        """Ask again, each time something else, until a summary is there or was found wanting."""
        told, number = PENDING, 0
        async with asyncio.timeout(60):
            while told == PENDING:
                number += 1
                told = await self.ask(f"{last} {number}", **headers)
        return told

    @property
    def asked(self) -> list[Any]:
        """The bodies that asked for a summary."""
        return [body for body in self.upstream.bodies if MARK in str(body["messages"][0])]


@pytest.fixture
async def talk(start_gateway, upstream, tmp_path):
    policy = tmp_path / "policy.yaml"
    policy.write_text(POLICY)
    return Talk(await start_gateway(policy=policy), upstream)


async def test_the_first_request_goes_on_whole_and_a_later_one_has_the_summary(talk):
    assert await talk.ask() == PENDING
    assert LONG in talk.upstream.bodies[0]["messages"][0]["content"]
    told = await talk.ask_until_known("And then?")
    assert told.startswith("summary; tokens=")
    sent = talk.upstream.bodies[-1]["messages"]
    assert sent[0]["content"] == "Summary of the conversation so far:\nThey talk of order 17."
    assert [turn["role"] for turn in sent] == ["user", "user", "assistant", "user"]
    assert len(talk.asked) == 1
    page = (await talk.gateway.get("/metrics")).raw.decode()
    assert 'refrain_compressed_total{rule="default",step="summary"} 1.0' in page


async def test_a_summary_is_of_one_tenant(talk):
    told = await talk.ask_until_known("a", Authorization="Bearer one")
    assert told.startswith("summary")
    assert await talk.ask("b", Authorization="Bearer two") == PENDING


@pytest.mark.parametrize(
    ("summary", "why"),
    [
        ("They talk of order 18.", "summary-facts"),
        (f"Order 17. {LONG * 3}", "summary-long"),
        ("", "summary-long"),
        (503, "summary-failed"),
    ],
)
async def test_a_summary_that_will_not_do_is_told_and_not_asked_for_again(talk, summary, why):
    talk.summary = summary
    assert await talk.ask_until_known("b") == f"none; declined={why}"
    assert LONG in talk.upstream.bodies[-1]["messages"][0]["content"]
    assert await talk.ask("c") == f"none; declined={why}"
    assert len(talk.asked) == 1


async def test_turns_that_cannot_be_checked_are_never_summed_up(talk):
    talk.topics = ("order 17", "`retry(3)`", "yet more")
    assert await talk.ask_until_known("b") == "none; declined=summary-facts"
    assert talk.asked == []


async def test_nothing_is_kept_of_a_request_that_forbids_it(talk):
    for last in ("a", "b", "c"):
        assert await talk.ask(last, Cache_Control="no-store") == PENDING
    assert talk.asked == []
