"""What a gateway key may do, over HTTP: its models, its end, its limits."""

import asyncio
import time
from hashlib import sha256

import orjson
import pytest
from aiohttp import web

from gateway.server.keys.auth import Access
from running_redis import RunningRedis, redis_folders
from scripted_upstream import DONE, answer_by_default, chunk, completion


def line(name, key, *attributes):
    return " ".join((name, sha256(key.encode()).hexdigest(), *attributes)) + "\n"


def bearing(key="gk-shop"):
    return {"Authorization": f"Bearer {key}"}


@pytest.fixture
def keys(tmp_path):
    return tmp_path / "keys"


@pytest.mark.parametrize("more", [{}, {"X-Unusual": "a", "Expect": "100-continue"}])
async def test_a_key_of_some_models_gets_no_other(start_gateway, upstream, keys, more):
    keys.write_text(line("shop", "gk-shop", "models=gpt-4o*,m") + line("desk", "gk-desk"))
    gateway = await start_gateway(gateway_keys=keys)
    headers = {**bearing(), **more}
    assert (await gateway.ask(headers=headers)).status == 200
    refused = await gateway.ask(headers=headers, model="o3")
    assert refused.status == 403
    assert refused.cache == "refrain; detail=model-not-allowed"
    error = refused.json["error"]
    assert set(error) == {"message", "type", "param", "code"}
    assert (error["param"], error["code"]) == ("model", "model_not_allowed")
    assert "gpt-4o*, m" in error["message"]
    assert upstream.calls == 1
    assert (await gateway.ask(headers=bearing("gk-desk"), model="o3")).status == 200


async def test_a_key_of_some_models_may_only_read_on_other_paths(start_gateway, upstream, keys):
    keys.write_text(line("shop", "gk-shop", "models=m") + line("desk", "gk-desk"))
    gateway = await start_gateway(gateway_keys=keys)
    assert (await gateway.get("/v1/models?a=b", headers=bearing())).status == 201
    assert (await gateway.post("/v1/audio/speech", b"{}", headers=bearing())).status == 403
    assert len(upstream.requests) == 1
    desk = bearing("gk-desk")
    assert (await gateway.post("/v1/audio/speech", b"{}", headers=desk)).status == 201


async def test_an_expired_key_is_refused_for_hits_too(start_gateway, keys, monkeypatch):
    end = time.time() + 3600
    stamp = time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime(end))
    keys.write_text(line("shop", "gk-shop", f"expires={stamp}"))
    now = [time.time()]
    monkeypatch.setattr(Access, "__init__", _with_clock(lambda: now[0]))
    gateway = await start_gateway(gateway_keys=keys)
    for _ in range(3):
        assert (await gateway.ask(headers=bearing())).status == 200
    # The hot path has a clock of its own: here the key is looked at by the parser's way.
    now[0] = end
    refused = await gateway.ask(headers={**bearing(), "x-other": "a"})
    assert refused.status == 401
    assert refused.json["error"]["message"] == "This API key has expired."
    assert refused.cache == "refrain; detail=unauthorized"


def _with_clock(clock, begin=Access.__init__):
    return lambda self, keys, denied: begin(self, keys, denied, clock)


@pytest.fixture
def still(monkeypatch):
    """A clock at noon that all parts of a gateway share."""
    noon = time.time() // 86_400 * 86_400 + 43_200
    monkeypatch.setattr(time, "time", lambda: noon)
    return noon


HOT, PARSED = {}, {"Via": "1.1 somewhere"}
"""Headers of requests that are plain, and of others."""


