"""Weights in four and eight bits compute what their dequantised matrices compute."""

import json
import math
import shutil
from dataclasses import replace
from pathlib import Path

import pytest
import quantized_checkpoints
import torch
from model_configs import load_config
from quantized_checkpoints import LAYOUTS, compressed_tensors, quantize_checkpoint
from safetensors.torch import load_file, save_file

from backend.engine.loading import load_engine
from backend.executor.kv_cache import KVCache
from backend.models import checkpoint as checkpoint_files
from backend.models.checkpoint import Checkpoint
from backend.models.config import ModelLoadError, read_json
from backend.models.dtypes import compute_dtype, kv_cache_dtype
from backend.models.families import parse_config
from backend.models.layers import TorchOperations
from backend.models.loading import load_network
from backend.models.quantization import linears
from backend.models.quantization.formats import checkpoint_format
from backend.models.quantization.linears import (
    BFloat16Linear,
    Int8Linear,
    KernelLinear,
    quantized_embedding,
    quantized_linear,
)
from backend.models.quantization.weight import QuantizedWeight, quantize
from backend.models.weights import load_weights, random_weights
from backend.scheduler.request import GenerationRequest, SamplingParams

pytest_plugins = ["tiny_checkpoints", "interpreter"]

CPU = torch.device("cpu")
ROOT = Path(__file__).parents[2]
DEMO = str(ROOT / "backend/demo/model")
README = ROOT / "README.md"


@pytest.fixture
def packed(checkpoint, tmp_path):
    """Return a quantised checkpoint and a plain one of what its matrices are worth."""

    def make(family, layout):
        directory = tmp_path / family
        shutil.copytree(checkpoint(family)[0], directory)
        return directory, quantize_checkpoint(directory, layout)

    return make


def loaded(directory, **options):
    config = load_config(directory)
    return load_weights(directory, config, device=CPU, dtype=torch.float32, **options)


def noise(*shape, seed=0):
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed))


def error(result, expected):
    return ((result - expected).norm() / expected.norm()).item()


def refused(directory, **options):
    with pytest.raises(ModelLoadError) as caught:
        load_network(directory, device=CPU, dtype="float32", **options)
    return str(caught.value)


@pytest.mark.parametrize("layout", LAYOUTS)
def test_every_matrix_of_a_layout_is_read_to_the_bit(packed, layout):
    directory, plain = packed("llama", layout)
    held = checkpoint_format(read_json(directory / "config.json"), "config.json")
    tensors, expected = Checkpoint(directory), load_file(plain / "model.safetensors")
    names = [name for name in expected if held.holds(tensors, name.removesuffix(".weight"))]
    assert len(names) == 3 * 7
    for name in names:
        matrix = expected[name]
        read = held.read(tensors, name.removesuffix(".weight"), tuple(matrix.shape))
        torch.testing.assert_close(read.dequantized(), matrix, rtol=1e-6, atol=1e-7)


@pytest.mark.parametrize("layout", LAYOUTS)
def test_fused_and_reordered_matrices_compute_as_the_plain_ones(packed, layout):
    """On CPU all are int8 with a scale for each row, which costs another half per cent."""
    directory, plain = packed("qwen2", layout)
    for ours, theirs in zip(loaded(directory).layers, loaded(plain).layers, strict=True):
        for name in ("qkv", "output"):
            linear, expected = getattr(ours, name), getattr(theirs, name)
            rows = noise(5, expected.weight.shape[1])
            assert error(linear(rows), expected(rows)) < 0.012
        rows = noise(5, 64)
        computed = ours.mlp(rows, TorchOperations())
        assert error(computed, theirs.mlp(rows, TorchOperations())) < 0.02


@pytest.mark.parametrize("layout", LAYOUTS)
def test_on_cuda_every_layout_computes_through_the_kernel(packed, interpreter, layout):
    directory, plain = packed("llama", layout)
    held = checkpoint_format(read_json(directory / "config.json"), "config.json")
    tensors, expected = Checkpoint(directory), load_file(plain / "model.safetensors")
    names = [f"model.layers.0.mlp.{name}_proj" for name in ("gate", "up")]
    matrix = torch.cat([expected[f"{name}.weight"] for name in names])
    weight = QuantizedWeight.join([held.read(tensors, name, (96, 64)) for name in names])
    rows, bias, order = noise(3, 64), noise(192, seed=2), torch.randperm(192)
    is_fp8 = weight.codes.dtype is torch.float8_e4m3fn
    weight = weight.take(order)
    in_bytes = replace(weight, codes=weight.codes.view(torch.int8))
    result = interpreter("kernel_cases:kernel_linear", in_bytes, bias, rows, fp8=is_fp8)
    assert error(result, rows @ matrix[order].t() + bias) < 1e-5


