"""The service that a command starts for itself says so, where it takes its time."""

import asyncio
import importlib.util
from contextlib import asynccontextmanager
from pathlib import Path

import pytest

from gateway.cli import calibrate
from gateway.cli.calibrate import scoring_service


class Service:
    """Is ready when it is let."""

    def __init__(self):
        self.asked = asyncio.Event()
        self.closed = self.is_ready = False

    async def not_ready(self):
        self.asked.set()
        return None if self.is_ready else "encoder: loading"

    async def close(self):
        self.closed = True


class Process:
    """One that runs."""

    def done(self):
        return False


@asynccontextmanager
async def start_service(_socket, _folder):
    yield Process()


@pytest.fixture
def service(monkeypatch):
    made = Service()
    monkeypatch.setattr(calibrate, "EmbeddingsClient", lambda *_, **__: made)
    monkeypatch.setattr(calibrate, "_start_service", start_service)
    monkeypatch.setattr(importlib.util, "find_spec", lambda _: True)
    monkeypatch.setattr(calibrate, "_POLL_SECONDS", 0.001)
    return made


@pytest.mark.parametrize(
    ("socket", "said"),
    [
        (None, "refrain: starting an embeddings service, to score by meaning\n"),
        (Path("none"), "refrain: the service is loading, to score by meaning\n"),
    ],
    ids=["started", "named"],
)
async def test_who_waits_for_the_service_is_told_once(service, monkeypatch, socket, said):
    lines = asyncio.Queue()
    monkeypatch.setattr(calibrate, "NOTICE_SECONDS", 0.0)
    monkeypatch.setattr("builtins.print", lambda text, **_: lines.put_nowait(f"{text}\n"))

    async def scored():
        async with scoring_service(socket):
            pass

    task = asyncio.create_task(scored())
    assert await lines.get() == said
    assert not task.done()
    service.is_ready = True
    await task
    assert lines.empty()
    assert service.closed


async def test_a_service_that_is_there_at_once_is_not_spoken_of(service, capfd):
    service.is_ready = True
    loop = asyncio.get_running_loop()
    async with scoring_service(None):
        # Had the line not been taken back, it would be due among these.
        due = [each for each in getattr(loop, "_scheduled", ()) if not each.cancelled()]
    assert not [each for each in due if each._callback is calibrate.say]
    assert capfd.readouterr().err == ""
