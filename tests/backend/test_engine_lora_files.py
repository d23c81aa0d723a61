"""What is refused of LoRA adapters, in words that name file, key and value."""

import json
import logging

import pytest
import torch
from lora_adapters import ATTENTION, write_adapter
from safetensors.torch import load_file, save_file

from backend.engine.loading import load_engine
from backend.models.config import ModelLoadError
from backend.settings import AdapterSource, adapter_source

pytest_plugins = ["tiny_checkpoints"]

Q_PROJ = "base_model.model.model.layers.0.self_attn.q_proj.lora_"


@pytest.fixture
def refusal(checkpoint):
    """Return why adapters are refused."""

    def refuse(*directories, family="llama", names=()):
        lora = tuple(
            AdapterSource(names[at] if names else f"a{at}", str(each))
            for at, each in enumerate(directories)
        )
        with pytest.raises(ModelLoadError) as caught:
            load_engine(str(checkpoint(family)[0]), device="cpu", lora=lora)
        text = str(caught.value)
        assert "\n" not in text
        return text

    return refuse


@pytest.fixture
def adapter(checkpoint, tmp_path):
    """Write an adapter for the tiny Llama."""

    def write(**keys):
        return write_adapter(tmp_path / "adapter", checkpoint("llama")[0], seed=0, **keys)

    return write


def changed(adapter, change):
    path = adapter / "adapter_model.safetensors"
    tensors = load_file(path)
    change(tensors)
    save_file(tensors, path)
    return adapter


@pytest.mark.parametrize(
    ("keys", "words"),
    [
        ({"peft_type": "IA3"}, "peft_type: expected LORA, got 'IA3'"),
        ({"task_type": "SEQ_CLS"}, "task_type: expected CAUSAL_LM, got 'SEQ_CLS'"),
        ({"r": 257}, "r: expected a rank of 1 to 256, got 257"),
        ({"rank_pattern": {"q_proj": 0}}, "rank_pattern: q_proj: expected a rank of 1 to 256"),
        ({"lora_alpha": "16"}, "lora_alpha: expected a number, got '16'"),
        ({"bias": "all"}, "bias: expected none, got 'all'"),
        ({"use_dora": True}, "use_dora: DoRA is not supported; got True"),
        ({"lora_bias": True}, "lora_bias: biases of low ranks are not supported; got True"),
        ({"modules_to_save": ["lm_head"]}, "modules_to_save: whole modules beside the low ranks"),
        ({"fan_in_fan_out": True}, "fan_in_fan_out: True is not supported"),
        ({"init_lora_weights": "pissa"}, "init_lora_weights: 'pissa' changes the base's weights"),
        ({"some_new_key": 3}, "some_new_key: this key is not known here"),
        ({"target_modules": None}, "target_modules: is missing"),
        ({"target_modules": "("}, "target_modules: '(' is no regular expression"),
        ({"target_modules": ["q_proj", "lm_head"]}, "target_modules: 'lm_head' is no linear map"),
        ({"target_modules": r".*experts.*"}, "target_modules: '.*experts.*' is no linear map"),
        ({"target_modules": ["q_proj"]}, "target_modules does not name"),
    ],
)
def test_a_key_that_does_not_fit_is_named(adapter, refusal, keys, words):
    directory = adapter(**keys)
    text = refusal(directory)
    assert words in text
    assert str(directory) in text


def drop(name):
    return lambda tensors: tensors.pop(name)


@pytest.mark.parametrize(
    ("change", "words"),
    [
        (drop(f"{Q_PROJ}B.weight"), f"tensor {Q_PROJ}B.weight is missing"),
        (
            lambda tensors: tensors.update({f"{Q_PROJ}A.weight": torch.ones(4, 60)}),
            f"tensor {Q_PROJ}A.weight has shape [4, 60], adapter_config.json and the model asks",
        ),
        (
            lambda tensors: tensors.update({f"{Q_PROJ}A.weight": torch.full((4, 64), torch.nan)}),
            f"tensor {Q_PROJ}A.weight has values that are not finite",
        ),
        (
            lambda tensors: tensors.update(
                {"base_model.model.lm_head.lora_A.weight": torch.ones(4)}
            ),
            "tensor base_model.model.lm_head.lora_A.weight belongs to lm_head, which is no linear",
        ),
        (
            lambda tensors: tensors.update({f"{Q_PROJ}magnitude_vector": torch.ones(64)}),
            "lora_magnitude_vector is not supported: only lora_A and lora_B",
        ),
    ],
)
def test_a_tensor_that_does_not_fit_is_named(adapter, refusal, change, words):
    directory = changed(adapter(), change)
    text = refusal(directory)
    assert words in text
    assert str(directory / "adapter_model.safetensors") in text


def test_experts_have_no_adapters(checkpoint, refusal, tmp_path):
    base = checkpoint("qwen3_moe")[0]
    directory = write_adapter(
        tmp_path / "a", base, seed=0, targets=(*ATTENTION, "gate_proj"), target_modules="all-linear"
    )
    assert "experts.0.gate_proj, which is no linear map" in refusal(directory, family="qwen3_moe")


def test_directories_and_names_are_checked_before_anything_is_read(adapter, refusal, tmp_path):
    directory = adapter()
    assert refusal(tmp_path / "none") == f"lora a0={tmp_path / 'none'}: no such directory"
    assert refusal(tmp_path) == f"lora a0={tmp_path}: no adapter: there is no adapter_config.json"
    assert refusal(*[directory] * 9) == "lora: at most 8 adapters, got 9"
    twice = refusal(directory, directory, names=("x", "x"))
    assert twice == f"lora x={directory}: another adapter has this name"
    (directory / "adapter_model.safetensors").rename(directory / "adapter_model.bin")
    assert refusal(directory) == (
        f"{directory / 'adapter_model.safetensors'}: not found (adapter_model.bin is not read: "
        "only safetensors are)"
    )
    (directory / "adapter_config.json").write_text("{")
    assert "adapter_config.json: not valid JSON" in refusal(directory)


def test_models_that_transformers_computes_take_none(adapter, refusal):
    text = refusal(adapter(), family="gpt2")
    assert "['GPT2LMHeadModel']: LoRA adapters are supported for LlamaForCausalLM, " in text


def test_another_base_of_the_same_shape_is_a_warning(adapter, checkpoint, caplog):
    path = adapter(base_model_name_or_path="org/Other-Model")
    with caplog.at_level(logging.WARNING):
        load_engine(
            str(checkpoint("llama")[0]), device="cpu", lora=(AdapterSource("a", str(path)),)
        )
    assert "base_model_name_or_path: trained on 'org/Other-Model'" in caplog.text
    own = json.loads((path / "adapter_config.json").read_text())
    own["base_model_name_or_path"] = str(checkpoint("llama")[0])
    (path / "adapter_config.json").write_text(json.dumps(own))
    caplog.clear()
    load_engine(str(checkpoint("llama")[0]), device="cpu", lora=(AdapterSource("a", str(path)),))
    assert "base_model_name_or_path" not in caplog.text


@pytest.mark.parametrize("text", ["name", "name=", "=dir", " =dir"])
def test_an_option_without_name_or_directory_is_refused(text):
    with pytest.raises(ValueError, match="expected"):
        adapter_source(text)
