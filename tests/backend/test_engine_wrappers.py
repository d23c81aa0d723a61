"""The text part of models that read images: layouts that are published, and what is refused."""

import json
import shutil

import pytest
import torch
import transformers
from lora_adapters import ATTENTION, merge, write_adapter
from model_configs import load_config
from safetensors.torch import load_file, save_file

from backend.models.adapters import load_adapter
from backend.models.checkpoint import Checkpoint, Slice
from backend.models.config import ModelLoadError
from backend.models.families import parse_config
from backend.models.layers import TorchOperations
from backend.models.loading import load_network
from backend.models.weights import load_weights

pytest_plugins = ["tiny_checkpoints"]

CPU = torch.device("cpu")


@pytest.fixture
def edited(checkpoint, tmp_path):
    """Return a checkpoint of which ``change`` changed config and tensors."""

    def edit(family, change):
        directory = shutil.copytree(checkpoint(family)[0], tmp_path / family)
        config = json.loads((directory / "config.json").read_text())
        tensors = load_file(directory / "model.safetensors")
        config, tensors = change(config, tensors)
        (directory / "config.json").write_text(json.dumps(config))
        tensors = {name: each.contiguous() for name, each in tensors.items()}
        save_file(tensors, directory / "model.safetensors")
        return directory

    return edit


def loaded(directory, **options):
    config = load_config(directory)
    return load_weights(directory, config, device=CPU, dtype=torch.float32, **options)


def assert_equal_weights(directory, expected):
    weights = loaded(directory)
    assert load_config(directory) == load_config(expected)
    rows = torch.randn(3, weights.embedding.rows.shape[1])
    assert torch.equal(weights.embedding.rows, loaded(expected).embedding.rows)
    assert torch.equal(weights.head(rows), loaded(expected).head(rows))
    for ours, theirs in zip(weights.layers, loaded(expected).layers, strict=True):
        assert torch.equal(ours.qkv(rows), theirs.qkv(rows))
        assert torch.equal(ours.mlp(rows, TorchOperations()), theirs.mlp(rows, TorchOperations()))


def test_keys_beside_those_of_the_wrapper(checkpoint, edited):
    """As Qwen2.5-VL was published."""

    def flat(config, tensors):
        text = config.pop("text_config")
        rotary = text.pop("rope_parameters")
        text["rope_theta"] = rotary["rope_theta"]
        text["rope_scaling"] = {"type": "mrope", "mrope_section": rotary["mrope_section"]}
        return text | config, tensors

    assert_equal_weights(edited("qwen2_5_vl", flat), checkpoint("qwen2_5_vl")[0])


@pytest.mark.parametrize("name", ["Llama", "Mistral"])
def test_keys_that_are_absent_mean_what_transformers_takes_them_to_mean(name):
    """LLaVA and Pixtral are published so."""
    text = {"model_type": name.lower()}
    wrapped = {"architectures": ["LlavaForConditionalGeneration"], "text_config": text}
    config = getattr(transformers, f"{name}Config")()
    values = config.to_dict() | {
        "architectures": [f"{name}ForCausalLM"],
        "tie_word_embeddings": True,
    }
    assert parse_config(wrapped, "c") == parse_config(values, "c")


@pytest.mark.parametrize(("keys", "window"), [({"sliding_window": None}, None), ({}, 4096)])
def test_a_window_of_null_is_none(keys, window):
    """As in Mistral Small 3.1 and Pixtral."""
    text = {"model_type": "mistral", **keys}
    wrapped = {"architectures": ["Mistral3ForConditionalGeneration"], "text_config": text}
    assert set(parse_config(wrapped, "c").windows) == {window}


@pytest.mark.parametrize("family", ["mistral3", "gemma3_vl"])
def test_a_head_is_missed_where_every_key_says_that_it_is_not_tied(edited, family):
    def untied(config, tensors):
        config["tie_word_embeddings"] = False
        config["text_config"]["tie_word_embeddings"] = False
        return config, {name: each for name, each in tensors.items() if "lm_head" not in name}

    with pytest.raises(ModelLoadError, match=r"tensor lm_head\.weight is missing"):
        load_network(edited(family, untied), device=CPU, dtype="float32")


def transposed(config, tensors):
    turned = {name for name in tensors if ".experts." in name}
    return config, {
        name: each.transpose(1, 2) if name in turned else each for name, each in tensors.items()
    }


def test_experts_of_one_tensor_transposed_or_not(checkpoint, edited):
    """As Qwen3-VL is published, and as transformers writes it."""
    assert_equal_weights(edited("qwen3_vl_moe", transposed), checkpoint("qwen3_vl_moe")[0])