@pytest.mark.parametrize("has_bias", [False, True])
def test_a_product_in_fp8_is_two_launches_with_a_scale_for_each_row_of_both(interpreter, has_bias):
    """PyTorch multiplies in FP8 on CPU too, so the way that CUDA takes is tested here."""
    rows = noise(5, 64, seed=1).half()
    rows[2] *= 1000
    bias = noise(48, seed=2).half() if has_bias else None
    result, launches, weight = interpreter(
        "interpreted_float8:float8_linear", noise(48, 64), bias, rows
    )
    assert launches == ["_quantize_rows", "_scaled_mm"]
    assert result.dtype is torch.float16
    expected = rows.float() @ weight.t() + (bias if has_bias else 0)
    for got, row in zip(result.float(), expected, strict=True):
        assert error(got, row) < 0.04


@pytest.mark.parametrize("family", ["phi3", "mixtral"])
def test_checkpoints_with_fused_matrices_and_experts(packed, checkpoint, family, tmp_path):
    if family == "phi3":
        weights, plain = loaded(checkpoint(family)[0], int8=True), loaded(checkpoint(family)[0])
    else:
        directory, dense = packed(family, "awq")
        weights, plain = loaded(directory), loaded(dense)
    rows = noise(7, plain.embedding.rows.shape[1])
    for ours, theirs in zip(weights.layers, plain.layers, strict=True):
        expected = theirs.mlp(rows, TorchOperations())
        assert error(ours.mlp(rows, TorchOperations()), expected) < 0.03
        assert error(ours.qkv(rows), theirs.qkv(rows)) < 0.012


def test_a_row_of_int8_depends_on_no_other_row():
    linear = Int8Linear(quantize(noise(48, 64)), noise(48))
    rows = noise(9, 64, seed=1)
    rows[4] *= 1000
    alone = torch.cat([linear(row.unsqueeze(0)) for row in rows])
    assert torch.equal(linear(rows), alone)


@pytest.mark.parametrize("kind", [Int8Linear, BFloat16Linear])
def test_activations_keep_more_than_eight_bits(kind):
    """One large value in a row is what makes activations of eight bits useless."""
    weight = quantize(noise(48, 64))
    rows = noise(9, 64, seed=1)
    rows[:, 7] *= 100
    bias = noise(48, seed=2)
    expected = rows @ weight.dequantized().t() + bias
    assert error(kind(weight, bias)(rows), expected) < (5e-4 if kind is Int8Linear else 8e-3)


@pytest.mark.parametrize("value", [torch.nan, torch.inf])
def test_what_is_not_finite_shows_in_its_row_alone(value):
    linear = Int8Linear(quantize(noise(48, 64)), None)
    rows = noise(3, 64)
    rows[1, 5] = value
    finite = torch.isfinite(linear(rows)).all(dim=1)
    assert finite.tolist() == [True, False, True]


def test_rows_of_nothing_but_zeros():
    weight = noise(48, 64)
    weight[3] = 0
    result = Int8Linear(quantize(weight), None)(torch.cat((torch.zeros(1, 64), noise(1, 64))))
    assert torch.isfinite(result).all()
    assert result[0].eq(0).all()
    assert result[1, 3] == 0


def test_a_cpu_without_products_of_bytes_computes_in_bfloat16(monkeypatch):
    monkeypatch.setattr(torch.cpu, "_is_vnni_supported", lambda: False)
    linear = quantized_linear(quantize(noise(48, 64)), None, torch.float32)
    assert isinstance(linear, BFloat16Linear)


def test_joined_rows_keep_their_own_scales_and_zeros():
    first = QuantizedWeight(torch.ones(2, 4, dtype=torch.int8), torch.full((2, 1), 2.0), None, 4)
    zeros = torch.full((1, 1), 3.0)
    second = QuantizedWeight(torch.ones(1, 4, dtype=torch.int8), torch.ones(1, 1), zeros, 4)
    joined = QuantizedWeight.join([first, second]).take(torch.tensor([2, 0, 1]))
    assert joined.dequantized()[:, 0].tolist() == [-2.0, 2.0, 2.0]


