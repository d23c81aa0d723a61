"""The engine's process from outside, with a stand-in inside: loading, dying, stopping, leaking."""

import asyncio
import os
import signal
from pathlib import Path

import pytest

from backend.core.detokenizer import ByteLevelDetokenizer
from backend.core.types import FinishReason, GenerationRequest, SamplingParams
from backend.models.errors import ModelLoadError
from backend.ports import EngineError, RequestRejectedError, UnavailableError
from backend.runtime import engine_host
from backend.runtime.engine_host import EngineHost
from backend.runtime.messages import EngineDescription, EngineOptions

ROOT = Path(__file__).parents[2]
LIMIT = 30.0


class Letters:
    """Token 1 is "a", and so on."""

    def detokenizer(self):
        return ByteLevelDetokenizer(lambda token: bytes([96 + token]))


@pytest.fixture(autouse=True)
def _stand_in(monkeypatch):
    monkeypatch.setattr(engine_host, "MODULE", "fake_engine")
    monkeypatch.setattr(engine_host, "FIRST_BACKOFF_SECONDS", 0.01)
    monkeypatch.setenv("PYTHONPATH", f"{ROOT}{os.pathsep}{ROOT / 'tests' / 'support'}")


@pytest.fixture
async def start():
    hosts = []

    async def run(model="serve", stages=None):
        host = EngineHost(EngineOptions(str(model)), (stages if stages is not None else []).append)
        hosts.append(host)
        await host.start()
        host.open(Letters())
        return host

    yield run
    for host in hosts:
        await host.stop()
    assert children() == []


def children():
    tasks = Path(f"/proc/{os.getpid()}/task").iterdir()
    pids = [pid for task in tasks for pid in read(task / "children").decode().split()]
    return [pid for pid in pids if b"fake_engine" in read(Path(f"/proc/{pid}/cmdline"))]


def read(path):
    try:
        return path.read_bytes()
    except (FileNotFoundError, ProcessLookupError):
        return b""  # a thread or a process that has ended since it was listed


def descriptors():
    return len(list(Path("/proc/self/fd").iterdir()))


def request(token=1, max_tokens=3):
    return GenerationRequest("r", (token,), SamplingParams(max_tokens=max_tokens))


async def ask(host, **fields):
    deltas = [delta async for delta in host.client.generate(request(**fields))]
    return "".join(delta.text for delta in deltas), deltas[-1].finish_reason


async def until(condition):
    async with asyncio.timeout(LIMIT):
        while not condition():  # noqa: ASYNC110 (a process of its own)
            await asyncio.sleep(0.005)


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
    host = EngineHost(EngineOptions("serve"), stages.append)
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
    monkeypatch.setattr(engine_host, "STOP_SECONDS", 0.2)
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


class ScriptedLink:
    """The way to an engine that ends when the test says so."""

    def __init__(self):
        self.closed = asyncio.Event()
        self.description = EngineDescription("directory", max_model_len=16, vocab_size=8)

    def send(self, message):
        pass

    async def end(self, *, patience):
        return "exit code 1"


async def test_a_start_that_fails_in_an_unforeseen_way_is_tried_again(monkeypatch):
    first, last = ScriptedLink(), ScriptedLink()
    outcomes = iter([first, TypeError("unforeseen"), last])

    async def launch(*_):
        outcome = next(outcomes)
        if isinstance(outcome, Exception):
            raise outcome
        return outcome

    monkeypatch.setattr(engine_host, "_launch", launch)
    monkeypatch.setattr(engine_host, "FIRST_BACKOFF_SECONDS", 0.001)
    host = EngineHost(EngineOptions("model"), str)
    await host.start()
    host.open(None)
    assert host.client.ready
    first.closed.set()
    async with asyncio.timeout(10):
        while host._link is not last or not host.client.ready:  # noqa: ASYNC110 (it says nothing)
            await asyncio.sleep(0)
    await host.stop()
    assert not host.client.ready
