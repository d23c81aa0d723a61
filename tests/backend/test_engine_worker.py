"""The engine in its own process: killed, left by clients, left by its parent."""

import asyncio
import os
import signal

import orjson

pytest_plugins = ["running_backend", "server_process"]

LIMIT = 120.0
# Minutes of work for the tiny model.
LONG = {"prompt": "a", "max_tokens": 400, "n": 128, "ignore_eos": True}


async def test_a_killed_engine_fails_what_is_open_and_comes_back(server_process):
    server = server_process
    first = server.engine_pid()
    streamed = await server.post(**LONG, stream=True)
    assert streamed.status == 200
    plain = asyncio.create_task(server.post(**LONG))
    waiting = asyncio.create_task(server.post(**LONG, stream=True))
    await server.until_running(True)
    os.kill(first, signal.SIGKILL)
    # All of them, at once and long before there is another engine.
    events = (await asyncio.wait_for(streamed.text(), LIMIT)).strip().split("\n\n")
    error = orjson.loads(events[-1].removeprefix("data: "))["error"]
    assert (error["type"], error["code"]) == ("server_error", "engine_error")
    for task in (plain, waiting):
        reply = await asyncio.wait_for(task, LIMIT)
        assert reply.status == 500 or "engine_error" in await reply.text()
    status, reasons = await server.readiness()
    assert status == 503
    assert "died" in reasons[0]
    async with server.post(prompt="a", max_tokens=1) as reply:
        assert reply.status == 503
        assert int(reply.headers["Retry-After"]) >= 1
        assert set((await reply.json())["error"]) == {"message", "type", "param", "code"}

    async def ready():
        return (await server.readiness())[0] == 200

    await server.until(ready)
    assert server.engine_pid() != first
    assert not server.has_process(first)
    async with server.post(prompt="a", max_tokens=4, ignore_eos=True) as reply:
        assert (await reply.json())["usage"]["completion_tokens"] == 4
    assert await server.metric("refrain_engine_restarts_total") == 1
    # Clients that leave, while we have a server.
    for stream in (False, True):
        asked = asyncio.create_task(server.post(**LONG, stream=stream))
        await server.until_running(True)
        if stream:
            (await asked).close()
        else:
            asked.cancel()
            await asyncio.gather(asked, return_exceptions=True)

        async def idle():
            names = ("running", "waiting")
            counts = [await server.metric(f"refrain_engine_sequences_{name}") for name in names]
            return not any(counts) and not await server.metric("refrain_engine_kv_blocks_used")

        await server.until(idle)
    assert await server.metric("refrain_engine_generation_tokens_total") < 128 * 400
    assert await server.metric("refrain_engine_tokens_after_disconnect_total") < 1000


async def test_the_engine_goes_with_a_server_that_is_killed(server_process):
    server = server_process
    engine = server.engine_pid()
    asked = asyncio.create_task(server.post(**LONG))
    await server.until_running(True)
    server.process.kill()
    await server.process.wait()
    await asyncio.gather(asked, return_exceptions=True)
    await server.ended(engine)
