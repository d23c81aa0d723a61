"""An engine that is there and does nothing: found, ended, replaced; and one that only takes long.

The watch's turns end when the test says so, so how fast the machine is decides nothing.
"""

import asyncio
import os
import signal
import threading
from asyncio.subprocess import Process
from contextlib import aclosing

import pytest
from fake_engine import STUCK
from host_requests import LIMIT, ask, children, request, until

from backend.engine import engine, supervisor
from backend.engine.loading import load_engine
from backend.engine.messages import EngineDescription, Loaded, Loading, Ping
from backend.engine.supervisor import TICKS, EngineProcess, EngineSupervisor
from backend.engine.wire import encode
from backend.models.config import ModelLoadError
from backend.ports import EngineError, UnavailableError
from backend.scheduler.request import FinishReason, GenerationRequest, SamplingParams
from backend.settings import EngineOptions
from backend.tokenizer.tokenizer import Tokenizer

pytest_plugins = ["running_host", "running_backend"]

FOUND_IN = TICKS + 2
"""Turns from a request's coming: it may have begun one that was under way."""
# Minutes of work for the tiny model.
LONG = GenerationRequest("r", (1,), SamplingParams(max_tokens=400, ignore_eos=True), n=128)


class Turns:
    """Those of the watch: each lasts until ``go``."""

    def __init__(self):
        self.seconds = None
        self._going = None
        self._begun = asyncio.Event()

    async def __call__(self, over, seconds):
        self.seconds = seconds
        self._going = asyncio.get_running_loop().create_future()
        self._begun.set()
        await asyncio.wait((over, self._going), return_when=asyncio.FIRST_COMPLETED)
        if over.done():
            self._begun.clear()
        return over.done()

    async def go(self, turns=1):
        """Let turns end; the last one is being judged when this returns."""
        for _ in range(turns):
            async with asyncio.timeout(LIMIT):
                await self._begun.wait()
            self._begun.clear()
            self._going.set_result(None)

    async def judged(self):
        """Wait until another turn has begun."""
        async with asyncio.timeout(LIMIT):
            await self._begun.wait()

    async def until_given_up(self, host):
        """Let turns end until the engine is given up; what it said before may still be heard."""
        gone = 0
        async with asyncio.timeout(LIMIT):
            while host.client.ready:
                if self._begun.is_set():
                    await self.go()
                    gone += 1
                await asyncio.sleep(0)
        assert TICKS < gone <= 2 * FOUND_IN


@pytest.fixture
def turns(monkeypatch):
    turns = Turns()
    monkeypatch.setattr(supervisor, "_tick", turns)
    return turns


def pid():
    (pid,) = children()
    return int(pid)


def stop(process):
    os.kill(process, signal.SIGSTOP)


async def begun(host, token=1):
    """Return a request without end of which there is a token."""
    stream = host.client.generate(request(token, max_tokens=None))
    await asyncio.wait_for(anext(stream), LIMIT)
    return stream


async def fails(stream):
    with pytest.raises(EngineError, match="hung"):
        await asyncio.wait_for(anext(stream), LIMIT)


async def to_its_end(stream):
    async for _ in stream:
        pass


async def test_a_process_that_stands_still_fails_all_its_requests_and_another_takes_its_place(
    start, turns, caplog
):
    host = await start(step_seconds=60.0)
    streams = [await begun(host), await begun(host)]
    waiting = asyncio.create_task(ask(host, token=2))
    first = pid()
    stop(first)
    await turns.until_given_up(host)
    for stream in streams:
        await fails(stream)
    await asyncio.wait((waiting,), timeout=LIMIT)
    assert waiting.exception() is None or "hung" in str(waiting.exception())
    with pytest.raises(UnavailableError, match="hung and is being started again"):
        await ask(host)
    await until(lambda: host.client.ready)
    assert pid() != first
    assert await ask(host) == ("aaa", FinishReason.LENGTH)
    assert host.client.stats().restarts == 1
    assert "hung (SIGKILL)" in caplog.text
    assert turns.seconds == 60.0 / TICKS


async def test_a_step_that_never_returns_is_found_and_the_next_engine_serves(start, turns):
    host = await start()
    stuck = asyncio.create_task(ask(host, token=STUCK))
    await until(lambda: host.client.has_requests)
    await turns.until_given_up(host)
    with pytest.raises(EngineError, match="hung"):
        await asyncio.wait_for(stuck, LIMIT)
    await until(lambda: host.client.ready)
    assert await ask(host) == ("aaa", FinishReason.LENGTH)


async def test_a_hang_is_found_though_its_only_client_has_left(start, turns):
    host = await start()
    stuck = asyncio.create_task(ask(host, token=STUCK))
    await until(lambda: host.client.has_requests)
    await turns.go(2)
    await turns.judged()
    stuck.cancel()
    await asyncio.wait((stuck,), timeout=LIMIT)
    await until(lambda: not host.client.has_requests)
    await turns.go(TICKS)
    await until(lambda: host.client.stats().restarts == 1)


async def test_who_is_idle_is_left_alone_and_found_by_the_next_request_if_it_hangs(start, turns):
    host = await start()
    first = pid()
    stop(first)
    await turns.go(10 * TICKS)
    await turns.judged()
    assert host.client.ready
    os.kill(first, signal.SIGCONT)
    assert await ask(host) == ("aaa", FinishReason.LENGTH)
    stop(first)
    asked = asyncio.create_task(ask(host))
    await until(lambda: host.client.has_requests)
    await turns.until_given_up(host)
    with pytest.raises(EngineError, match="hung"):
        await asyncio.wait_for(asked, LIMIT)


