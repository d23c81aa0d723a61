"""What a damaged, incomplete or unsupported model directory is answered with."""

import json

import huggingface_hub
import pytest
import torch
from model_configs import load_config
from safetensors.torch import load_file, save_file

from backend.engine.loading import load_engine
from backend.engine.model_files import resolve_model
from backend.executor.kv_cache import block_bytes
from backend.models.config import ModelLoadError
from backend.models.weights import load_weights
from backend.scheduler.request import GenerationRequest, SamplingParams

pytest_plugins = ["tiny_checkpoints"]

CPU = torch.device("cpu")


def refused(directory, **options):
    with pytest.raises(ModelLoadError) as caught:
        load_engine(str(directory), device="cpu", **options)
    message = str(caught.value)
    assert "\n" not in message
    return message


def change_tensors(directory, change):
    path = directory / "model.safetensors"
    tensors = load_file(path)
    change(tensors)
    save_file(tensors, path, {"format": "pt"})


async def first_tokens(directory):
    engine, _ = load_engine(str(directory), device="cpu")
    engine.start()
    sampling = SamplingParams(temperature=0.0, max_tokens=5, ignore_eos=True)
    deltas = engine.generate(GenerationRequest("r", (1, 2, 3), sampling))
    text = "".join([delta.text async for delta in deltas])
    engine.stop()
    return text


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"attention": "triton"}, "attention triton needs a CUDA device"),
        ({"attention": "torch", "kv_dtype": "fp8"}, "attention torch has none"),
    ],
    ids=str,
)
def test_attention_that_cannot_serve_is_refused(options, said):
    assert said in refused("./any", **options)


@pytest.mark.parametrize("model", ["/nowhere/at/all", "./missing", "a/b/c", "~/missing-model"])
def test_a_directory_that_does_not_exist(model):
    assert refused(model) == f"{model}: no such directory"


def test_weights_that_a_hub_has_twice_are_not_downloaded_twice(monkeypatch, tmp_path):
    asked = {}

    def download(_, **patterns):
        asked.update(patterns)
        return str(tmp_path)

    monkeypatch.setattr(huggingface_hub, "snapshot_download", download)
    assert resolve_model("someone/a-model") == tmp_path
    files = ["config.json", "model-00001-of-00002.safetensors", "1_Dense/model.safetensors"]
    files += ["tokenizer.json", "additional_chat_templates/tool_use.jinja"]
    copies = ["consolidated.safetensors", "consolidated-00001-of-00002.safetensors"]
    copies += ["original/model.safetensors", "metal/model.bin", "model.bin"]
    wanted = huggingface_hub.utils.filter_repo_objects([*files, *copies], **asked)
    assert list(wanted) == files


def test_a_hub_id_that_is_not_on_this_machine():
    """The hub is off in tests, so this is what a user without a network sees."""
    message = refused("nobody/has-this-model")
    assert message.startswith("nobody/has-this-model: no such directory, and the hub")


def test_a_file_in_place_of_a_directory(tmp_path):
    (tmp_path / "model").write_text("x")
    assert refused(tmp_path / "model").endswith("model: no such directory")


@pytest.mark.parametrize("name", ["config.json", "model.safetensors", "tokenizer.json"])
def test_a_missing_file_is_named(edited_checkpoint, name):
    directory = edited_checkpoint()
    (directory / name).unlink()
    assert refused(directory).startswith(f"{directory / name}: not found")


@pytest.mark.parametrize("name", ["config.json", "model.safetensors", "tokenizer.json"])
def test_a_damaged_file_is_named(edited_checkpoint, name):
    directory = edited_checkpoint()
    (directory / name).write_bytes(b"\x10\0\0\0\0\0\0\0 not what it should be")
    assert refused(directory).startswith(f"{directory / name}: ")


def test_a_truncated_weights_file_is_refused(edited_checkpoint):
    directory = edited_checkpoint()
    path = directory / "model.safetensors"
    path.write_bytes(path.read_bytes()[:-100])
    assert "damaged" in refused(directory)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"architectures": ["GPT2LMHeadModel"]}, "['GPT2LMHeadModel'] is not supported"),
        ({"architectures": None}, "architectures: [] is not supported"),
        ({"architectures": None, "model_type": "novel"}, "model type `novel`"),
        ({"architectures": ["T5Model"], "model_type": "t5"}, "encoder-decoders are not supported"),
        ({"hidden_act": "gelu"}, "hidden_act: 'gelu'"),
        ({"hidden_size": None}, "hidden_size is missing"),
        ({"hidden_size": "64"}, "hidden_size: expected int, got '64'"),
        ({"hidden_size": True}, "hidden_size: expected int, got True"),
        ({"num_hidden_layers": 0}, "num_hidden_layers: expected a positive number"),
        ({"num_key_value_heads": 3}, "do not share 3 KV heads"),
        ({"quantization_config": {"bits": 4}}, "quantization_config: quant_method: ''"),
        ({"rope_parameters": {"rope_type": "dynamic"}}, "rope_type: 'dynamic'"),
        ({"rope_parameters": {"rope_type": "linear"}}, "factor is missing"),
    ],
)
def test_a_config_that_cannot_be_served_names_key_and_reason(edited_checkpoint, changes, message):
    directory = edited_checkpoint(**changes)
    refusal = refused(directory)
    assert refusal.startswith(f"{directory / 'config.json'}: ")
    assert message in refusal