@pytest.mark.parametrize("more", [HOT, PARSED])
async def test_a_holder_has_so_many_requests_a_minute_hits_among_them(
    start_gateway, upstream, keys, still, more
):
    keys.write_text(line("shop", "gk-shop", "rpm=4") + line("desk", "gk-desk"))
    gateway = await start_gateway(gateway_keys=keys)
    headers = {**bearing(), **more}
    asked = [await gateway.ask(headers=headers) for _ in range(5)]
    assert [reply.status for reply in asked] == [200, 200, 200, 200, 429]
    left = [reply.headers["x-ratelimit-remaining-requests"] for reply in asked]
    assert left == ["3", "2", "1", "0", "0"]
    assert upstream.calls == 1
    refused = asked[-1]
    assert refused.cache == "refrain; detail=key-limit"
    assert refused.headers["Retry-After"] == "75"
    assert refused.headers["x-ratelimit-limit-requests"] == "4"
    assert refused.headers["x-ratelimit-reset-requests"] == "120s"
    error = refused.json["error"]
    assert (error["type"], error["code"]) == ("requests", "rate_limit_exceeded")
    assert "4 requests a minute" in error["message"]
    other = await gateway.ask(headers={**bearing("gk-desk"), **more})
    assert other.status == 200
    assert not any(name.lower().startswith("x-ratelimit") for name in other.headers)


async def test_errors_streams_and_other_paths_count_and_have_the_headers(
    start_gateway, keys, still
):
    keys.write_text(line("shop", "gk-shop", "rpm=10"))
    gateway = await start_gateway(gateway_keys=keys)
    asked = [
        await gateway.post("/v1/chat/completions", b"{", headers=bearing()),
        await gateway.ask(headers=bearing(), stream=True),
        await gateway.get("/v1/models?a=b", headers=bearing()),
        await gateway.post("/v1/chat/completions", b"{", headers=bearing() | PARSED),
        await gateway.ask("b", headers=bearing() | PARSED, stream=True),
    ]
    assert [reply.status for reply in asked] == [400, 200, 201, 400, 200]
    left = [reply.headers.getall("x-ratelimit-remaining-requests") for reply in asked]
    assert left == [["9"], ["8"], ["7"], ["6"], ["5"]]


@pytest.mark.parametrize("more", [HOT, PARSED])
@pytest.mark.parametrize("stream", [False, True])
async def test_tokens_count_once_the_upstream_has_told_them_and_hits_have_none(
    start_gateway, keys, still, stream, more
):
    keys.write_text(line("shop", "gk-shop", "tpm=1000"))
    gateway = await start_gateway(gateway_keys=keys)
    headers = {**bearing(), **more}
    first = await gateway.ask("a", headers=headers, stream=stream)
    # The head of a stream goes out before its tokens are known.
    assert first.headers["x-ratelimit-remaining-tokens"] == ("1000" if stream else "990")
    hits = [await gateway.ask("a", headers=headers, stream=stream) for _ in range(3)]
    assert {hit.headers["x-ratelimit-remaining-tokens"] for hit in hits} == {"990"}


@pytest.mark.parametrize("stream", [False, True])
async def test_tokens_that_no_upstream_tells_are_estimated(
    start_gateway, upstream, keys, still, stream
):
    async def answer(request, body):
        if stream:
            return await answer_by_default(request, body)
        return web.json_response({**completion("x" * 400), "usage": None})

    upstream.answer = answer
    keys.write_text(line("shop", "gk-shop", "tpm=10000"))
    gateway = await start_gateway(gateway_keys=keys, upstream_accepts=["hints"])
    await gateway.ask("a" * 400, headers=bearing(), stream=stream)
    hit = await gateway.ask("a" * 400, headers=bearing(), stream=stream)
    used = 10_000 - int(hit.headers["x-ratelimit-remaining-tokens"])
    assert 100 < used < 300


async def test_an_error_of_the_upstream_costs_no_tokens(start_gateway, upstream, keys, still):
    async def answer(request, body):
        return web.json_response({"error": {"message": "no"}}, status=400)

    upstream.answer = answer
    keys.write_text(line("shop", "gk-shop", "tpm=1000"))
    gateway = await start_gateway(gateway_keys=keys)
    failed = await gateway.ask("a" * 400, headers=bearing())
    assert (failed.status, failed.headers["x-ratelimit-remaining-tokens"]) == (400, "1000")


