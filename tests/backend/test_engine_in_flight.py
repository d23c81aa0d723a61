"""Launching a step before the last one's tokens are known changes no token, whatever goes on."""

import asyncio
import random
import threading

import pytest
import torch
from engine_answers import checked_engines
from model_configs import load_config

from backend.executor.kv_cache import block_bytes
from backend.ports import EngineError
from backend.scheduler.request import FinishReason, GenerationRequest, SamplingParams

pytest_plugins = ["tiny_checkpoints"]

LIMIT = 120.0
SAMPLING = [
    {"temperature": 0.0},
    {"temperature": 1.1, "seed": 5},
    {"temperature": 0.8, "seed": 6, "top_k": 30, "logprobs": 2},
    {"temperature": 0.0, "repetition_penalty": 1.3, "presence_penalty": 0.4},
]


def requests(count):
    generator = random.Random(7)
    for number in range(count):
        prompt = tuple(generator.randrange(320) for _ in range(generator.randrange(1, 90)))
        sampling = SAMPLING[number % len(SAMPLING)]
        params = SamplingParams(max_tokens=generator.randrange(1, 40), ignore_eos=True, **sampling)
        yield GenerationRequest(str(number), prompt, params, n=1 + number % 2)


async def text_of(engine, request):
    texts = {}
    async for delta in engine.generate(request):
        texts[delta.index] = texts.get(delta.index, "") + delta.text
    return texts


async def leave_after(engine, request, count):
    stream = engine.generate(request)
    async for _ in stream:
        count -= 1
        if count <= 0:
            break
    await stream.aclose()


@pytest.fixture
def engine_for(checkpoint):
    with checked_engines() as start:
        yield lambda **options: start(checkpoint("llama")[0], **options)


async def idle(engine):
    async with asyncio.timeout(LIMIT):
        while engine._core.scheduler.has_work or engine.stats().kv_blocks_used:  # noqa: ASYNC110 (silent)
            await asyncio.sleep(0.001)


async def test_the_same_tokens_with_and_without_overlap(checkpoint, engine_for):
    """In chunks, with too few blocks for all, with others leaving, and sampled in every way."""
    per_block = block_bytes(load_config(checkpoint("llama")[0]), torch.float32)
    options = {"max_num_seqs": 6, "max_tokens_per_step": 40, "kv_bytes": 12 * per_block}
    wanted = list(requests(12))
    texts = {}
    for overlap in (False, True):
        engine = engine_for(overlap=overlap, **options)
        leaving = [
            asyncio.create_task(leave_after(engine, request, count))
            for count, request in enumerate(requests(8))
        ]
        texts[overlap] = await asyncio.gather(*(text_of(engine, each) for each in wanted))
        await asyncio.gather(*leaving)
        await idle(engine)
        assert engine.stats().preemptions > 0
    assert texts[True] == texts[False]


async def test_a_step_is_launched_before_the_last_is_collected(engine_for):
    engine = engine_for(overlap=True)
    params = SamplingParams(temperature=0.0, max_tokens=4, ignore_eos=True)
    await text_of(engine, GenerationRequest("r", (1, 2, 3), params))
    runner, order = engine._core.runner, []
    launch, collect = runner.launch, runner.collect

    def launched(step):
        order.append("launch")
        return launch(step)

    def collected(in_flight):
        order.append("collect")
        return collect(in_flight)

    runner.launch, runner.collect = launched, collected
    await text_of(engine, GenerationRequest("r", (1, 2, 3), params))
    assert order == ["launch", *["launch", "collect"] * 3, "collect"]
    order.clear()
    # What was said is counted on the device, so a penalty makes nobody wait.
    params = SamplingParams(temperature=0.0, max_tokens=3, ignore_eos=True, presence_penalty=1.0)
    await text_of(engine, GenerationRequest("r", (1, 2, 3), params))
    assert order == ["launch", *["launch", "collect"] * 2, "collect"]


