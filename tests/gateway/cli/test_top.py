"""`refrain top`: one frame for scripts, and live in a terminal beside a real gateway."""

import asyncio
import os
import re
import sys
import termios
from contextlib import asynccontextmanager
from pathlib import Path

import pytest
from aiohttp import web
from pseudo_terminal import pseudo_terminal
from rich.console import Console

from gateway.app import create_app
from gateway.cli.main import main
from gateway.cli.operator.top import frame, quantile
from gateway.server.http.handlers import refuse
from gateway.server.http.hot_connection import new_connection
from gateway.server.http.http_server import Runner
from gateway.settings import Settings
from running_gateway import start_app

ROOT = Path(__file__).parents[3]

GREEN = r"\x1b\[[0-9;]*32m"
FAILED = re.compile(r"\b[45]\d\d: |answers \d+ and not")
"""What is shown of a reply that is an error: no figures will come."""
SIZE = ("COLUMNS", "LINES")
"""Variables that would override the size of the terminal."""
READY = {
    "status": "ready",
    "reasons": [],
    "store": {"kind": "redis", "problem": None},
    "policy": {"source": "policy.yaml", "generation": 1, "problem": None},
    "keys": {"problems": []},
}
EMPTY = {
    "time": 1000.0,
    "started": 10.0,
    "version": "1.2.3",
    "requests": {},
    "rules": {},
    "saved": {},
    "ttft": {},
    "waiting": 0,
    "ready": READY,
    "calls": 0,
    "upstreams": ["http://a/v1"],
    "engines": {},
    "budgets": {},
}


def drawn(*looks, width=100, problem=None):
    console = Console(width=width, markup=False, highlight=False)
    with console.capture() as capture:
        console.print(frame("http://gw", [EMPTY | look for look in looks], problem))
    return capture.get()


def rows(text):
    return [line.split() for line in text.splitlines()]


@pytest.fixture
def command(monkeypatch, capsys):
    monkeypatch.delenv("REFRAIN_ADMIN_TOKEN", raising=False)

    async def run(*arguments):
        code = await asyncio.to_thread(main, ["top", *map(str, arguments)])
        told = capsys.readouterr()
        return code, told.out, told.err

    return run


@asynccontextmanager
async def live(url, *arguments, columns=100, **environment):
    """Run the command in a terminal; yield its screen and its process."""
    outside = {name: value for name, value in os.environ.items() if name not in SIZE}
    with pseudo_terminal(columns) as screen:
        before = termios.tcgetattr(screen.slave)
        process = await asyncio.create_subprocess_exec(
            *(sys.executable, "-m", "gateway.cli", "top", "--gateway", url),
            *("--interval", "100ms", *arguments),
            stdin=screen.slave,
            stdout=screen.slave,
            stderr=screen.slave,
            cwd=ROOT,
            env={**outside, "TERM": "xterm-256color", "PYTHONPATH": str(ROOT), **environment},
            start_new_session=True,
        )
        try:
            yield screen, process
            async with asyncio.timeout(30):
                await process.wait()
            assert termios.tcgetattr(screen.slave) == before, "the terminal is as it was"
        finally:
            if process.returncode is None:
                process.kill()
                await process.wait()


async def shown(screen, text, *, after=0):
    """Wait until a text is shown; an error of the gateway ends the wait."""
    return await asyncio.to_thread(screen.wait_for, text, after=after, unless=FAILED)


async def test_one_frame_of_a_real_gateway(gateway, upstream, command):
    for _ in range(4):
        await gateway.ask("Hi?")
    code, out, err = await command("--gateway", f"{gateway.url}/v1", "--once", "--interval", "1s")
    assert (code, err) == (0, "")
    lines = rows(out)
    assert lines[0][:4] == ["refrain", "top", gateway.url, "ready"]
    assert ["all", "0.0", "4"] in lines
    assert ["exact", "hits", "0.0", "75%", "3"] in lines
    assert ["misses", "0.0", "25%", "1"] in lines
    assert "saved     30 tokens, no price, 0.0 s" in [line.rstrip() for line in out.splitlines()]
    assert [upstream.url.split("/")[2], "up", "0"] in lines
    assert ["default", "4", "75%", "-", "-"] in lines


