"""The way of a token stays short: how many files of the engine a streamed request goes through."""

import os
import time
from pathlib import Path

import pytest
from token_hops import TRACE, hops, traced, written

from backend.app import create_app
from backend.engine import supervisor
from backend.settings import Settings

pytest_plugins = ["running_backend"]

ROOT = Path(__file__).parents[2]
MODEL = ROOT / "backend" / "demo" / "model"
QUESTION = "How do I reset my password?"
TOKENS = 64

MOST_FILES = {"request": 51, "token": 30}
"""At most. A lower number may replace one of these, a higher one never."""


@pytest.fixture
def trace(tmp_path, monkeypatch):
    """Where the engine's process writes its way."""
    monkeypatch.setattr(supervisor, "MODULE", "token_hops")
    monkeypatch.setenv("PYTHONPATH", f"{ROOT}{os.pathsep}{ROOT / 'tests' / 'support'}")
    monkeypatch.setenv(TRACE, str(tmp_path / "trace"))
    return tmp_path / "trace"


async def events_of(server, question):
    """Return when the request began, when each of its events came, and when it had ended."""
    body = {
        "model": server.model.name,
        "messages": [{"role": "user", "content": question}],
        "max_tokens": TOKENS,
        "min_tokens": TOKENS,
        "stream": True,
    }
    began = time.monotonic_ns()
    async with server.session.post(f"{server.url}/v1/chat/completions", json=body) as reply:
        assert reply.status == 200
        moments = [time.monotonic_ns() async for line in reply.content if line != b"\n"]
    return began, moments, time.monotonic_ns()


def files_of(way):
    return {hop.partition(":")[0] for hop in way}


def shown(name, way):
    per_file = {}
    for hop in way:
        file, _, function = hop.partition(":")
        per_file.setdefault(file, []).append(function)
    lines = [f"{name}: {len(per_file)} files, {len(way)} functions"]
    return "\n".join(lines + [f"  {file}: {', '.join(each)}" for file, each in per_file.items()])


async def test_the_way_of_a_token_is_short(trace, serve_application):
    entries = []
    with traced(entries.append):
        server = await serve_application(create_app(Settings(model=str(MODEL), threads=1)))
        await server.model.load()
        try:
            requests = [await events_of(server, f"{QUESTION} {number}") for number in range(5)]
        finally:
            await server.model.close()
    entries += written(trace)
    whole = min((hops(entries, began, ended) for began, _, ended in requests), key=len)
    # Two tokens take long enough for one whole step. Few windows also fill a block or send figures,
    # and few are cut short because two events came at once: the middle one is the steady state.
    windows = [
        hops(entries, since, until)
        for _, moments, _ in requests
        for since, until in zip(moments[4:-6], moments[6:-4], strict=True)
    ]
    steady = sorted(windows, key=lambda way: len(files_of(way)))[len(windows) // 2]
    report = "\n".join((shown("request", whole), shown("token", steady)))
    print(report)
    assert len(files_of(whole)) <= MOST_FILES["request"], report
    assert len(files_of(steady)) <= MOST_FILES["token"], report
