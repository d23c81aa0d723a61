"""``refrain estimate``: from a log to a table, JSON and a page."""

import gzip
import io
import re
import sys
from pathlib import Path
from types import SimpleNamespace
from xml.etree import ElementTree as ET

import exported_log
import orjson
import pytest

from gateway.cli.main import main
from gateway.cli.offline.estimate import command
from gateway.cli.terminal import FailedError

ROOT = Path(__file__).parents[4]
PRICES = "model,input,output,cached_input\ngpt-4o-mini,1,10,0.5\n"


def write(file, lines):
    file.write_bytes(b"\n".join(map(orjson.dumps, lines)) + b"\n")
    return file


@pytest.fixture
def log(tmp_path):
    return write(tmp_path / "log.jsonl", exported_log.lines())


@pytest.fixture
def prices(tmp_path):
    file = tmp_path / "prices.csv"
    file.write_text(PRICES)
    return file


def run(capsys, *arguments):
    code = main(["estimate", *map(str, arguments)])
    captured = capsys.readouterr()
    return code, captured.out, captured.err


def figures(capsys, *arguments):
    code, out, err = run(capsys, "--json", *arguments)
    assert (code, err) == (0, "")
    return orjson.loads(out)


def test_the_example_of_the_docs_is_true(log, prices, capsys, monkeypatch):
    monkeypatch.chdir(log.parent)
    code, out, err = run(capsys, "--prices", prices, "log.jsonl")
    assert (code, err) == (0, "")
    out = re.sub(r"policy: .*default.yaml", "policy: policies/default.yaml", out)
    page = (ROOT / "docs" / "start" / "estimate.md").read_text()
    shown = [line.removeprefix("    ") for line in page.splitlines()]
    assert [line for line in out.splitlines() if line not in shown] == []


def test_each_request_counts_in_one_way_alone(log, prices, capsys):
    found = figures(capsys, "--prices", prices, log)
    ways, total = found["ways"], found["total"]
    assert found["requests"] == total["requests"] == 200
    assert sum(each["requests"] for each in ways.values()) == 200
    assert {name for name, each in ways.items() if not each["requests"]} == {"semantic"}
    for sums in ("prompt_tokens", "completion_tokens"):
        assert sum(each[sums] for each in ways.values()) == total[sums]
        saved = sum(ways[way][sums] for way in ("exact", "semantic", "coalesced"))
        assert saved == found["saved"][sums]
    left = total["prompt_tokens"] - found["saved"]["prompt_tokens"]
    assert 0 < found["prefix"]["prompt_tokens"] <= left
    assert ways["bypass"]["requests"] == sum(found["bypass_reasons"].values())
    assert set(found["bypass_reasons"]) == {"pii", "store-true"}


def test_money_is_that_of_the_models_with_a_price(log, prices, capsys):
    found = figures(capsys, "--prices", prices, log)
    mini, ours = found["models"]["gpt-4o-mini"]["all"], found["models"]["in-house"]["all"]
    cost = (mini["prompt_tokens"] + 10 * mini["completion_tokens"]) / 1e6
    assert found["total"]["dollars"] == mini["dollars"] == pytest.approx(cost)
    assert ours["dollars"] == 0
    assert found["total"]["unpriced_tokens"] == ours["prompt_tokens"] + ours["completion_tokens"]


def test_the_order_of_the_lines_does_not_matter(log, tmp_path, capsys):
    newest_first = tmp_path / "newest.jsonl"
    newest_first.write_bytes(b"".join(log.read_bytes().splitlines(keepends=True)[::-1]))
    ordered, turned = figures(capsys, log), figures(capsys, newest_first)
    assert {**turned, "log": ""} == {**ordered, "log": ""}


