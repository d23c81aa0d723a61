"""The engine on a CUDA device: the same tokens as transformers on the same device."""

import asyncio

import pytest
import torch

from backend.engine.loading import load_engine
from backend.scheduler.request import GenerationRequest, SamplingParams

pytest_plugins = ["tiny_checkpoints"]

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="torch finds no CUDA device"),
]


async def generate(engine, prompt):
    sampling = SamplingParams(temperature=0.0, max_tokens=24, ignore_eos=True)
    deltas = engine.generate(GenerationRequest("r", tuple(prompt), sampling))
    return [int(word) async for delta in deltas for word in delta.text.split()]


@pytest.mark.parametrize(
    "family",
    [
        "llama",
        "mistral",
        "qwen2",
        "qwen2_windows",
        "qwen3",
        "phi3",
        "mixtral",
        "qwen3_moe",
        "gemma3",
    ],
)
async def test_greedy_output_equals_transformers(checkpoint, family):
    directory, model = checkpoint(family)
    prompts = [[(7 * i + k) % 320 for i in range(n)] for k, n in enumerate((3, 70, 16, 120))]
    engine, _ = load_engine(str(directory), device="cuda", dtype="float32", max_tokens_per_step=50)
    engine.start()
    results = await asyncio.gather(*(generate(engine, prompt) for prompt in prompts))
    engine.stop()
    model.to("cuda")
    try:
        for prompt, tokens in zip(prompts, results, strict=True):
            ids = torch.tensor([prompt], device="cuda")
            output = model.generate(
                ids, attention_mask=torch.ones_like(ids), max_new_tokens=24, do_sample=False
            )
            assert tokens == output[0, len(prompt) :].tolist()
    finally:
        model.to("cpu")


async def test_bfloat16_answers(checkpoint):
    engine, _ = load_engine(str(checkpoint("llama")[0]), device="cuda", dtype="bfloat16")
    engine.start()
    assert len(await generate(engine, [1, 2, 3])) == 24
    engine.stop()
