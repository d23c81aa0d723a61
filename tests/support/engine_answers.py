"""What an engine answers to some prompts, token by token, and how many drafts it verified."""

import asyncio
import random
from collections.abc import AsyncIterator
from contextlib import contextmanager

import torch

from backend.engine.loading import load_engine
from backend.scheduler.request import GenerationRequest, SamplingParams

# A tiny model with random weights soon repeats itself, and its prompt is full of repetitions.
PROMPTS = [tuple([7, 8, 9, 10] * 5 + [n]) for n in range(4)] + [tuple(range(40, 75)), (3,) * 20]


async def answer(engine, prompt, sampling):
    """Return the tokens, their log probabilities and the reason of the end."""
    tokens, logprobs, reason = [], [], None
    async for delta in engine.generate(GenerationRequest("r", prompt, sampling)):
        tokens += [int(word) for word in delta.text.split()]
        logprobs += [(each.token, each.logprob) for each in delta.logprobs]
        reason = delta.finish_reason
        num_tokens = delta.completion_tokens
    assert num_tokens - len(tokens) in (0, 1)  # an end token has no text
    return tokens, logprobs, reason


async def answers(engine, sampling, prompts=PROMPTS):
    return await asyncio.gather(*(answer(engine, prompt, sampling) for prompt in prompts))


def drafted(engine):
    """Return how many drafts were verified and accepted."""
    stats = engine.stats()
    return stats.draft_tokens, stats.accepted_draft_tokens


def prompts(lengths, seed=0):
    generator = random.Random(seed)
    return [tuple(generator.randrange(320) for _ in range(length)) for length in lengths]


def reference(model, prompt, new_tokens=24):
    with torch.inference_mode():
        output = model.generate(
            torch.tensor([prompt]),
            attention_mask=torch.ones(1, len(prompt), dtype=torch.long),
            max_new_tokens=new_tokens,
            do_sample=False,
        )
    return output[0, len(prompt) :].tolist()


def greedy(prompt, new_tokens=24):
    return GenerationRequest(
        "r", prompt, SamplingParams(temperature=0.0, max_tokens=new_tokens, ignore_eos=True)
    )


async def tokens_of(deltas: AsyncIterator):
    return [int(word) async for delta in deltas for word in delta.text.split()]


@contextmanager
def checked_engines():
    """Yield what starts an engine of a directory; at the end each is stopped, whole and empty."""
    engines = []

    def start(directory, **options):
        engine, _ = load_engine(str(directory), device="cpu", **options)
        engines.append(engine)
        engine.start()
        return engine

    try:
        yield start
    finally:
        for engine in engines:
            engine.stop()
    for engine in engines:
        engine._core.scheduler.check_integrity()
        assert engine.stats().kv_blocks_used == 0
