"""Gateway keys over HTTP: who is let in, what goes on to the upstream, and cutting a key off."""

from hashlib import sha256
from importlib.resources import files

import orjson
import pytest

from gateway.server.keys.auth import key_file
from scripted_upstream import completion

REFUSED = "refrain; detail=unauthorized"


def line(name, key):
    return f"{name} {sha256(key.encode()).hexdigest()}\n"


def bearing(key):
    return {"Authorization": f"Bearer {key}"}


@pytest.fixture
def keys(tmp_path):
    file = tmp_path / "keys"
    file.write_text(line("shop", "gk-shop") + line("desk", "gk-desk"))
    return file


@pytest.fixture
async def gateway(start_gateway, keys, monkeypatch):
    monkeypatch.setenv("REFRAIN_UPSTREAM_API_KEY", "sk-upstream")
    return await start_gateway(gateway_keys=keys)


@pytest.mark.parametrize("headers", [{}, bearing("gk-other"), {"x-api-key": "gk-other"}])
@pytest.mark.parametrize(
    ("method", "path"),
    [
        ("POST", "/v1/chat/completions"),
        ("POST", "/v1/completions"),
        ("GET", "/v1/models"),
        ("DELETE", "/v1/files/1"),
        ("POST", "/v1/"),
    ],
)
async def test_without_a_valid_key_nothing_is_answered_or_forwarded(
    gateway, upstream, headers, method, path
):
    async with gateway.session.request(method, gateway.url + path, headers=headers) as reply:
        assert reply.status == 401
        assert reply.headers["Cache-Status"] == REFUSED
        assert reply.headers["WWW-Authenticate"] == "Bearer"
        error = (await reply.json())["error"]
    assert set(error) == {"message", "type", "param", "code"}
    assert (error["type"], error["code"]) == ("invalid_request_error", "invalid_api_key")
    assert upstream.requests == []


async def test_health_and_metrics_need_no_key(gateway):
    for path in ("/healthz", "/readyz", "/metrics"):
        assert (await gateway.get(path)).status == 200
    assert (await gateway.get("/readyz")).json["keys"] == {
        "gateway": "on",
        "problems": [],
        "counts": "ok",
    }


@pytest.mark.parametrize("name", ["Authorization", "api-key", "x-api-key"])
async def test_a_gateway_key_is_never_forwarded(gateway, upstream, name):
    value = "Bearer gk-shop" if name == "Authorization" else "gk-shop"
    assert (await gateway.ask(headers={name: value})).status == 200
    assert (await gateway.get("/v1/models?limit=2", headers={name: value})).status == 201
    assert len(upstream.requests) == 2
    for request in upstream.requests:
        assert request.headers.getall("Authorization") == ["Bearer sk-upstream"]
        assert "gk-shop" not in str(request.raw_headers)


async def test_without_a_key_for_the_upstream_none_is_sent(start_gateway, upstream, keys):
    gateway = await start_gateway(gateway_keys=keys)
    await gateway.ask(headers=bearing("gk-shop"))
    assert "Authorization" not in upstream.requests[0].headers


async def test_holders_do_not_see_each_others_answers(gateway, upstream):
    assert (await gateway.ask(headers=bearing("gk-shop"))).cache == "refrain; fwd=miss; stored"
    assert "hit" in (await gateway.ask(headers=bearing("gk-shop"))).cache
    assert (await gateway.ask(headers=bearing("gk-desk"))).cache == "refrain; fwd=miss; stored"
    assert upstream.calls == 2


async def until(holds, gateway):
    while not holds(await gateway.ask(headers=bearing("gk-shop"))):
        pass


async def test_a_removed_key_is_refused_for_hits_too_and_its_successor_keeps_the_cache(
    gateway, keys, upstream
):
    assert (await gateway.ask(headers=bearing("gk-shop"))).status == 200
    keys.write_text(line("shop", "gk-shop-2"))
    # The file is looked at all the time: wait for the reply to turn, however long that takes.
    await until(lambda asked: asked.status == 401, gateway)
    assert "hit" in (await gateway.ask(headers=bearing("gk-shop-2"))).cache
    assert upstream.calls == 1