async def test_an_end_token_costs_one_token_for_nobody(engine_for):
    engine = engine_for(overlap=True)
    params = SamplingParams(temperature=0.0, max_tokens=6, ignore_eos=True, logprobs=0)
    tokens = []
    async for delta in engine.generate(GenerationRequest("r", (9, 8, 7), params)):
        tokens += [each.token for each in delta.logprobs]
    end = next(token for token in tokens[1:] if token not in tokens[: tokens.index(token)])
    params = SamplingParams(temperature=0.0, max_tokens=60, stop_token_ids=frozenset({end}))
    deltas = [d async for d in engine.generate(GenerationRequest("r", (9, 8, 7), params))]
    assert deltas[-1].finish_reason is FinishReason.STOP
    assert deltas[-1].completion_tokens == tokens.index(end) + 1
    await idle(engine)
    assert engine._core.scheduler.num_tokens_after_end == 1


@pytest.mark.parametrize("where", ["launch", "collect"])
async def test_a_step_that_fails_in_flight_fails_its_requests_alone(engine_for, where):
    engine = engine_for(overlap=True)
    wanted = list(requests(4))
    expected = [await text_of(engine, request) for request in wanted]
    runner = engine._core.runner
    original, launch = getattr(runner, where), runner.launch
    bad = set()

    def failing(argument):
        rows = argument.rows
        if where == "launch":
            note(argument)
        if any(row.slot in bad for row in rows):
            raise RuntimeError("kernel launch failed")
        return original(argument)

    def note(step):
        for new in step.new:
            bad.discard(new.slot)
            if new.tokens[0] == 319:
                bad.add(new.slot)

    def noting(step):
        note(step)
        return launch(step)

    runner.launch = noting

    setattr(runner, where, failing)
    params = SamplingParams(temperature=0.0, max_tokens=5)
    with pytest.raises(EngineError, match="failed while it computed"):
        async with asyncio.timeout(LIMIT):
            await text_of(engine, GenerationRequest("bad", (319, 4), params, n=3))
    assert [await text_of(engine, request) for request in wanted] == expected
    await idle(engine)
    assert engine.stats().kv_blocks_used == 0


async def test_a_step_that_finds_no_memory_comes_again_smaller(engine_for):
    engine = engine_for(overlap=True, max_tokens_per_step=200)
    request = GenerationRequest(
        "long", tuple(range(180)), SamplingParams(temperature=0.0, max_tokens=5, ignore_eos=True)
    )
    await text_of(engine, next(requests(1)))
    runner = engine._core.runner
    forward, sizes = runner._forward, []

    def hungry(model, batch):
        sizes.append(len(batch.tokens))
        if sizes[-1] > 60:
            raise torch.OutOfMemoryError("CUDA out of memory")
        return forward(model, batch)

    runner._forward = hungry
    shrunk = await text_of(engine, request)
    assert sizes[:3] == [180, 90, 45]
    runner._forward = forward
    whole = engine_for(overlap=False)
    assert shrunk == await text_of(whole, request)


async def test_a_lost_device_ends_the_engine_and_every_request_at_once(engine_for):
    engine = engine_for(overlap=True)
    go = threading.Event()

    def lost(step):
        assert go.wait(LIMIT)
        raise RuntimeError("CUDA error: an illegal memory access was encountered")

    engine._core.runner.launch = lost
    params = SamplingParams(temperature=0.0, max_tokens=5)
    tasks = [
        asyncio.create_task(text_of(engine, GenerationRequest("r", (1, 2), params)))
        for _ in range(3)
    ]
    async with asyncio.timeout(LIMIT):
        while engine._inbox.empty() and not engine.stats().running:  # noqa: ASYNC110
            await asyncio.sleep(0)
        go.set()
        results = await asyncio.gather(*tasks, return_exceptions=True)
    assert all(isinstance(result, EngineError) for result in results)
    assert not engine.ready
