"""Quantised weights of models that transformers computes: what they are worth is computed."""

import json
import shutil

import pytest
import torch
import transformers
from quantized_checkpoints import quantize_checkpoint
from safetensors.torch import load_file, save_file

from backend.models import checkpoint as checkpoint_files
from backend.models.config import ModelLoadError
from backend.models.loading import load_network

pytest_plugins = ["tiny_checkpoints"]

CPU = torch.device("cpu")


@pytest.fixture
def copied(checkpoint, tmp_path):
    def make(family):
        return shutil.copytree(checkpoint(family)[0], tmp_path / family)

    return make


def model_of(directory, dtype="float32"):
    return load_network(directory, device=CPU, dtype=dtype).with_context(64, None)


def logits(model):
    with torch.inference_mode():
        return model.own_logits(torch.arange(30) * 37 % 311)


def parameters(model):
    modules = enumerate(model.modules())
    return {
        (index, name): parameter
        for index, module in modules
        for name, parameter in module.named_parameters(recurse=False)
    }


def assert_equal_parameters(model, expected):
    assert expected
    assert parameters(model).keys() == expected.keys()
    for name, parameter in parameters(model).items():
        torch.testing.assert_close(parameter, expected[name], rtol=1e-6, atol=1e-7)


@pytest.mark.parametrize(
    ("family", "layout"),
    [
        ("deepseek_v3", "fp8 in blocks"),
        ("glm4_moe", "fp8 per channel"),
        ("minimax_m2", "fp8 in blocks"),
        ("mistral3_of_ministral3", "fp8 per tensor"),
        ("olmo2", "gptq"),
        ("olmo2", "awq"),
        ("olmo2", "pack-quantized with zeros"),
    ],
)
def test_a_family_of_transformers_has_the_weights_that_its_layout_stands_for(
    copied, family, layout
):
    directory = copied(family)
    plain = quantize_checkpoint(directory, layout)
    assert_equal_parameters(model_of(directory), parameters(model_of(plain)))


@pytest.fixture
def mxfp4(copied):
    """Return gpt-oss with experts in random codes, some of them as small as the format goes."""
    directory = copied("gpt_oss")
    path = directory / "model.safetensors"
    tensors = load_file(path)
    generator = torch.Generator().manual_seed(5)
    for name in [each for each in tensors if each.endswith(("gate_up_proj", "down_proj"))]:
        experts, columns, rows = tensors.pop(name).shape
        grid = (experts, rows, columns // 32)

        def random(low, high, *shape):
            return torch.randint(low, high, shape, generator=generator, dtype=torch.uint8)

        tensors[f"{name}_blocks"] = random(0, 256, *grid, 16)
        tensors[f"{name}_scales"] = random(115, 126, *grid)
    save_file(tensors, path, {"format": "pt"})
    config = json.loads((directory / "config.json").read_text())
    config["quantization_config"] = {"quant_method": "mxfp4", "modules_to_not_convert": ["lm_head"]}
    (directory / "config.json").write_text(json.dumps(config))
    return directory


@pytest.mark.parametrize("dtype", ["float32", "bfloat16", "float16"])
def test_mxfp4_is_worth_what_transformers_makes_of_it(mxfp4, dtype):
    theirs = transformers.AutoModelForCausalLM.from_pretrained(
        mxfp4,
        dtype=getattr(torch, dtype),
        quantization_config=transformers.Mxfp4Config(dequantize=True),
    )
    expected = {
        (index, name): parameter
        for index, module in enumerate(theirs.modules())
        for name, parameter in module.named_parameters(recurse=False)
    }
    assert_equal_parameters(model_of(mxfp4, dtype), expected)


def test_room_is_asked_for_as_many_bytes_as_codes_become(mxfp4, monkeypatch):
    held = sum(each.numel() * each.element_size() for each in parameters(model_of(mxfp4)).values())
    monkeypatch.setattr(checkpoint_files, "_room", lambda device: held - 1)
    with pytest.raises(ModelLoadError, match="the weights take"):
        model_of(mxfp4)
    monkeypatch.setattr(checkpoint_files, "_room", lambda device: 1.1 * held)
    model_of(mxfp4)


def test_a_damaged_tensor_is_named(copied):
    directory = copied("deepseek_v3")
    quantize_checkpoint(directory, "fp8 in blocks")
    path = directory / "model.safetensors"
    name = "model.layers.1.mlp.experts.2.up_proj.weight_scale_inv"
    tensors = load_file(path)
    save_file(tensors | {name: tensors[name].fill_(torch.nan)}, path)
    with pytest.raises(ModelLoadError) as refusal:
        model_of(directory)
    assert str(refusal.value) == f"{path}: tensor {name} has values that are not finite"


@pytest.mark.parametrize(
    ("keys", "suffix"),
    [({"symmetric": False}, "weight_zero_point"), ({"actorder": "group"}, "weight_g_idx")],
)
def test_what_a_config_says_of_packed_weights_must_be_there(copied, keys, suffix):
    directory = copied("olmo2")
    quantize_checkpoint(directory, "pack-quantized")
    config = json.loads((directory / "config.json").read_text())
    config["quantization_config"]["config_groups"]["group_0"]["weights"] |= keys
    (directory / "config.json").write_text(json.dumps(config))
    with pytest.raises(ModelLoadError, match=rf"tensor model\.layers\..*\.{suffix} is missing"):
        model_of(directory)


@pytest.mark.parametrize(
    ("change", "problem"),
    [
        (lambda tensor: tensor[:, :-1].contiguous(), "has shape [64, 63], config.json asks for"),
        (torch.Tensor.int, "has dtype torch.int32, expected floats"),
    ],
)
def test_a_plain_tensor_that_does_not_fit_is_named(copied, change, problem):
    directory = copied("gemma3_vl")
    path = directory / "model.safetensors"
    tensors = load_file(path)
    [name] = [each for each in tensors if each.endswith("layers.0.self_attn.o_proj.weight")]
    save_file(tensors | {name: change(tensors[name])}, path, {"format": "pt"})
    with pytest.raises(ModelLoadError) as refusal:
        model_of(directory)
    assert f"tensor model.layers.0.self_attn.o_proj.weight {problem}" in str(refusal.value)


def test_packed_tensors_of_other_dimensions_are_named(mxfp4):
    path = mxfp4 / "model.safetensors"
    name = "model.layers.0.mlp.experts.down_proj_blocks"
    tensors = load_file(path)
    save_file(tensors | {name: tensors[name].flatten(2)}, path, {"format": "pt"})
    with pytest.raises(ModelLoadError) as refusal:
        model_of(mxfp4)
    problem = "has shape [4, 64, 48], expected 4 dimensions"
    assert str(refusal.value) == f"{path}: tensor {name} {problem}"


def test_plain_tensors_under_a_config_of_quantised_ones_are_refused(copied):
    directory = copied("olmo2")
    config = json.loads((directory / "config.json").read_text())
    config["quantization_config"] = {"quant_method": "mxfp4"}
    (directory / "config.json").write_text(json.dumps(config))
    with pytest.raises(ModelLoadError, match="quantization_config: none of the tensors are"):
        model_of(directory)
