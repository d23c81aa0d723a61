"""The report of usage agrees with what the upstream counted itself."""

import asyncio
import random
import re
from hashlib import sha256
from urllib.parse import urlencode

import orjson
import pytest
from aiohttp import web

from scripted_upstream import DONE, chunk, completion

pytest_plugins = ["running_verifier"]

POLICY = """
version: 1
default:
  exact: on
  semantic: {max_wrong_hits: 20%}
  freshness: 1h
  scope: tenant
  pii: bypass
  compress: {documents: {begin: <d>, end: </d>}}
"""
REWORDED = (
    "How do I reset my password?",
    "I want to reset my password, how?",
    "How can I reset my password?",
)
SAVED = re.compile(r"saved=(\d+)")
PRICES = "model,input,output,cached_input\nm,2,10,0.5\nn,1,,\n"


class CountingUpstream:
    """An upstream that counts the tokens of each whole answer, by model."""

    def __init__(self):
        self.calls = {}
        self.waiting = asyncio.Event()
        self.prompt = {}
        self.completion = {}
        self.cached = {}
        self.hold = None
        """An event that calls wait for."""

    async def answer(self, request, body):
        model, text = body["model"], body["messages"][-1]["content"]
        if "fail" in text:
            return web.json_response({"error": {"message": "no"}}, status=500)
        if self.hold is not None:
            self.waiting.set()
            await self.hold.wait()
        usage = usage_of(text)
        self.calls[model] = self.calls.get(model, 0) + 1
        self.prompt[model] = self.prompt.get(model, 0) + usage["prompt_tokens"]
        self.completion[model] = self.completion.get(model, 0) + usage["completion_tokens"]
        cached = usage["prompt_tokens_details"]["cached_tokens"]
        self.cached[model] = self.cached.get(model, 0) + cached
        if not body.get("stream"):
            return web.json_response(completion(text, usage=usage))
        response = web.StreamResponse(headers={"Content-Type": "text/event-stream"})
        await response.prepare(request)
        await response.write(chunk(delta={"role": "assistant", "content": text}))
        await response.write(chunk(finish_reason="stop"))
        event = orjson.loads(chunk().removeprefix(b"data: "))
        event |= {"choices": [], "usage": usage}
        await response.write(b"data: " + orjson.dumps(event) + b"\n\n")
        await response.write(DONE)
        return response


def usage_of(text):
    prompt, answer = 10 + len(text), 3 + len(text) % 7
    return {
        "prompt_tokens": prompt,
        "completion_tokens": answer,
        "total_tokens": prompt + answer,
        "prompt_tokens_details": {"cached_tokens": 8 if len(text) % 3 else 0},
    }


@pytest.fixture
async def counting(upstream):
    counter = CountingUpstream()
    upstream.answer = counter.answer
    return counter


@pytest.fixture
def settings(tmp_path):
    """Prices, and a key for each of two people."""
    prices, keys = tmp_path / "prices.csv", tmp_path / "keys"
    prices.write_text(PRICES)
    lines = [
        f"{name} {sha256(f'sk-{name}'.encode()).hexdigest()}{more}\n"
        for name, more in (("ann", " team=search"), ("bob", ""))
    ]
    keys.write_text("".join(lines))
    return {"prices": prices, "gateway_keys": keys}


@pytest.fixture
async def gateway(start_gateway, settings):
    return await start_gateway(**settings)


async def total(gateway, **query):
    found = (await gateway.get(f"/admin/usage?{urlencode(query)}")).json
    return found["total"]


async def ask(gateway, text, holder="ann", **body):
    reply = await gateway.ask(text, headers={"Authorization": f"Bearer sk-{holder}"}, **body)
    if reply.status == 200 and body.get("stream"):
        assert reply.raw.endswith(b"[DONE]\n\n")
    return reply