async def test_a_denied_provider_key_gets_no_hits_any_more(start_gateway, tmp_path, upstream):
    denied = tmp_path / "denied"
    denied.write_text("")
    gateway = await start_gateway(denied_keys=denied)
    await gateway.ask(headers=bearing("gk-shop"))
    assert "hit" in (await gateway.ask(headers=bearing("gk-shop"))).cache
    other_limits = line("left-in-may", "gk-desk").rstrip() + " rpm=5\n"
    denied.write_text(line("left-in-may", "gk-shop").rstrip() + "\n" + other_limits)
    await until(lambda asked: asked.status == 401, gateway)
    assert (await gateway.ask(headers=bearing("other"))).status == 200
    assert (await gateway.ask()).status == 200


@pytest.mark.parametrize("whose", [{"headers": bearing("gk-shop")}, {"holder": "shop"}])
async def test_an_operator_names_a_tenant_by_its_key_or_by_its_holder(gateway, upstream, whose):
    request = {"model": "m", "messages": [{"role": "user", "content": "Known?"}]}
    known = orjson.dumps({"request": request, "answer": completion("Yes."), **whose})
    assert (await gateway.post("/admin/load", known)).json["stored"] is True
    asked = await gateway.ask("Known?", headers=bearing("gk-shop"))
    assert (asked.text, upstream.calls) == ("Yes.", 0)
    told = (await gateway.post("/admin/scope", orjson.dumps(whose))).json
    listed = (await gateway.get(f"/admin/entries?scope={told['tenant']}")).json["entries"]
    assert len(listed) == 1


@pytest.mark.parametrize("whose", [{}, {"headers": bearing("gk-other")}, {"holder": 7}])
@pytest.mark.parametrize("action", ["scope", "load"])
async def test_an_operator_who_names_nobody_is_told(gateway, whose, action):
    more = {"request": {"model": "m", "messages": []}, "answer": {}} if action == "load" else {}
    told = await gateway.post(f"/admin/{action}", orjson.dumps({**more, **whose}))
    assert told.status == 400
    assert "holder" in told.json["error"]["message"]


def test_an_edit_counts_at_the_second_look(keys):
    file = key_file(keys)
    keys.write_text(line("desk", "gk-desk"))
    file.reload()
    assert file.active.find("gk-shop").name == "shop"
    file.reload()
    assert file.active.find("gk-shop") is None
    assert file.active.find("gk-desk").name == "desk"


def test_a_bad_edit_keeps_the_last_good_keys_and_is_told_once(keys, caplog):
    file = key_file(keys)
    good = keys.read_text()
    keys.write_text(good + "desk gk-in-clear\n")
    for _ in range(4):
        file.reload()
    assert file.active.find("gk-shop").name == "shop"
    [told] = [each.getMessage() for each in caplog.records]
    assert f"{keys}:3: expected NAME" in told
    assert file.problem is not None
    assert "gk-in-clear" not in told
    keys.unlink()
    file.reload()
    assert file.active.find("gk-shop").name == "shop"
    assert "cannot be read" in file.problem
    keys.write_text(good)
    file.reload()
    file.reload()
    assert file.problem is None


@pytest.mark.parametrize("value", ["two words", "sk-\nX-Evil: 1", "sk-é"])
async def test_a_key_for_the_upstream_that_is_none_is_refused_at_start(
    start_gateway, keys, monkeypatch, value
):
    from gateway.server.open.secrets import SecretError

    monkeypatch.setenv("REFRAIN_UPSTREAM_API_KEY", value)
    with pytest.raises(SecretError, match="REFRAIN_UPSTREAM_API_KEY: expected") as raised:
        await start_gateway(gateway_keys=keys)
    assert value not in str(raised.value)


async def test_the_gateways_own_key_is_not_lent_to_everybody(start_gateway, monkeypatch):
    from gateway.server.open.secrets import SecretError

    monkeypatch.setenv("REFRAIN_UPSTREAM_API_KEY", "sk-upstream")
    with pytest.raises(SecretError, match="gateway_keys") as raised:
        await start_gateway()
    assert "sk-upstream" not in str(raised.value)


