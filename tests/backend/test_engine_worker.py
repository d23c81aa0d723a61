"""The engine in its own process: killed, left by clients, left by its parent."""

import asyncio
import os
import re
import signal
import sys
from pathlib import Path

import orjson
import pytest
from aiohttp import ClientSession

pytest_plugins = ["running_backend"]

ROOT = Path(__file__).parents[2]
LIMIT = 120.0
MODULE = "backend.engine.worker"
# Minutes of work for the tiny model.
LONG = {"prompt": "a", "max_tokens": 400, "n": 128, "ignore_eos": True}


class Server:
    """``refrain backend`` as a process, and its engine's."""

    def __init__(self, process, url, session):
        self.process = process
        self.url = url
        self.session = session

    def engine_pid(self):
        path = Path(f"/proc/{self.process.pid}/task/{self.process.pid}/children")
        (pid,) = [
            int(pid)
            for pid in path.read_text().split()
            if MODULE in Path(f"/proc/{pid}/cmdline").read_text().split("\0")
        ]
        return pid

    def post(self, **fields):
        return self.session.post(f"{self.url}/v1/completions", json={"model": "tiny", **fields})

    async def readiness(self):
        async with self.session.get(f"{self.url}/readyz") as reply:
            return reply.status, (await reply.json())["reasons"]

    async def metric(self, name):
        async with self.session.get(f"{self.url}/metrics") as reply:
            found = re.search(rf"^{name} (\S+)$", await reply.text(), re.MULTILINE)
            return None if found is None else float(found[1])

    async def until(self, condition):
        async with asyncio.timeout(LIMIT):
            while not await condition():  # noqa: ASYNC110 (a process of its own)
                await asyncio.sleep(0.01)

    async def until_running(self, wanted):
        async def holds():
            return (await self.metric("refrain_engine_sequences_running") > 0) is wanted

        await self.until(holds)


@pytest.fixture
async def server(chat_model):
    process = await asyncio.create_subprocess_exec(
        *(sys.executable, "-m", "backend", "--model", str(chat_model), "--port", "0"),
        *("--served-model-name", "tiny", "--device", "cpu", "--threads", "1"),
        cwd=ROOT,
        env={**os.environ, "HF_HUB_OFFLINE": "1"},
        stdin=asyncio.subprocess.DEVNULL,
        stderr=asyncio.subprocess.PIPE,
    )
    url, said = None, []
    async with asyncio.timeout(LIMIT):
        while line := (await process.stderr.readline()).decode():
            said.append(line)
            if found := re.search(r"listening on (http://[\w.:]+)", line):
                url = found[1]
            if "is ready" in line:
                break
    assert url, said
    reading = asyncio.create_task(process.stderr.read())
    async with ClientSession() as session:
        yield Server(process, url, session)
    if process.returncode is None:
        process.terminate()
        assert await asyncio.wait_for(process.wait(), LIMIT) == 0
        said = (await reading).decode()
        assert "Traceback" not in said, said
    await reading


def exists(pid):
    return Path(f"/proc/{pid}").exists()


async def ended(pid):
    async with asyncio.timeout(LIMIT):
        while exists(pid):  # noqa: ASYNC110 (no child of ours)
            await asyncio.sleep(0.01)


async def test_a_killed_engine_fails_what_is_open_and_comes_back(server):
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
    assert not exists(first)
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


async def test_the_engine_goes_with_a_server_that_is_killed(server):
    engine = server.engine_pid()
    asked = asyncio.create_task(server.post(**LONG))
    await server.until_running(True)
    server.process.kill()
    await server.process.wait()
    await asyncio.gather(asked, return_exceptions=True)
    await ended(engine)