async def check_metrics(gateway, found):
    """The metrics have what the report has."""
    page = (await gateway.get("/metrics")).raw.decode()
    samples = dict(line.rsplit(" ", 1) for line in page.splitlines() if line[0] != "#")
    exact = float(samples['refrain_tokens_saved_total{by="exact"}'])
    assert exact == found["saved"]["exact"]["tokens"]
    kinds = [
        float(value) for name, value in samples.items() if name.startswith("refrain_tokens_used_t")
    ]
    assert sum(kinds) == found["prompt_tokens"] + found["completion_tokens"]


async def check_models(gateway, counting):
    """Tokens and dollars are those of each model."""
    by_model = (await gateway.get("/admin/usage?by=model")).json["rows"]
    for row in by_model:
        model = row["model"]
        assert row["prompt_tokens"] == counting.prompt[model]
        price = {"m": (2e-6, 10e-6), "n": (1e-6, None)}[model]
        if price[1] is None:
            assert row["dollars"] is None
            assert row["unpriced_tokens"] == counting.prompt[model] + counting.completion[model]
        else:
            cached = counting.cached[model]
            dollars = (counting.prompt[model] - cached) * price[0] + cached * 0.5e-6
            dollars += counting.completion[model] * price[1]
            assert row["dollars"] == pytest.approx(dollars, abs=1e-6)


def drawn(draw):
    """Return the text of a request: most come again, some in other words or with context."""
    kind = draw.random()
    if kind < 0.05:
        return "Please fail."
    if kind < 0.10:
        return f"A new one: {draw.random()}"
    if kind < 0.25:
        return draw.choice(REWORDED)
    if kind < 0.35:
        return f'<d>{{ "page" :  {draw.randrange(40)} }}</d> What does it say?'
    return f"Question number {draw.randrange(60)}, please?"


@pytest.fixture
async def saving(start_gateway, verifying_service, lenient_data, tmp_path, settings):
    """A gateway whose policy saves in every way."""
    policy = tmp_path / "policy.yaml"
    policy.write_text(POLICY)
    gateway = await start_gateway(
        semantic_socket=verifying_service[0], data_dir=lenient_data, policy=policy, **settings
    )
    while (await gateway.get("/readyz")).status != 200:
        pass
    return gateway


async def test_a_thousand_mixed_requests_agree_with_the_upstream(saving, counting):
    gateway, draw = saving, random.Random(7)
    asked = {"requests": 0, "tokens": 0, "errors": 0, "compressed": 0}

    async def one():
        text = drawn(draw)
        holder, model = draw.choice(("ann", "bob")), draw.choice(("m", "m", "n"))
        body = {"model": model}
        if draw.random() < 0.4:
            body["stream"] = True
        headers = {"Authorization": f"Bearer sk-{holder}"}
        if draw.random() < 0.1:
            headers["Cache-Control"] = draw.choice(("no-store", "no-cache"))
        reply = await gateway.ask(text, headers=headers, **body)
        asked["requests"] += 1
        if reply.status != 200:
            asked["errors"] += 1
            return
        # The upstream repeats what it was sent: a semantic hit is the answer to other words.
        asked["tokens"] += usage_of(reply.text)["total_tokens"]
        compressed = SAVED.search(reply.headers.get("X-Refrain-Compress", ""))
        if compressed and "fwd=" in reply.cache and "collapsed" not in reply.cache:
            asked["compressed"] += int(compressed[1])

    for _ in range(50):
        await asyncio.gather(*(one() for _ in range(20)))
    found = await total(gateway)
    assert found["requests"] == asked["requests"] == 1_000
    assert found["errors"] == asked["errors"] > 10
    calls, saved = sum(counting.calls.values()), found["saved"]
    assert found["calls"] == calls
    assert found["calls_without_usage"] == 0
    assert found["prompt_tokens"] == sum(counting.prompt.values())
    assert found["completion_tokens"] == sum(counting.completion.values())
    assert saved["prefix"]["tokens"] == sum(counting.cached.values()) > 0
    assert saved["compression"]["tokens"] == asked["compressed"] > 0
    # Each answered request is either paid for or saved, and never both.
    ways = [saved[way] for way in ("exact", "semantic", "coalescing")]
    used = found["prompt_tokens"] + found["completion_tokens"]
    assert used + sum(way["tokens"] for way in ways) == asked["tokens"]
    assert sum(way["requests"] for way in ways) + calls + asked["errors"] == 1_000
    assert all(way["requests"] > 0 for way in ways)
    without_calls = found["saved_total"]["tokens"] - saved["compression"]["tokens"]
    assert without_calls == sum(way["tokens"] for way in ways)
    assert saved["exact"]["requests"] > 300
    assert saved["exact"]["seconds"] > 0
    await check_models(gateway, counting)
    by_holder = (await gateway.get("/admin/usage?by=holder")).json["rows"]
    assert {row["holder"] for row in by_holder} == {"ann", "bob"}
    assert sum(row["requests"] for row in by_holder) == 1_000
    await check_metrics(gateway, found)


