"""``refrain prefix report``: from a log to the YAML to paste."""

import io
import sys
from textwrap import dedent
from types import SimpleNamespace

import orjson
import pytest

from gateway.cli.main import main
from gateway.cli.prefix_settings import candidates, compiled, written
from gateway.cli.recorded_requests import parse_recorded
from policies.format.load import parse_policy

POLICY = """\
version: 1
default:
  exact: on
  semantic: on
  freshness: 1h
  scope: tenant
  pii: bypass
"""


def request(number, order):
    documents = "\n".join(f"<doc>{name} is explained in this document.</doc>" for name in order)
    tools = [{"type": "function", "function": {"name": name * 9}} for name in order]
    system = f"Now: 2026-03-02T08:30:{number:02}Z. Be kind, and answer briefly.\n{documents}\n"
    messages = [
        {"role": "system", "content": system},
        {"role": "user", "content": f"Where is parcel {number}?"},
    ]
    return {"model": "m", "messages": messages, "tools": tools}


@pytest.fixture
def log(tmp_path):
    file = tmp_path / "log.jsonl"
    orders = ["abc", "cab", "bca", "acb", "bac", "cba"]
    lines = [orjson.dumps(request(number, order)) for number, order in enumerate(orders)]
    file.write_bytes(b"\n".join(lines) + b"\n")
    return file


def indented(yaml):
    return "".join(f"  {line}\n" for line in yaml.splitlines())


def run(capsys, *arguments):
    code = main(["prefix", "report", *map(str, arguments)])
    captured = capsys.readouterr()
    return code, captured.out, captured.err


def test_a_report_ends_in_yaml_that_a_policy_takes(log, capsys):
    code, out, err = run(capsys, log)
    assert (code, err) == (0, "")
    assert "6 requests" in out
    assert "-> tools: sorted" in out
    _, _, yaml = out.partition("to paste into the rule (or into default):\n")
    prefix = parse_policy(POLICY + indented(dedent(yaml)), "pasted").default.prefix
    assert prefix.sorts_tools
    assert prefix.volatile == ("timestamps",)
    assert prefix.documents is not None
    assert (prefix.documents.begin, prefix.documents.end) == ("<doc>", "</doc>")


def test_json_holds_what_is_told(log, capsys):
    code, out, _ = run(capsys, "--json", log)
    report = orjson.loads(out)
    (route,) = report["routes"]
    assert (code, report["skipped_lines"], route["requests"]) == (0, 0, 6)
    assert route["as_sent"] < 0.2
    assert [layer["settings"] for layer in route["layers"]][:2] == [[], ["tools: sorted"]]
    assert route["layers"][-1]["found"] > 0.6
    assert route["yaml"].startswith("prefix:\n  tools: sorted\n")


def test_lines_that_hold_no_request_are_told_and_passed_over(log, capsys):
    with log.open("ab") as file:
        file.write(b'{"time": 1}\n\nno JSON\n')
    code, out, err = run(capsys, log)
    assert code == 0
    assert f"refrain: {log}:7: expected messages, prompt or input in the request" in err
    assert f"refrain: {log}:9: expected JSON" in err
    assert "2 lines held no request" in out


def test_a_log_without_requests_is_an_error_that_says_how_to_have_them(tmp_path, capsys):
    empty = tmp_path / "decisions.jsonl"
    empty.write_bytes(b'{"time": 1, "form": "00"}\n')
    code, out, err = run(capsys, empty)
    assert (code, out) == (2, "")
    assert "decision_log_requests" in err
    code, _, err = run(capsys, tmp_path / "none.jsonl")
    assert code == 2
    assert "cannot be read: No such file or directory" in err


def test_of_a_long_log_the_first_requests_are_looked_at(log, capsys):
    _, out, _ = run(capsys, "--limit", 3, log)
    assert "6 requests, the first 3 looked at" in out


def test_standard_input_is_a_log(log, capsys, monkeypatch):
    monkeypatch.setattr(sys, "stdin", SimpleNamespace(buffer=io.BytesIO(log.read_bytes())))
    code, out, _ = run(capsys, "-")
    assert (code, "6 requests" in out) == (0, True)