@pytest.fixture
def hasty(patient, monkeypatch):
    """Let no call go on for a usage after its last client."""
    monkeypatch.setattr("gateway.upstream.sharing.shared_response.ANSWER_SECONDS", 0.0)


@pytest.mark.usefixtures("hasty")
async def test_who_leaves_early_is_charged_by_an_estimate(start_gateway, upstream, keys, still):
    async def answer(request, body):
        response = web.StreamResponse(headers={"Content-Type": "text/event-stream"})
        await response.prepare(request)
        while True:
            await response.write(chunk(delta={"content": "x" * 800}))
            await asyncio.sleep(0)

    upstream.answer = answer
    keys.write_text(line("shop", "gk-shop", "budget=100tokens/day"))
    gateway = await start_gateway(gateway_keys=keys)
    asked = {"model": "m", "stream": True, "messages": [{"role": "user", "content": "a" * 400}]}
    url = f"{gateway.url}/v1/chat/completions"
    async with gateway.session.post(url, json=asked, headers=bearing()) as reply:
        await reply.content.readany()
        reply.close()
    await upstream.cancelled.wait()
    while (await gateway.post("/v1/completions", b"{}", headers=bearing())).status != 429:
        pass


@pytest.mark.usefixtures("hasty")
@pytest.mark.parametrize("all_leave", [False, True])
async def test_a_shared_call_is_charged_once_although_its_leader_leaves(
    start_gateway, upstream, keys, still, all_leave
):
    end, said = asyncio.Event(), chunk(delta={"content": "x" * 400})

    async def answer(request, body):
        response = web.StreamResponse(headers={"Content-Type": "text/event-stream"})
        await response.prepare(request)
        await response.write(said)
        await end.wait()
        usage = {"prompt_tokens": 2000, "completion_tokens": 10, "total_tokens": 2010}
        last = b"data: " + orjson.dumps({"id": "c", "choices": [], "usage": usage}) + b"\n\n"
        await response.write(chunk(finish_reason="stop") + last + DONE)
        return response

    upstream.answer = answer
    keys.write_text(line("shop", "gk-shop", "tpm=100000", "concurrency=2"))
    gateway = await start_gateway(gateway_keys=keys)
    messages = [{"role": "user", "content": "a" * 4000}]
    asked = {"model": "m", "stream": True, "temperature": 0, "messages": messages}
    url = f"{gateway.url}/v1/chat/completions"

    async def tokens_left():
        path, headers = "/v1/chat/completions", bearing()
        while (reply := await gateway.post(path, b"{}", headers=headers)).status != 400:
            assert reply.status == 429  # two are under way
        return int(reply.headers["x-ratelimit-remaining-tokens"])

    async with (
        gateway.session.post(url, json=asked, headers=bearing()) as first,
        gateway.session.post(url, json=asked, headers=bearing()) as second,
    ):
        assert "collapsed" in second.headers["Cache-Status"]
        first.close()
        assert await tokens_left() == 100_000
        if all_leave:
            second.close()
            await upstream.cancelled.wait()
        else:
            end.set()
            await second.read()
    while (left := await tokens_left()) == 100_000:
        pass
    assert upstream.calls == 1
    assert left == 100_000 - 2010 if not all_leave else 97_500 < left < 99_000


async def test_a_key_over_its_budget_is_refused_until_the_day_ends(
    start_gateway, upstream, keys, still
):
    keys.write_text(line("shop", "gk-shop", "budget=1tokens/day"))
    gateway = await start_gateway(gateway_keys=keys)
    assert (await gateway.ask("a", headers=bearing(), stream=True)).status == 200
    refused = await gateway.ask("a", headers=bearing())
    assert refused.status == 429
    assert refused.cache == "refrain; detail=key-budget"
    assert refused.headers["Retry-After"] == "43200"
    error = refused.json["error"]
    assert (error["type"], error["code"]) == ("insufficient_quota", "insufficient_quota")
    assert "budget of 1 tokens a day" in error["message"]
    assert (await gateway.post("/v1/audio/speech", b"{}", headers=bearing())).status == 429
    await gateway.stop()
    again = await start_gateway(gateway_keys=keys)
    assert (await again.ask("a", headers=bearing())).status == 429
    assert upstream.calls == 1


