"""`refrain warm` and `refrain audit` against a running gateway."""

import asyncio

import orjson
import pytest
from aiohttp import web
from aiohttp.test_utils import TestServer

from gateway.cli.main import main

POLICY = """
version: 1
rules:
  - {name: open, match: {model: open-*}, pii: allow}
default: {exact: on, semantic: on, freshness: 1h, scope: tenant, pii: bypass}
"""


@pytest.fixture
def command(monkeypatch, capsys):
    """Run a command beside the gateway of this process; return code, output and errors."""
    monkeypatch.delenv("OPENAI_API_KEY", raising=False)
    monkeypatch.delenv("REFRAIN_ADMIN_TOKEN", raising=False)

    async def run(*arguments):
        code = await asyncio.to_thread(main, [str(argument) for argument in arguments])
        captured = capsys.readouterr()
        return code, captured.out, captured.err

    return run


@pytest.fixture
def questions(tmp_path):
    def write(*lines):
        file = tmp_path / "questions.jsonl"
        file.write_bytes(
            b"\n".join(line if isinstance(line, bytes) else orjson.dumps(line) for line in lines)
        )
        return file

    return write


async def test_answers_are_loaded_or_generated(gateway, upstream, command, questions):
    file = questions(
        {"question": "How do I pay?", "answer": "By card."},
        {"question": "Which plans are there?"},
        b"",
        {"request": {"model": "m", "messages": [{"role": "user", "content": "Hi?"}], "seed": 1}},
    )
    code, out, err = await command("warm", file, "--model", "m", "--gateway", gateway.url)
    assert (code, err) == (0, "")
    assert out == f"{file}: 3 questions: 2 generated, 1 loaded\n"
    assert upstream.calls == 2
    paid = await gateway.ask("How do I pay?")
    assert (paid.cache.split("; ")[1], paid.text) == ("hit", "By card.")
    streamed = await gateway.ask("How do I pay?", stream=True)
    assert (streamed.cache.split("; ")[1], streamed.text) == ("hit", "By card.")
    assert "hit" in (await gateway.ask("Which plans are there?")).cache
    assert "hit" in (await gateway.ask("Hi?", seed=1)).cache
    assert upstream.calls == 2
    code, out, _ = await command("warm", file, "--model", "m", "--gateway", gateway.url)
    assert (code, out) == (0, f"{file}: 3 questions: 1 loaded, 2 there already\n")


async def test_a_loaded_answer_takes_the_place_of_the_one_before(gateway, command, questions):
    for answer in ("By card.", "By invoice."):
        file = questions({"question": "How do I pay?", "answer": answer})
        assert (await command("warm", file, "--model", "m", "--gateway", gateway.url))[0] == 0
    assert (await gateway.ask("How do I pay?")).text == "By invoice."


async def test_what_is_loaded_belongs_to_the_tenant_of_the_key(
    gateway, command, questions, monkeypatch
):
    monkeypatch.setenv("OPENAI_API_KEY", "anna")
    file = questions({"question": "How do I pay?", "answer": "By card."})
    await command("warm", file, "--model", "m", "--gateway", gateway.url)
    assert "fwd=miss" in (await gateway.ask("How do I pay?")).cache
    annas = await gateway.ask("How do I pay?", headers={"Authorization": "Bearer anna"})
    assert "hit" in annas.cache


async def test_what_policy_or_admission_declines_is_told_with_its_line(gateway, command, questions):
    result = {"id": "x", "choices": []}
    request = {"model": "m", "messages": [{"role": "user", "content": "Hi?"}]}
    file = questions(
        {"question": "Who?", "answer": "Ask anna@example.org."},
        {"question": "Mail bert@example.org for me", "answer": "Done."},
        {"request": request, "answer": result},
        {"request": {**request, "store": True}, "answer": result},
        {"request": {"model": "m"}, "answer": result},
    )
    code, out, err = await command(
        "warm", file, "--model", "m", "--gateway", gateway.url, "--concurrency", "1"
    )
    assert code == 1
    assert out == f"{file}: 5 questions: 5 failed\n"
    told = [line.removeprefix(f"refrain: {file}:") for line in err.splitlines()]
    assert told[:4] == [
        "1: not stored: pii",
        "2: not stored: pii",
        "3: not stored: empty",
        "4: not stored: store-true",
    ]
    assert told[4].startswith("5: 400: request: expected a request that can be made (Missing")