@pytest.mark.parametrize("change", [transposed, lambda *both: both], ids=["transposed", "plain"])
def test_a_part_of_an_expert_is_that_part_of_the_whole(edited, change):
    tensors = Checkpoint(edited("qwen3_vl_moe", change), is_wrapped=True)
    name = "model.layers.0.mlp.experts.2.up_proj.weight"
    whole = torch.empty(40, 64)
    tensors.read_into(name, whole)
    part = torch.empty(8, 20)
    tensors.read_into(name, part, Slice((40, 64), ((16, 24), (4, 24))))
    assert torch.equal(part, whole[16:24, 4:24])


def test_experts_of_one_tensor_become_int8(checkpoint):
    directory = checkpoint("qwen3_vl_moe")[0]
    rows = torch.randn(7, 64)
    plain, int8 = loaded(directory), loaded(directory, int8=True)
    for ours, theirs in zip(int8.layers, plain.layers, strict=True):
        expected = theirs.mlp(rows, TorchOperations())
        difference = ours.mlp(rows, TorchOperations()) - expected
        assert difference.norm() < 0.03 * expected.norm()


@pytest.mark.parametrize("family", ["mistral3", "mistral3_of_ministral3"])
def test_the_vision_part_is_neither_read_nor_missed(edited, family, caplog):
    """Its tensors may be damaged, or away."""

    def without(config, tensors):
        vision = [name for name in tensors if "language_model" not in name]
        assert len(vision) > 5
        tensors[vision[0]] = tensors[vision[0]] * torch.nan
        return config, {name: each for name, each in tensors.items() if name not in vision[1:]}

    load_network(edited(family, without), device=CPU, dtype="float32")
    assert "are not used" not in caplog.text


def test_a_head_is_its_own_where_there_is_one_of_other_values(edited, checkpoint):
    """Mistral3's config says that it is tied, also for models that are not."""

    def untied(config, tensors):
        assert config["tie_word_embeddings"]
        rows = tensors["language_model.model.embed_tokens.weight"]
        return config, tensors | {"language_model.lm_head.weight": 2 * rows}

    ours, tied = loaded(edited("mistral3", untied)), loaded(checkpoint("mistral3")[0])
    rows = torch.randn(2, 64)
    torch.testing.assert_close(ours.head(rows), 2 * tied.head(rows))


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        (
            {"architectures": ["PaliGemmaForConditionalGeneration"]},
            "model_type mistral3; the text part of AyaVisionForConditionalGeneration, ",
        ),
        ({"text_config": {"model_type": "qwen3"}}, "text_config: hidden_size is missing"),
        ({"text_config": None}, "text_config: expected an object, got None"),
        ({"text_config": {"model_type": "vit"}}, "no causal language model for model_type vit"),
    ],
)
def test_what_is_not_supported_is_told_with_what_is(edited, changes, message):
    directory = edited("mistral3", lambda config, tensors: (config | changes, tensors))
    with pytest.raises(ModelLoadError) as refusal:
        load_network(directory, device=CPU, dtype="float32")
    assert message in str(refusal.value)
    assert str(refusal.value).startswith(f"{directory / 'config.json'}: ")


@pytest.mark.parametrize("targets", [list(ATTENTION), r".*language_model.*\.[qkvo]_proj"])
def test_an_adapter_of_a_wrapper_computes_what_merged_weights_do(checkpoint, tmp_path, targets):
    """PEFT names its tensors by the wrapper's modules, those of the vision part too."""
    base = checkpoint("qwen3_vl")[0]
    adapter = write_adapter(tmp_path / "a", base, seed=1, targets=ATTENTION, target_modules=targets)
    merged = loaded(merge(base, adapter, tmp_path / "merged"))
    path = adapter / "adapter_model.safetensors"
    vision = {"base_model.model.model.visual.blocks.0.attn.proj.lora_A.weight": torch.ones(4, 32)}
    assert any("model.language_model." in name for name in load_file(path))
    save_file(load_file(path) | vision, path)
    tensors = Checkpoint(base, is_wrapped=True)
    modules = {
        name.removesuffix(".weight"): (tensors.shape(name)[0], tensors.shape(name)[1])
        for name in tensors.names
        if name.endswith(tuple(f"{each}.weight" for each in ATTENTION))
    }
    found = load_adapter(adapter, modules, base)
    assert found.keys() == modules.keys()
    rows, name = torch.randn(3, 64), "model.layers.1.self_attn.o_proj"
    low = found[name]
    ours = loaded(base).layers[1].output(rows) + rows @ low.a.t() @ low.b.t()
    torch.testing.assert_close(ours, merged.layers[1].output(rows))
