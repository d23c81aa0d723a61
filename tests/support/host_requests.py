"""What tests ask of an engine's host, and what they see of its processes."""

import asyncio
import os
from pathlib import Path

from backend.scheduler.request import GenerationRequest, SamplingParams
from backend.scheduler.stopping import ByteLevelDetokenizer

LIMIT = 30.0


class Letters:
    """Token 1 is "a", and so on."""

    def detokenizer(self, markup=(), context=()):
        return ByteLevelDetokenizer(lambda token: bytes([96 + token]))


def children():
    tasks = Path(f"/proc/{os.getpid()}/task").iterdir()
    pids = [pid for task in tasks for pid in read(task / "children").decode().split()]
    return [pid for pid in pids if b"fake_engine" in read(Path(f"/proc/{pid}/cmdline"))]


def read(path):
    try:
        return path.read_bytes()
    except (FileNotFoundError, ProcessLookupError):
        return b""  # a thread or a process that has ended since it was listed


def request(token=1, max_tokens=3):
    return GenerationRequest("r", (token,), SamplingParams(max_tokens=max_tokens))


async def ask(host, **fields):
    deltas = [delta async for delta in host.client.generate(request(**fields))]
    return "".join(delta.text for delta in deltas), deltas[-1].finish_reason


async def until(condition):
    async with asyncio.timeout(LIMIT):
        while not condition():  # noqa: ASYNC110 (a process of its own)
            await asyncio.sleep(0.005)
