"""Ranks as processes: killed, left by rank 0 and by the server, and two groups at a time."""

import asyncio
import os
import signal
from pathlib import Path

import orjson
import pytest
import torch

from backend.engine.supervisor import EngineSupervisor
from backend.executor.shared_memory import Shared
from backend.scheduler.request import GenerationRequest, SamplingParams
from backend.settings import EngineOptions
from backend.tokenizer.tokenizer import Tokenizer

pytest_plugins = ["running_backend", "server_process", "tiny_checkpoints"]

LIMIT = 120.0
# Minutes of work for the tiny model.
LONG = {"prompt": "a", "max_tokens": 400, "n": 128, "ignore_eos": True}
GREEDY = SamplingParams(temperature=0.0, max_tokens=24, ignore_eos=True)


@pytest.fixture
def server_options():
    return ("--tensor-parallel-size", "2")


async def test_a_killed_rank_ends_what_is_open_and_the_group_comes_back(server_process):
    server = server_process
    first, (rank,) = server.engine_pid(), server.rank_pids()
    streamed = await server.post(**LONG, stream=True)
    plain = asyncio.create_task(server.post(**LONG))
    await server.until_running(True)
    os.kill(rank, signal.SIGKILL)
    events = (await asyncio.wait_for(streamed.text(), LIMIT)).strip().split("\n\n")
    error = orjson.loads(events[-1].removeprefix("data: "))["error"]
    assert error["code"] == "engine_error"
    assert "rank 1 of 2 was ended by SIGKILL" in error["message"]
    reply = await asyncio.wait_for(plain, LIMIT)
    assert reply.status == 500
    assert "rank 1 of 2 was ended by SIGKILL" in await reply.text()
    await server.ended(first)

    async def ready():
        return (await server.readiness())[0] == 200

    await server.until(ready)
    async with server.post(prompt="a", max_tokens=4, ignore_eos=True) as reply:
        assert (await reply.json())["usage"]["completion_tokens"] == 4
    # Rank 0 alone, and then the server.
    engine, (rank,) = server.engine_pid(), server.rank_pids()
    os.kill(engine, signal.SIGKILL)
    await server.ended(rank)
    await server.until(ready)
    assert await server.metric("refrain_engine_restarts_total") == 2
    engine, (rank,) = server.engine_pid(), server.rank_pids()
    asked = asyncio.create_task(server.post(**LONG))
    await server.until_running(True)
    server.process.kill()
    await server.process.wait()
    await asyncio.gather(asked, return_exceptions=True)
    await server.ended(engine)
    await server.ended(rank)


def host_of(directory, **options):
    options = {"device": "cpu", "threads": 2, "tensor_parallel_size": 2, **options}
    return EngineSupervisor(EngineOptions(str(directory), **options), lambda _: None)


async def tokens_of(host, prompt):
    request = GenerationRequest("r", prompt, GREEDY)
    return [
        int(word) async for delta in host.client.generate(request) for word in delta.text.split()
    ]


async def test_two_groups_at_a_time_compute_each_its_own(checkpoint):
    families = ("llama", "qwen3")
    hosts = [host_of(checkpoint(family)[0]) for family in families]
    try:
        await asyncio.gather(*(host.start() for host in hosts))
        for host, family in zip(hosts, families, strict=True):
            host.open(Tokenizer.load(checkpoint(family)[0]))
        prompt = tuple(range(30, 70))
        found = await asyncio.gather(*(tokens_of(host, prompt) for host in hosts))
        with torch.inference_mode():
            for family, tokens in zip(families, found, strict=True):
                output = checkpoint(family)[1].generate(
                    torch.tensor([prompt]), max_new_tokens=24, do_sample=False
                )
                assert tokens == output[0, len(prompt) :].tolist()
        # Both ranks of one sleep, while the other computes.
        await hosts[0].sleep(1, 0.0)
        assert await tokens_of(hosts[1], prompt) == found[1]
        assert await tokens_of(hosts[0], prompt) == found[0]
    finally:
        await asyncio.gather(*(host.stop() for host in hosts))


def test_all_ranks_share_the_descriptors_and_none_has_a_name():
    shared = Shared.make(3)
    assert len(shared.descriptors) == 7
    assert not any(map(os.get_inheritable, shared.descriptors))
    assert "memfd:ranks" in str(Path(f"/proc/self/fd/{shared.memory}").readlink())
    for each in shared.descriptors:
        os.close(each)
