"""The engine's process from outside, with a stand-in inside: loading, dying, stopping, leaking."""

import asyncio
import os
import signal
from pathlib import Path

import pytest
from host_requests import LIMIT, ask, children, request, until

from backend.engine import supervisor
from backend.engine.messages import EngineDescription
from backend.engine.supervisor import EngineSupervisor
from backend.models.config import ModelLoadError
from backend.ports import EngineError, RequestRejectedError, UnavailableError
from backend.scheduler.request import FinishReason
from backend.settings import EngineOptions

pytest_plugins = ["running_host"]


def descriptors():
    return len(list(Path("/proc/self/fd").iterdir()))


async def test_answers_come_back_and_loading_tells_its_stages(start):
    stages = []
    host = await start(stages=stages)
    assert stages == ["trying to serve"]
    assert (host.client.ready, host.client.max_model_len) == (True, 100)
    asked = [ask(host, token=token, max_tokens=token) for token in range(1, 9)]
    answers = await asyncio.gather(*asked)
    assert [text for text, _ in answers] == [chr(96 + n) * n for n in range(1, 9)]
    with pytest.raises(RequestRejectedError, match="0 to 49"):
        await ask(host, token=50)


async def test_a_model_that_is_refused_says_why(start):
    with pytest.raises(ModelLoadError, match="the weights are missing"):
        await start("refuse")


async def test_a_process_that_dies_while_it_loads_says_how(start):
    with pytest.raises(ModelLoadError, match="SIGKILL"):
        await start("die")


async def test_a_load_that_is_given_up_leaves_no_process(start, tmp_path):
    stages = []
    host = EngineSupervisor(EngineOptions("serve"), stages.append)
    loading = asyncio.create_task(host.start())
    await until(children)
    loading.cancel()
    with pytest.raises(asyncio.CancelledError):
        await loading
    assert children() == []


async def test_a_killed_process_fails_who_waits_and_another_takes_its_place(start):
    host = await start()
    stream = host.client.generate(request(max_tokens=None))
    assert (await anext(stream)).text == "a"
    (pid,) = children()
    os.kill(int(pid), signal.SIGKILL)
    with pytest.raises(EngineError, match="died"):
        await asyncio.wait_for(anext(stream), LIMIT)
    assert not host.client.ready
    with pytest.raises(UnavailableError, match="died"):
        await ask(host)
    await until(lambda: host.client.ready)
    assert await ask(host) == ("aaa", FinishReason.LENGTH)
    assert host.client.stats().restarts == 1


async def test_one_that_cannot_be_started_again_is_tried_until_it_can(start, tmp_path):
    what = tmp_path / "what"
    what.write_text("serve")
    host = await start(what)
    what.write_text("refuse")
    os.kill(int(children()[0]), signal.SIGKILL)
    await until(lambda: "the weights are missing" in host.client.unready_reason)
    with pytest.raises(UnavailableError, match="cannot be started"):
        await ask(host)
    what.write_text("serve")
    await until(lambda: host.client.ready)
    assert await ask(host) == ("aaa", FinishReason.LENGTH)


async def test_one_that_does_not_stop_is_killed(start, monkeypatch, caplog):
    monkeypatch.setattr(supervisor, "STOP_SECONDS", 0.2)
    host = await start("hang")
    await asyncio.wait_for(host.stop(), LIMIT)
    assert "was killed" in caplog.text
    assert children() == []
    with pytest.raises(UnavailableError, match="shutting down"):
        await ask(host)


async def test_who_leaves_is_told_to_the_engine(start, capfd):
    host = await start()
    stream = host.client.generate(request(max_tokens=None))
    await anext(stream)
    await stream.aclose()
    waiting = asyncio.create_task(ask(host, max_tokens=None))
    await until(lambda: len(host.client._streams) == 1)
    waiting.cancel()
    with pytest.raises(asyncio.CancelledError):
        await waiting
    assert await ask(host) == ("aaa", FinishReason.LENGTH)
    await host.stop()
    assert sorted(capfd.readouterr().err.split("\n")[:-1]) == ["abort 0", "abort 1"]


async def test_starts_and_stops_leak_no_descriptor(start):
    await (await start()).stop()
    before = descriptors()
    for _ in range(3):
        host = await start()
        os.kill(int(children()[0]), signal.SIGKILL)
        await until(lambda client=host.client: not client.ready)
        await until(lambda client=host.client: client.ready)
        await host.stop()
    assert descriptors() == before


class ScriptedProcess:
    """The way to an engine that ends when the test says so."""

    reason = ""
    asleep = False

    def __init__(self):
        self.died = asyncio.Event()
        self.closed = None
        self.description = EngineDescription(max_model_len=16, vocab_size=8)

    def send(self, message):
        pass

    async def watch(self, *_, **__):
        return await self.died.wait()

    def sever(self):
        pass

    async def end(self, *, patience):
        return "exit code 1"


async def test_a_start_that_fails_in_an_unforeseen_way_is_tried_again(monkeypatch):
    first, last = ScriptedProcess(), ScriptedProcess()
    outcomes = iter([first, TypeError("unforeseen"), last])

    async def launch(self, progress):
        outcome = next(outcomes)
        if isinstance(outcome, Exception):
            raise outcome
        return outcome

    monkeypatch.setattr(EngineSupervisor, "_launch", launch)
    monkeypatch.setattr(supervisor, "FIRST_BACKOFF_SECONDS", 0.001)
    host = EngineSupervisor(EngineOptions("model"), str)
    await host.start()
    host.open(None)
    assert host.client.ready
    first.died.set()
    async with asyncio.timeout(60):
        while host._process is not last or not host.client.ready:  # noqa: ASYNC110 (it says nothing)
            await asyncio.sleep(0)
    await host.stop()
    assert not host.client.ready


async def test_a_watch_that_raises_starts_the_engine_anew(monkeypatch, caplog):
    first, last = ScriptedProcess(), ScriptedProcess()
    outcomes = iter([first, last])

    async def launch(self, progress):
        return next(outcomes)

    async def watch(*_, **__):
        if first.died.is_set():
            return True
        first.died.set()
        raise TypeError("unforeseen")

    first.watch = watch
    monkeypatch.setattr(EngineSupervisor, "_launch", launch)
    monkeypatch.setattr(supervisor, "FIRST_BACKOFF_SECONDS", 0.001)
    host = EngineSupervisor(EngineOptions("model"), str)
    await host.start()
    host.open(None)
    async with asyncio.timeout(60):
        while host._process is not last or not host.client.ready:  # noqa: ASYNC110 (it says nothing)
            await asyncio.sleep(0)
    assert "the engine's state is not known" in caplog.text
    await host.stop()
