"""`refrain status`: one screen about a real gateway, and a clear line where there is none."""

import asyncio
import re

import orjson
import pytest
from aiohttp import web
from faulty_upstreams import CLOSED

from gateway.cli.main import main
from gateway.cli.operator.status import duration, screen
from running_gateway import start_app

READY = {
    "status": "ready",
    "reasons": [],
    "policy": {"source": "policy.yaml", "generation": 3, "problem": None},
    "store": {"kind": "redis", "problem": None},
    "keys": {"gateway": "off", "problems": [], "counts": "ok"},
    "semantic": "on",
    "vectors": {"index": "faiss"},
    "verifier": {"kind": "model", "digest": "abc"},
    "rules_off": [],
    "budgets_not_kept": {},
}


@pytest.fixture
def command(monkeypatch, capsys):
    """Run `refrain status` beside the gateway of this process; return code, output and errors."""
    monkeypatch.delenv("REFRAIN_ADMIN_TOKEN", raising=False)

    async def run(*arguments):
        code = await asyncio.to_thread(main, ["status", *map(str, arguments)])
        captured = capsys.readouterr()
        return code, captured.out, captured.err

    return run


def shown(overview=None, **ready):
    found = {"url": "http://gw", "ready": READY | ready, "overview": overview}
    return "\n".join(screen(found))


def test_the_verifier_is_named_with_what_is_wrong_with_it():
    verifier = {"kind": "model", "name": "mini", "digest": "abc"}
    said = "semantic   on, vectors in faiss, verifier mini"
    assert said in shown(verifier=verifier).splitlines()
    fault = "no words; it is not used"
    lines = shown(verifier=verifier | {"fault": fault}).splitlines()
    assert f"{said}; PROBLEM: {fault}" in lines


async def test_a_ready_gateway(gateway, upstream, command):
    for _ in range(3):
        await gateway.ask("Hi?")
    code, out, err = await command("--gateway", f"{gateway.url}/v1")
    assert (code, err) == (0, "")
    lines = out.splitlines()
    version = r"version \d+\.\d+\.\S+"
    assert re.fullmatch(rf"gateway    {gateway.url}, ready, {version}, up \d+ s", lines[0])
    assert lines[1] == "requests   3 since the start, 0 calls under way"
    assert [line.split() for line in lines[2:4]] == [
        ["exact", "hits", "2", "67%"],
        ["misses", "1", "33%"],
    ]
    assert f"upstreams  {upstream.url.split('/')[2]}: up, 0 in flight" in lines
    assert "store      disk" in lines
    assert re.search(r"^policy     .*default.yaml, generation 0$", out, re.MULTILINE)
    assert "semantic   off: the libraries are not installed" in lines


async def test_an_only_upstream_that_is_dead_is_a_problem(start_gateway, command, monkeypatch):
    monkeypatch.setattr("gateway.upstream.pool.health.FIRST_EJECTION", 60.0)
    gateway = await start_gateway(upstream=CLOSED)
    assert (await gateway.ask("Hi?")).status == 502
    code, out, _ = await command("--gateway", gateway.url)
    assert code == 0  # it serves hits
    place = CLOSED.split("/")[2]
    assert f"upstreams  {place}: out (open: upstream-unreachable), 0 in flight; PROBLEM" in out


async def test_json_has_all(gateway, command):
    code, out, _ = await command("--gateway", gateway.url, "--json")
    assert code == 0
    found = orjson.loads(out)
    assert found["ready"]["status"] == "ready"
    assert found["overview"]["requests"] == {}
    assert found["overview_problem"] is None


async def test_a_gateway_that_is_not_ready_says_why(start_gateway, tmp_path, command):
    gateway = await start_gateway(semantic_socket=tmp_path / "nobody.sock")
    code, out, _ = await command("--gateway", gateway.url)
    assert code == 1
    assert out.splitlines()[0].startswith(f"gateway    {gateway.url}, starting, version ")
    assert out.splitlines()[1].startswith("           not ready: encoder: ")


