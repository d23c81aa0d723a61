"""``refrain prefix report``: from a log to the YAML to paste."""

import io
import sys
from textwrap import dedent
from types import SimpleNamespace

import orjson
import pytest

from gateway.cli.main import main
from gateway.cli.offline.prefix_report import candidates, compile_settings, to_yaml
from gateway.server.admin.recorded_request import read_request
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
    assert "are lost without tools: sorted" in out
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
    assert route["as_sent"]["found"] < 0.2
    assert route["rewritten"]["found"] > 0.6
    gains = [gain["share"] for gain in route["settings"]]
    assert gains == sorted(gains, reverse=True)
    assert "tools: sorted" in {gain["setting"] for gain in route["settings"]}
    assert route["yaml"].startswith("prefix:\n  tools: sorted\n")


def test_lines_that_hold_no_request_are_told_and_passed_over(log, capsys):
    with log.open("ab") as file:
        file.write(b'{"time": 1}\n\nno JSON\n')
    code, out, err = run(capsys, log)
    assert code == 0
    assert f"refrain: {log}:7: expected a body with messages, prompt, input or query" in err
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
    assert "prompts part in messages[0] (user)" in out


def test_every_setting_that_is_tried_is_one_that_a_policy_knows():
    one = read_request(request(0, "abc"))
    tried = candidates([one])
    assert "documents: <doc>" in tried
    for setting in tried:
        assert to_yaml([setting])
        assert compile_settings((setting,)) != compile_settings(())
    assert (
        compile_settings(("schema_keys: keywords",))
        == parse_policy(POLICY, "default").default.prefix
    )


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
    assert out.endswith("      prefix:\n        schema_keys: keywords\n")


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