def test_int8_takes_a_quarter_of_float32_and_half_of_bfloat16():
    config = load_config_of_a_large_layer()
    quantised = random_weights(config, device=CPU, dtype=torch.float32, int8=True).num_bytes
    for dtype, share in ((torch.float32, 0.26), (torch.bfloat16, 0.51)):
        assert quantised < share * random_weights(config, device=CPU, dtype=dtype).num_bytes


@pytest.mark.parametrize("kind", [Int8Linear, BFloat16Linear, KernelLinear])
@pytest.mark.parametrize("shape", [(300, 96), (64, 128), (1, 64)])
def test_a_tied_embedding_has_no_memory_beside_the_head(kind, shape):
    if kind is KernelLinear:
        pytest.importorskip("triton", reason="Triton is not installed")
    weight = quantize(noise(*shape))
    tokens = torch.randint(shape[0], (7,))
    shared = quantized_embedding(weight, torch.float32, kind(weight, None))
    assert torch.equal(shared(tokens), weight.dequantized()[tokens])
    assert shared.num_bytes == 0
    alone = quantized_embedding(weight, torch.float32)
    assert torch.equal(alone(tokens), shared(tokens))
    assert alone.num_bytes == shape[0] * (shape[1] + 4)


def test_a_packed_matrix_that_lies_otherwise_is_held_twice(monkeypatch):
    monkeypatch.setattr(linears, "_panels", lambda packed, codes: None)
    weight = quantize(noise(300, 96))
    embedding = quantized_embedding(weight, torch.float32, Int8Linear(weight, None))
    assert embedding.num_bytes == 300 * 100
    assert torch.equal(embedding(torch.tensor([299])), weight.dequantized()[299:])


def load_config_of_a_large_layer():
    shape = {
        "architectures": ["Qwen3ForCausalLM"],
        "vocab_size": 1024,
        "hidden_size": 512,
        "intermediate_size": 8192,
        "num_hidden_layers": 1,
        "num_attention_heads": 16,
        "num_key_value_heads": 8,
        "max_position_embeddings": 64,
    }
    return parse_config(shape, "config.json")


async def nats_for_a_token(text, **options):
    engine, tokenizer = load_engine(DEMO, device="cpu", **options)
    engine.start()
    try:
        tokens = tuple(tokenizer.encode(text))
        sampling = SamplingParams(temperature=0.0, max_tokens=1, prompt_logprobs=1, logprobs=1)
        request = GenerationRequest("r", tokens, sampling, stream=False)
        (delta,) = [delta async for delta in engine.generate(request)]
        logprobs = [each.logprob for each in delta.prompt_logprobs]
        return -sum(logprobs) / len(logprobs)
    finally:
        engine.stop()


async def test_the_demo_model_keeps_its_perplexity_within_one_per_cent():
    text = README.read_text(encoding="utf-8")[:4000]
    plain = await nats_for_a_token(text)
    quantised = await nats_for_a_token(text, quantization="int8")
    assert math.exp(abs(quantised - plain)) < 1.01


@pytest.mark.parametrize(
    ("config", "message"),
    [
        ({"quant_method": "bitsandbytes"}, "quant_method: 'bitsandbytes' is not supported"),
        ({"quant_method": "gptq", "bits": 3}, "bits: 3 is not supported, 4 and 8 bits are"),
        ({"quant_method": "gptq", "bits": 4, "group_size": 24}, "group_size: 24 is not supported"),
        ({"quant_method": "gptq", "bits": 4, "checkpoint_format": "marlin"}, "'marlin' is not"),
        ({"quant_method": "awq", "bits": 4, "version": "gemv"}, "version: 'gemv' is not supported"),
        ({"quant_method": "fp8", "weight_block_size": [128, 100]}, "block: expected rows and"),
        (
            compressed_tensors("tensor") | {"transform_config": {"config_groups": {"R1": {}}}},
            "transform_config: transforms of weights are not supported",
        ),
        (compressed_tensors("group"), "strategy: 'group' is not supported"),
        (compressed_tensors("tensor", num_bits=4), "num_bits: 4 is not supported, 8 bits are"),
        (compressed_tensors("tensor", symmetric=False), "symmetric: false is not supported"),
        (compressed_tensors("tensor", kind="nvfp4-pack"), "format: 'nvfp4-pack-quantized' is not"),
        ({"quant_method": "compressed-tensors", "format": "float-quantized"}, "config_groups"),
        ([], "quantization_config: expected an object"),
    ],
)
def test_other_layouts_are_refused_by_file_and_key(edited_checkpoint, config, message):
    directory = edited_checkpoint(quantization_config=config)
    refusal = refused(directory)
    assert refusal.startswith(f"{directory / 'config.json'}: quantization_config: ")
    assert message in refusal


