"""What the operator is told of comparisons, and how a rule gets its semantic hits back."""

import asyncio

import orjson
import pytest
from lock_holder import lock_held

from gateway.cache import append_files as file_lock
from gateway.cache.quality.comparison_journal import ComparisonJournal
from gateway.cli.main import main
from gateway.cli.offline.calibrate import Judgement, parse_line
from gateway.cli.operator.admin_api import report_text

LINE = {
    "time": 1.0,
    "kind": "served",
    "rule": "faq",
    "basis": "0/0.01/0.5",
    "budget": 0.01,
    "key": "aa" * 32,
    "entry": "bb" * 32,
    "similarity": 0.9,
    "score": 0.8,
    "alias": False,
    "verifier": "v",
    "outcome": "equal",
    "why": "text",
    "asked": "q",
    "promoted": False,
    "until": 100.0,
}
OFF = {"kind": "off", "rule": "faq", "basis": "0/0.01/0.5", "budget": 0.01}


@pytest.fixture
async def compared(gateway):
    """A gateway with 98 equal comparisons and 2 that were not."""
    lines = [LINE] * 98 + [{**LINE, "outcome": "different"}] * 2 + [OFF]
    path = gateway.data_dir / "semantic-checks.jsonl"
    path.write_bytes(b"".join(orjson.dumps(line) + b"\n" for line in lines))
    return gateway


@pytest.fixture
def command(monkeypatch, capsys):
    monkeypatch.delenv("REFRAIN_ADMIN_TOKEN", raising=False)

    async def run(*arguments):
        code = await asyncio.to_thread(main, [str(argument) for argument in arguments])
        captured = capsys.readouterr()
        return code, captured.out, captured.err

    return run


async def test_the_figures_of_a_rule(compared):
    told = (await compared.get("/admin/semantic")).json
    faq = told["rules"]["faq"]
    assert (faq["comparisons"], faq["equal"], faq["different"]) == (100, 98, 2)
    assert faq["wrong_hits"] == pytest.approx(0.02)
    assert faq["interval"] == pytest.approx([0.0024, 0.0704], abs=1e-4)
    assert faq["off"]
    ready = (await compared.get("/readyz")).json
    assert ready["rules_off"] == ["faq"]
    page = (await compared.get("/metrics")).raw.decode()
    assert 'refrain_semantic_rule_off{rule="faq"} 1.0' in page


JUDGEMENT = {"entry": LINE["entry"], "key": LINE["key"], "time": LINE["time"], "same": True}


async def test_what_a_person_says_of_a_comparison_is_kept_and_shown(compared):
    reply = await compared.post("/admin/semantic/judge", orjson.dumps(JUDGEMENT))
    assert (reply.status, reply.json) == (200, {"same": True})
    shown = (await compared.get("/admin/comparisons")).json["comparisons"]
    assert {each["judged_same"] for each in shown} == {True}
    faq = (await compared.get("/admin/semantic")).json["rules"]["faq"]
    assert (faq["comparisons"], faq["different"]) == (100, 2)
    last = (compared.data_dir / "semantic-checks.jsonl").read_bytes().splitlines()[-1]
    line = orjson.loads(last)
    assert isinstance(parse_line(line), Judgement)
    assert line["time"] > LINE["time"]


@pytest.mark.parametrize(
    "wrong", [{"entry": "ab"}, {"key": None}, {"time": "1"}, {"time": True}, {"same": 1}]
)
async def test_a_judgement_of_nothing_clear_is_refused(compared, wrong):
    reply = await compared.post("/admin/semantic/judge", orjson.dumps(JUDGEMENT | wrong))
    assert (reply.status, reply.json["error"]["param"]) == (400, *wrong)
    assert b"judged" not in (compared.data_dir / "semantic-checks.jsonl").read_bytes()


async def test_a_judgement_that_cannot_be_written_down_says_so(compared, monkeypatch):
    async def full(*_):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(ComparisonJournal, "append", full)
    reply = await compared.post("/admin/semantic/judge", orjson.dumps(JUDGEMENT))
    message = "The journal cannot be written: judge again."
    assert (reply.status, reply.json["error"]["message"]) == (500, message)


