"""The decision log as the running gateway writes it, and replay as the operator runs it."""

import asyncio
import logging
import resource
import threading

import orjson
import pytest
from lock_holder import lock_held
from observations import observation_of

from embeddings.verify.calibration import calibrated, written_calibration
from gateway.cache import append_files as file_lock
from gateway.cli.main import main
from gateway.semantic.calibrations import OWN_FILE
from gateway.server.admin.recorded_request import read_request
from gateway.telemetry import decision_log
from gateway.telemetry.decision_log import DecisionLog

POLICY = """
version: 1
rules:
  - {name: prices, match: {content: {keywords: [chocolate]}}, freshness: 10m}
default: {exact: on, semantic: on, freshness: 1h, scope: tenant, pii: bypass}
"""


@pytest.fixture
def policy(tmp_path):
    file = tmp_path / "policy.yaml"
    file.write_text(POLICY)
    return file


@pytest.fixture
async def record(start_gateway, tmp_path, policy):
    """Ask a gateway that keeps a log; return the log's path."""

    async def run(ask, **settings):
        log = tmp_path / "decisions.jsonl"
        gateway = await start_gateway(policy=policy, decision_log=log, **settings)
        await ask(gateway)
        await gateway.stop()
        return log

    return run


async def some(gateway):
    key = {"Authorization": "Bearer the-api-key"}
    for question in ("The price of chocolate?", "The price of chocolate?", "Hello"):
        await gateway.ask(question, headers=key, user="kim")
    await gateway.ask("Mail to anna@example.org")
    await gateway.ask("Hello", store=True)
    await gateway.ask("Hello", headers={"Cache-Control": "no-store"})
    await gateway.post("/v1/chat/completions", b"{")


def replay(capsys, *arguments):
    code = main(["policy", "replay", *map(str, arguments)])
    captured = capsys.readouterr()
    return code, captured.out, captured.err


async def test_each_request_leaves_a_line_and_no_line_a_text_or_key(record):
    log = await record(some)
    raw = log.read_bytes()
    lines = [orjson.loads(line) for line in raw.splitlines()]
    told = [(line["rule"], line["outcome"], line["reason"]) for line in lines]
    assert told == [
        ("prices", "miss", None),
        ("prices", "hit", "exact"),
        ("default", "miss", None),
        ("default", "bypass", "pii"),
        ("default", "bypass", "store-true"),
        ("default", "bypass", "no-store"),
    ]
    assert lines[0]["form"] == lines[1]["form"] != lines[2]["form"]
    assert lines[1]["source"] == lines[0]["key"]
    assert lines[0]["tokens"] == 10
    assert all(line["seconds"] > 0 for line in lines)
    for word in (b"hocolate", b"Hello", b"anna", b"the-api-key", b"kim"):
        assert word not in raw
    assert log.stat().st_mode & 0o777 == 0o600


async def test_with_text_what_was_said_is_in_it(record):
    log = await record(some, decision_log_text=True)
    assert orjson.loads(log.read_bytes().splitlines()[0])["text"] == "The price of chocolate?"


async def test_with_requests_the_whole_body_is_in_it_and_what_the_prompt_took(record):
    log = await record(some, decision_log_requests=True)
    lines = [orjson.loads(line) for line in log.read_bytes().splitlines()]
    asked = lines[0]["request"]["messages"]
    assert asked == [{"role": "user", "content": "The price of chocolate?"}]
    assert {line["prompt_tokens"] for line in lines if line["outcome"] == "miss"} == {7}
    assert b"the-api-key" not in log.read_bytes()