def test_a_missing_tensor_is_named(edited_checkpoint):
    directory = edited_checkpoint()
    change_tensors(directory, lambda tensors: tensors.pop("model.layers.1.mlp.up_proj.weight"))
    assert refused(directory).endswith("tensor model.layers.1.mlp.up_proj.weight is missing")


def test_a_tensor_of_the_wrong_shape_is_named(edited_checkpoint):
    directory = edited_checkpoint(intermediate_size=128)
    assert refused(directory).endswith(
        "model.safetensors: tensor model.layers.0.mlp.gate_proj.weight has shape [96, 64], "
        "config.json asks for [128, 64]"
    )


def test_a_tensor_of_integers_is_refused(edited_checkpoint):
    directory = edited_checkpoint()

    def quantise(tensors):
        tensors["model.norm.weight"] = torch.ones(64, dtype=torch.int8)

    change_tensors(directory, quantise)
    assert "model.norm.weight has dtype torch.int8" in refused(directory)


async def test_sharded_weights_load_like_a_single_file(checkpoint, edited_checkpoint):
    directory = edited_checkpoint()
    tensors = load_file(directory / "model.safetensors")
    (directory / "model.safetensors").unlink()
    weight_map = {}
    for number, names in enumerate((sorted(tensors)[::2], sorted(tensors)[1::2]), start=1):
        file = f"model-{number:05}-of-00002.safetensors"
        save_file({name: tensors[name] for name in names}, directory / file, {"format": "pt"})
        weight_map |= dict.fromkeys(names, file)
    index = directory / "model.safetensors.index.json"
    index.write_text(json.dumps({"metadata": {}, "weight_map": weight_map}))
    assert await first_tokens(directory) == await first_tokens(checkpoint("llama")[0])
    (directory / "model-00002-of-00002.safetensors").unlink()
    assert refused(directory) == f"{directory / file}: not found, of 2 shards"
    index.write_text("{}")
    assert refused(directory) == f"{index}: weight_map is missing"


async def test_rope_parameters_in_the_older_spelling(checkpoint, edited_checkpoint):
    source = checkpoint("llama")[0]
    scaling = dict(json.loads((source / "config.json").read_text())["rope_parameters"])
    theta = scaling.pop("rope_theta")
    directory = edited_checkpoint(rope_parameters=None, rope_theta=theta, rope_scaling=scaling)
    assert load_config(directory).rotary == load_config(source).rotary
    assert await first_tokens(directory) == await first_tokens(source)


def test_tied_embeddings_share_their_memory(checkpoint):
    directory, _ = checkpoint("qwen2")
    weights = load_weights(directory, load_config(directory), device=CPU, dtype=torch.float32)
    assert weights.head.weight.data_ptr() == weights.embedding.rows.data_ptr()


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"dtype": "int8"}, "dtype int8: expected auto or one of float32, bfloat16, float16"),
        ({"max_num_seqs": 0}, "max-num-seqs must be at least 1, got 0"),
        ({"max_model_len": 257}, "max-model-len 257: the model's context is 256 tokens"),
        ({"max_model_len": 0}, "max-model-len 0: the model's context is 256 tokens"),
        ({"kv_bytes": 10}, "no memory for one KV block of"),
    ],
)
def test_options_that_contradict_model_or_memory(checkpoint, options, message):
    assert message in refused(checkpoint("llama")[0], **options)


def test_the_context_shrinks_to_what_the_pool_holds(checkpoint):
    directory, _ = checkpoint("llama")
    per_block = block_bytes(load_config(directory), torch.float32)
    engine, _ = load_engine(str(directory), device="cpu", kv_bytes=5 * per_block + 1)
    assert engine.max_model_len == 80
    assert engine.stats().kv_blocks_total == 5


def test_the_default_pool_holds_every_sequence_at_full_length(checkpoint):
    engine, _ = load_engine(str(checkpoint("llama")[0]), device="cpu", max_num_seqs=3)
    assert engine.max_model_len == 256
    assert engine.stats().kv_blocks_total == 3 * 256 / 16