async def test_followers_of_a_call_save_it_and_the_call_is_paid_once(gateway, counting):
    counting.hold = asyncio.Event()
    asking = [
        asyncio.create_task(ask(gateway, "The same?", stream=number % 2 == 0))
        for number in range(6)
    ]
    await counting.waiting.wait()
    counting.hold.set()
    await asyncio.gather(*asking)
    found, usage = await total(gateway), usage_of("The same?")
    assert found["calls"] == 1
    assert found["prompt_tokens"] == usage["prompt_tokens"]
    shared = found["saved"]["coalescing"]["requests"] + found["saved"]["exact"]["requests"]
    assert shared == 5
    assert found["saved_total"]["tokens"] == 5 * usage["total_tokens"]


async def test_repetitions_on_the_hot_path_are_counted(gateway, counting):
    for _ in range(10):
        await ask(gateway, "Again?")
    found = await total(gateway)
    assert found["requests"] == 10
    assert found["saved"]["exact"]["requests"] == 9
    assert found["saved"]["exact"]["tokens"] == 9 * usage_of("Again?")["total_tokens"]


async def test_a_team_is_a_row_and_a_filter(gateway, counting):
    for _ in range(3):
        await ask(gateway, "Again?")
    await ask(gateway, "Other?", holder="bob")
    rows = (await gateway.get("/admin/usage?by=team")).json["rows"]
    assert [(row["team"], row["requests"]) for row in rows] == [("search", 3), ("", 1)]
    assert (await total(gateway, team="search"))["saved"]["exact"]["requests"] == 2
    assert (await total(gateway, team=""))["requests"] == 1
    assert (await total(gateway, team="ads"))["requests"] == 0


async def test_figures_survive_a_restart(start_gateway, counting):
    first = await start_gateway()
    await first.ask("One?")
    await first.ask("One?")
    await first.stop()
    second = await start_gateway()
    await second.ask("One?")
    found = (await second.get("/admin/usage?by=upstream")).json
    assert found["total"]["requests"] == 3
    assert found["total"]["calls"] == 1
    assert found["total"]["saved"]["exact"]["requests"] == 2
    assert [row["upstream"] == "" for row in found["rows"]] == [True, False]


@pytest.mark.parametrize(
    ("query", "field", "expected"),
    [
        ("by=region", "by", "one of holder, model, rule, upstream, team, day"),
        ("since=yesterday", "since", "a day such as 2026-11-24, or a number of days such as 30d"),
        ("limit=3", "limit", "one of the parameters by, since, team"),
    ],
)
async def test_a_wrong_question_is_refused_by_name(start_gateway, query, field, expected):
    gateway = await start_gateway()
    reply = await gateway.get(f"/admin/usage?{query}")
    assert reply.status == 400
    assert reply.json["error"]["param"] == field
    assert expected in reply.json["error"]["message"]


async def test_the_report_is_the_operator_s_alone(start_gateway, monkeypatch):
    monkeypatch.setenv("REFRAIN_ADMIN_TOKEN", "secret-of-operators")
    gateway = await start_gateway()
    assert (await gateway.get("/admin/usage")).status == 401
    token = {"Authorization": "Bearer secret-of-operators"}
    assert (await gateway.get("/admin/usage", headers=token)).status == 200