async def test_no_gateway_is_one_line(command):
    code, out, err = await command("--gateway", "http://127.0.0.1:1", "--once")
    assert (code, out) == (1, "")
    assert err.endswith("cannot be asked: Connection refused; is the gateway running?\n")


async def test_another_server_is_told(command):
    async def other(_request):
        return web.json_response({"hello": "world"})

    app = web.Application()
    app.router.add_get("/admin/overview", other)
    runner, url = await start_app(app)
    code, out, err = await command("--gateway", url, "--once")
    await runner.cleanup()
    assert (code, out) == (1, "")
    assert err == f"refrain: {url} answers not as a gateway does: is it one?\n"


@pytest.mark.parametrize("key", ["q", "Q", "\x03"], ids=["q", "Q", "Ctrl-C"])
async def test_it_is_live_until_a_key_ends_it(gateway, key):
    await gateway.ask("Hi?")
    async with live(gateway.url) as (screen, process):
        await shown(screen, "misses")
        await gateway.ask("Hi?")
        await shown(screen, "exact hits")
        if key == "\x03":
            process.send_signal(2)  # what a terminal makes of it for its foreground process
        else:
            screen.type(key)
    assert process.returncode == 0
    assert screen.raw.count("\x1b[?1049h") == screen.raw.count("\x1b[?1049l") == 1


async def test_colours_can_be_switched_off(gateway):
    async with live(gateway.url, NO_COLOR="1") as (screen, _process):
        await shown(screen, "since the start")
        screen.type("q")
    assert not re.search(GREEN, screen.raw)
    async with live(gateway.url) as (screen, _process):
        await shown(screen, "since the start")
        screen.type("q")
    assert re.search(GREEN, screen.raw)


async def test_a_gateway_that_goes_away_is_told_and_comes_back(upstream, tmp_path):
    async def start(port):
        settings = Settings(upstream=(f"{upstream.url}/v1",), data_dir=tmp_path / "data")
        app = create_app(settings, semantic_socket=None)
        runner = Runner(app, refuse, connection=new_connection(app), shutdown_timeout=1.0)
        await runner.setup()
        await web.TCPSite(runner, "127.0.0.1", port, reuse_address=True).start()
        return runner

    runner = await start(0)
    port = runner.addresses[0][1]
    async with live(f"http://127.0.0.1:{port}") as (screen, _process):
        await shown(screen, "ready")
        await runner.cleanup()
        gone = await shown(screen, "is the gateway running?")
        await shown(screen, "since the start", after=gone)  # the last figures
        runner = await start(port)
        await shown(screen, "ready", after=gone)
        screen.type("q")
    await runner.cleanup()


async def test_a_gateway_that_fails_shows_its_error_and_no_figures():
    async def fails(_request):
        return web.json_response({"error": {"message": "A defect."}}, status=500)

    app = web.Application()
    app.router.add_get("/admin/overview", fails)
    runner, url = await start_app(app)
    async with live(url) as (screen, _process):
        with pytest.raises(AssertionError, match=r"500: A defect\."):
            await shown(screen, "since the start")
        screen.type("q")
    await runner.cleanup()


@pytest.mark.parametrize("width", [30, 60, 200])
def test_a_frame_fits_a_terminal(width):
    look = {
        "requests": {"exact": 1_000_000, "miss": 2},
        "rules": {"a-rule-of-a-long-name-that-somebody-gave": {"exact": 1}},
        "upstreams": ["https://an-upstream-of-a-long-name.example.com/v1"],
    }
    assert max(map(len, drawn(look, width=width).splitlines())) <= width


def test_rates_are_of_the_last_looks():
    first = {"time": 1000.0, "requests": {"exact": 10}}
    last = {"time": 1002.0, "requests": {"exact": 30, "miss": 10}}
    lines = rows(drawn(first, last))
    assert ["all", "15.0", "40"] in lines
    assert ["exact", "hits", "10.0", "75%", "30"] in lines


