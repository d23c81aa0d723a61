"""The operator's API on the running gateway."""

import asyncio
import logging
import threading
import time
from hashlib import sha256

import orjson
import pytest
from lock_holder import lock_held

from gateway.cache import append_files as file_lock
from gateway.cache.append_files import Journal
from gateway.cache.ports import StoreUnavailableError
from gateway.cache.writer import CacheWriter
from gateway.server.admin import operations
from running_redis import RunningRedis

POLICY = """
version: 1
rules:
  - name: prices
    match: {model: gpt-*}
    freshness: 10m
default: {exact: on, semantic: on, freshness: 1h, scope: tenant, pii: bypass}
"""


@pytest.fixture
async def gateway(start_gateway, tmp_path):
    policy = tmp_path / "policy.yaml"
    policy.write_text(POLICY)
    return await start_gateway(policy=policy)


async def admin(gateway, action, /, **asked):
    reply = await gateway.post(f"/admin/{action}", orjson.dumps(asked))
    return reply.json if reply.status == 200 else (reply.status, reply.json["error"])


async def fill(gateway):
    for model in ("gpt-4o", "qwen"):
        for number in range(3):
            await gateway.ask(f"Question {number} for {model}?", model=model)


async def entries(gateway, query=""):
    reply = await gateway.get(f"/admin/entries{query}")
    assert reply.status == 200, reply.raw
    return reply.json["entries"]


async def test_entries_are_listed_by_what_the_operator_knows_of_them(gateway):
    await fill(gateway)
    listed = await entries(gateway)
    assert len(listed) == 6
    (one,) = await entries(gateway, f"?key={listed[0]['key']}")
    assert one == listed[0]
    assert {entry["rule"] for entry in await entries(gateway, "?model=gpt-*")} == {"prices"}
    assert len(await entries(gateway, "?rule=default")) == 3
    assert await entries(gateway, "?rule=default&model=gpt-*") == []
    (scope,) = {entry["scope"] for entry in listed}
    assert len(await entries(gateway, f"?scope={scope}")) == 6
    assert one["ttl"] in (600, 599, 3600, 3599)
    assert one["bytes"] > 100


async def test_each_entry_has_its_hits(gateway):
    for question, times in (("Where is it?", 5), ("What does it cost?", 1)):
        for _ in range(times):
            await gateway.ask(question)
    listed = await entries(gateway)
    assert sorted(entry["hits"] for entry in listed) == [0, 4]


async def test_of_several_workers_none_knows_the_hits_of_an_entry(start_gateway):
    gateway = await start_gateway(workers=2)
    for _ in range(3):
        await gateway.ask("Where is it?")
    assert [entry["hits"] for entry in await entries(gateway)] == [None]


async def test_a_list_comes_in_pages(gateway):
    await fill(gateway)
    keys, after = [], ""
    while after is not None:
        page = (await gateway.get(f"/admin/entries?limit=4{after and f'&after={after}'}")).json
        keys += [entry["key"] for entry in page["entries"]]
        after = page["after"]
    assert len(set(keys)) == 6


@pytest.mark.parametrize("after", ["00", "zz", "", "20", "2d31"])
async def test_a_list_does_not_go_on_from_anywhere(gateway, after):
    await fill(gateway)
    reply = await gateway.get(f"/admin/entries?after={after}")
    assert (reply.status, reply.json["error"]["param"]) == (400, "after")


async def test_no_list_shows_what_was_asked_or_answered(gateway):
    await gateway.ask("What is the secret of the chocolate factory?")
    reply = await gateway.get("/admin/entries")
    (entry,) = reply.json["entries"]
    assert b"chocolate" not in reply.raw
    assert b"chocolate" not in (await gateway.get(f"/admin/entries/{entry['key']}")).raw
    shown = (await gateway.get(f"/admin/entries/{entry['key']}?answer=1")).json
    assert "chocolate" in shown["question"]
    assert "chocolate" in shown["answer"]["choices"][0]["message"]["content"]


async def test_a_purge_is_a_dry_run_unless_told_otherwise(gateway, upstream):
    await fill(gateway)
    dry = await admin(gateway, "purge", model="gpt-*")
    assert (dry["dry_run"], dry["entries"]) == (True, 3)
    assert len(await entries(gateway)) == 6
    real = await admin(gateway, "purge", model="gpt-*", dry_run=False)
    assert real == {**dry, "dry_run": False}
    assert {entry["model"] for entry in await entries(gateway)} == {"qwen"}
    calls = upstream.calls
    assert "fwd=miss" in (await gateway.ask("Question 0 for gpt-4o?", model="gpt-4o")).cache
    assert "hit" in (await gateway.ask("Question 0 for qwen?", model="qwen")).cache
    assert upstream.calls == calls + 1


