"""Bad checkpoints: each is refused in one line that names the file and the tensor or key."""

import dataclasses
import json
import logging

import pytest
import torch
from model_configs import load_config
from safetensors.torch import load_file, save_file

from backend.models import checkpoint as checkpoints
from backend.models.config import ModelLoadError
from backend.models.loading import load_network
from backend.models.weights import load_weights, random_weights

pytest_plugins = ["tiny_checkpoints"]

CPU = torch.device("cpu")
NAME = "model.layers.1.mlp.up_proj.weight"


def refused(directory, dtype="float32"):
    with pytest.raises(ModelLoadError) as caught:
        load_network(directory, device=CPU, dtype=dtype)
    message = str(caught.value)
    assert "\n" not in message
    return message


def change_tensors(directory, change):
    path = directory / "model.safetensors"
    tensors = load_file(path)
    change(tensors)
    save_file(tensors, path, {"format": "pt"})
    return path


def shard(directory, count):
    """Split the one file into ``count`` and return the index."""
    tensors = load_file(directory / "model.safetensors")
    (directory / "model.safetensors").unlink()
    weight_map = {}
    for number in range(count):
        file = f"model-{number + 1:05}-of-{count:05}.safetensors"
        part = {name: tensors[name] for name in sorted(tensors)[number::count]}
        save_file(part, directory / file, {"format": "pt"})
        weight_map |= dict.fromkeys(part, file)
    index = directory / "model.safetensors.index.json"
    index.write_text(json.dumps({"weight_map": weight_map}))
    return index


def point(index, name, file):
    values = json.loads(index.read_text())
    values["weight_map"][name] = file
    index.write_text(json.dumps(values))


def test_every_missing_shard_is_named(edited_checkpoint):
    directory = edited_checkpoint()
    shard(directory, 4)
    gone = [directory / f"model-0000{number}-of-00004.safetensors" for number in (2, 4)]
    for path in gone:
        path.unlink()
    assert refused(directory) == f"{gone[0]}, {gone[1]}: not found, of 4 shards"


@pytest.mark.parametrize(
    "file",
    ["../model.safetensors", "/etc/model.safetensors", "sub/model.safetensors", "..", ""],
)
def test_an_index_cannot_point_out_of_the_directory(edited_checkpoint, file):
    directory = edited_checkpoint()
    (directory.parent / "model.safetensors").write_bytes(b"")
    index = shard(directory, 2)
    point(index, NAME, file)
    message = refused(directory)
    assert message.startswith(f"{index}: {NAME}: ")
    assert repr(file) in message


@pytest.mark.parametrize("file", [5, None, ["model.safetensors"], "model.bin"])
def test_an_index_names_safetensors_files_alone(edited_checkpoint, file):
    directory = edited_checkpoint()
    index = shard(directory, 2)
    point(index, NAME, file)
    assert refused(directory) == f"{index}: {NAME}: expected a safetensors file, got {file!r}"


def test_a_tensor_that_is_not_in_the_shard_of_the_index(edited_checkpoint):
    directory = edited_checkpoint()
    index = shard(directory, 2)
    current = json.loads(index.read_text())["weight_map"][NAME]
    other = f"model-0000{3 - int(current[10])}-of-00002.safetensors"
    point(index, NAME, other)
    assert refused(directory).startswith(f"{directory / other}: tensor {NAME} cannot be read: ")


@pytest.mark.parametrize(
    "damage",
    [
        lambda content: b"",
        lambda content: content[:5],
        lambda content: content[:200],
        lambda content: content[:-1],
        lambda content: content + b"more",
        lambda content: (2**63).to_bytes(8, "little") + content[8:],
        lambda content: content[:8] + b"[" + content[9:],
        lambda content: content.replace(b'"F32"', b'"F99"', 1),
    ],
    ids=["empty", "5 bytes", "in its header", "short", "long", "huge", "no JSON", "odd type"],
)
@pytest.mark.parametrize("sharded", [False, True])
def test_a_damaged_file_is_named(edited_checkpoint, damage, sharded):
    directory = edited_checkpoint()
    path = directory / "model.safetensors"
    if sharded:
        shard(directory, 2)
        path = directory / "model-00002-of-00002.safetensors"
    path.write_bytes(damage(path.read_bytes()))
    assert refused(directory).startswith(f"{path}: damaged or not safetensors: ")


def test_pickled_weights_are_told_from_none(edited_checkpoint):
    directory = edited_checkpoint()
    (directory / "model.safetensors").rename(directory / "pytorch_model.bin")
    assert refused(directory).endswith(
        "model.safetensors: not found (pytorch_model.bin is not read: only safetensors are)"
    )


@pytest.mark.parametrize("value", [float("nan"), float("inf"), float("-inf")])
def test_a_weight_that_is_not_finite_is_refused_with_its_name(edited_checkpoint, value):
    def spoil(tensors):
        tensors[NAME][3, 5] = value

    directory = edited_checkpoint()
    path = change_tensors(directory, spoil)
    assert refused(directory) == f"{path}: tensor {NAME} has values that are not finite"


def test_weights_that_overflow_the_type_asked_for_are_refused(edited_checkpoint):
    def grow(tensors):
        tensors[NAME][3, 5] = 1e6

    directory = edited_checkpoint()
    path = change_tensors(directory, grow)
    expected = f"{path}: tensor {NAME} has values that do not fit torch.float16"
    assert refused(directory, "float16") == expected
    load_network(directory, device=CPU, dtype="bfloat16")