def test_a_gateway_that_was_started_anew_has_no_rate():
    first = {"time": 1000.0, "requests": {"exact": 10}}
    assert ["all", "-", "3"] in rows(drawn(first, {"time": 1002.0, "requests": {"exact": 3}}))


def test_engines_states_and_queues_are_shown():
    states = {
        "a": {"state": "up", "why": None, "in_flight": 3},
        "b": {"state": "down", "why": "connection refused", "in_flight": 0},
    }
    look = {
        "upstreams": ["a", "b"],
        "ready": READY
        | {"status": "starting", "reasons": ["encoder: loading"], "upstreams": states},
        "engines": {"a": {"running": 5, "waiting": 1234, "kv_use": 0.25}},
        "waiting": 7,
    }
    text = drawn(look)
    assert "not ready: encoder: loading" in text
    assert ["a", "up", "3", "5", "1,234", "25%"] in rows(text)
    assert ["b", "down", "(connection", "refused)", "0"] in rows(text)
    assert ["waiting", "here", "7"] in rows(text)


def test_what_is_wrong_stands_at_the_top():
    ready = READY | {
        "store": {"kind": "redis", "problem": "not answering"},
        "policy": READY["policy"] | {"problem": "policy.yaml:2: exact: no"},
        "keys": {"problems": ["keys:2: no key"]},
        "verifier": {"unlike": "traffic does not resemble the calibration"},
    }
    assert drawn({"ready": ready}).splitlines()[1:5] == [
        "store: not answering",
        "policy: policy.yaml:2: exact: no",
        "keys: keys:2: no key",
        "traffic does not resemble the calibration",
    ]


@pytest.mark.parametrize(
    ("saved", "shown"),
    [
        ({}, "0 tokens, $0.00, 0.0 s"),
        ({"exact": {"tokens": 9, "dollars": 0.0}}, "9 tokens, no price, 0.0 s"),
        ({"prefix": {"tokens": 9, "dollars": 1.0}}, "0 tokens, $0.00, 0.0 s"),
        (
            {"exact": {"tokens": 9, "dollars": 0.0021, "seconds": 90}},
            "9 tokens, $0.002100, 1.5 min",
        ),
    ],
)
def test_savings_without_a_known_price_are_no_dollars(saved, shown):
    assert f"saved     {shown}" in [line.rstrip() for line in drawn({"saved": saved}).splitlines()]


@pytest.mark.parametrize(
    ("figures", "shown"),
    [
        ({"wrong_hits": 0.005, "off": False}, ["50%", "of", "1%"]),
        ({"wrong_hits": None, "off": False}, ["0%", "of", "1%"]),
        ({"wrong_hits": 0.1, "off": True}, ["off:", "too", "many", "wrong"]),
    ],
)
def test_the_use_of_an_error_budget_is_shown(figures, shown):
    figures = {"comparisons": 400, "budget": 0.01, **figures}
    look = {"budgets": {"rules": {"faq": figures}}, "rules": {"faq": {"miss": 2, "semantic": 2}}}
    assert ["faq", "4", "50%", "400", *shown] in rows(drawn(look))


def test_names_are_no_markup():
    assert "[red]x" in drawn({"rules": {"[red]x": {"miss": 1}}, "upstreams": ["[bold]u"]})


@pytest.mark.parametrize(
    ("before", "now", "part", "seconds"),
    [
        ([], [(0.1, 0), (0.2, 10), (None, 10)], 0.5, 0.15),
        ([(0.1, 5), (0.2, 5), (None, 5)], [(0.1, 5), (0.2, 15), (None, 15)], 0.5, 0.15),
        ([], [(0.1, 0), (None, 4)], 0.95, 0.1),
        ([(0.1, 5), (None, 5)], [(0.1, 5), (None, 5)], 0.5, None),
        ([], [], 0.5, None),
    ],
)
def test_a_quantile_is_of_the_last_looks(before, now, part, seconds):
    looks = [EMPTY | {"ttft": {"hit": each}} for each in (before, now)]
    assert quantile(looks, "hit", part) == (seconds and pytest.approx(seconds))
