"""What a client is told when too many came before it: at once, or after it has waited."""

import asyncio
import threading
from dataclasses import replace

import pytest

pytest_plugins = ["running_backend"]

LIMIT = 60.0
NO_TIME = 1e-6
"""Shorter than any step, on any machine."""
MESSAGE = [{"role": "user", "content": "Hi"}]


@pytest.fixture
async def held(start_real_server):
    """Start a server whose steps wait for ``release``, once it is warm."""
    releases = []

    async def start(**options):
        server = await start_real_server(max_num_seqs=1, **options)
        runner, release = server.generator._core.runner, threading.Event()
        launch = runner.launch

        def wait(step):
            assert release.wait(LIMIT)
            return launch(step)

        runner.launch = wait
        releases.append(release)
        server.release = release
        return server

    yield start
    for release in releases:
        release.set()


def ask(server, **headers):
    body = {"model": server.model.name, "messages": MESSAGE, "max_tokens": 3, "ignore_eos": True}
    return server.session.post(f"{server.url}/v1/chat/completions", json=body, headers=headers)


async def status_of(asked):
    async with asked as reply:
        return reply.status, dict(reply.headers), await reply.json()


async def until(server, condition):
    async with asyncio.timeout(LIMIT):
        while not condition():  # noqa: ASYNC110 (steps are silent)
            await asyncio.sleep(0)


async def test_a_full_queue_is_told_at_once_and_later_there_is_room(held):
    server = await held(max_waiting=2)
    core = server.generator._core
    open_requests = [asyncio.create_task(status_of(ask(server)))]
    # One computes; the loop is inside of its step and takes the others only after it.
    await until(server, lambda: core.scheduler.num_steps_in_flight)
    open_requests += [asyncio.create_task(status_of(ask(server))) for _ in range(5)]
    await until(server, lambda: server.generator._inbox.qsize() == 5)
    server.release.set()
    answers = [await asyncio.wait_for(task, LIMIT) for task in open_requests]
    refused = [answer for answer in answers if answer[0] == 429]
    assert [status for status, _, _ in answers].count(200) == 3
    assert len(refused) == 3
    for _, headers, body in refused:
        assert int(headers["Retry-After"]) >= 1
        assert (body["error"]["type"], body["error"]["code"]) == ("rate_limit_error", "queue_full")
        assert set(body["error"]) == {"message", "type", "param", "code"}
    assert (await status_of(ask(server)))[0] == 200


@pytest.mark.parametrize("by", ["flag", "header"])
async def test_who_waited_for_too_long_is_told_and_nothing_was_computed(held, by):
    server = await held()
    core = server.generator._core
    if by == "flag":  # which is too short for the warm-up
        core.limits = replace(core.limits, queue_seconds=NO_TIME)
    patient = asyncio.create_task(status_of(ask(server, **{"X-Refrain-Queue-Timeout": "30"})))
    await until(server, lambda: core.scheduler.num_steps_in_flight)
    headers = {} if by == "flag" else {"X-Refrain-Queue-Timeout": f"{NO_TIME:f}"}
    late = [asyncio.create_task(status_of(ask(server, **headers))) for _ in range(2)]
    await until(server, lambda: server.generator._inbox.qsize() == 2)
    server.release.set()
    for task in late:
        status, headers, body = await asyncio.wait_for(task, LIMIT)
        assert (status, body["error"]["code"]) == (503, "queue_timeout")
        assert int(headers["Retry-After"]) >= 1
    assert (await asyncio.wait_for(patient, LIMIT))[0] == 200
    assert server.generator.stats().kv_blocks_used == 0
    assert server.generator.stats().generated_tokens == 1 + 3  # the warm-up's and one answer's


async def test_more_choices_than_may_ever_wait_are_no_overload(held):
    server = await held(max_waiting=1)
    server.release.set()
    body = {"model": server.model.name, "messages": MESSAGE, "n": 2, "max_tokens": 2}
    reply = await server.post("/v1/chat/completions", body)
    assert (reply.status, reply.error["code"]) == (400, "rejected")
    assert "2 choices" in reply.error["message"]


@pytest.mark.parametrize("n", [1, 2])
async def test_more_prompts_than_may_ever_wait_are_no_overload(held, n):
    server = await held(max_waiting=2)
    server.release.set()
    reply = await server.complete(["one", "two", "three"], n=n, max_tokens=2)
    assert (reply.status, reply.error["code"]) == (400, "rejected")
    assert f"{3 * n} choices are more than the 2 sequences that may wait" in reply.error["message"]
    assert server.generator.stats().generated_tokens == 1  # the warm-up's
    assert (await server.complete(["one", "two"], max_tokens=2)).status == 200


async def test_a_stream_that_never_began_is_refused_with_a_status(held):
    server = await held(max_waiting=1)
    core = server.generator._core
    first = asyncio.create_task(status_of(ask(server)))
    await until(server, lambda: core.scheduler.num_steps_in_flight)
    second = asyncio.create_task(status_of(ask(server)))
    await until(server, lambda: server.generator._inbox.qsize() == 1)
    body = {"model": "tiny", "messages": MESSAGE, "stream": True, "max_tokens": 2}
    asked = asyncio.create_task(server.post("/v1/chat/completions", body))
    await until(server, lambda: server.generator._inbox.qsize() == 2)
    server.release.set()
    reply = await asyncio.wait_for(asked, LIMIT)
    assert (reply.status, reply.error["code"]) == (429, "queue_full")
    assert [(await each)[0] for each in (first, second)] == [200, 200]


@pytest.mark.parametrize("value", ["0", "-1", "soon", "nan", "inf", ""])
async def test_a_queue_timeout_that_is_no_time(server, value):
    status, _, body = await status_of(ask(server, **{"X-Refrain-Queue-Timeout": value}))
    assert (status, body["error"]["param"]) == (400, "X-Refrain-Queue-Timeout")