async def test_a_key_over_its_soft_budget_is_told(start_gateway, keys, still):
    keys.write_text(line("shop", "gk-shop", "soft_budget=1tokens/month"))
    gateway = await start_gateway(gateway_keys=keys)
    first = await gateway.ask(headers=bearing(), stream=True)
    assert "x-refrain-soft-budget" not in first.headers
    for _ in range(2):
        told = (await gateway.ask(headers=bearing())).headers["x-refrain-soft-budget"]
        assert told.startswith("exceeded; used=")
        assert told.endswith("; limit=1; period=month; unit=tokens")


async def test_requests_at_a_time_are_bounded_and_freed(start_gateway, upstream, keys):
    keys.write_text(line("shop", "gk-shop", "concurrency=1"))
    gateway = await start_gateway(gateway_keys=keys)
    may_answer = asyncio.Event()

    async def answer(request, body):
        await may_answer.wait()
        return await answer_by_default(request, body)

    upstream.answer = answer
    first = asyncio.create_task(gateway.ask("a", headers=bearing()))
    await upstream.arrived.wait()
    refused = await gateway.ask("b", headers=bearing())
    assert (refused.status, refused.headers["Retry-After"]) == (429, "1")
    assert "1 requests at a time" in refused.json["error"]["message"]
    may_answer.set()
    assert (await first).status == 200
    assert (await gateway.ask("a", headers=bearing())).status == 200


async def test_the_limits_of_an_edited_file_hold_and_counts_go_on(start_gateway, keys, still):
    keys.write_text(line("shop", "gk-shop", "rpm=1000"))
    gateway = await start_gateway(gateway_keys=keys)
    assert (await gateway.ask(headers=bearing())).status == 200
    keys.write_text(line("shop", "gk-shop", "rpm=1"))
    while (await gateway.ask(headers=bearing())).status == 200:
        pass
    assert (await gateway.get("/readyz")).json["keys"] == {
        "gateway": "on",
        "problems": [],
        "counts": "ok",
    }


TEAM_POLICY = """
version: 1
default: {exact: on, semantic: off, freshness: 1h, scope: team, pii: bypass}
"""


@pytest.mark.parametrize("more", [HOT, PARSED])
async def test_a_team_shares_answers_and_nobody_else_gets_them(
    start_gateway, upstream, keys, tmp_path, more
):
    policy = tmp_path / "policy.yaml"
    policy.write_text(TEAM_POLICY)
    keys.write_text(
        line("ann", "gk-ann", "team=search")
        + line("bob", "gk-bob", "team=search")
        + line("cy", "gk-cy", "team=ads")
        + line("search", "gk-search")
        + line("dan", "gk-dan")
    )
    gateway = await start_gateway(gateway_keys=keys, policy=policy)

    async def hits(name):
        return "; hit" in (await gateway.ask(headers=bearing(f"gk-{name}") | more)).cache

    assert [await hits(name) for name in ("ann", "bob", "ann")] == [False, True, True]
    assert [await hits(name) for name in ("cy", "search", "dan")] == [False, False, False]
    assert [await hits(name) for name in ("cy", "search", "dan")] == [True, True, True]
    assert upstream.calls == 4


@pytest.mark.parametrize("whose", [{"holder": "ann"}, {"headers": bearing("gk-ann")}])
async def test_an_operator_loads_answers_for_a_team(start_gateway, upstream, keys, tmp_path, whose):
    policy = tmp_path / "policy.yaml"
    policy.write_text(TEAM_POLICY)
    keys.write_text(line("ann", "gk-ann", "team=search") + line("bob", "gk-bob", "team=search"))
    gateway = await start_gateway(gateway_keys=keys, policy=policy)
    request = {"model": "m", "messages": [{"role": "user", "content": "Known?"}]}
    known = orjson.dumps({"request": request, "answer": completion("Yes."), **whose})
    assert (await gateway.post("/admin/load", known)).json["stored"] is True
    assert (await gateway.ask("Known?", headers=bearing("gk-bob"))).text == "Yes."
    told = (await gateway.post("/admin/scope", orjson.dumps(whose))).json
    listed = (await gateway.get(f"/admin/entries?scope={told['team']}")).json["entries"]
    assert (len(listed), upstream.calls) == (1, 0)


