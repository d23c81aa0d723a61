"""Models of transformers that have no code of our own: equal to generate, or refused by name."""

import asyncio
import json
import random

import pytest
import torch

from backend.engine.loading import load_engine
from backend.models.config import ModelLoadError, read_json
from backend.models.hf import GenericModel, load_generic
from backend.models.hf_check import verify
from backend.scheduler.request import GenerationRequest, SamplingParams

pytest_plugins = ["tiny_checkpoints"]

FAMILIES = ["gemma2", "gemma3", "olmo2", "gpt_neox", "starcoder2", "gpt2", "gpt_oss"]
# Some of them by our own code: of all of these only text is computed.
WRAPPERS = [
    *("qwen2_5_vl", "qwen3_vl", "qwen3_vl_moe", "mistral3", "mistral3_of_ministral3"),
    *("gemma3_vl", "gemma4", "gemma4_shared", "llava", "internvl"),
]


def prompts(lengths):
    generator = random.Random(7)
    return [tuple(generator.randrange(320) for _ in range(length)) for length in lengths]


def reference(model, prompt, new_tokens):
    ids = torch.tensor([prompt])
    with torch.inference_mode():
        output = model.generate(
            ids,
            attention_mask=torch.ones_like(ids),
            max_new_tokens=new_tokens,
            do_sample=False,
        )
    return output[0, len(prompt) :].tolist()


async def generate(engine, prompt, new_tokens):
    sampling = SamplingParams(temperature=0.0, max_tokens=new_tokens, ignore_eos=True)
    deltas = engine.generate(GenerationRequest("r", prompt, sampling))
    return [int(word) async for delta in deltas for word in delta.text.split()]


def loaded(directory):
    return load_generic(
        directory,
        read_json(directory / "config.json"),
        device=torch.device("cpu"),
        dtype=torch.float32,
    )


@pytest.mark.parametrize("family", [*FAMILIES, *WRAPPERS])
async def test_greedy_output_equals_generate_in_mixed_batches_of_chunks(checkpoint, family):
    """Prompts shorter and longer than a chunk of 21 and, where there is one, a window of 20."""
    directory, model = checkpoint(family)
    engine, _ = load_engine(str(directory), device="cpu", max_num_seqs=4, max_tokens_per_step=21)
    engine.start()
    batch = prompts([45, 3, 17])
    results = await asyncio.gather(*(generate(engine, prompt, 8) for prompt in batch))
    engine.stop()
    assert results == [reference(model, prompt, 8) for prompt in batch]


@pytest.mark.parametrize(
    ("family", "reason"),
    [
        ("mamba", "layer_types: 'linear_attention' is not supported"),
        ("falcon", "falcon: 0 attentions in 3 layers: state-space layers"),
        ("bloom", "BloomForCausalLM takes no position_ids"),
    ],
)
def test_what_paged_attention_cannot_do_is_refused_by_name(checkpoint, family, reason):
    directory, _ = checkpoint(family)
    with pytest.raises(ModelLoadError) as caught:
        load_engine(str(directory), device="cpu")
    assert str(caught.value).startswith(f"{directory / 'config.json'}: ")
    assert reason in str(caught.value)


def test_a_model_that_mixes_tokens_outside_of_attention_is_found_out(checkpoint):
    model = loaded(checkpoint("olmo2")[0])

    def mix_with_the_token_before(module, arguments, output):
        return output + output.roll(1, dims=1)

    mlps = [module for module in model.modules() if type(module).__name__ == "Olmo2MLP"]
    mlps[1].register_forward_hook(mix_with_the_token_before)
    with pytest.raises(ModelLoadError, match=r"logits differ by [0-9.]+ standard deviations"):
        verify(model, "float32")


def test_a_model_that_counts_positions_itself_is_found_out(checkpoint):
    model = loaded(checkpoint("gpt_neox")[0])

    def count(module, arguments, keywords):
        keywords["position_ids"] = torch.arange(arguments[0].shape[1]).unsqueeze(0)
        return arguments, keywords

    rotary = [each for each in model.modules() if type(each).__name__ == "GPTNeoXRotaryEmbedding"]
    assert rotary
    rotary[0].register_forward_pre_hook(count, with_kwargs=True)
    with pytest.raises(ModelLoadError, match="standard deviations"):
        verify(model, "float32")


def test_a_window_that_attention_is_not_told_is_found_out(checkpoint, monkeypatch):
    """The model's own mask has the window; our attention would look at everything."""
    model = loaded(checkpoint("starcoder2")[0])
    take_over = GenericModel.take_over

    def forget(self):
        take_over(self)
        self.config.sliding_window = None

    monkeypatch.setattr(GenericModel, "take_over", forget)
    with pytest.raises(ModelLoadError, match="standard deviations"):
        verify(model, "float32")


def test_the_shape_is_found_by_looking_and_windows_are_left_as_they_were(checkpoint):
    model = loaded(checkpoint("gemma2")[0])
    shape = verify(model, "float32")
    assert shape.windows == (20, None, 20)
    assert (shape.num_layers, shape.num_heads, shape.num_kv_heads, shape.head_dim) == (3, 4, 2, 24)
    assert (shape.vocab_size, shape.max_positions) == (320, 256)
    assert model.config.sliding_window == 20


def test_in_half_precision_the_check_allows_for_rounding(checkpoint):
    directory, _ = checkpoint("olmo2")
    engine, _ = load_engine(str(directory), device="cpu", dtype="bfloat16")
    assert engine.max_model_len == 256


def test_code_that_comes_with_a_model_is_never_run(checkpoint, tmp_path):
    source, _ = checkpoint("olmo2")
    for file in source.iterdir():
        (tmp_path / file.name).write_bytes(file.read_bytes())
    ran = tmp_path / "ran"
    (tmp_path / "configuration_own.py").write_text(f"open({str(ran)!r}, 'w')\nclass Own: pass\n")
    config = json.loads((tmp_path / "config.json").read_text())
    config |= {
        "model_type": "own",
        "architectures": ["OwnForCausalLM"],
        "auto_map": {
            "AutoConfig": "configuration_own.Own",
            "AutoModelForCausalLM": "configuration_own.Own",
        },
    }
    (tmp_path / "config.json").write_text(json.dumps(config))
    with pytest.raises(ModelLoadError) as caught:
        load_engine(str(tmp_path), device="cpu")
    assert str(caught.value).startswith(f"{tmp_path / 'config.json'}: ")
    assert "\n" not in str(caught.value)
    assert not ran.exists()


def test_a_missing_tensor_is_refused_and_never_made_up(checkpoint, tmp_path):
    from safetensors.torch import load_file, save_file

    source, _ = checkpoint("olmo2")
    for file in source.iterdir():
        (tmp_path / file.name).write_bytes(file.read_bytes())
    tensors = load_file(tmp_path / "model.safetensors")
    del tensors["model.layers.1.mlp.up_proj.weight"]
    save_file(tensors, tmp_path / "model.safetensors", {"format": "pt"})
    with pytest.raises(ModelLoadError, match=r"layers\.1\.mlp\.up_proj\.weight is missing"):
        load_engine(str(tmp_path), device="cpu")