async def test_without_the_token_the_rest_is_shown(start_gateway, command, monkeypatch):
    monkeypatch.setenv("REFRAIN_ADMIN_TOKEN", "guess-me")
    gateway = await start_gateway()
    monkeypatch.delenv("REFRAIN_ADMIN_TOKEN")
    code, out, err = await command("--gateway", gateway.url)
    assert code == 0
    assert out.splitlines()[0] == f"gateway    {gateway.url}, ready"
    assert "store      disk" in out
    assert err == (
        "refrain: version, uptime and requests are not known: "
        "401: set REFRAIN_ADMIN_TOKEN to the gateway's token\n"
    )
    monkeypatch.setenv("REFRAIN_ADMIN_TOKEN", "guess-me")
    code, out, err = await command("--gateway", gateway.url)
    assert (code, err) == (0, "")
    assert "requests   0 since the start" in out


async def test_no_gateway_is_one_line_and_exit_code_1(command):
    code, out, err = await command("--gateway", "http://127.0.0.1:1")
    assert (code, out) == (1, "")
    assert err == (
        "refrain: http://127.0.0.1:1 cannot be asked: Connection refused; is the gateway running?\n"
    )


@pytest.mark.parametrize("body", ["<html>", "[]", '{"status": "ready"}'])
async def test_another_server_is_told(command, body):
    async def other(_request):
        return web.Response(text=body)

    app = web.Application()
    app.router.add_get("/readyz", other)
    runner, url = await start_app(app)
    code, out, err = await command("--gateway", url)
    await runner.cleanup()
    assert (code, out) == (1, "")
    assert err == f"refrain: {url} answers 200 and not as a gateway does: is it one?\n"


async def test_a_gateway_that_is_silent_is_told(command, monkeypatch):
    monkeypatch.setattr("gateway.cli.operator.status._SECONDS", 0.2)
    ended = asyncio.Event()

    async def say_nothing(reader, writer):
        await reader.read()
        writer.close()
        await writer.wait_closed()
        ended.set()

    silent = await asyncio.start_server(say_nothing, "127.0.0.1", 0)
    url = f"http://127.0.0.1:{silent.sockets[0].getsockname()[1]}"
    async with silent:
        code, _, err = await command("--gateway", url)
        await ended.wait()
    assert code == 1
    assert err == f"refrain: {url} cannot be asked: no answer in time\n"


def test_problems_stand_beside_their_part():
    text = shown(
        store={
            "kind": "redis",
            "problem": "not answering",
            "since": 1_800_000_000.5,
            "why": "refused",
        },
        policy={"source": "policy.yaml", "generation": 3, "problem": "policy.yaml:2: exact: no"},
        vectors={"index": "qdrant", "fault": "no answer"},
        verifier={"kind": "none", "fault": "no file", "unlike": "traffic differs"},
        keys={"problems": ["keys:2: no key"]},
        rules_off=["faq"],
        budgets_not_kept={"laws": 0.001},
        upstreams={
            "a": {"state": "open", "why": "failures", "in_flight": 0},
            "b": {"state": "up", "why": None, "in_flight": 2},
            "c": {"state": "paused", "why": "timeout", "in_flight": 1},
        },
    )
    assert text.splitlines()[1:] == [
        "upstreams  a: out (open: failures), 0 in flight; PROBLEM",
        "           b: up, 2 in flight",
        "           c: paused (timeout), 1 in flight; PROBLEM",
        "store      redis; PROBLEM: not answering since 2027-01-15 08:00:00 UTC: refused",
        "policy     policy.yaml, generation 3; PROBLEM: policy.yaml:2: exact: no",
        "semantic   on, vectors in qdrant, verifier none; PROBLEM: no answer; no file",
        "           PROBLEM: traffic differs",
        "           off in rule faq; PROBLEM: too many hits were wrong",
        "           no threshold keeps the budget of rule laws; PROBLEM",
        "keys       PROBLEM: keys:2: no key",
    ]


@pytest.mark.parametrize(
    ("seconds", "text"),
    [(0.4, "0 s"), (61, "1 min 1 s"), (3600, "1 h"), (90_061, "1 d 1 h"), (86_400 * 9, "9 d")],
)
def test_durations(seconds, text):
    assert duration(seconds) == text
