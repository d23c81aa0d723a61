"""The policy over the operator's API: look, check, replay, save; and keys and comparisons."""

import asyncio
import hashlib
import tempfile

import orjson
import pytest

POLICY = """\
version: 1
rules:
  - name: prices
    match: {model: gpt-*}
    freshness: 10m
default: {exact: on, semantic: off, freshness: 1h, scope: tenant, pii: bypass}
"""
EDITED = POLICY.replace("freshness: 10m", "exact: off")
WRONG = POLICY.replace("freshness: 10m", "freshness: soon")


@pytest.fixture
def policy(tmp_path):
    file = tmp_path / "policy.yaml"
    file.write_text(POLICY)
    return file


@pytest.fixture
async def gateway(start_gateway, policy, tmp_path):
    return await start_gateway(policy=policy, decision_log=tmp_path / "decisions.jsonl")


async def act(gateway, action, /, **fields):
    reply = await gateway.post(f"/admin/{action}", orjson.dumps(fields))
    return reply.json if reply.status == 200 else (reply.status, reply.json["error"])


async def look(gateway):
    reply = await gateway.get("/admin/policy")
    assert reply.status == 200, reply.raw
    return reply.json


async def test_the_page_shows_the_file_and_that_it_is_in_force(gateway, policy):
    shown = await look(gateway)
    assert shown == {
        "source": str(policy),
        "generation": 0,
        "problem": None,
        "in_force": True,
        "text": POLICY,
        "sha256": hashlib.sha256(POLICY.encode()).hexdigest(),
        "read_only": None,
        "decision_log": shown["decision_log"],
    }


async def test_a_check_names_line_and_key_and_changes_nothing(gateway, policy):
    assert await act(gateway, "policy/check", text=EDITED) == {
        "valid": True,
        "problems": [],
        "rules": ["prices"],
        "generation": 0,
    }
    checked = await act(gateway, "policy/check", text=WRONG)
    assert checked["valid"] is False
    [problem] = checked["problems"]
    assert (problem["line"], problem["key"]) == (5, "rules[0].freshness")
    assert "soon" in problem["message"]
    assert policy.read_text() == POLICY


async def test_a_saved_policy_takes_effect(gateway, policy):
    before = await look(gateway)
    saved = await act(gateway, "policy", text=EDITED, sha256=before["sha256"])
    assert saved["bytes"] == len(EDITED)
    assert policy.read_text() == EDITED
    async with asyncio.timeout(30):
        while not (await look(gateway))["in_force"]:  # noqa: ASYNC110 - it asks over HTTP
            await asyncio.sleep(0)
    assert (await look(gateway))["sha256"] == saved["sha256"]
    text = (gateway.data_dir / "admin-audit.jsonl").read_text()
    lines = [orjson.loads(line) for line in text.splitlines()]
    assert [line["action"] for line in lines] == ["policy", "policy"]
    assert [line["asked"] for line in lines] == [{"sha256": before["sha256"]}] * 2
    assert lines[1]["result"] == {"sha256": saved["sha256"], "bytes": len(EDITED)}
    assert "prices" not in text


async def test_an_edit_of_somebody_else_is_not_lost(gateway, policy):
    seen = (await look(gateway))["sha256"]
    other = POLICY.replace("10m", "20m")
    policy.write_text(other)
    status, error = await act(gateway, "policy", text=EDITED, sha256=seen)
    assert (status, error["param"]) == (400, "sha256")
    assert policy.read_text() == other


async def test_a_wrong_policy_is_not_saved(gateway, policy):
    seen = (await look(gateway))["sha256"]
    status, error = await act(gateway, "policy", text=WRONG, sha256=seen)
    assert (status, error["param"]) == (400, "text")
    assert "line 5: rules[0].freshness" in error["message"]
    assert policy.read_text() == POLICY


@pytest.mark.parametrize("fields", [{}, {"text": 1}, {"text": "x" * 600_000}, {"text": "", "a": 1}])
@pytest.mark.parametrize("action", ["policy", "policy/check", "policy/replay"])
async def test_wrong_fields_are_refused(action, fields, gateway):
    status, error = await act(gateway, action, **fields)
    assert (status, error["type"]) == (400, "invalid_request_error")


