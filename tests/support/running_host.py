"""A pytest plugin: the engine's process from outside, with a stand-in (``fake_engine``) inside."""

import os
from pathlib import Path

import pytest
from host_requests import Letters, children

from backend.engine import supervisor
from backend.engine.supervisor import EngineSupervisor
from backend.settings import EngineOptions

ROOT = Path(__file__).parents[2]


@pytest.fixture
def stand_in(monkeypatch):
    monkeypatch.setattr(supervisor, "MODULE", "fake_engine")
    monkeypatch.setattr(supervisor, "FIRST_BACKOFF_SECONDS", 0.01)
    monkeypatch.setenv("PYTHONPATH", f"{ROOT}{os.pathsep}{ROOT / 'tests' / 'support'}")


@pytest.fixture
async def start(stand_in):
    hosts = []

    async def run(model="serve", stages=None, **bounds):
        tell = (stages if stages is not None else []).append
        host = EngineSupervisor(EngineOptions(str(model)), tell, **bounds)
        hosts.append(host)
        await host.start()
        host.open(Letters())
        return host

    yield run
    for host in hosts:
        await host.stop()
    assert children() == []
