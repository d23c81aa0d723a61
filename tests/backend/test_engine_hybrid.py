"""Models with gated delta nets: their text is transformers', whatever happens to their states."""

import asyncio
import json
from dataclasses import replace

import pytest
import torch
from engine_answers import answer, checked_engines, greedy, prompts, tokens_of
from safetensors.torch import load_file, save_file

from backend.engine.loading import load_engine, load_model
from backend.engine.messages import Submit
from backend.executor.kv_cache import block_bytes
from backend.models.config import ModelLoadError, read_json
from backend.models.qwen3_next import parse_hybrid
from backend.scheduler.request import SamplingParams
from backend.settings import AdapterSource, EngineOptions, address

pytest_plugins = ["tiny_checkpoints"]

FAMILIES = ["qwen3_next", "qwen3_5", "qwen3_5_moe"]


@pytest.fixture
def engine_for(checkpoint):
    with checked_engines() as start:
        yield lambda family, **options: start(checkpoint(family)[0], **options)


def kv_bytes(checkpoint, family, num_blocks):
    source = checkpoint(family)[0] / "config.json"
    return num_blocks * block_bytes(parse_hybrid(read_json(source), "config.json"), torch.float32)


def logprobs_of(model, prompt, tokens):
    """Return what transformers thinks of each of ``tokens``, the greedy answer to ``prompt``."""
    with torch.inference_mode():
        logits = model(torch.tensor([(*prompt, *tokens)]), use_cache=False).logits[0]
    behind = logits[len(prompt) - 1 : -1].log_softmax(-1)
    assert behind.argmax(-1).tolist() == list(tokens)
    return behind.max(-1).values.tolist()


async def together(engine, batch, new_tokens=24):
    return await asyncio.gather(
        *(tokens_of(engine.generate(greedy(each, new_tokens))) for each in batch)
    )


@pytest.mark.parametrize("family", FAMILIES)
async def test_log_probabilities_are_those_of_transformers(checkpoint, engine_for, family):
    engine = engine_for(family)
    sampling = SamplingParams(temperature=0.0, max_tokens=24, ignore_eos=True, logprobs=0)
    for prompt in prompts([1, 64, 150]):
        tokens, logprobs, _ = await answer(engine, prompt, sampling)
        expected = logprobs_of(checkpoint(family)[1], prompt, tokens)
        assert [each for _, each in logprobs] == pytest.approx(expected, abs=1e-4)


@pytest.mark.parametrize(
    ("family", "overlap"), [*((each, False) for each in FAMILIES), ("qwen3_5", True)]
)
async def test_chunks_preemption_and_neighbours_change_no_text(
    checkpoint, engine_for, family, overlap
):
    """Chunks of 37 tokens, and a pool for two thirds of the texts."""
    batch = prompts([100, 1, 19, 60, 16, 33, 15, 2])
    engine = engine_for(
        family,
        max_num_seqs=8,
        max_tokens_per_step=37,
        kv_bytes=kv_bytes(checkpoint, family, 24),
        overlap=overlap,
    )
    expected = await together(engine, batch, 40)
    for prompt, tokens in zip(batch, expected, strict=True):
        logprobs_of(checkpoint(family)[1], prompt, tokens)
    for _ in range(20):  # where requests come one by one, there is room for all
        assert await together(engine, batch, 40) == expected
        if engine.stats().preemptions:
            break
    assert engine.stats().preemptions > 0
    assert engine.stats().prefix_hits > 0


async def test_text_behind_a_hit_is_the_same(checkpoint, engine_for):
    engine = engine_for("qwen3_next")
    [prompt] = prompts([70])
    known, cached = [], []
    for count in (0, 0, 12, 26):
        request = greedy((*prompt, *known[:count]), 30 - count)
        deltas = [delta async for delta in engine.generate(request)]
        tokens = [int(word) for each in deltas for word in each.text.split()]
        known = known or tokens
        assert tokens == known[count:]
        cached.append(deltas[-1].cached_tokens)
    logprobs_of(checkpoint("qwen3_next")[1], prompt, known)
    # Behind the prompt, and then behind the prompt that went on.
    assert cached == [0, 64, 64, 80]


