"""What a caller of the engine relies on: endings, seeds, cancellation, and failures that arrive."""

import asyncio
import threading
from collections import defaultdict

import pytest
import torch

from backend.engine.loading import load_engine
from backend.ports import EngineError, RequestRejectedError
from backend.scheduler.request import FinishReason, GenerationRequest, SamplingParams

pytest_plugins = ["tiny_checkpoints"]

PROMPT = tuple(range(40, 60))
LIMIT = 120.0


def request(prompt=PROMPT, n=1, **sampling):
    sampling = {"temperature": 0.0, "max_tokens": 12, "ignore_eos": True} | sampling
    return GenerationRequest("r", tuple(prompt), SamplingParams(**sampling), n)


async def collect(engine, wanted):
    """Return {index: (text, finish reason, completion tokens)}."""
    text, last = defaultdict(str), {}
    async for delta in engine.generate(wanted):
        assert delta.index not in last or last[delta.index].finish_reason is None
        text[delta.index] += delta.text
        last[delta.index] = delta
    return {
        index: (text[index], delta.finish_reason, delta.completion_tokens)
        for index, delta in sorted(last.items())
    }


async def until(engine, condition):
    """Let the engine work on until ``condition`` of its stats holds."""
    async with asyncio.timeout(LIMIT):
        while not condition(engine.stats()):  # noqa: ASYNC110 (steps signal nothing)
            await asyncio.sleep(0.001)


@pytest.fixture
def engine(checkpoint):
    engine, _ = load_engine(str(checkpoint("llama")[0]), device="cpu", max_num_seqs=4)
    engine.start()
    yield engine
    engine.stop()
    engine._core.scheduler.check_integrity()
    assert engine.stats().kv_blocks_used == 0


async def test_readiness_follows_start_and_stop(checkpoint):
    engine, _ = load_engine(str(checkpoint("llama")[0]), device="cpu")
    assert not engine.ready
    with pytest.raises(EngineError, match="not started"):
        await collect(engine, request())
    engine.start()
    assert (await collect(engine, request()))[0][1] is FinishReason.LENGTH
    assert engine.ready
    engine.stop()
    engine.stop()
    assert not engine.ready
    with pytest.raises(EngineError, match="shutting down"):
        await collect(engine, request())


async def test_max_tokens_ends_with_length(engine):
    text, reason, tokens = (await collect(engine, request(max_tokens=7)))[0]
    assert reason is FinishReason.LENGTH
    assert tokens == 7
    assert len(text.split()) == 7


async def test_without_max_tokens_the_context_is_the_limit(engine):
    _, reason, tokens = (await collect(engine, request(max_tokens=None)))[0]
    assert reason is FinishReason.LENGTH
    assert tokens == engine.max_model_len - len(PROMPT)


async def test_max_tokens_beyond_the_context_is_cut_to_it(engine):
    _, _, tokens = (await collect(engine, request(range(250), max_tokens=10_000)))[0]
    assert tokens == engine.max_model_len - 250


async def test_an_end_token_stops_and_has_no_text(checkpoint, edited_checkpoint):
    engine, _ = load_engine(str(checkpoint("llama")[0]), device="cpu")
    engine.start()
    words = (await collect(engine, request()))[0][0].split()
    engine.stop()
    end = next(word for word in words[1:] if word not in words[: words.index(word)])
    at = words.index(end)
    directory = edited_checkpoint()
    (directory / "generation_config.json").write_text(f'{{"eos_token_id": [{end}]}}')
    engine, _ = load_engine(str(directory), device="cpu")
    engine.start()
    text, reason, tokens = (await collect(engine, request(ignore_eos=False)))[0]
    ignored = (await collect(engine, request()))[0]
    engine.stop()
    assert text.split() == words[:at]
    assert reason is FinishReason.STOP
    assert tokens == at + 1
    assert ignored[0].split() == words


async def test_a_stop_string_across_tokens_ends_before_itself(engine):
    whole = (await collect(engine, request()))[0][0]
    words = whole.split()
    stop = f"{words[5][-1]} {words[6]} "
    text, reason, tokens = (await collect(engine, request(stop=("never", stop))))[0]
    assert text == whole[: whole.index(stop)]
    assert reason is FinishReason.STOP
    assert tokens <= 8


async def test_same_seed_same_text_whatever_else_runs(engine):
    wanted = request(temperature=1.3, top_p=0.95, top_k=50, seed=11, n=2)
    alone = await collect(engine, wanted)
    others = [request(range(5, 5 + i), temperature=0.8, seed=i) for i in range(1, 40, 6)]
    crowded, *_ = await asyncio.gather(
        collect(engine, wanted), *(collect(engine, other) for other in others)
    )
    assert crowded == alone
    assert await collect(engine, request(temperature=1.3, seed=12, n=2)) != alone


async def test_choices_of_one_request_differ_and_each_ends(engine):
    choices = await collect(engine, request(temperature=1.5, seed=3, n=6))
    assert list(choices) == [0, 1, 2, 3, 4, 5]
    assert len({text for text, _, _ in choices.values()}) == 6
    assert {reason for _, reason, _ in choices.values()} == {FinishReason.LENGTH}


async def test_closing_the_iterator_frees_the_blocks(engine):
    stream = engine.generate(request(max_tokens=200, n=3))
    await anext(stream)
    assert engine.stats().kv_blocks_used > 0
    generated = engine.stats().generated_tokens
    await stream.aclose()
    await until(engine, lambda stats: stats.running == stats.waiting == 0)
    assert engine.stats().kv_blocks_used == 0
    # It ended because it was told to, not because it was done.
    assert engine.stats().generated_tokens - generated < 100