async def test_an_engine_that_only_says_nothing_answers_when_it_is_asked(start, turns):
    # Its client reads slowly, or a grammar is being compiled.
    host = await start()
    stream = await begun(host)
    first = pid()
    await turns.go()  # in which the token was heard
    for _ in range(3 * TICKS):
        await turns.go()
        await until(lambda: host._process._heard)
        await turns.go()
    await turns.judged()
    assert (host.client.ready, pid()) == (True, first)
    await stream.aclose()


async def test_one_that_wakes_up_after_it_was_given_up_is_not_heard_any_more(
    start, turns, monkeypatch, caplog
):
    monkeypatch.setattr(Process, "kill", lambda self: os.kill(self.pid, signal.SIGCONT))
    host = await start()
    stream = await begun(host)
    first = pid()
    stop(first)
    late = asyncio.create_task(ask(host, token=2))
    await until(lambda: len(host.client._streams) == 2)
    await turns.until_given_up(host)
    await fails(stream)
    with pytest.raises(EngineError, match="hung"):
        await asyncio.wait_for(late, LIMIT)
    await until(lambda: host.client.ready)
    assert "hung (exit code 0)" in caplog.text  # it found nobody at the other end
    assert pid() != first
    assert await ask(host) == ("aaa", FinishReason.LENGTH)


async def test_one_that_not_even_sigkill_ends_is_left_behind(start, turns, monkeypatch, caplog):
    with monkeypatch.context() as patch:
        patch.setattr(Process, "kill", lambda _: None)
        patch.setattr(supervisor, "KILL_SECONDS", 0.01)
        host = await start()
        stream = await begun(host)
        process = host._process._process
        stop(process.pid)
        await turns.until_given_up(host)
        await fails(stream)
        await until(lambda: host.client.ready)
        assert await ask(host) == ("aaa", FinishReason.LENGTH)
    assert f"process {process.pid} was killed and is still there" in caplog.text
    process.kill()
    await asyncio.wait_for(process.wait(), LIMIT)


async def test_a_stop_while_a_hung_engine_is_ended_leaves_no_process(start, turns):
    host = await start()
    stream = await begun(host)
    stop(pid())
    await turns.until_given_up(host)
    await fails(stream)
    await asyncio.wait_for(host.stop(), LIMIT)
    assert children() == []


async def test_a_stopped_process_is_stopped_for_good_with_its_server(start, monkeypatch, caplog):
    monkeypatch.setattr("backend.engine.supervisor.STOP_SECONDS", 0.01)
    host = await start()
    stop(pid())
    await asyncio.wait_for(host.stop(), LIMIT)
    assert "was killed" in caplog.text
    assert children() == []


async def test_loading_that_stands_still_is_given_up(start, turns):
    stages = []
    loading = asyncio.create_task(start("freeze", stages, load_seconds=90.0))
    await until(lambda: stages)
    await turns.go(FOUND_IN)
    with pytest.raises(ModelLoadError, match=r"for 90 s while loading \(trying to freeze\)$"):
        await asyncio.wait_for(loading, LIMIT)
    assert children() == []


async def test_loading_may_take_any_time_while_it_tells_of_progress(turns):
    told = []
    link = EngineProcess(lambda _: None, told.append)
    loading = asyncio.create_task(link.load(1.0))
    for layer in range(10):
        await turns.go(TICKS)
        await turns.judged()
        link.data_received(encode(Loading(f"{layer} of 10 layers")))
        await turns.go()
    link.data_received(encode(Loaded(EngineDescription(100, 50))))
    await asyncio.wait_for(loading, LIMIT)
    assert (len(told), link.description.max_model_len) == (10, 100)


async def test_an_engine_that_hangs_while_it_is_started_again_is_tried_once_more(
    start, turns, tmp_path
):
    what = tmp_path / "what"
    what.write_text("serve")
    host = await start(what)
    what.write_text("freeze")
    os.kill(pid(), signal.SIGKILL)
    await until(lambda: "trying to freeze" in host.client.unready_reason)
    what.write_text("serve")
    await turns.go(FOUND_IN)
    await until(lambda: host.client.ready)
    assert await ask(host) == ("aaa", FinishReason.LENGTH)


async def test_the_real_engine_answers_when_idle_and_is_replaced_when_it_stands_still(
    chat_model, turns
):
    stages = []
    host = EngineSupervisor(EngineOptions(str(chat_model), device="cpu", threads=1), stages.append)
    await host.start()
    assert any("2 of 2 layers" in stage for stage in stages)
    host.open(Tokenizer.load(chat_model))
    try:
        await turns.go()
        await turns.judged()
        host._send(Ping())
        await until(lambda: host._process._heard)
        asked = host.client.generate(LONG)
        async with aclosing(asked):
            await asyncio.wait_for(anext(asked), LIMIT)
            stop(host._process._process.pid)
            await turns.until_given_up(host)
            with pytest.raises(EngineError, match="hung"):
                await asyncio.wait_for(to_its_end(asked), LIMIT)
    finally:
        await host.stop()


async def test_a_ping_is_answered_in_the_turn_in_which_it_comes_whatever_runs(
    chat_model, monkeypatch
):
    monkeypatch.setattr(engine, "THREAD_STATS_SECONDS", 1e9)
    running, _ = load_engine(str(chat_model), device="cpu", threads=1)
    answers = threading.Semaphore(0)

    def receive(report):
        if report.stats is not None and report.stats.running:
            answers.release()
        type(running).receive(running, report)

    monkeypatch.setattr(running, "receive", receive)
    running.start()
    try:
        async with aclosing(running.generate(LONG)) as asked:
            await asyncio.wait_for(anext(asked), LIMIT)
            assert await asyncio.to_thread(answers.acquire, timeout=LIMIT)  # the first are told
            running._send(Ping())
            assert await asyncio.to_thread(answers.acquire, timeout=LIMIT)
    finally:
        running.stop()