def test_plain_tensors_under_a_config_of_quantised_ones_are_refused(edited_checkpoint):
    directory = edited_checkpoint(quantization_config=LAYOUTS["awq"][1])
    assert refused(directory) == (
        f"{directory / 'config.json'}: quantization_config: none of the tensors are quantised"
    )


@pytest.mark.parametrize("layout", ["gptq", "gptq of 8 bits"])
def test_room_is_asked_for_as_many_bytes_as_codes_become(packed, monkeypatch, layout):
    """On CPU a code of four bits takes a byte."""
    directory, plain = packed("llama", layout)
    tensors = load_file(plain / "model.safetensors")
    codes = sum(each.numel() for name, each in tensors.items() if "_proj" in name)
    others = sum(4 * each.numel() for name, each in tensors.items() if "_proj" not in name)
    monkeypatch.setattr(checkpoint_files, "_room", lambda device: codes + others)
    assert "the weights take 0.0 GiB" in refused(directory)
    monkeypatch.setattr(checkpoint_files, "_room", lambda device: 1.5 * (codes + others))
    load_network(directory, device=CPU, dtype="float32")


class Held:
    """A checkpoint of the tensors of one matrix."""

    source = "model.safetensors"

    def __init__(self, tensors):
        self._tensors = {f"m.{name}": tensor for name, tensor in tensors.items()}

    def has(self, name):
        return name in self._tensors

    def read(self, name, shapes, dtypes):
        assert self._tensors[name].dtype in dtypes
        return self._tensors[name]

    def read_part(self, name, part, dtypes):
        read = self.read(name, (part.shape,), dtypes)
        assert read.shape == part.shape
        return read[tuple(slice(*span) for span in part.at)]


@pytest.mark.parametrize("bits", [4, 8])
def test_zero_points_of_0_borrow_from_their_neighbours_in_a_word(bits):
    """Rows without negative numbers have a zero point of 0, which GPTQ's first version wraps."""
    weight = noise(64, 64).abs()
    weight[::3] -= 1.5
    tensors, worth = quantized_checkpoints.gptq(weight, bits=bits)
    config = {"quant_method": "gptq", "bits": bits, "group_size": 32}
    held = checkpoint_format({"quantization_config": config}, "config.json")
    read = held.read(Held(tensors), "m", (64, 64)).dequantized()
    torch.testing.assert_close(read, worth, rtol=1e-6, atol=1e-7)


def test_an_order_of_columns_that_is_not_told_is_refused():
    tensors, _ = quantized_checkpoints.gptq(noise(64, 64))
    del tensors["g_idx"]
    config = {"quant_method": "gptq", "bits": 4, "group_size": 32, "desc_act": True}
    held = checkpoint_format({"quantization_config": config}, "config.json")
    with pytest.raises(ModelLoadError, match=r"m\.g_idx is missing, and columns are in order"):
        held.read(Held(tensors), "m", (64, 64))


def test_one_scale_of_fp8_may_have_the_name_that_transformers_writes():
    codes = noise(64, 64).to(torch.float8_e4m3fn)
    held = checkpoint_format({"quantization_config": {"quant_method": "fp8"}}, "config.json")
    tensors = Held({"weight": codes, "weight_scale_inv": torch.tensor(0.5)})
    read = held.read(tensors, "m", (64, 64)).dequantized()
    torch.testing.assert_close(read, codes.float() * 0.5)


def test_rows_that_do_not_fill_words_are_named():
    config = {"quant_method": "gptq", "bits": 4, "group_size": 32}
    held = checkpoint_format({"quantization_config": config}, "config.json")
    with pytest.raises(ModelLoadError, match="tensor m: 60 rows do not fill words"):
        held.read(Held({}), "m", (60, 64))


def test_columns_in_order_of_activation_are_refused_by_name(packed):
    directory, _ = packed("llama", "gptq")
    change_tensor(directory, "model.layers.0.self_attn.q_proj.g_idx", lambda order: order.flip(0))
    assert "q_proj.g_idx: columns in order of activation (desc_act)" in refused(directory)