@pytest.mark.parametrize("kept", [0, 5])
async def test_a_purge_by_key_or_of_all(gateway, kept):
    await fill(gateway)
    selected = {"key": (await entries(gateway))[0]["key"]} if kept else {"all": True}
    purged = await admin(gateway, "purge", **selected, dry_run=False)
    assert purged["entries"] == 6 - kept
    assert len(await entries(gateway)) == kept


@pytest.mark.parametrize(
    ("action", "asked", "param"),
    [
        ("purge", {}, "all"),
        ("purge", {"modle": "gpt"}, "modle"),
        ("purge", {"all": True, "dry_run": "no"}, "dry_run"),
        ("wrong", {}, "entry"),
        ("wrong", {"entry": "12"}, "entry"),
        ("wrong", {"entry": "0" * 64, "question": 5}, "question"),
        ("wrong", {"entry": "0" * 64, "qestion": "x"}, "qestion"),
        ("audit", {"purge": 1}, "purge"),
        ("forget", {}, "scope"),
        ("forget", {"scope": "0" * 64, "all": True}, "all"),
        ("scope", {"headers": {"authorization": 5}}, "headers.authorization"),
        ("scope", {"user": 5}, "user"),
        ("load", {}, "request"),
        ("load", {"request": {}, "answer": {}, "endpoint": "/v1/x"}, "endpoint"),
        ("load", {"request": {}, "answer": "text"}, "answer"),
        ("audit", {"all": True}, "all"),
    ],
)
async def test_what_is_not_clear_is_refused_and_nothing_is_lost(gateway, action, asked, param):
    await fill(gateway)
    status, error = await admin(gateway, action, **asked)
    assert status == 400
    assert error["param"] == param
    assert len(await entries(gateway)) == 6


@pytest.mark.parametrize("raw", [b"", b"[]", b"{", b"null"])
async def test_a_body_that_is_no_object_is_refused(gateway, raw):
    reply = await gateway.post("/admin/purge", raw)
    assert (reply.status, reply.json["error"]["param"]) == (400, "body")


@pytest.mark.parametrize("path", ["/admin/nothing", "/admin", "/admin/entries/xyz", "/admin/purge"])
async def test_no_other_path_below_admin_leads_anywhere(gateway, upstream, path):
    assert (await gateway.get(path)).status in (400, 404)
    assert upstream.requests == []


async def test_a_hit_called_wrong_is_evicted_and_kept_as_a_case(gateway, upstream):
    await gateway.ask("How do I pay?")
    hit = await gateway.ask("How do I pay?")
    (entry,) = await entries(gateway)
    told = await admin(gateway, "wrong", entry=entry["key"], question="How do I not pay?")
    assert told == {"entry": entry["key"], "evicted": True, "semantic": False}
    assert "hit" in hit.cache
    assert "fwd=miss; stored" in (await gateway.ask("How do I pay?")).cache
    (again,) = await entries(gateway)
    assert (again["key"], again["semantic"]) == (entry["key"], False)
    (case,) = (gateway.data_dir / "wrong-hits.jsonl").read_bytes().splitlines()
    case = orjson.loads(case)
    assert (case["asked"], case["stored"]) == ("How do I not pay?", "How do I pay?")


async def test_calling_an_unknown_entry_wrong_bars_its_key_all_the_same(gateway):
    told = await admin(gateway, "wrong", entry="ab" * 32)
    assert told["evicted"] is False
    assert "ab" * 32 in (gateway.data_dir / "quarantine.jsonl").read_text()


async def test_a_quarantine_that_cannot_be_written_is_said_and_nothing_is_done(gateway):
    await gateway.ask("How do I pay?")
    (entry,) = await entries(gateway)
    quarantine = gateway.data_dir / "quarantine.jsonl"
    quarantine.mkdir()
    status, error = await admin(gateway, "wrong", entry=entry["key"])
    assert (status, error["type"]) == (500, "server_error")
    assert "cannot be written; nothing was done" in error["message"]
    assert "hit" in (await gateway.ask("How do I pay?")).cache
    quarantine.rmdir()
    assert (await admin(gateway, "wrong", entry=entry["key"]))["evicted"] is True
    assert entry["key"] in quarantine.read_text()