async def conversations(engine, *, turns=4):
    """Four conversations with one system prompt, a turn of each at a time; return the hits."""
    texts = [prompts([50])[0] for _ in range(4)]
    total = 0
    for turn in range(turns):
        asked = [text + prompts([9 + 5 * n], turn)[0] for n, text in enumerate(texts)]
        requests = [greedy(each, 20) for each in asked]
        answers = await asyncio.gather(
            *(answer(engine, r.prompt_tokens, r.sampling) for r in requests)
        )
        texts = [each + tuple(tokens) for each, (tokens, *_) in zip(asked, answers, strict=True)]
        total += sum(map(len, asked))
    stats = engine.stats()
    assert stats.prefix_queries == total
    return stats.prefix_hits


async def test_conversations_hit_as_with_full_attention(engine_for):
    hits = await conversations(engine_for("qwen3_5"))
    assert hits >= 0.9 * await conversations(engine_for("qwen3")) > 0


async def test_a_step_that_ran_out_of_memory_half_way_changes_no_text(engine_for, monkeypatch):
    engine = engine_for("qwen3_next")
    batch = prompts([60, 70, 40])
    expected = await together(engine, batch)
    backend, failed = engine._core.runner._attention, []
    recur = backend.recur

    def fail_large(layer, weight, inputs):
        if layer == 1 and len(inputs.mixed) > 50:
            failed.append(len(inputs.mixed))
            raise torch.OutOfMemoryError("no memory")
        return recur(layer, weight, inputs)

    monkeypatch.setattr(backend, "recur", fail_large)
    salted = (replace(greedy(each, 24), cache_salt="other") for each in batch)
    again = await asyncio.gather(*(tokens_of(engine.generate(each)) for each in salted))
    assert again == expected
    assert failed
    assert engine.stats().preemptions > 0


async def test_sleep_drops_snapshots_and_states(checkpoint):
    core = load_model(EngineOptions(str(checkpoint("qwen3_5")[0]), device="cpu")).core
    [prompt] = prompts([70])

    def run():
        core.submit(Submit(1, greedy(prompt), 0.0))
        while core.scheduler.has_work:
            core.step()
        return core.take_items()[-1][1].tokens

    before = run()
    assert len(core.scheduler.cache.snapshots) > 0
    core.sleep()
    assert len(core.scheduler.cache.snapshots) == 0
    assert not any(each.any() for each in core.runner._states.states)
    core.wake()
    assert run() == before
    assert core.stats().prefix_hits == 0


@pytest.mark.parametrize(
    "option",
    [
        {"kv_host_bytes": 2**20},
        {"kv_disk_bytes": 2**20},
        {"role": "prefill"},
        {"quantization": "int8"},
        {"speculative_model": "./other"},
        {"lora": (AdapterSource("a", "./a"),)},
    ],
    ids=lambda option: next(iter(option)),
)
def test_what_takes_kv_alone_is_refused(checkpoint, option):
    [name] = option
    more = {}
    if name == "role":
        more = {"kv_transfer": (address("127.0.0.1:1"),), "kv_transfer_secret": "s" * 16}
    with pytest.raises(ModelLoadError, match=f"recurrent states .* {name.replace('_', '-')} does"):
        load_engine(str(checkpoint("qwen3_5")[0]), device="cpu", **option, **more)


async def test_the_text_model_of_a_larger_one_is_read(checkpoint, tmp_path):
    """As Qwen publishes it: beside a vision model, and all experts as two tensors."""
    source = checkpoint("qwen3_5_moe")[0]
    tensors = load_file(source / "model.safetensors")
    for layer in range(4):
        mlp = f"model.layers.{layer}.mlp.experts."
        each = [
            {
                name: tensors.pop(f"{mlp}{expert}.{name}_proj.weight")
                for name in ("gate", "up", "down")
            }
            for expert in range(8)
        ]
        gate_up = [torch.cat((one["gate"], one["up"])) for one in each]
        tensors[f"{mlp}gate_up_proj"] = torch.stack(gate_up)
        tensors[f"{mlp}down_proj"] = torch.stack([one["down"] for one in each])
    nested = {
        name.replace("model.", "model.language_model."): each for name, each in tensors.items()
    }
    save_file(nested, tmp_path / "model.safetensors")
    config = read_json(source / "config.json")
    names = ["Qwen3_5MoeForConditionalGeneration"]
    whole = {"architectures": names, "text_config": config, "tie_word_embeddings": False}
    (tmp_path / "config.json").write_text(json.dumps(whole))
    (tmp_path / "tokenizer.json").write_bytes((source / "tokenizer.json").read_bytes())
    with checked_engines() as start:
        engines = start(source), start(tmp_path)
        batch = prompts([40, 3])
        assert await together(engines[0], batch) == await together(engines[1], batch)