@pytest.mark.parametrize(
    ("layout", "suffix", "change", "message"),
    [
        ("awq", "qweight", lambda each: each[:, :-1].contiguous(), "has shape"),
        ("awq", "scales", lambda each: each.fill_(torch.inf), "has values that are not finite"),
        ("gptq", "qzeros", lambda each: each.long(), "has dtype torch.int64, expected torch.int32"),
        ("fp8 per channel", "weight_scale", lambda each: each[1:].clone(), "has shape"),
        (
            "fp8 per tensor",
            "weight",
            lambda each: each.view(torch.uint8).fill_(0x7F).view(each.dtype),
            "has values that are not finite",
        ),
    ],
)
def test_a_damaged_tensor_is_named(packed, layout, suffix, change, message):
    directory, _ = packed("llama", layout)
    change_tensor(directory, f"model.layers.1.mlp.down_proj.{suffix}", change)
    refusal = refused(directory)
    assert f"{directory / 'model.safetensors'}: tensor model.layers.1.mlp.down_proj" in refusal
    assert message in refusal


def change_tensor(directory, name, change):
    tensors = load_file(directory / "model.safetensors")
    add_tensors(directory, {name: change(tensors[name])})


def test_scales_of_kv_in_fp8_come_from_the_checkpoint(packed, caplog):
    directory, _ = packed("llama", "fp8 per tensor")
    attention, config = "model.layers.1.self_attn.", load_config(directory)
    add_tensors(
        directory,
        {
            f"{attention}k_scale": torch.tensor(0.5),
            f"{attention}v_scale": torch.full((config.num_kv_heads, 1, 1), 0.25),
        },
    )
    weights = loaded(directory)
    cache = KVCache(config, 2, device=CPU, dtype=torch.float8_e4m3fn)
    cache.set_scales(layer.kv_scales for layer in weights.layers)
    heads = config.num_kv_heads
    assert cache.layers[0].scales.tolist() == [1.0] * 2 * heads
    assert cache.layers[1].scales.tolist() == [0.5] * heads + [0.25] * heads
    assert "not used" not in caplog.text
    add_tensors(directory, {f"{attention}v_scale": torch.tensor([-1.0])})
    assert refused(directory).endswith(f"tensor {attention}v_scale is not above 0")


def add_tensors(directory, tensors):
    path = directory / "model.safetensors"
    save_file(load_file(path) | tensors, path)


def test_int8_of_what_is_quantised_already_is_refused(packed):
    directory, _ = packed("llama", "awq")
    assert refused(directory, quantization="int8").endswith(
        "config.json: quantization int8: it is quantised already"
    )
    assert refused(directory, quantization="int3") == "quantization int3: expected int8"


def test_int8_of_a_model_that_transformers_computes_is_refused(checkpoint):
    directory, _ = checkpoint("gpt2")
    assert "quantization int8 is supported for Llama" in refused(directory, quantization="int8")


def test_kv_in_eight_bits_is_another_type_on_each_device(monkeypatch):
    cuda = torch.device("cuda")
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda _: (8, 9))
    assert kv_cache_dtype("auto", torch.bfloat16, cuda) is torch.bfloat16
    assert kv_cache_dtype("int8", torch.float32, CPU) is torch.int8
    assert kv_cache_dtype("fp8", torch.bfloat16, cuda) is torch.float8_e4m3fn
    for name, device in (("fp8", CPU), ("int8", cuda), ("int4", CPU)):
        with pytest.raises(ModelLoadError, match=f"kv-dtype {name}"):
            kv_cache_dtype(name, torch.float32, device)


def test_kv_in_fp8_is_refused_on_gpus_that_do_not_convert_it(monkeypatch):
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda _: (8, 6))
    with pytest.raises(ModelLoadError, match=r"kv-dtype fp8 needs .* 8\.9 or above, cuda has 8\.6"):
        kv_cache_dtype("fp8", torch.bfloat16, torch.device("cuda"))


def test_float32_checkpoints_are_cast_on_cuda_with_a_line_in_the_log(caplog):
    cuda = torch.device("cuda")
    with caplog.at_level("INFO"):
        assert compute_dtype("auto", "float32", cuda) is torch.bfloat16
    assert "--dtype float32 keeps it" in caplog.text
    assert compute_dtype("float32", "float32", cuda) is torch.float32
    assert compute_dtype("auto", "float16", cuda) is torch.float16
    assert compute_dtype("auto", "bfloat16", CPU) is torch.float32


def test_two_loads_are_one_model(packed):
    directory, _ = packed("qwen3", "gptq")
    rows = noise(3, 64)
    first, second = loaded(directory), loaded(directory)
    assert torch.equal(first.layers[0].qkv(rows), second.layers[0].qkv(rows))
    assert json.loads((directory / "config.json").read_text())["quantization_config"]
