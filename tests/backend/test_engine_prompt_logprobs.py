"""Log probabilities of prompts and of what follows them, against the model computed whole."""

import asyncio

import pytest
import torch

from backend.engine.loading import load_engine
from backend.scheduler.request import GenerationRequest, SamplingParams

pytest_plugins = ["tiny_checkpoints"]

PROMPT = tuple((7 * at) % 300 for at in range(90))


def request(prompt, **sampling):
    n = sampling.pop("n", 1)
    sampling = {"temperature": 0.0, "max_tokens": 4, "ignore_eos": True, "logprobs": 2} | sampling
    return GenerationRequest("r", tuple(prompt), SamplingParams(**sampling), n, stream=False)


async def collect(engine, wanted):
    """Return the last delta of each choice: a plain request has no other."""
    return [delta async for delta in engine.generate(wanted)]


def expected(model, tokens):
    """The log probability of each token after the first, and the likeliest in its place."""
    with torch.inference_mode():
        logprobs = torch.log_softmax(model(torch.tensor([tokens])).logits[0, :-1].float(), -1)
    chosen = logprobs.gather(1, torch.tensor(tokens[1:]).unsqueeze(1)).squeeze(1)
    return chosen, logprobs.max(-1)


@pytest.fixture(params=[False, True], ids=["at once", "in chunks, overlapping"])
def engine(checkpoint, request):
    engine, _ = load_engine(
        str(checkpoint("llama")[0]),
        device="cpu",
        max_num_seqs=4,
        max_tokens_per_step=32 if request.param else 512,
        overlap=request.param,
    )
    engine.start()
    yield engine
    engine.stop()


async def test_they_equal_the_whole_model_in_any_company(engine, checkpoint):
    """Prefix hits, chunks, other sequences, several choices: none of them shows."""
    model = checkpoint("llama")[1]
    await collect(engine, request(PROMPT))  # its blocks are cached now
    wanted = [
        request(PROMPT, prompt_logprobs=3, n=2),
        request(PROMPT[:50], max_tokens=30),
        request(PROMPT[3:40], prompt_logprobs=0, max_tokens=1),
        request(PROMPT[:1], prompt_logprobs=1),
    ]
    replies = await asyncio.gather(*(collect(engine, each) for each in wanted))
    assert [len(reply[0].prompt_logprobs) for reply in replies] == [89, 0, 36, 0]
    for asked, reply in zip(wanted, replies, strict=True):
        for delta in reply:
            told = (*delta.prompt_logprobs, *delta.logprobs)
            start = len(asked.prompt_tokens) - len(delta.prompt_logprobs)
            tokens = [*asked.prompt_tokens[:start], *(each.token for each in told)]
            if delta.prompt_logprobs:
                assert tuple(tokens[: len(asked.prompt_tokens)]) == asked.prompt_tokens
            chosen, (best, best_tokens) = expected(model, tokens)
            values = torch.tensor([each.logprob for each in told])
            assert torch.allclose(values, chosen[start - 1 :], atol=1e-4)
            for place, each in enumerate(told, start - 1):
                if each.top:
                    assert abs(each.top[0][1] - float(best[place])) < 1e-4
                    assert each.top[0][0] == int(best_tokens[place])
    assert all(len(each.top) == 3 for each in replies[0][1].prompt_logprobs)
    assert replies[0][0].cached_tokens == 0
