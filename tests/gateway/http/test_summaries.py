"""Summaries over HTTP: written behind the request's back, used when they keep the facts."""

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


class Talk:
    """A gateway whose upstream writes summaries as told, and a conversation with it."""

    def __init__(self, gateway: RunningGateway, app: Any, upstream: ScriptedUpstream) -> None:
        self.gateway, self.app, self.upstream = gateway, app, upstream
        self.summary: Any = "They talk of order 17."
        upstream.answer = self.answer

    async def answer(self, _request: web.Request, body: dict[str, Any]) -> web.StreamResponse:
        if MARK in str(body["messages"][0]["content"]):
            if isinstance(self.summary, int):
                return web.json_response({"error": {}}, status=self.summary)
            return web.json_response(completion(self.summary))
        return web.json_response(completion("Yes."))

    async def ask(self, last: str = "And now?", **headers: str) -> str:
        turns: list[dict[str, Any]] = []
        for number in ("order 17", "more", "yet more"):
            turns.append({"role": "user", "content": f"{LONG}It is {number}."})
            turns.append({"role": "assistant", "content": "So it is."})
        turns.append({"role": "user", "content": last})
        sent = {name.replace("_", "-"): value for name, value in headers.items()}
        reply = await self.gateway.ask(messages=turns, headers=sent)
        assert reply.status == 200
        return reply.headers.get("X-Refrain-Compress", "")

    @property
    def asked(self) -> list[Any]:
        """The bodies that asked for a summary."""
        return [body for body in self.upstream.bodies if MARK in str(body["messages"][0])]


@pytest.fixture
async def talk(start_gateway, upstream, tmp_path, monkeypatch):
    from gateway.prompts.compress.summariser import Summariser

    made: list[Summariser] = []
    monkeypatch.setattr(
        "gateway.server.prepare.Summariser",
        lambda secret: made.append(Summariser(secret)) or made[-1],
    )
    policy = tmp_path / "policy.yaml"
    policy.write_text(POLICY)
    gateway = await start_gateway(policy=policy)
    return Talk(gateway, made[0], upstream)


async def test_the_first_request_goes_on_whole_and_a_later_one_has_the_summary(talk):
    assert await talk.ask() == "none; declined=summary-pending"
    await talk.app.idle()
    told = await talk.ask("And then?")
    assert told.startswith("summary; tokens=")
    sent = talk.upstream.bodies[-1]["messages"]
    assert sent[0]["content"] == "Summary of the conversation so far:\nThey talk of order 17."
    assert [turn["role"] for turn in sent] == ["user", "user", "assistant", "user"]
    assert len(talk.asked) == 1
    page = (await talk.gateway.get("/metrics")).raw.decode()
    assert 'refrain_compressed_total{rule="default",step="summary"} 1.0' in page


async def test_a_summary_is_of_one_tenant(talk):
    await talk.ask(Authorization="Bearer one")
    await talk.app.idle()
    assert (await talk.ask("b", Authorization="Bearer two")) == "none; declined=summary-pending"
    assert (await talk.ask("c", Authorization="Bearer one")).startswith("summary")


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
    await talk.ask()
    await talk.app.idle()
    assert await talk.ask("b") == f"none; declined={why}"
    assert LONG in talk.upstream.bodies[-1]["messages"][0]["content"]
    assert await talk.ask("c") == f"none; declined={why}"
    assert len(talk.asked) == 1


async def test_nothing_is_kept_of_a_request_that_forbids_it(talk):
    assert await talk.ask(Cache_Control="no-store") == "none; declined=summary-pending"
    await talk.app.idle()
    assert talk.asked == []
