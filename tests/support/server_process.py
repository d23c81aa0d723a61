"""``refrain backend`` as a process, and the processes of its engine."""

import asyncio
import os
import re
import sys
from pathlib import Path

import pytest
from aiohttp import ClientSession

ROOT = Path(__file__).parents[2]
LIMIT = 120.0
MODULE = "backend.engine.worker"


def workers(parent):
    path = Path(f"/proc/{parent}/task/{parent}/children")
    return [
        int(pid)
        for pid in path.read_text().split()
        if MODULE in Path(f"/proc/{pid}/cmdline").read_text().split("\0")
    ]


class Server:
    """``refrain backend`` as a process, and its engine's."""

    def __init__(self, process, url, session):
        self.process = process
        self.url = url
        self.session = session

    def engine_pid(self):
        (pid,) = workers(self.process.pid)
        return pid

    def rank_pids(self):
        """The engine's ranks but the first."""
        return workers(self.engine_pid())

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

    def has_process(self, pid):
        return Path(f"/proc/{pid}").exists()

    async def ended(self, pid):
        async with asyncio.timeout(LIMIT):
            while self.has_process(pid):  # noqa: ASYNC110 (no child of ours)
                await asyncio.sleep(0.01)

    async def until_running(self, wanted):
        async def holds():
            return (await self.metric("refrain_engine_sequences_running") > 0) is wanted

        await self.until(holds)


@pytest.fixture
def server_options():
    """More options of the command; a test's module may have its own."""
    return ()


@pytest.fixture
async def server_process(chat_model, server_options):
    process = await asyncio.create_subprocess_exec(
        *(sys.executable, "-m", "backend", "--model", str(chat_model), "--port", "0"),
        *("--served-model-name", "tiny", "--device", "cpu", "--threads", "1"),
        *server_options,
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