def test_a_log_may_be_gzip_or_standard_input(log, tmp_path, capsys, monkeypatch):
    plain = figures(capsys, log)
    packed = tmp_path / "log.jsonl.gz"
    packed.write_bytes(gzip.compress(log.read_bytes()))
    unpacked = figures(capsys, packed)
    pipe = io.BytesIO(log.read_bytes())
    pipe.seekable = lambda: False
    monkeypatch.setattr(sys, "stdin", SimpleNamespace(buffer=pipe))
    read = figures(capsys, "-")
    assert {**plain, "log": ""} == {**unpacked, "log": ""} == {**read, "log": ""}


def test_what_is_no_gzip_is_told(log, tmp_path, capsys):
    packed = tmp_path / "log.jsonl.gz"
    for data in (log.read_bytes(), gzip.compress(log.read_bytes())[:-20]):
        packed.write_bytes(data)
        code, _, err = run(capsys, packed)
        assert (code, err) == (2, f"refrain: {packed}: cannot be read: it is no whole gzip file\n")


def test_a_line_without_a_request_is_named_and_passed_over(log, capsys):
    whole = figures(capsys, log)
    with log.open("ab") as lines:
        lines.write(b'no JSON\n{"form": 1}\n')
    code, out, err = run(capsys, "--json", log)
    assert code == 0
    assert f"refrain: {log}:201: expected JSON\n" in err
    assert f"refrain: {log}:202: expected a body with messages" in err
    assert orjson.loads(out) == {**whole, "skipped_lines": 2}
    assert "2 lines held no request." in run(capsys, log)[1]


def test_a_log_without_times_says_what_is_not_known(tmp_path, capsys):
    bodies = [line["request"] for line in exported_log.lines(20)]
    code, out, _ = run(capsys, write(tmp_path / "bodies.jsonl", bodies))
    assert code == 0
    assert "20 requests had no time: nothing goes stale for them." in out
    assert "20 requests had no usage: their tokens are estimated, one for 4 bytes." in out
    assert "UTC" not in out


@pytest.mark.parametrize(
    ("content", "said"),
    [(b"", "no request in it"), (b'{"a": 1}\n', "no request in it"), (None, "cannot be read")],
)
def test_a_log_without_requests_is_an_error(tmp_path, capsys, content, said):
    file = tmp_path / "log.jsonl"
    if content is not None:
        file.write_bytes(content)
    code, out, err = run(capsys, file)
    assert (code, out) == (2, "")
    assert said in err


def test_an_invalid_policy_or_price_file_is_told_by_line(log, tmp_path, capsys):
    policy, prices = tmp_path / "policy.yaml", tmp_path / "prices.csv"
    policy.write_text("version: 1\ndefault: {exact: maybe}\n")
    prices.write_text("model,input,output,cached_input\nm,much,1,1\n")
    for option, file, line in (("--policy", policy, 2), ("--prices", prices, 2)):
        code, _, err = run(capsys, option, file, log)
        assert (code, f"{file}:{line}: " in err) == (2, True)
    code, _, err = run(capsys, "--policy", tmp_path / "none.yaml", log)
    assert (code, "none.yaml: cannot be read" in err) == (2, True)


def test_another_policy_saves_something_else(log, tmp_path, capsys):
    policy = tmp_path / "policy.yaml"
    policy.write_text(
        "version: 1\nrules:\n  - {name: house, match: {model: in-house}, exact: off}\n"
        "default: {exact: on, semantic: off, freshness: 7d, scope: public, pii: bypass}\n"
    )
    shipped, edited = figures(capsys, log), figures(capsys, "--policy", policy, log)
    ours = edited["rules"]["house"]
    assert (ours["all"]["requests"], ours["saved"]["requests"]) == (40, 0)
    assert edited["bypass_reasons"]["policy"] > 0
    mini = "gpt-4o-mini"
    saved = [each["models"][mini]["saved"]["requests"] for each in (shipped, edited)]
    assert saved[1] > saved[0]