async def test_a_case_that_cannot_be_written_down_is_said_and_so_is_what_was_done(gateway, caplog):
    await gateway.ask("How do I pay?")
    (entry,) = await entries(gateway)
    cases = gateway.data_dir / "wrong-hits.jsonl"
    cases.mkdir()
    asked = {"entry": entry["key"], "question": "The chocolate question?"}
    status, error = await admin(gateway, "wrong", **asked)
    assert (status, error["type"]) == (500, "server_error")
    assert "barred from semantic reuse" in error["message"]
    assert "the entry was not evicted" in error["message"]
    assert "nothing was done" not in error["message"]
    assert "wrong-hits.jsonl" in caplog.text
    assert "hocolate" not in caplog.text
    (kept,) = await entries(gateway)
    assert (kept["key"], kept["semantic"]) == (entry["key"], False)
    assert entry["key"] in (gateway.data_dir / "quarantine.jsonl").read_text()
    cases.rmdir()
    assert (await admin(gateway, "wrong", **asked))["evicted"] is True
    assert orjson.loads(cases.read_bytes())["stored"] == "How do I pay?"
    assert await entries(gateway) == []


@pytest.mark.parametrize(
    ("file", "told", "semantic"),
    [
        ("admin-audit.jsonl", "nothing was done", True),
        ("quarantine.jsonl", "nothing was done", True),
        ("wrong-hits.jsonl", "the entry was not evicted", False),
    ],
)
async def test_a_worker_that_stopped_with_a_lock_holds_up_no_action_without_end(
    gateway, monkeypatch, file, told, semantic
):
    monkeypatch.setattr(file_lock, "LOCK_SECONDS", 0.0)
    await gateway.ask("How do I pay?")
    (entry,) = await entries(gateway)
    with lock_held(gateway.data_dir / file):
        status, error = await admin(gateway, "wrong", entry=entry["key"])
    assert (status, told in error["message"]) == (500, True)
    (kept,) = await entries(gateway)
    assert kept["semantic"] is semantic
    assert (await admin(gateway, "wrong", entry=entry["key"]))["evicted"] is True


async def test_figures_that_cannot_be_written_down_do_not_hide_what_was_done(gateway, monkeypatch):
    await fill(gateway)
    append = Journal.append

    async def only_asked(journal, line):
        if "result" in line:
            raise OSError(28, "No space left on device")
        await append(journal, line)

    monkeypatch.setattr(Journal, "append", only_asked)
    status, error = await admin(gateway, "purge", all=True, dry_run=False)
    assert (status, "The action was done" in error["message"]) == (500, True)
    assert await entries(gateway) == []


async def test_a_worker_that_stopped_with_the_quarantines_lock_keeps_no_other_from_starting(
    start_gateway, gateway
):
    quarantine = gateway.data_dir / "quarantine.jsonl"
    await admin(gateway, "wrong", entry="ab" * 32)
    await gateway.stop()
    with quarantine.open("a") as file:
        file.write("no key\n")
    with lock_held(quarantine):
        started = await start_gateway()
        assert (await started.ask("How do I pay?")).status == 200
    assert "no key" in quarantine.read_text()


async def test_a_scope_is_told_by_who_asks_and_forgotten_alone(gateway):
    anna, bert = ({"Authorization": f"Bearer {name}"} for name in ("anna", "bert"))
    for headers in (anna, bert):
        await gateway.ask("How do I pay?", headers=headers)
    scope = (await admin(gateway, "scope", headers=anna))["tenant"]
    assert len(await entries(gateway, f"?scope={scope}")) == 1
    assert (await admin(gateway, "forget", scope=scope))["entries"] == 1
    assert len(await entries(gateway)) == 2
    assert (await admin(gateway, "forget", scope=scope, dry_run=False))["entries"] == 1
    assert "fwd=miss" in (await gateway.ask("How do I pay?", headers=anna)).cache
    assert "hit" in (await gateway.ask("How do I pay?", headers=bert)).cache