async def test_the_packaged_policy_is_read_only(start_gateway):
    gateway = await start_gateway()
    shown = await look(gateway)
    assert "No policy file is set" in shown["read_only"]
    status, error = await act(gateway, "policy", text=EDITED, sha256=shown["sha256"])
    assert (status, error["param"]) == (400, "text")
    assert "No policy file is set" in error["message"]


async def test_a_replay_tells_what_an_edit_would_have_changed(
    start_gateway, policy, tmp_path, monkeypatch
):
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    settings = {"policy": policy, "decision_log": tmp_path / "decisions.jsonl"}
    recorded = await start_gateway(**settings)
    for _ in range(3):
        await recorded.ask(model="gpt-4o")
    await recorded.stop()  # which writes the log to its end
    gateway = await start_gateway(**settings)
    report = await act(gateway, "policy/replay", text=EDITED)
    assert (report["requests"], report["before"]["hits"], report["after"]["hits"]) == (3, 2, 0)
    assert report["rules"]["prices"]["requests"] == 3
    assert not list(tmp_path.glob("refrain-policy-*"))
    status, error = await act(gateway, "policy/replay", text=WRONG)
    assert (status, error["param"]) == (400, "text")


async def test_a_replay_that_takes_too_long_is_ended(gateway, tmp_path, monkeypatch):
    monkeypatch.setattr("gateway.server.admin.policy_editor.REPLAY_SECONDS", 0.0)
    (tmp_path / "decisions.jsonl").touch()
    status, error = await act(gateway, "policy/replay", text=EDITED)
    assert (status, error["message"]) == (400, "text: expected a replay of at most 0 s")


async def test_one_replay_runs_at_a_time(gateway, tmp_path):
    (tmp_path / "decisions.jsonl").write_text("{}\n")
    replies = await asyncio.gather(*(act(gateway, "policy/replay", text=EDITED) for _ in range(2)))
    messages = sorted(error["message"] for _, error in replies)
    assert "a log to replay" in messages[0]
    assert messages[1] == "text: expected one replay at a time: try again"


async def test_a_log_without_records_is_named(gateway, tmp_path):
    (tmp_path / "decisions.jsonl").write_text("{}\n")
    status, error = await act(gateway, "policy/replay", text=EDITED)
    assert status == 400
    assert "no record of a decision in it" in error["message"]


async def test_without_a_decision_log_nothing_is_replayed(start_gateway, policy):
    gateway = await start_gateway(policy=policy)
    assert (await look(gateway))["decision_log"] is None
    status, error = await act(gateway, "policy/replay", text=EDITED)
    assert (status, error["param"]) == (400, "text")


async def test_keys_are_listed_without_their_secrets(start_gateway, tmp_path):
    digest = hashlib.sha256(b"secret of the shop").hexdigest()
    file = tmp_path / "keys"
    file.write_text(f"shop {digest} models=gpt-4o* team=sales\n")
    gateway = await start_gateway(gateway_keys=file)
    reply = await gateway.get("/admin/keys")
    [key] = reply.json["keys"]
    assert (key["name"], key["key"], key["state"]) == ("shop", digest[:8], "valid")
    assert (key["models"], key["team"]) == ("gpt-4o*", "sales")
    assert digest.encode() not in reply.raw


async def test_the_latest_comparisons_come_first(gateway):
    assert (await gateway.get("/admin/comparisons")).json == {"comparisons": []}
    lines = [{"time": number, "outcome": "equal"} for number in range(300)]
    text = b"\n".join([b'{"time": 0, "outc', *map(orjson.dumps, lines), b'{"kind": "off"}', b"["])
    (gateway.data_dir / "semantic-checks.jsonl").write_bytes(text)
    found = (await gateway.get("/admin/comparisons")).json["comparisons"]
    assert [each["time"] for each in found] == list(range(299, 99, -1))