PRICES = "model,input,output,cached_input\nm,10000,20000,1000\nfree,0,0,\nhalf,1,,\n"
"""A token of a prompt costs a cent, and a token of an answer two."""
USAGE = {
    "prompt_tokens": 100,
    "completion_tokens": 50,
    "total_tokens": 150,
    "prompt_tokens_details": {"cached_tokens": 20},
}
"""Costs 1.82 dollars: 80 tokens at a cent, 20 at a tenth of it, and 50 at two cents."""


@pytest.fixture
def start_priced(start_gateway, keys, tmp_path):
    """Start a gateway with these lines of keys, and with prices."""

    async def start(*lines):
        prices = tmp_path / "prices.csv"
        prices.write_text(PRICES)
        keys.write_text("".join(lines))
        return await start_gateway(gateway_keys=keys, prices=prices)

    return start


async def answer_with_usage(request, body):
    return web.json_response(completion("Yes.", usage=USAGE))


@pytest.mark.parametrize("more", [HOT, PARSED])
async def test_dollars_are_counted_by_the_price_table_and_hits_have_none(
    start_priced, upstream, still, more
):
    upstream.answer = answer_with_usage
    budgets = "budget=1.83USD/day,1Mtokens/day", "soft_budget=1USD/day"
    gateway = await start_priced(line("shop", "gk-shop", *budgets))
    headers = {**bearing(), **more}
    first = await gateway.ask("a", headers=headers)
    assert first.headers["x-refrain-soft-budget"] == (
        "exceeded; used=1.82; limit=1; period=day; unit=USD"
    )
    for _ in range(3):
        hit = await gateway.ask("a", headers=headers)
        assert (hit.status, "; hit" in hit.cache) == (200, True)
        assert "used=1.82;" in hit.headers["x-refrain-soft-budget"]
    assert (await gateway.ask("b", headers=headers)).status == 200
    refused = await gateway.ask("c", headers=headers)
    assert (refused.status, refused.headers["Retry-After"]) == (429, "43200")
    assert "budget of 1.83 USD a day" in refused.json["error"]["message"]
    assert upstream.calls == 2


@pytest.mark.parametrize("more", [HOT, PARSED])
async def test_a_budget_that_ends_in_mid_stream_refuses_the_next_request_only(
    start_priced, upstream, still, more
):
    may_go_on = asyncio.Event()

    async def answer(request, body):
        if not body.get("stream"):
            return await answer_with_usage(request, body)
        response = web.StreamResponse(headers={"Content-Type": "text/event-stream"})
        await response.prepare(request)
        await response.write(chunk(delta={"role": "assistant", "content": "one "}))
        await may_go_on.wait()
        await response.write(chunk(delta={"content": "two"}))
        await response.write(chunk(finish_reason="stop"))
        await response.write(DONE)
        return response

    upstream.answer = answer
    gateway = await start_priced(line("shop", "gk-shop", "budget=1USD/month", "rpm=10", "tpm=1000"))
    headers = {**bearing(), **more}
    stream = asyncio.create_task(gateway.ask("a", headers=headers, stream=True))
    await upstream.arrived.wait()
    assert (await gateway.ask("b", headers=headers)).status == 200
    refused = await gateway.ask("c", headers=headers)
    may_go_on.set()
    whole = await stream
    assert (whole.status, whole.text) == (200, "one two")
    assert whole.raw.endswith(b"data: [DONE]\n\n")
    assert refused.status == 429
    assert refused.cache == "refrain; detail=key-budget"
    assert refused.json["error"]["code"] == "insufficient_quota"
    assert "budget of 1 USD a month" in refused.json["error"]["message"]
    assert int(refused.headers["Retry-After"]) > 0
    assert refused.headers["x-ratelimit-remaining-requests"] == "8"
    assert refused.headers["x-ratelimit-remaining-tokens"] == "850"
    assert (await gateway.ask("a", headers=headers, stream=True)).status == 429