@pytest.mark.parametrize(
    ("line", "told"),
    [
        (b"{", "expected JSON"),
        (b"[]", "expected a JSON object"),
        ({}, "expected either question (text) or request (an object)"),
        ({"question": " "}, "expected either question"),
        ({"question": "x", "request": {}}, "expected either question"),
        ({"qestion": "x"}, "qestion: expected one of the fields question, request"),
        ({"question": "x", "answer": 5}, "answer: expected text (for a chat) or a complete"),
        ({"question": "x", "answer": ""}, "answer: expected"),
        ({"question": "x", "endpoint": "/v1/chat"}, "endpoint: expected one of /v1/chat/compl"),
    ],
)
async def test_a_wrong_line_is_told_and_nothing_is_sent(command, questions, line, told):
    file = questions({"question": "fine"}, line)
    code, out, err = await command("warm", file, "--model", "m", "--gateway", "http://127.0.0.1:1")
    assert (code, out) == (2, "")
    assert f"refrain: {file}:2: {told}" in err
    assert "cannot be asked" not in err


async def test_the_number_of_wrong_lines_is_told_where_not_all_are_named(command, questions):
    file = questions(*[b"{"] * 31)
    code, _, err = await command("warm", file, "--model", "m", "--gateway", "http://127.0.0.1:1")
    assert (code, err.count("expected JSON")) == (2, 10)
    assert err.endswith(f"refrain: {file}: 21 more lines cannot be used\n")


async def test_a_bare_question_needs_a_model(command, questions):
    file = questions({"question": "How?"})
    code, _, err = await command("warm", file)
    assert (code, err) == (2, f"refrain: {file}:1: question: a bare question needs --model\n")


async def test_files_and_gateways_that_are_not_there(command, tmp_path, questions):
    code, _, err = await command("warm", tmp_path / "none.jsonl")
    assert (code, "cannot be read" in err) == (2, True)
    file = questions({"question": "How?"})
    code, out, err = await command("warm", file, "--model", "m", "--gateway", "http://127.0.0.1:1")
    assert (code, out) == (1, f"{file}: 1 questions: 1 failed\n")
    refused = "http://127.0.0.1:1 cannot be asked: Connection refused; is the gateway running?"
    assert f":1: {refused}\n" in err
    assert (await command("audit", "--gateway", "http://127.0.0.1:1"))[0] == 1


@pytest.mark.parametrize(("status", "body"), [(200, b"<html>"), (200, b"[]"), (404, b"404")])
async def test_what_is_no_gateway_is_told(command, status, body):
    async def page(_request: web.Request) -> web.Response:
        return web.Response(status=status, body=body)

    app = web.Application()
    app.router.add_route("*", "/{path:.*}", page)
    async with TestServer(app) as server:
        code, _, err = await command("audit", "--gateway", str(server.make_url("")))
    assert code == 1
    assert f"answers {status} and not as a gateway does: is it one?" in err


async def test_the_token_comes_from_the_environment(start_gateway, command, questions, monkeypatch):
    monkeypatch.setenv("REFRAIN_ADMIN_TOKEN", "operators-token")
    gateway = await start_gateway()
    file = questions({"question": "How?", "answer": "So."})
    arguments = ("warm", file, "--model", "m", "--gateway", f"{gateway.url}/v1")
    assert (await command(*arguments))[0] == 0
    monkeypatch.setenv("REFRAIN_ADMIN_TOKEN", "another")
    code, _, err = await command(*arguments)
    assert (code, ":1: 401: set REFRAIN_ADMIN_TOKEN to the gateway's token" in err) == (1, True)


async def test_an_audit_tells_by_exit_code_and_purges_when_told(start_gateway, tmp_path, command):
    policy = tmp_path / "policy.yaml"
    policy.write_text(POLICY)
    gateway = await start_gateway(policy=policy)
    await gateway.ask("Mail to anna@example.org please", model="open-1")
    await gateway.ask("Nothing in here")
    code, out, _ = await command("audit", "--gateway", gateway.url)
    assert (code, out) == (0, "1 entries scanned, 0 purged\n")

    await gateway.stop()
    policy.write_text(POLICY.replace("pii: allow", "pii: bypass"))
    gateway = await start_gateway(policy=policy)
    code, out, _ = await command("audit", "--gateway", gateway.url)
    assert (code, out.splitlines()) == (
        1,
        [
            "2 entries scanned, 0 purged",
            "  by kind: email: 1",
            "  by rule: open: 1",
            "Remove them with: refrain audit --purge",
        ],
    )
    code, out, _ = await command("audit", "--purge", "--json", "--gateway", gateway.url)
    assert (code, orjson.loads(out)["purged"]) == (0, 1)
    assert (await command("audit", "--gateway", gateway.url))[0] == 0
