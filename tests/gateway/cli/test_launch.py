"""What starts the processes: a stop before anything is ready is no fault."""

import json
import logging
import signal
import socket
import threading
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from gateway.cli.process import launch
from gateway.telemetry.events import EVENTS_FILE

PLAN = launch.Plan(
    host="127.0.0.1",
    port=0,
    data_dir="",
    config=None,
    log_level="info",
    log_format="text",
    workers=1,
    worker_settings="{}",
    worker_stop_seconds=1.0,
    upstreams=["http://127.0.0.1:9/v1"],
    engine=None,
    model="",
    embeddings=None,
    embeddings_environment={},
)


def test_a_stop_before_it_is_ready_ends_in_silence(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    looks, may_go_on = threading.Semaphore(0), threading.Semaphore(0)
    faults: list[Any] = []

    def look(_address: Any) -> bool:
        looks.release()
        return not may_go_on.acquire(timeout=30)

    def fault(given: Any) -> None:
        faults.append(given.exc_value)
        looks.release()

    def supervise(_children: Any, *, stopping: Any, reload: Any) -> Any:
        assert reload is None

        async def run() -> int:
            assert looks.acquire(timeout=30)
            stopping()
            may_go_on.release()
            assert looks.acquire(timeout=30)  # it has looked once more, with the socket closed
            may_go_on.release(2)
            return 0

        return SimpleNamespace(run=run)

    monkeypatch.setattr(launch, "_is_ready", look)
    monkeypatch.setattr(launch, "Supervisor", supervise)
    monkeypatch.setattr(threading, "excepthook", fault)
    plan = replace(PLAN, data_dir=str(tmp_path))
    assert launch._serve(plan, socket.create_server(("127.0.0.1", 0)), tmp_path) == 0
    assert faults == []


def test_a_reload_reads_the_file_of_settings_that_was_read_before(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    plan = replace(PLAN, data_dir=str(tmp_path), workers=2)
    found: list[str | None] = [None, "refrain.yaml"]
    asked: list[str | None] = []

    async def plan_again(given: Any) -> launch.Plan:
        asked.append(given.get("config"))
        return replace(plan, config=found[len(asked) - 1])

    def supervise(_children: Any, *, stopping: Any, reload: Any) -> Any:
        async def run() -> int:
            for _ in found:
                assert len(await reload()) == 2
            stopping()
            return 0

        return SimpleNamespace(run=run)

    monkeypatch.setattr(launch, "_plan_again", plan_again)
    monkeypatch.setattr(launch, "_is_ready", lambda _: True)
    monkeypatch.setattr(launch, "Supervisor", supervise)
    for config in (None, "other.yaml"):
        sock = socket.create_server(("127.0.0.1", 0))
        first = replace(plan, config=config)
        assert launch._serve(first, sock, tmp_path, {"is_demo": False}) == 0
        assert asked == [config, found[0]]
        asked.clear()
        found[0] = "refrain.yaml"


@pytest.mark.parametrize(
    ("ignored", "has_terminal", "ends"),
    [(False, True, True), (False, False, False), (True, True, False)],
)
def test_a_hang_up_ends_what_a_terminal_started_unless_by_nohup(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, ignored: bool, has_terminal: bool, ends: bool
):
    (tmp_path / "tty").touch()
    monkeypatch.setattr(launch, "_TERMINAL", str(tmp_path / ("tty" if has_terminal else "none")))
    handler = signal.SIG_IGN if ignored else signal.SIG_DFL
    monkeypatch.setattr(signal, "getsignal", lambda _: handler)
    assert launch._ends_with_terminal() == ends


@pytest.fixture
def when_ready(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[[launch.Plan], str]:
    """Return what starts a plan, ends it once it is ready, and returns its URL."""

    supervised = threading.Event()

    async def supervise(*_: Any) -> int:
        supervised.set()
        for one in threading.enumerate():
            if "(watch)" in one.name:
                one.join(30)
        return 0

    def start(plan: launch.Plan) -> str:
        with socket.create_server(("127.0.0.1", 0)) as sock:
            assert launch._serve(replace(plan, data_dir=str(tmp_path)), sock, tmp_path) == 0
            return f"http://127.0.0.1:{sock.getsockname()[1]}"

    monkeypatch.setattr(launch, "_is_ready", lambda _: supervised.wait(30))
    monkeypatch.setattr(launch, "_supervise", supervise)
    return start


@pytest.mark.parametrize("ui", [True, False])
def test_the_log_names_the_page_in_a_line_of_its_own_unless_it_is_off(
    when_ready: Callable[[launch.Plan], str], caplog: pytest.LogCaptureFixture, ui: bool
):
    caplog.set_level(logging.INFO, launch.log.name)
    url = when_ready(replace(PLAN, worker_settings=json.dumps({"ui": ui})))
    # Programs take the last word for the base URL.
    assert f"ready: base URL {url}/v1" in caplog.messages
    assert (f"the operator's page: {url}/ui" in caplog.messages) == ui


@pytest.mark.parametrize("ui", [True, False])
def test_a_demo_has_the_event_and_a_banner_that_names_the_page_unless_it_is_off(
    when_ready: Callable[[launch.Plan], str],
    tmp_path: Path,
    caplog: pytest.LogCaptureFixture,
    capsys: pytest.CaptureFixture[str],
    ui: bool,
):
    caplog.set_level(logging.INFO, launch.log.name)
    url = when_ready(replace(PLAN, engine=["engine"], worker_settings=json.dumps({"ui": ui})))
    assert f"ready: base URL {url}/v1" in (tmp_path / EVENTS_FILE).read_text()
    assert (f"\nPage: {url}/ui   Metrics: " in capsys.readouterr().out) == ui
