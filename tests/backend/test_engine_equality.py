"""Greedy output equals transformers' generate, token for token, however requests share steps."""

import asyncio

import pytest
import torch
from engine_answers import checked_engines, greedy, prompts, reference, tokens_of
from model_configs import load_config
from tiny_checkpoints import DECODER_CHECKPOINTS

from backend.engine.loading import load_engine
from backend.executor.kv_cache import block_bytes
from backend.models.families import FAMILIES as DECODER_FAMILIES

pytest_plugins = ["tiny_checkpoints"]

FAMILIES = ["llama", "qwen2", "qwen3"]
LONGROPE = "phi3_longrope"
"""Its factors depend on the context, so it has a test of its own."""
MORE_FAMILIES = [name for name in DECODER_CHECKPOINTS if name not in {*FAMILIES, LONGROPE}]


@pytest.fixture
def engine_for(checkpoint):
    with checked_engines() as start:
        yield lambda family, **options: start(checkpoint(family)[0], **options)


def test_every_family_of_the_decoder_has_a_tiny_checkpoint():
    tested = {f"{name}ForCausalLM" for name, _ in DECODER_CHECKPOINTS.values()}
    assert tested == set(DECODER_FAMILIES)


@pytest.mark.parametrize("family", FAMILIES)
async def test_alone(checkpoint, engine_for, family):
    model, engine = checkpoint(family)[1], engine_for(family)
    for prompt in prompts([1, 2, 15, 16, 17, 70, 200]):
        assert await tokens_of(engine.generate(greedy(prompt))) == reference(model, prompt)


@pytest.mark.parametrize("family", FAMILIES)
async def test_mixed_lengths_arriving_while_others_decode(checkpoint, engine_for, family):
    model, engine = checkpoint(family)[1], engine_for(family)
    batch = prompts([3, 60, 16, 150, 31, 9, 100, 1])
    first = engine.generate(greedy(batch[0]))

    def start(prompts):
        running.extend(
            asyncio.create_task(tokens_of(engine.generate(greedy(prompt)))) for prompt in prompts
        )

    running = []
    tokens = []
    async for delta in first:
        tokens += [int(word) for word in delta.text.split()]
        start(batch[len(running) + 1 :][:1])
    # A slow reader gets several tokens in one delta, so some may not have started yet.
    start(batch[len(running) + 1 :])
    results = [tokens, *await asyncio.gather(*running)]
    assert results == [reference(model, prompt) for prompt in batch]


@pytest.mark.parametrize("family", MORE_FAMILIES)
async def test_every_family_with_hits_preemption_and_cancellation_going_on(
    checkpoint, engine_for, family
):
    """Chunks of 37 tokens, a pool for two thirds of the texts, a window of 20 where any is."""
    directory, model = checkpoint(family)
    per_block = block_bytes(load_config(directory), torch.float32)
    engine = engine_for(family, max_num_seqs=6, max_tokens_per_step=37, kv_bytes=16 * per_block)
    batch = prompts([100, 1, 19, 60, 14, 33])
    expected = [reference(model, prompt, 20) for prompt in batch]
    left = engine.generate(greedy(prompts([30], seed=9)[0], 100))
    gone = asyncio.create_task(anext(left))
    running = [asyncio.create_task(tokens_of(engine.generate(greedy(each, 20)))) for each in batch]
    await gone
    await left.aclose()
    assert await asyncio.gather(*running) == expected
    # Of the text so far the KV is known, as far as nobody took its blocks.
    again = batch[0] + tuple(expected[0][:12])
    deltas = [delta async for delta in engine.generate(greedy(again, 8))]
    assert [int(word) for delta in deltas for word in delta.text.split()] == expected[0][12:]
    assert deltas[-1].cached_tokens > 0
    for _ in range(20):  # where requests come one by one, there is room for all
        if engine.stats().preemptions:
            break
        crowd = (tokens_of(engine.generate(greedy(each, 20))) for each in batch)
        assert await asyncio.gather(*crowd) == expected
    assert engine.stats().preemptions > 0


@pytest.mark.parametrize(
    ("context", "lengths"), [(64, [5, 40]), (256, [70, 150])], ids=["short", "long"]
)
async def test_longrope_takes_the_factors_of_the_context(checkpoint, engine_for, context, lengths):
    """Beyond 64 tokens transformers takes the long factors; here the engine's context decides."""
    model = checkpoint(LONGROPE)[1]
    engine = engine_for(LONGROPE, max_model_len=context)
    batch = prompts(lengths)
    results = await asyncio.gather(*(tokens_of(engine.generate(greedy(each))) for each in batch))
    assert results == [reference(model, prompt) for prompt in batch]


@pytest.mark.parametrize("family", FAMILIES)
async def test_prompts_computed_in_chunks(checkpoint, engine_for, family):
    model = checkpoint(family)[1]
    engine = engine_for(family, max_num_seqs=4, max_tokens_per_step=13)
    batch = prompts([120, 5, 64, 33, 90])
    results = await asyncio.gather(*(tokens_of(engine.generate(greedy(each))) for each in batch))
    assert results == [reference(model, prompt) for prompt in batch]


@pytest.mark.parametrize("family", FAMILIES)
async def test_preemption_recomputes_the_same_answer(checkpoint, engine_for, family):
    directory, model = checkpoint(family)
    per_block = block_bytes(load_config(directory), torch.float32)
    engine = engine_for(family, max_num_seqs=6, kv_bytes=9 * per_block)
    batch = prompts([20, 30, 10, 25, 17, 14])
    results = await asyncio.gather(
        *(tokens_of(engine.generate(greedy(each, 40))) for each in batch)
    )
    assert results == [reference(model, prompt, 40) for prompt in batch]
    assert engine.stats().preemptions > 0


async def test_half_precision_runs_and_stays_close(checkpoint, engine_for):
    """bfloat16 rounds, so tokens may drift; the first one of a clear-cut prompt must not."""
    directory, model = checkpoint("llama")
    engine, _ = load_engine(str(directory), device="cpu", dtype="bfloat16")
    engine.start()
    agreed = 0
    batch = prompts([12, 40, 70, 5, 90, 33, 18, 51])
    for prompt in batch:
        tokens = await tokens_of(engine.generate(greedy(prompt, 1)))
        agreed += tokens == reference(model, prompt, 1)
    engine.stop()
    assert agreed >= len(batch) - 2
