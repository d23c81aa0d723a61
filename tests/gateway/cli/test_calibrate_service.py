"""The wait for the service that a command starts for itself is shown."""

import asyncio
import importlib.util
from contextlib import asynccontextmanager, contextmanager
from pathlib import Path

import pytest

from gateway.cli.offline import calibrate
from gateway.cli.offline.calibrate import scoring_service


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
        (None, "starting an embeddings service"),
        (Path("none"), "waiting for the embeddings service"),
    ],
    ids=["started", "named"],
)
async def test_the_wait_for_the_service_is_shown(service, monkeypatch, socket, said):
    shown = asyncio.Queue()

    @contextmanager
    def progress(what):
        shown.put_nowait(what)
        yield
        shown.put_nowait("over")

    monkeypatch.setattr(calibrate, "progress", progress)

    async def scored():
        async with scoring_service(socket):
            assert shown.get_nowait() == "over"

    task = asyncio.create_task(scored())
    assert await shown.get() == said
    assert not task.done()
    service.is_ready = True
    await task
    assert service.closed