async def test_scope_ids_differ_by_kind_and_user_and_tell_no_key(gateway):
    headers = {"authorization": "Bearer anna"}
    told = await admin(gateway, "scope", headers=headers, user="kim")
    assert set(told) == {"tenant", "team", "user", "public"}
    assert len(set(told.values())) == 3
    other = await admin(gateway, "scope", headers=headers, user="lee")
    assert other["user"] != told["user"]
    assert other["tenant"] == told["tenant"]
    assert b"anna" not in (gateway.data_dir / "admin-audit.jsonl").read_bytes()


async def test_an_audit_finds_and_purges_what_todays_detectors_see(start_gateway, tmp_path):
    policy = tmp_path / "policy.yaml"
    policy.write_text(POLICY.replace("pii: bypass", "pii: allow"))
    gateway = await start_gateway(policy=policy)
    await gateway.ask("Mail to anna@acme.example please")
    await gateway.ask("Nothing in here")
    assert (await admin(gateway, "audit"))["scanned"] == 0  # the rule allows it
    await gateway.stop()

    policy.write_text(POLICY)
    gateway = await start_gateway(policy=policy)
    found = await admin(gateway, "audit")
    assert (found["scanned"], found["purged"]) == (2, 0)
    assert (found["findings"], found["rules"]) == ({"email": 1}, {"default": 1})
    assert (await admin(gateway, "audit", purge=True))["purged"] == 1
    assert len(await entries(gateway)) == 1
    assert (await admin(gateway, "audit"))["findings"] == {}


async def test_every_action_is_in_the_audit_log_and_no_text_is(gateway):
    await gateway.ask("The chocolate question?")
    (entry,) = await entries(gateway)
    await admin(gateway, "purge", rule="default")
    await admin(gateway, "wrong", entry=entry["key"], question="Chocolate?")
    await gateway.get(f"/admin/entries/{entry['key']}?answer=1")
    await gateway.post("/admin/purge", orjson.dumps({"prompt": "chocolate"}))
    raw = (gateway.data_dir / "admin-audit.jsonl").read_bytes()
    lines = [orjson.loads(line) for line in raw.splitlines()]
    actions = [(line["action"], "result" in line) for line in lines]
    assert actions[:4] == [("purge", False), ("purge", True), ("wrong", False), ("wrong", True)]
    assert lines[1]["result"]["entries"] == 1
    assert lines[0]["peer"] == "127.0.0.1"
    assert b"hocolate" not in raw


async def test_an_action_that_cannot_be_written_down_is_not_done(gateway):
    await fill(gateway)
    (gateway.data_dir / "admin-audit.jsonl").mkdir()
    status, error = await admin(gateway, "purge", all=True, dry_run=False)
    assert (status, error["type"]) == (500, "server_error")
    assert len(await entries(gateway)) == 6


async def test_the_token_is_asked_for_and_never_told(
    start_gateway, monkeypatch, caplog: pytest.LogCaptureFixture
):
    caplog.set_level(logging.DEBUG)
    monkeypatch.setenv("REFRAIN_ADMIN_TOKEN", "operators-token")
    gateway = await start_gateway()
    for headers in ({}, {"Authorization": "Bearer other"}):
        reply = await gateway.get("/admin/entries", headers=headers)
        assert (reply.status, reply.json["error"]["type"]) == (401, "permission_error")
    good = {"Authorization": "Bearer operators-token"}
    assert (await gateway.get("/admin/entries", headers=good)).status == 200
    await gateway.post("/admin/purge", b'{"all":true}', headers=good)
    assert "operators-token" not in caplog.text
    assert "operators-token" not in (gateway.data_dir / "admin-audit.jsonl").read_text()


@pytest.mark.parametrize(
    "headers",
    [
        {"Host": "attacker.example"},
        {"Origin": "https://attacker.example"},
        {"X-Forwarded-For": "192.0.2.7"},
    ],
)
async def test_a_page_or_a_proxy_cannot_act_for_others(gateway, headers):
    await fill(gateway)
    body = orjson.dumps({"all": True, "dry_run": False})
    reply = await gateway.post("/admin/purge", body, headers=headers)
    assert reply.status == 403
    assert len(await entries(gateway)) == 6


@pytest.fixture
def redis(tmp_path):
    server = RunningRedis(tmp_path / "redis")
    server.start()
    yield server
    server.kill()