async def test_an_abort_takes_effect_within_one_step(engine):
    """Steps are held until the abort is queued: exactly one may follow it."""
    await collect(engine, request(max_tokens=1))
    steps, go = [], threading.Semaphore(0)
    launch = engine._core.runner.launch

    def counted(step):
        assert go.acquire(timeout=LIMIT)
        steps.append(len(step.rows))
        return launch(step)

    engine._core.runner.launch = counted
    third = asyncio.Event()

    async def read():
        async for delta in engine.generate(request(max_tokens=200)):
            if delta.completion_tokens == 3:
                third.set()

    task = asyncio.create_task(read())
    go.release(3)
    async with asyncio.timeout(LIMIT):
        await third.wait()
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    go.release(100)
    await until(engine, lambda stats: stats.kv_blocks_used == 0)
    assert len(steps) <= 4


async def test_cancelling_waiting_requests_leaves_the_others_alone(engine):
    kept = [asyncio.create_task(collect(engine, request(max_tokens=60))) for _ in range(4)]
    dropped = [asyncio.create_task(collect(engine, request(max_tokens=60))) for _ in range(8)]
    await until(engine, lambda stats: stats.running + stats.waiting > 8)
    for task in dropped:
        task.cancel()
    results = await asyncio.gather(*kept)
    assert all(result == results[0] for result in results)
    await until(engine, lambda stats: stats.running == stats.waiting == 0)


@pytest.mark.parametrize(
    ("wanted", "message"),
    [
        (request(()), "no tokens"),
        (request([1] * 256), "the prompt has 256 tokens; the context of 256"),
        (request([1, 320]), "must lie in 0 to 319"),
        (request([-1]), "must lie in 0 to 319"),
        (request(max_tokens=0), "at least 1"),
        (request(n=0), "at least 1"),
    ],
)
async def test_requests_that_cannot_run_are_rejected_at_once(engine, wanted, message):
    with pytest.raises(RequestRejectedError, match=message):
        await collect(engine, wanted)
    assert (await collect(engine, request()))[0][2] == 12


async def test_a_crashing_step_fails_its_requests_and_the_loop_goes_on(engine):
    launch = engine._core.runner.launch

    def crash(step):
        if any(319 in new.tokens for new in step.new):
            raise RuntimeError("kernel launch failed")
        return launch(step)

    expected = await collect(engine, request())
    engine._core.runner.launch = crash
    with pytest.raises(EngineError, match="failed while it computed"):
        async with asyncio.timeout(LIMIT):
            await collect(engine, request([3, 319, 4], n=3))
    assert await collect(engine, request()) == expected


async def test_a_defect_in_scheduling_fails_everybody_and_starts_over(engine):
    expected = await collect(engine, request())

    def broken():
        raise IndexError("pop from an empty deque")

    engine._core.scheduler.schedule = broken
    results = await asyncio.gather(
        *(collect(engine, request()) for _ in range(3)), return_exceptions=True
    )
    # Requests that arrived after the new start were served.
    assert any(isinstance(result, EngineError) for result in results)
    assert all(isinstance(result, EngineError) or result == expected for result in results)
    assert await collect(engine, request()) == expected


async def test_numbers_that_are_not_finite_fail_one_request_and_infect_no_other(engine):
    embedding = engine._core.runner._model._weights.embedding.rows
    expected = await collect(engine, request())
    with torch.inference_mode():
        embedding[319] = torch.nan
    poisoned, *healthy = await asyncio.gather(
        collect(engine, request([5] * 100 + [319])),
        *(collect(engine, request()) for _ in range(6)),
        return_exceptions=True,
    )
    assert isinstance(poisoned, EngineError)
    assert "not finite" in str(poisoned)
    assert healthy == [expected] * 6


async def test_stopping_fails_open_requests_at_once(checkpoint):
    engine, _ = load_engine(str(checkpoint("llama")[0]), device="cpu", max_num_seqs=1)
    engine.start()
    tasks = [asyncio.create_task(collect(engine, request(max_tokens=230))) for _ in range(3)]
    await until(engine, lambda stats: stats.running == 1)
    await asyncio.to_thread(engine.stop)
    async with asyncio.timeout(LIMIT):
        results = await asyncio.gather(*tasks, return_exceptions=True)
    assert sum(isinstance(result, EngineError) for result in results) >= 2
    assert engine.stats().kv_blocks_used == 0


async def test_a_model_that_cannot_take_its_first_step_fails_requests(checkpoint):
    engine, _ = load_engine(str(checkpoint("llama")[0]), device="cpu")

    def no_step():
        raise RuntimeError("no kernel image")

    engine._core.runner.warm_up = no_step
    engine.start()
    with pytest.raises(EngineError):
        async with asyncio.timeout(LIMIT):
            await collect(engine, request())
    assert not engine.ready
    engine.stop()


def test_a_reader_whose_event_loop_is_gone_does_not_stop_the_engine(engine):
    async def leave_in_the_middle():
        stream = engine.generate(request(max_tokens=200))
        await anext(stream)
        # Keeps the generator from being closed in an orderly way with its loop.
        engine.left_behind = stream

    loop = asyncio.new_event_loop()
    loop.run_until_complete(leave_in_the_middle())
    loop.close()
    assert asyncio.run(collect(engine, request()))[0][2] == 12
    del engine.left_behind


async def test_figures_count_tokens_and_blocks(engine):
    await collect(engine, request(n=2))
    stats = engine.stats()
    assert stats.prompt_tokens == len(PROMPT)
    assert stats.generated_tokens == 24
    assert stats.kv_blocks_total > 0
    assert stats.preemptions == 0