def test_waiting_of_a_decision_log_is_the_usual_time_of_a_call(tmp_path, capsys):
    """Its hits took a millisecond, and would have been calls without the gateway."""
    body = {"model": "m", "messages": [{"role": "user", "content": "Hi"}]}
    line = {"form": "00", "decision": {}, "request": body, "status": 200, "tokens": 10}
    calls = [
        {**line, "outcome": "bypass", "reason": "no-store", "time": float(end), "seconds": seconds}
        for end, seconds in ((10, 1.0), (20, 3.0), (30, 2.0))
    ]
    hits = [
        {**line, "outcome": "hit", "reason": "exact", "time": 40.0 + place, "seconds": 0.001}
        for place in range(5)
    ]
    found = figures(capsys, write(tmp_path / "log.jsonl", calls + hits))
    assert found["ways"]["exact"]["requests"] == 7
    assert found["ways"]["exact"]["seconds"] == pytest.approx(3.0 + 2.0 + 5 * 2.0)
    assert found["without_latency"] == 0
    unknown = figures(capsys, write(tmp_path / "hits.jsonl", hits))
    assert (unknown["ways"]["exact"]["seconds"], unknown["without_latency"]) == (0, 5)


def test_what_a_log_names_cannot_move_a_terminals_cursor(tmp_path, capsys):
    body = {"model": "\x1b]0;x\x07<b>", "messages": [{"role": "user", "content": "Hi"}]}
    file = write(tmp_path / "log.jsonl", [body] * 2)
    page = tmp_path / "page.html"
    code, out, _ = run(capsys, "--html", page, file)
    assert code == 0
    assert out.replace("\n", "").isprintable()
    assert "<b>]" not in page.read_text()
    assert "&lt;b&gt;" in page.read_text()


def test_the_page_has_plots_and_no_text_of_a_prompt(log, tmp_path, capsys):
    page = tmp_path / "page.html"
    code, out, err = run(capsys, "--html", page, log)
    assert (code, err) == (0, "")
    html = page.read_text()
    (drawing,) = [ET.fromstring(svg) for svg in re.findall(r"<svg.*?</svg>", html, re.DOTALL)]
    assert any(part.tag.endswith("rect") for part in drawing.iter())
    titles = re.findall(r"<h2>(.*?)</h2>", html)
    lists = html.split('<div class="bars">')[1:]
    assert len(lists) == len(titles) - 1 == 4
    assert all('<i style="width: 60.00%' in each or each.count("<i ") > 1 for each in lists)
    assert "Requests not looked up, because of" in titles
    for leaked in ("password", "parcel", "Acme", "Thank you", "kim"):
        assert leaked not in html
    assert "<script" not in html
    assert re.findall(r"https?://[^\"]*", html) == ["http://www.w3.org/2000/svg"]
    assert out.splitlines()[0].removeprefix(f"{log}: ") in html


def test_a_page_that_cannot_be_written_is_a_failure(log, tmp_path, capsys):
    code, _, err = run(capsys, "--html", tmp_path / "none" / "page.html", log)
    assert (code, "page.html: cannot be written: No such file" in err) == (1, True)


def test_without_an_encoder_hits_by_meaning_are_left_out_in_one_line(log, capsys, monkeypatch):
    def absent(_socket):
        raise FailedError("nothing can be scored: pip install 'refrain-gateway[semantic]'")

    monkeypatch.setattr(command, "scoring_service", absent)
    code, out, _ = run(capsys, "--risk", "1%", log)
    assert code == 0
    assert "left out: nothing can be scored: pip install 'refrain-gateway[semantic]'." in " ".join(
        out.split()
    )
    assert "hits by meaning  " not in out
    assert "Hits by meaning are left out: --risk 1% looks for them." in run(capsys, log)[1]


@pytest.mark.parametrize(
    "arguments", [("--risk", "1"), ("--format", "csv"), ("--prefix-minutes", "0")]
)
def test_a_wrong_option_is_bad_usage(log, capsys, arguments):
    code, _, err = run(capsys, *arguments, log)
    assert code == 2
    assert arguments[0] in err


def test_progress_is_shown_on_a_terminal_alone(log, capsys, terminal):
    assert run(capsys, log)[2] == ""
    with terminal(80) as screen:
        run(capsys, log)
    assert "simulating requests" in screen.text
    assert "200 of 200" in screen.text