def test_what_cannot_be_mended_is_said_so(tmp_path, capsys):
    file = tmp_path / "log.jsonl"
    bodies = [{"model": "m", "messages": [{"role": "user", "content": word}]} for word in "ab"]
    file.write_bytes(b"\n".join(map(orjson.dumps, bodies)))
    _, out, _ = run(capsys, file)
    assert "no setting would gain anything" in out
    assert "what is asked, as it should be" in out


def test_every_setting_that_is_tried_is_one_that_a_policy_knows():
    one = parse_recorded(orjson.dumps(request(0, "abc")))
    tried = candidates([one])
    assert "documents: <doc>" in tried
    for setting in tried:
        assert written([setting])
        assert compiled([setting]) != compiled([])
    assert compiled(["schema_keys: on"]) == parse_policy(POLICY, "default").default.prefix


def test_patterns_of_ones_own_are_in_the_yaml_and_gain_what_is_told(log, capsys):
    given = log.read_bytes().replace(b"Be kind, and", b"\\nJob: #17 by Zo\xc3\xab's\\nBe kind, and")
    lines = [line.replace(b"#17", b"#%d" % at) for at, line in enumerate(given.splitlines())]
    log.write_bytes(b"\n".join(lines))
    _, out, _ = run(capsys, log)
    assert "-> volatile: '(?m)^Job: #([0-9]+)'" in out
    assert "Job: #[0 by Zoë's" in out
    _, out, _ = run(capsys, "--json", log)
    (route,) = orjson.loads(out)["routes"]
    prefix = parse_policy(POLICY + indented(route["yaml"]), "pasted").default.prefix
    assert prefix.patterns == ("(?m)^Job: #([0-9]+)",)


def test_documents_whose_tags_say_more_are_put_in_order_too(log, capsys):
    given = log.read_bytes()
    for name in b"abc":
        given = given.replace(b"<doc>%c is" % name, b'<doc id=\\"%c\\">%c is' % (name, name))
    log.write_bytes(given)
    _, out, _ = run(capsys, "--json", log)
    (route,) = orjson.loads(out)["routes"]
    documents = parse_policy(POLICY + indented(route["yaml"]), "pasted").default.prefix.documents
    assert (documents.begin, documents.end) == ("<doc id=", "</doc>")


def test_keys_of_schemas_in_another_order_need_no_other_setting(log, capsys):
    lines = []
    for number, line in enumerate(log.read_bytes().splitlines()):
        body = orjson.loads(line)
        keys = ["type", "title", "description"][:: (-1) ** number]
        schema = {key: f"{key} " * 30 for key in keys}
        body["tools"] = [{"type": "function", "function": {"name": "x", "parameters": schema}}]
        body["messages"] = [{"role": "user", "content": "Hi"}]
        lines.append(orjson.dumps(body))
    log.write_bytes(b"\n".join(lines))
    _, out, _ = run(capsys, log)
    assert out.endswith("      prefix:\n        schema_keys: on\n")


def test_settings_for_one_of_several_models_of_a_rule_come_in_a_rule_of_their_own(log, capsys):
    given = log.read_bytes()
    log.write_bytes(given + given.replace(b'"model":"m"', b'"model":"other: [x]"'))
    _, out, _ = run(capsys, log)
    rules = out.split("came by the same rule:\n")[1:]
    assert len(rules) == 2
    for told, model in zip(rules, ("m", "other: [x]"), strict=True):
        yaml, _, _ = told.partition("\n\n")
        policy = parse_policy(f"{POLICY}rules:\n{yaml}", "pasted")
        assert policy.rules[0].decision.prefix.sorts_tools
        assert model in out


def test_one_request_has_nothing_to_part_from(log, capsys):
    log.write_bytes(log.read_bytes().splitlines()[0])
    code, out, _ = run(capsys, log)
    assert code == 0
    assert "  1 request; " in out
    assert "one request has nothing to part from" in out


