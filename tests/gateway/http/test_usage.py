"""The report of usage agrees with what the upstream counted itself."""

import asyncio
import random
from hashlib import sha256
from urllib.parse import urlencode

import orjson
import pytest
from aiohttp import web

from scripted_upstream import DONE, chunk, completion

PRICES = "model,input,output,cached_input\nm,2,10,0.5\nn,1,,\n"


class CountingUpstream:
    """An upstream that counts the tokens of each whole answer, by model."""

    def __init__(self):
        self.calls = {}
        self.waiting = asyncio.Event()
        self.prompt = {}
        self.completion = {}
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
    return {"prompt_tokens": prompt, "completion_tokens": answer, "total_tokens": prompt + answer}


@pytest.fixture
async def counting(upstream):
    counter = CountingUpstream()
    upstream.answer = counter.answer
    return counter


@pytest.fixture
async def gateway(start_gateway, tmp_path):
    prices, keys = tmp_path / "prices.csv", tmp_path / "keys"
    prices.write_text(PRICES)
    lines = [
        f"{name} {sha256(f'sk-{name}'.encode()).hexdigest()}{more}\n"
        for name, more in (("ann", " team=search"), ("bob", ""))
    ]
    keys.write_text("".join(lines))
    return await start_gateway(prices=prices, gateway_keys=keys)


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
            dollars = counting.prompt[model] * price[0] + counting.completion[model] * price[1]
            assert row["dollars"] == pytest.approx(dollars, abs=1e-6)


async def test_a_thousand_mixed_requests_agree_with_the_upstream(gateway, counting):
    draw = random.Random(7)
    asked = {"requests": 0, "tokens": 0, "errors": 0}

    async def one():
        text = f"Question number {draw.randrange(60)}, please?"
        if draw.random() < 0.05:
            text = "Please fail."
        elif draw.random() < 0.05:
            text = f"A new one: {draw.random()}"
        holder, model = draw.choice(("ann", "bob")), draw.choice(("m", "m", "n"))
        body = {"model": model}
        if draw.random() < 0.4:
            body["stream"] = True
        headers = {"Authorization": f"Bearer sk-{holder}"}
        if draw.random() < 0.1:
            headers["Cache-Control"] = draw.choice(("no-store", "no-cache"))
        reply = await gateway.ask(text, headers=headers, **body)
        asked["requests"] += 1
        if reply.status == 200:
            asked["tokens"] += usage_of(text)["total_tokens"]
        else:
            asked["errors"] += 1

    for _ in range(50):
        await asyncio.gather(*(one() for _ in range(20)))
    found = await total(gateway)
    assert found["requests"] == asked["requests"] == 1_000
    assert found["errors"] == asked["errors"] > 10
    assert found["calls"] == sum(counting.calls.values())
    assert found["prompt_tokens"] == sum(counting.prompt.values())
    assert found["completion_tokens"] == sum(counting.completion.values())
    used = found["prompt_tokens"] + found["completion_tokens"]
    # Each answered request is either paid for or saved, and never both.
    assert used + found["saved_total"]["tokens"] == asked["tokens"]
    saved = found["saved"]
    assert saved["exact"]["requests"] > 300
    assert saved["coalescing"]["requests"] > 0
    answered = saved["exact"]["requests"] + saved["coalescing"]["requests"]
    assert answered + sum(counting.calls.values()) + asked["errors"] == 1_000
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