@pytest.mark.parametrize("more", [HOT, PARSED])
async def test_a_budget_of_dollars_refuses_models_whose_price_is_unknown(
    start_priced, upstream, more, caplog
):
    gateway = await start_priced(
        line("shop", "gk-shop", "budget=1USD/day"),
        line("desk", "gk-desk", "soft_budget=1USD/day"),
    )
    for model in ("unknown", "half"):
        refused = await gateway.ask(headers={**bearing(), **more}, model=model)
        assert (refused.status, refused.json["error"]["param"]) == (403, "model")
        assert "price of this model is not known" in refused.json["error"]["message"]
    assert upstream.calls == 0
    ready = await gateway.get("/readyz")
    [problem] = ready.json["keys"]["problems"]
    assert ready.status == 200
    assert problem.startswith("every request of shop for 'unknown', 'half' is refused: ")
    assert sum("every request of shop" in told for told in caplog.messages) == 2
    assert (await gateway.ask(headers={**bearing(), **more}, model="free")).status == 200
    for text in ("a", "b"):
        told = await gateway.ask(text, headers={**bearing("gk-desk"), **more}, model="unknown")
        assert (told.status, "x-refrain-soft-budget" in told.headers) == (200, False)
    warnings = [text for text in caplog.messages if "soft budgets" in text]
    assert len(warnings) == 1
    assert "'unknown'" in warnings[0]


async def test_the_account_of_the_upstream_is_closed_to_some_keys(start_gateway, upstream, keys):
    keys.write_text(line("shop", "gk-shop", "account=closed") + line("desk", "gk-desk"))
    gateway = await start_gateway(gateway_keys=keys)
    for path in ("/v1/files", "/v1/responses/resp_1"):
        assert (await gateway.get(path, headers=bearing())).status == 403
    refused = await gateway.post("/v1/batches", b"{}", headers=bearing())
    assert refused.json["error"]["code"] == "path_not_allowed"
    assert refused.cache == "refrain; detail=path-not-allowed"
    assert not upstream.requests
    assert (await gateway.ask(headers=bearing())).status == 200
    assert (await gateway.get("/v1/models?a=b", headers=bearing())).status == 201
    assert (await gateway.post("/v1/audio/speech", b"{}", headers=bearing())).status == 201
    assert (await gateway.get("/v1/files", headers=bearing("gk-desk"))).status == 201


@pytest.mark.parametrize(("setting", "status"), [("open", 200), ("closed", 503)])
async def test_a_redis_that_is_gone_opens_or_closes_keys_with_limits(
    start_gateway, keys, tmp_path, setting, status
):
    if not redis_folders():
        pytest.skip("no redis-server is installed")
    redis = RunningRedis(tmp_path)
    redis.start()
    try:
        keys.write_text(line("shop", "gk-shop", "rpm=100000") + line("desk", "gk-desk"))
        gateway = await start_gateway(gateway_keys=keys, store=redis.url, key_limits_fail=setting)
        assert (await gateway.ask(headers=bearing())).status == 200
        redis.kill()
        while (await gateway.get("/readyz")).json["keys"]["counts"] == "ok":
            assert (await gateway.ask(headers=bearing())).status == 200
        if status != 200:
            while (refused := await gateway.ask(headers=bearing())).status == 200:
                pass
            assert (refused.status, refused.headers["Retry-After"]) == (503, "1")
            assert refused.cache == "refrain; detail=key-counts"
            assert refused.json["error"]["code"] == "key_counts_unavailable"
        assert (await gateway.ask(headers=bearing())).status == status
        assert (await gateway.ask(headers=bearing("gk-desk"))).status == 200
        redis.start()
        while (await gateway.ask(headers=bearing())).status != 200:
            pass
    finally:
        redis.kill()