async def test_a_reset_is_written_down_and_counting_begins_anew(compared):
    reply = await compared.post("/admin/semantic/reset", orjson.dumps({"rule": "faq"}))
    assert reply.json == {"reset": ["faq"], "were_off": ["faq"]}
    assert (await compared.get("/admin/semantic")).json["rules"] == {}
    audit = (compared.data_dir / "admin-audit.jsonl").read_text()
    assert audit.count('"semantic/reset"') == 2


async def test_a_reset_that_cannot_be_written_down_says_who_has_done_it(compared, monkeypatch):
    monkeypatch.setattr(file_lock, "LOCK_SECONDS", 0.0)
    with lock_held(compared.data_dir / "semantic-checks.jsonl"):
        reply = await compared.post("/admin/semantic/reset", orjson.dumps({"rule": "faq"}))
    assert reply.status == 500
    assert "only the worker that answers has done it" in reply.json["error"]["message"]
    assert (await compared.get("/admin/semantic")).json["rules"] == {}


@pytest.mark.parametrize(
    ("asked", "field"),
    [
        ({}, "rule"),
        ({"rule": "none"}, "rule"),
        ({"rule": 3}, "rule"),
        ({"rule": "faq", "all": True}, "all"),
        ({"all": 1}, "all"),
        ({"all": True, "more": 1}, "more"),
    ],
)
async def test_a_reset_of_nothing_known_is_refused(compared, asked, field):
    reply = await compared.post("/admin/semantic/reset", orjson.dumps(asked))
    assert (reply.status, reply.json["error"]["param"]) == (400, field)


async def test_all_rules_are_reset_at_once(compared):
    reply = await compared.post("/admin/semantic/reset", orjson.dumps({"all": True}))
    assert reply.json == {"reset": ["faq"], "were_off": ["faq"]}


async def test_the_report_is_the_same_from_the_file_and_from_the_gateway(compared, command):
    by_file = await command("semantic", "report", "--data-dir", compared.data_dir)
    by_gateway = await command("semantic", "report", "--gateway", compared.url)
    assert by_file == by_gateway
    code, out, err = by_file
    assert (code, err) == (0, "")
    assert "faq" in out
    assert "semantic hits are off: look at the wrong ones, then reset" in out
    code, out, _ = await command("semantic", "report", "--gateway", compared.url, "--json")
    assert orjson.loads(out) == (await compared.get("/admin/semantic")).json


async def test_where_nothing_was_compared_that_is_said(gateway, command, tmp_path):
    code, out, _ = await command("semantic", "report", "--gateway", gateway.url)
    assert (code, "nothing has been compared" in out) == (0, True)
    code, _, err = await command("semantic", "report", "--data-dir", tmp_path)
    assert (code, "nothing has been compared" in err) == (1, True)
    code, _, err = await command("semantic", "report", "--data-dir", tmp_path / "none")
    assert (code, "none: there is no data directory" in err) == (2, True)
    code, _, err = await command("semantic", "report", "--gateway", "http://127.0.0.1:9")
    assert (code, "cannot be asked" in err) == (1, True)


def test_a_table_writes_shares_as_a_policy_does_and_no_interval_of_nothing():
    figures = {
        "comparisons": 59,
        "equal": 58,
        "different": 1,
        "unsure": 0,
        "wrong_hits": 1 / 59,
        "interval": (0.0, 1.0),
        "budget": 0.005,
        "budget_met": 0.079,
        "near_misses": {"equal": 1, "different": 0, "unsure": 0},
        "next": "let it run",
    }
    none = figures | {"comparisons": 0, "wrong_hits": None, "budget_met": None}
    _, some, nothing, *_ = report_text({"rules": {"a": figures, "b": none}, "aliases": 0})
    assert some.split()[5:] == ["1.7%", "0%", "to", "100%", "0.5%", "7.9%"]
    assert nothing.split()[5:] == ["-", "-", "0.5%", "-"]