async def test_the_salt_is_the_tenants_and_no_part_of_the_key(start_gateway, upstream):
    gateway = await start_gateway(upstream_cache_salt=True)
    await gateway.ask("a", headers=bearing("one"), cache_salt="mine")
    assert "hit" in (await gateway.ask("a", headers=bearing("one"), cache_salt="yours")).cache
    assert "hit" in (await gateway.ask("a", headers=bearing("one"))).cache
    await gateway.ask("b", headers=bearing("one"))
    await gateway.ask("c", headers=bearing("two"), stream=True)
    first, second, third = (body["cache_salt"] for body in upstream.bodies)
    assert first == second != third
    assert all(len(salt) == 64 for salt in (first, third))
    assert upstream.bodies[2]["stream_options"] == {"include_usage": True}


PRESETS = {
    "engines": ([{"preset": "vllm"}, {"preset": "refrain"}], {}, True),
    "an engine that is said to know none": ([{"preset": "vllm", "cache_salt": False}], {}, False),
    "an engine, and a server that is not known": ([{"preset": "sglang"}, {}], {}, False),
    "servers that are said to": ([{"cache_salt": True}, {"cache_salt": True}], {}, True),
    "a provider": ([{"preset": "openai"}], {}, False),
    "switched off": ([{"preset": "vllm"}], {"upstream_cache_salt": False}, False),
    "switched on": ([{}], {"upstream_cache_salt": True}, True),
}


@pytest.mark.parametrize(("given", "settings", "salted"), PRESETS.values(), ids=PRESETS.keys())
async def test_requests_have_a_salt_where_every_upstream_knows_it(
    start_gateway, upstream, given, settings, salted
):
    listed = [
        {"probe": "off", "load_signal": False, **one, "url": f"{upstream.url}/v1", "name": f"u{n}"}
        for n, one in enumerate(given)
    ]
    gateway = await start_gateway(upstream=(), upstreams=listed, **settings)
    await gateway.ask("a", headers=bearing("one"))
    assert ("cache_salt" in upstream.bodies[-1]) is salted


async def test_who_shares_answers_shares_the_prefix_cache_too(start_gateway, upstream, tmp_path):
    policy = tmp_path / "policy.yaml"
    text = (files("policies") / "default.yaml").read_text()
    policy.write_text(text.replace("scope: tenant", "scope: public"))
    gateway = await start_gateway(upstream_cache_salt=True, policy=policy)
    await gateway.ask("a", headers=bearing("one"))
    await gateway.ask("b", headers=bearing("two"))
    first, second = (body["cache_salt"] for body in upstream.bodies)
    assert first == second


async def test_embeddings_are_sent_without_a_salt(start_gateway, upstream):
    gateway = await start_gateway(upstream_cache_salt=True)
    asked = orjson.dumps({"model": "e", "input": "a"})
    await gateway.post("/v1/embeddings", asked)
    assert all("cache_salt" not in body for body in upstream.bodies)


async def test_the_salt_stands_in_bodies_that_are_printed_anew(start_gateway, upstream):
    gateway = await start_gateway(upstream_cache_salt=True)
    options = {"include_usage": False}
    await gateway.ask("a", stream=True, stream_options=options, cache_salt="mine", store=True)
    assert len(upstream.bodies[0]["cache_salt"]) == 64


async def test_an_upstream_that_is_not_said_to_know_salts_gets_what_the_client_sent(
    gateway, upstream
):
    headers = bearing("gk-shop")
    await gateway.ask("a", headers=headers, cache_salt="mine")
    assert "stored" in (await gateway.ask("a", headers=headers, cache_salt="yours")).cache
    await gateway.ask("a", headers=headers)
    assert [body.get("cache_salt") for body in upstream.bodies] == ["mine", "yours", None]


@pytest.mark.parametrize(("priority", "told"), [("normal", None), ("high", "high"), ("low", "low")])
async def test_the_policys_priority_reaches_the_upstream_and_a_clients_does_not(
    start_gateway, upstream, tmp_path, priority, told
):
    text = (files("policies") / "default.yaml").read_text()
    policy = tmp_path / "policy.yaml"
    policy.write_text(f"{text}\n  priority: {priority}\n")
    gateway = await start_gateway(policy=policy)
    for body in ({}, {"store": True}, {"stream": True, "seed": 1}):
        await gateway.ask("a", headers={"x-refrain-priority": "urgent"}, **body)
        assert upstream.requests[-1].headers.get("X-Refrain-Priority") == told
        await gateway.get("/v1/models", headers={"x-refrain-priority": "urgent"})
        assert "X-Refrain-Priority" not in upstream.requests[-1].headers