async def test_replay_tells_what_would_change(record, policy, tmp_path, capsys):
    log = await record(some)
    code, out, err = await asyncio.to_thread(replay, capsys, "--policy", policy, log)
    assert (code, err) == (0, "")
    assert "6 requests, 1 of them hits when recorded" in out
    assert "hits gained: 0    hits lost: 0" in out
    edited = tmp_path / "edited.yaml"
    edited.write_text(POLICY.replace("freshness: 10m", "exact: off, semantic: off"))
    code, out, _ = await asyncio.to_thread(replay, capsys, "--policy", edited, "--json", log)
    report = orjson.loads(out)
    assert (code, report["lost"], report["gained"], report["unknown"]) == (0, 1, 0, 0)
    edited.write_text(POLICY.replace("chocolate", "cake"))
    code, out, _ = await asyncio.to_thread(replay, capsys, "--policy", edited, log)
    assert "6 cannot be told" in out


async def test_replay_tells_which_hits_a_stricter_budget_would_lose(
    record, policy, tmp_path, capsys
):
    """One that was sure enough for 1 % and is not for 0.5 %, by the operator's calibration."""
    ours = calibrated(
        [(0.99, False)] * 400 + [(0.9, False)] * 400 + [(0.9, True)] * 2, verifier="v"
    )
    needed = {budget: ours.threshold(budget) for budget in (0.01, 0.005)}
    assert needed == {0.01: 0.9, 0.005: None}
    (tmp_path / OWN_FILE).write_bytes(written_calibration(ours))
    policy.write_text(POLICY.replace("semantic: on", "semantic: {max_wrong_hits: 1%}"))
    log = await record(lambda gateway: gateway.ask("Hello"))
    miss = orjson.loads(log.read_bytes())
    near = {"outcome": "hit", "reason": "semantic", "source": miss["key"], "similarity": 0.95}
    sure = {"form": "another", "score": 0.95, "threshold": 0.9, **near}
    log.write_bytes(orjson.dumps(miss) + b"\n" + orjson.dumps(miss | sure) + b"\n")
    strict = tmp_path / "strict.yaml"
    strict.write_text(POLICY.replace("semantic: on", "semantic: {max_wrong_hits: 0.5%}"))
    for place, told in (
        (("--data-dir", tmp_path), "hits gained: 0    hits lost: 1"),
        ((), "1 semantic hits cannot be told: they are of another calibration"),
    ):
        code, out, _ = await asyncio.to_thread(replay, capsys, "--policy", strict, *place, log)
        assert code == 0
        assert told in out


def test_lines_that_are_no_records_are_told_and_passed_over(policy, tmp_path, capsys):
    log = tmp_path / "log.jsonl"
    log.write_bytes(b'{\n[]\n\n{"time":1}\n')
    code, out, err = replay(capsys, "--policy", policy, log)
    assert (code, out) == (2, "")
    assert [line.partition(": ")[2] for line in err.splitlines()] == [
        f"{log}:1: expected JSON",
        f"{log}:2: expected a record of a decision",
        f"{log}:4: endpoint: expected what a record of a decision holds",
        f"{log}: no record of a decision in it",
    ]


def test_files_that_are_not_there_or_wrong(policy, tmp_path, capsys):
    assert replay(capsys, "--policy", policy, tmp_path / "none")[0] == 2
    assert replay(capsys, "--policy", tmp_path / "none", policy)[0] == 2
    policy.write_text("version: 2\n")
    code, _, err = replay(capsys, "--policy", policy, policy)
    assert (code, f"{policy}:1: version: expected 1" in err) == (2, True)


def seen():
    return observation_of(record={"filler": "x" * 1000})


def test_a_full_file_is_turned_over_once(tmp_path):
    path = tmp_path / "log.jsonl"
    log = DecisionLog(path, max_bytes=20_000, clock=lambda: 1.0)
    for _ in range(60):
        log.observe(seen())
    log.close()
    assert {file.name for file in tmp_path.iterdir()} <= {
        "log.jsonl",
        "log.jsonl.1",
        "log.jsonl.lock",
    }
    for line in path.read_bytes().splitlines():
        assert orjson.loads(line)["filler"]