def test_prompts_of_completions_are_not_told_to_be_as_they_should(tmp_path, capsys):
    file = tmp_path / "log.jsonl"
    rules = " ".join(f"Rule {number} is to be kind to everybody." for number in range(20))
    lines = [{"model": "m", "prompt": f"Hello {name}. {rules}"} for name in ("Anna", "Jan")]
    file.write_bytes(b"\n".join(map(orjson.dumps, lines)))
    _, out, _ = run(capsys, file)
    assert "is the same in several" in out
    assert "as it should be" not in out


def test_a_history_that_is_cut_is_told_with_what_to_do(tmp_path, capsys):
    file = tmp_path / "log.jsonl"
    said = [{"role": "user", "content": f"{number} " * 50} for number in range(9)]
    lines = [{"model": "m", "messages": said[at : at + 4]} for at in range(6)]
    file.write_bytes(b"\n".join(map(orjson.dumps, lines)))
    _, out, _ = run(capsys, file)
    assert "behind earlier turns: the oldest are left out, and all others move up" in out


def test_a_history_behind_moved_values_is_not_taken_for_one_that_is_cut(tmp_path, capsys):
    file = tmp_path / "log.jsonl"
    said = [{"role": "user", "content": f"{number} " * 50} for number in range(9)]
    lines = []
    for at in range(1, 8):
        system = {"role": "system", "content": f"Be kind. It is 10:00:0{at}. " + "Be brief. " * 50}
        lines.append({"model": "m", "messages": [system, *said[:at]]})
    file.write_bytes(b"\n".join(map(orjson.dumps, lines)))
    _, out, _ = run(capsys, file)
    assert "then, with volatile: timestamps" in out
    assert "behind earlier turns, which no earlier prompt had" in out


def test_what_clients_wrote_cannot_move_a_terminals_cursor(tmp_path, capsys):
    file = tmp_path / "log.jsonl"
    lines = [
        {
            "model": "\x1b]0;gotcha\x07",
            "messages": [{"role": "\x1b[2J", "content": f"{n} of us" * 9}],
        }
        for n in range(4)
    ]
    file.write_bytes(b"\n".join(map(orjson.dumps, lines)))
    code, out, err = run(capsys, file)
    assert (code, err) == (0, "")
    assert r"model \x1b]0;gotcha\x07" in out
    assert out.replace("\n", "").isprintable()


def test_a_request_without_any_turn_is_one_of_its_route(log, capsys):
    given = log.read_bytes()
    log.write_bytes(b'{"model":"m","messages":[]}\n' + given.replace(b'"tools"', b'"other"'))
    code, out, err = run(capsys, log)
    assert (code, "7 requests" in out, err) == (0, True, "")


def test_a_line_nested_too_deep_is_told_and_passed_over(log, capsys):
    deep = b"[" * 400 + b"]" * 400
    with log.open("ab") as lines:
        lines.write(b'{"model":"m","messages":[{"role":"user","content":%b}]}\n' % deep)
    code, out, err = run(capsys, log)
    assert (code, "6 requests" in out) == (0, True)
    assert err.endswith(":7: expected a request that is nested less deep\n")


def test_a_route_of_many_system_prompts_gets_no_more_patterns_than_a_policy_takes(tmp_path, capsys):
    agents = [f"{first}{second}lder" for first in "BCDFGHKLMN" for second in ("a", "e", "i", "o")]
    lines = []
    for turn in range(4):
        for agent in agents:
            mark = "".join(chr(97 + (turn * 7 + place * place) % 26) for place in range(9))
            rules = f"Rules of {agent}: be kind, be brief and be right. " * 6
            text = f"{agent} desk.\n{agent} crewmark: {mark} is on duty.\n{rules}"
            system = {"role": "system", "content": text}
            messages = [system, {"role": "user", "content": f"Hi {turn}"}]
            lines.append(orjson.dumps({"model": "m", "messages": messages}))
    file = tmp_path / "log.jsonl"
    file.write_bytes(b"\n".join(lines))
    assert main(["prefix", "report", str(file)]) == 0
    assert "patterns" in capsys.readouterr().out
