"""``refrain compress validate`` against a real upstream: what passes, what does not, and why."""

import asyncio
import json
from contextlib import asynccontextmanager
from typing import Any

import orjson
import pytest
from aiohttp import web

from gateway.cli.compress_validating import Options, validate
from gateway.cli.main import main
from gateway.prompts.compress.validation import Tally
from scripted_upstream import ScriptedUpstream, completion

POLICY = """
version: 1
rules:
  - name: plain
    match: {model: plain}
    compress: off
default: {exact: on, semantic: off, freshness: 1h, scope: tenant, pii: bypass,
  compress: {documents: {begin: <d>, end: </d>}}}
"""


class Encoder:
    """The encoder's port: all texts are far from one another."""

    name = digest = "fake"

    async def embed(self, texts: Any) -> Any:
        return [[float(i == j) for j in range(len(texts))] for i in range(len(texts))]


@asynccontextmanager
async def service(_socket: Any) -> Any:
    yield Encoder()


def says(answer: Any) -> Any:
    """Answer with what a function makes of the last turn."""

    async def answered(_request: web.Request, body: dict[str, Any]) -> web.StreamResponse:
        return web.json_response(completion(answer(body["messages"][-1]["content"])))

    return answered


@pytest.fixture
def run(tmp_path, upstream: ScriptedUpstream, capsys):
    """Run the command in a thread of its own; return its code and its JSON."""
    (tmp_path / "policy.yaml").write_text(POLICY)

    async def running(*lines: Any, text: bool = False, **changes: Any) -> tuple[int, Any]:
        log = tmp_path / "log.jsonl"
        log.write_text("".join(f"{json.dumps(line)}\n" for line in lines))
        options = {
            "log": log,
            "policy": tmp_path / "policy.yaml",
            "upstream": f"{upstream.url}/v1/",
            "limit": 100,
            "most": 0.02,
            "seconds": 30.0,
            "socket": None,
            "as_json": not text,
            **changes,
        }
        code = await asyncio.to_thread(validate, Options(**options), service)
        out = capsys.readouterr().out
        return code, out if text or code == 2 else orjson.loads(out)

    return running


def body(number: int, **fields: Any) -> dict[str, Any]:
    content = f'<d>{{ "key" :   {number} }}</d> What is key?'
    return {"model": "m", "messages": [{"role": "user", "content": content}], **fields}


async def test_answers_that_stay_the_same_pass(run, upstream):
    upstream.answer = says(lambda text: f"It is {''.join(c for c in text if c.isdigit())}.")
    code, told = await run(body(1, stream=True, temperature=1), {"body": body(2)})
    assert code == 0
    assert (told["compared"], told["changed"], told["passed"]) == (2, 0, True)
    assert 0 < told["saved"] < told["tokens"]
    assert len(upstream.bodies) == 6
    assert all(asked["temperature"] == 0 and "stream" not in asked for asked in upstream.bodies)
    shorter = [asked["messages"][0]["content"] for asked in upstream.bodies]
    assert sum('{"key":' in text for text in shorter) == 2


async def test_an_answer_that_changes_fails(run, upstream):
    upstream.answer = says(lambda text: "It is 5." if " :  " in text else "It is 6.")
    code, told = await run(body(1), body(2))
    assert code == 1
    assert (told["compared"], told["changed"], told["unsure"], told["share"]) == (2, 2, 0, 1.0)
    assert (await run(body(1), most=1.0))[0] == 0


async def test_few_answers_prove_nothing_and_it_is_told_how_many_would(run, upstream):
    upstream.answer = says(lambda _: "It is 5.")
    code, text = await run(body(1), body(2), text=True)
    assert code == 0
    assert "that is no proof: it takes 147 more of which none changes" in text
    code, told = await run(body(1), body(2), sure=True)
    assert (code, told["passed"], told["proved"]) == (1, False, False)
    assert (await run(body(1), body(2), sure=True, most=0.9))[0] == 0


def test_what_proves_a_share_is_the_bound_of_clopper_and_pearson():
    assert Tally(compared=20).bound == pytest.approx(0.139, abs=0.001)
    assert not Tally(compared=148).proves(0.02)
    assert Tally(compared=149).proves(0.02)
    assert Tally(compared=149, changed=1).lacking(0.02) == 87
    assert Tally(compared=149, changed=149).lacking(0.02) is None


async def test_what_cannot_be_told_counts_as_changed(run, upstream):
    upstream.answer = says(lambda text: "`x = 1`" if " :  " in text else "`x = 2`")
    code, told = await run(body(1))
    assert (code, told["changed"], told["unsure"]) == (1, 1, 1)


async def test_what_is_not_answered_the_same_twice_is_left_out(run, upstream):
    count = iter(range(1000))
    upstream.answer = says(lambda _: f"It is {next(count)}.")
    code, told = await run(body(1))
    assert (code, told["compared"], told["unstable"]) == (1, 0, 1)


async def test_what_is_not_compressed_is_told_and_not_asked(run, upstream):
    unbalanced = {"model": "m", "messages": [{"role": "user", "content": "<d>a"}]}
    plain = {**body(1), "model": "plain"}
    recorded = {"rule": "plain", "request": body(1)}
    code, told = await run(unbalanced, plain, recorded, {"no": "request"})
    assert (code, told["undeclared"], told["refused"]) == (1, 2, {"unbalanced-markers": 1})
    assert upstream.bodies == []


async def test_an_upstream_that_refuses_is_told(run, upstream):
    async def refuse(_request: Any, _body: Any) -> web.StreamResponse:
        return web.json_response({"error": {"message": "no"}}, status=400)

    upstream.answer = refuse
    code, told = await run(body(1))
    assert (code, told["failed"]) == (1, {"status 400": 1})


async def test_the_limit_is_kept_and_the_text_says_all(run, upstream):
    upstream.answer = says(lambda _: "It is 5.")
    code, text = await run(body(1), body(2), body(3), limit=2, text=True)
    assert code == 0
    assert "0 of 2 answers changed: 0.0% (at most 2% may" in text
    assert text.endswith("passed\n")


async def test_a_log_without_requests_and_wrong_files_are_bad_usage(run, tmp_path):
    assert (await run({"no": "request"}))[0] == 2
    assert (await run(log=tmp_path / "none"))[0] == 2
    assert (await run(body(1), policy=tmp_path / "none"))[0] == 2
    (tmp_path / "wrong.yaml").write_text("version: 2")
    assert (await run(body(1), policy=tmp_path / "wrong.yaml"))[0] == 2


@pytest.mark.parametrize("argument", ["--limit=0", "--most-changed=2", "--upstream=x"])
def test_wrong_arguments_are_told(argument, capsys):
    with pytest.raises(SystemExit) as ended:
        main(["compress", "validate", "log", "--policy=p", "--upstream=http://u/v1", argument])
    assert ended.value.code == 2
    assert "expected" in capsys.readouterr().err