def test_lines_that_cannot_be_queued_or_written_are_counted(tmp_path, monkeypatch, caplog):
    monkeypatch.setattr(decision_log, "MAX_WAITING", 1)
    (tmp_path / "folder").mkdir()
    log = DecisionLog(tmp_path / "folder", max_bytes=1000, clock=lambda: 1.0)
    for _ in range(50):
        log.observe(seen())
    log.close()
    assert "folder cannot be written: Is a directory" in caplog.text
    assert "lines were dropped" in caplog.text


def test_a_full_disk_costs_lines_and_cuts_none(tmp_path, caplog):
    path = tmp_path / "log.jsonl"
    limits = resource.getrlimit(resource.RLIMIT_FSIZE)
    for most in (None, 2000, None):  # the second line does not fit
        resource.setrlimit(resource.RLIMIT_FSIZE, (most or limits[0], limits[1]))
        try:
            log = DecisionLog(path, max_bytes=10**6, clock=lambda: 1.0)
            log.observe(seen())
            log.close()
        finally:
            resource.setrlimit(resource.RLIMIT_FSIZE, limits)
    assert "log.jsonl cannot be written: No space left on device" in caplog.text
    assert "decision log: 1 lines were dropped" in caplog.text
    assert [orjson.loads(line)["time"] for line in path.read_bytes().splitlines()] == [1.0, 1.0]


def test_lines_of_more_bytes_than_may_wait_are_dropped_and_counted(tmp_path, monkeypatch, caplog):
    monkeypatch.setattr(decision_log, "MAX_WAITING_BYTES", -1)
    log = DecisionLog(tmp_path / "log.jsonl", max_bytes=10**6, clock=lambda: 1.0)
    for _ in range(3):
        log.observe(seen())
    log.close()
    assert "decision log: 3 lines were dropped" in caplog.text
    assert list(tmp_path.iterdir()) == []


class Dropping(logging.Handler):
    """Tells when the log has dropped lines."""

    def __init__(self):
        super().__init__()
        self.told = threading.Event()

    def emit(self, record):
        if "were dropped" in record.getMessage():
            self.told.set()


@pytest.fixture
def dropping():
    handler = Dropping()
    logger = logging.getLogger(decision_log.__name__)
    logger.addHandler(handler)
    yield handler.told
    logger.removeHandler(handler)


def test_a_worker_that_stopped_with_the_lock_costs_lines_and_not_the_log(
    tmp_path, monkeypatch, caplog, dropping
):
    monkeypatch.setattr(file_lock, "LOCK_SECONDS", 0.0)
    path = tmp_path / "log.jsonl"
    log = DecisionLog(path, max_bytes=20_000, clock=lambda: 1.0)
    with lock_held(path):
        log.observe(seen())
        assert dropping.wait(10)
    log.observe(seen())
    log.close()
    assert f"{path} cannot be written: The file lock '{path}.lock' could not" in caplog.text
    assert "1 lines were dropped" in caplog.text
    assert "xxx" not in caplog.text
    assert len(path.read_bytes().splitlines()) == 1


async def test_requests_for_other_versions_of_an_api_are_told_apart(record, capsys, policy):
    async def ask(gateway):
        body = {"model": "m", "max_tokens": 5, "messages": [{"role": "user", "content": "Hi"}]}
        for beta in ("a", "b", "a"):
            headers = {"anthropic-version": "2023-06-01", "anthropic-beta": beta}
            await gateway.post("/v1/messages", orjson.dumps(body), headers=headers)

    log = await record(ask, decision_log_requests=True)
    lines = [orjson.loads(line) for line in log.read_bytes().splitlines()]
    first, second, third = (line["form"] for line in lines)
    assert first == third != second
    assert lines[1]["headers"] == {"anthropic-version": "2023-06-01", "anthropic-beta": "b"}
    assert read_request(lines[1]).headers == lines[1]["headers"]
    code, out, _ = replay(capsys, "--policy", policy, "--json", log)
    assert code == 0
    assert orjson.loads(out)["entries_before"] == 2