@pytest.mark.parametrize("dtype", [torch.float8_e4m3fn, torch.int8, torch.uint8, torch.bool])
def test_quantised_tensors_are_refused_by_their_type(edited_checkpoint, dtype):
    def quantise(tensors):
        tensors[NAME] = tensors[NAME].to(dtype)

    directory = edited_checkpoint()
    path = change_tensors(directory, quantise)
    assert refused(directory).startswith(f"{path}: tensor {NAME} has dtype {dtype}, expected")


@pytest.mark.parametrize("dtype", [torch.float64, torch.bfloat16, torch.float16])
def test_a_checkpoint_may_mix_types_of_floats(edited_checkpoint, dtype):
    def cast(tensors):
        tensors[NAME] = tensors[NAME].to(dtype)

    directory = edited_checkpoint()
    change_tensors(directory, cast)
    network = load_network(directory, device=CPU, dtype="float32")
    assert network.weights.embedding.rows.dtype is torch.float32


@pytest.mark.parametrize("text", ["{}", "[]", "null", "", '"x"', "[" * 100_000])
@pytest.mark.parametrize("name", ["config.json", "model.safetensors.index.json"])
def test_an_empty_or_odd_json_file_is_named(edited_checkpoint, name, text):
    directory = edited_checkpoint()
    shard(directory, 2)
    (directory / name).write_text(text)
    assert refused(directory).startswith(f"{directory / name}: ")


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        (
            {"quantization_config": {"quant_method": "hqq"}},
            "quantization_config: quant_method: 'hqq'",
        ),
        ({"num_hidden_layers": 10**9}, "num_hidden_layers: 1000000000 is not a model"),
        ({"rope_parameters": [1]}, "rope_parameters: expected an object, got [1]"),
        ({"rope_parameters": {"rope_theta": -1}}, "rope_theta: expected a number above 0"),
        ({"rope_parameters": {"partial_rotary_factor": 0.5}}, "partial_rotary_factor: 0.5"),
        ({"rms_norm_eps": "small"}, "rms_norm_eps: expected float, got 'small'"),
    ],
)
def test_odd_keys_are_named(edited_checkpoint, changes, message):
    directory = edited_checkpoint(**changes)
    assert refused(directory).startswith(f"{directory / 'config.json'}: ")
    assert message in refused(directory)


def test_layouts_that_nobody_reads_are_refused_before_they_are_read(edited_checkpoint):
    directory = edited_checkpoint(
        architectures=["OlmoForCausalLM"], model_type="olmo", quantization_config={"bits": 4}
    )
    (directory / "model.safetensors").write_bytes(b"")
    assert "quantization_config: quant_method: '' is not supported" in refused(directory)


def test_weights_larger_than_the_memory_are_refused_before_they_are_read(
    edited_checkpoint, monkeypatch
):
    """The machine is told to be small: no test can fill the real one."""
    monkeypatch.setattr(checkpoints, "_room", lambda device: 1000)
    directory = edited_checkpoint()
    assert refused(directory).startswith(f"{directory / 'model.safetensors'}: the weights take 0.0")


def test_a_config_too_large_for_its_tensors_is_told_before_memory_is_asked_for(edited_checkpoint):
    directory = edited_checkpoint(vocab_size=10**13)
    assert refused(directory).endswith(
        "tensor model.embed_tokens.weight has shape [320, 64], config.json asks for "
        "[10000000000000, 64]"
    )


def test_memory_that_is_not_there_names_the_tensor(checkpoint):
    config = dataclasses.replace(load_config(checkpoint("llama")[0]), vocab_size=10**13)
    with pytest.raises(ModelLoadError) as caught:
        random_weights(config, device=CPU, dtype=torch.float32)
    assert str(caught.value) == (
        "random weights: tensor model.embed_tokens.weight: out of memory on cpu: "
        "2441406250 MiB more, after 0 MiB of weights"
    )


def test_tensors_that_nobody_reads_are_told_in_the_log(edited_checkpoint, caplog):
    def add(tensors):
        tensors["model.layers.0.self_attn.q_proj.bias"] = torch.zeros(64)
        tensors["model.layers.0.self_attn.rotary_emb.inv_freq"] = torch.zeros(8)

    directory = edited_checkpoint()
    change_tensors(directory, add)
    with caplog.at_level(logging.WARNING):
        load_weights(directory, load_config(directory), device=CPU, dtype=torch.float32)
    assert "1 tensors are not used, such as model.layers.0.self_attn.q_proj.bias" in caplog.text


@pytest.mark.parametrize("family", ["llama", "phi3", "qwen3_moe"])
def test_random_weights_have_the_shapes_of_a_checkpoint(checkpoint, family):
    directory, _ = checkpoint(family)
    config = load_config(directory)
    loaded = load_weights(directory, config, device=CPU, dtype=torch.bfloat16)
    first = random_weights(config, device=CPU, dtype=torch.bfloat16, seed=3)
    again = random_weights(config, device=CPU, dtype=torch.bfloat16, seed=3)
    other = random_weights(config, device=CPU, dtype=torch.bfloat16, seed=4)
    assert first.embedding.rows.shape == loaded.embedding.rows.shape
    assert first.embedding.dtype is torch.bfloat16
    for made, read in zip(first.layers, loaded.layers, strict=True):
        assert type(made.mlp) is type(read.mlp)
        assert made.qkv.weight.shape == read.qkv.weight.shape
    assert torch.equal(first.layers[2].qkv.weight, again.layers[2].qkv.weight)
    assert not torch.equal(first.layers[2].qkv.weight, other.layers[2].qkv.weight)
