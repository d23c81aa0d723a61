"""An engine that sleeps: who wakes it, who is refused, and what becomes of its process."""

import asyncio
import os
import signal

import pytest
from host_requests import LIMIT, ask, children, request, until

from backend.engine import supervisor
from backend.ports import BusyError, UnavailableError
from backend.scheduler.request import FinishReason

pytest_plugins = ["running_host"]

ANSWER = ("aaa", FinishReason.LENGTH)


@pytest.mark.parametrize("level", [1, 2])
async def test_a_request_wakes_an_engine_that_sleeps(start, level):
    host = await start()
    await host.sleep(level, 0.0)
    assert (host.sleep_level, host.client.ready) == (level, True)
    assert host.client.detail == (f"the engine sleeps (level {level}); a request wakes it",)
    assert len(children()) == 2 - level
    assert await asyncio.gather(*(ask(host) for _ in range(3))) == [ANSWER] * 3
    assert (host.sleep_level, host.client.detail) == (0, ())
    assert host.client.stats().restarts == 0


@pytest.mark.parametrize("level", [1, 2])
async def test_where_requests_do_not_wake_it_they_are_refused(start, level):
    host = await start(wakes=False)
    await host.sleep(level, 0.0)
    assert not host.client.ready
    with pytest.raises(UnavailableError, match=f"sleeps .level {level}."):
        await ask(host)
    await host.wake()
    assert await ask(host) == ANSWER


async def test_it_sleeps_when_the_last_request_has_ended_and_not_before(start):
    host = await start()
    stream = host.client.generate(request(max_tokens=None))
    assert (await anext(stream)).text == "a"
    with pytest.raises(BusyError):
        await host.sleep(1, 0.0)
    assert await ask(host) == ANSWER
    sleeping = asyncio.create_task(host.sleep(1, LIMIT))
    await asyncio.sleep(0)
    assert not sleeping.done()
    await stream.aclose()
    await sleeping
    assert host.sleep_level == 1


async def test_it_falls_deeper_but_never_by_half(start):
    host = await start()
    await host.sleep(1, 0.0)
    await host.sleep(2, 0.0)
    assert children() == []
    await host.sleep(1, 0.0)
    assert host.sleep_level == 2
    assert await ask(host) == ANSWER


async def test_one_that_is_killed_in_its_sleep_comes_back_when_it_is_wanted(start):
    host = await start()
    await host.sleep(1, 0.0)
    os.kill(int(children()[0]), signal.SIGKILL)
    await until(lambda: host.sleep_level == 2)
    assert children() == []
    assert await ask(host) == ANSWER


async def test_a_request_does_not_wait_for_a_sleeper_that_is_dead(start):
    host = await start()
    await host.sleep(1, 0.0)
    process = host._process
    os.kill(int(children()[0]), signal.SIGKILL)
    await process.closed
    assert await asyncio.wait_for(ask(host), LIMIT) == ANSWER
    assert host.client.stats().restarts == 0


async def test_one_that_cannot_be_started_after_its_sleep_is_tried_less_and_less(
    start, monkeypatch
):
    monkeypatch.setattr(supervisor, "FIRST_BACKOFF_SECONDS", 0.1)
    host = await start(load_seconds=1.0)
    tries = []

    async def fail(_):
        tries.append(None)
        raise OSError("no memory for another process")

    await host.sleep(2, 0.0)
    monkeypatch.setattr(host, "_launch", fail)
    with pytest.raises(UnavailableError, match="no memory"):
        await host.wake()
    assert 2 <= len(tries) <= 5


async def test_who_is_asleep_when_a_client_gives_up_is_asleep_for_good(start):
    host = await start("hang")
    sleeping = asyncio.create_task(host.sleep(2, 0.0))
    await until(lambda: host.sleep_level == 2)
    sleeping.cancel()
    await asyncio.gather(sleeping, return_exceptions=True)
    assert await asyncio.wait_for(ask(host), LIMIT) == ANSWER


async def test_one_that_dies_when_it_is_woken_is_started_again(start, tmp_path):
    what = tmp_path / "what"
    what.write_text("dies awake")
    host = await start(what)
    await host.sleep(1, 0.0)
    what.write_text("serve")
    assert await ask(host) == ANSWER
    assert host.client.stats().restarts == 1


async def test_one_that_cannot_come_back_says_why_and_is_tried_again(start, tmp_path):
    what = tmp_path / "what"
    what.write_text("serve")
    host = await start(what, load_seconds=1.0)
    await host.sleep(2, 0.0)
    what.write_text("refuse")
    with pytest.raises(UnavailableError, match="the weights are missing"):
        await ask(host)
    what.write_text("serve")
    await until(lambda: host.client.ready)
    assert await ask(host) == ANSWER


async def test_it_can_be_stopped_while_it_sleeps(start):
    host = await start()
    await host.sleep(2, 0.0)
    await host.stop()
    assert children() == []