async def test_while_the_store_is_frozen_each_call_ends_and_says_why(
    start_gateway, redis, monkeypatch
):
    monkeypatch.setattr("gateway.server.open.store.USAGE_SECONDS", 0.5)
    gateway = await start_gateway(store=redis.url)
    await gateway.ask("Where is my parcel?")
    [entry] = await entries(gateway)
    redis.freeze()
    try:
        async with asyncio.timeout(60):
            asked = {"purge": {"all": True, "dry_run": False}, "audit": {}, "forget": {}}
            asked["forget"] = {"scope": entry["scope"], "dry_run": False}
            for action, fields in asked.items():
                status, error = await admin(gateway, action, **fields)
                assert (status, error["type"]) == (503, "store_error")
                assert error["message"].startswith("The store failed: ")
                assert error["message"].endswith(". Try again once it answers.")
            for path in ("entries", f"entries/{entry['key']}", "usage"):
                reply = await gateway.get(f"/admin/{path}")
                assert (reply.status, reply.json["error"]["type"]) == (503, "store_error")
            found = (await gateway.get("/admin/overview")).json["ready"]["store"]
            assert found["problem"] == "not answering"
            status, error = await admin(gateway, "wrong", entry=entry["key"])
    finally:
        redis.thaw()
    assert status == 500
    assert "barred from semantic reuse, but the entry was not evicted" in error["message"]
    assert "Report it again." in error["message"]


async def test_a_look_finds_a_frozen_store_and_that_it_answers_again(
    start_gateway, redis, monkeypatch
):
    monkeypatch.setattr("gateway.server.admin.overview.SHARED_SECONDS", 0.0)
    gateway = await start_gateway(store=redis.url)

    async def settled(problem):
        async with asyncio.timeout(60):
            while True:
                store = (await gateway.get("/admin/overview")).json["ready"]["store"]
                if store["problem"] == problem:
                    return store

    await settled(None)
    redis.freeze()
    try:
        store = await settled("not answering")
        assert "did not answer" in store["why"]
        assert store["since"] <= time.time()
    finally:
        redis.thaw()
    assert await settled(None) == {"kind": "redis", "problem": None}


async def test_a_purge_that_stops_early_names_what_is_gone(gateway, monkeypatch):
    monkeypatch.setattr("gateway.server.admin.operations.PAGE", 2)
    await fill(gateway)
    remove, calls = CacheWriter.remove, []

    async def fail_later(self, keys):
        calls.append(keys)
        if len(calls) == 2:
            raise StoreUnavailableError("gone")
        await remove(self, keys)

    monkeypatch.setattr(CacheWriter, "remove", fail_later)
    status, error = await admin(gateway, "purge", all=True, dry_run=False)
    assert status == 500
    assert error["message"] == "The store failed: gone. At least 2 entries are purged: purge again."
    monkeypatch.undo()
    assert len(await entries(gateway)) == 4


async def test_a_request_is_explained_as_that_of_a_holder(start_gateway, tmp_path):
    keys = tmp_path / "keys"
    keys.write_text(f"shop {sha256(b'sk-shop').hexdigest()}\ndocs {'0' * 64}\n")
    gateway = await start_gateway(gateway_keys=keys)
    sender = {"Authorization": "Bearer sk-shop"}
    await gateway.ask("Where is my parcel?", headers=sender)
    message = {"role": "user", "content": "Where is my parcel?"}
    body = {"model": "m", "messages": [message]}
    told = await admin(gateway, "explain", body=body, holder="shop")
    assert (told["outcome"]["would"], told["request"]["tenant"]) == ("hit", "holder shop")
    assert (await admin(gateway, "explain", body=body, holder="docs"))["outcome"]["would"] == "miss"
    status, error = await admin(gateway, "explain", body=body, holder="shpo")
    assert (status, error["param"]) == (400, "holder")
    assert "(did you mean shop?)" in error["message"]
    status, error = await admin(gateway, "explain", body=body, holder="")
    assert (status, error["param"]) == (400, "holder")


async def test_the_nearest_of_many_holders_is_looked_for_in_a_thread(
    start_gateway, tmp_path, monkeypatch
):
    keys, threads = tmp_path / "keys", []
    keys.write_text(f"shop {sha256(b'sk-shop').hexdigest()}\n")

    def look(*_given, **_options):
        threads.append(threading.current_thread())
        return []

    monkeypatch.setattr(operations, "get_close_matches", look)
    gateway = await start_gateway(gateway_keys=keys)
    status, _ = await admin(gateway, "explain", body={"model": "m"}, holder="shpo")
    assert status == 400
    assert len(threads) == 1
    assert threads[0] is not threading.current_thread()
